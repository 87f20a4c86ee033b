# SPDX-License-Identifier: MIT
"""Correlation over texts, and the layer and mode where it is largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnscope.arguments.number_lists import number_array

#: Added to the product of standard deviations, as torchmetrics does.
EPSILON = 1e-6


class BestLayer(NamedTuple):
    """The layer and mode of the largest correlation.

    Attributes:
        layer: its number; −1 without one.
        mode: its name.
        rho: the correlation.
    """

    layer: int
    mode: str
    rho: float


def correlation(x: Any, y: Any) -> float:
    """Spearman's correlation in float32, with 1e-6 added to what divides.

    Differs from the exact one, `statistics.correlation`, by that: for ranks of many texts by less than 1e-6.
    No covariate is held: number of tokens and length of the word act on both.

    Args:
        x: one number a text.
        y: the same texts.

    Example:
        >>> from attnscope.protocols import ruscio2023
        >>> round(ruscio2023.correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]), 4)
        0.8

    References:
        Spearman, The proof and measurement of association between two things, 1904.
    """
    from scipy import stats

    first, second = (
        stats.rankdata(number_array("ruscio2023.correlation", name, values)).astype(np.float32)
        for name, values in (("x", x), ("y", y))
    )
    if len(first) != len(second):
        raise ValueError(
            f"ruscio2023.correlation: both must hold the same texts, got {len(first)} and {len(second)}"
        )
    if not len(first):
        return math.nan
    first, second = first - first.mean(), second - second.mean()
    size = np.sqrt(np.square(first).mean()) * np.sqrt(np.square(second).mean())
    return float(np.clip((first * second).mean() / (size + np.float32(EPSILON)), -1, 1))


def best_layers(
    correlations: Any, probabilities: Any, real_probability: float, modes: Sequence[str]
) -> BestLayer:
    """Return the largest correlation over layers and over the modes that make the word less probable.

    Differs from an honest choice: it is chosen and reported on the same texts.

    Args:
        correlations: by layer and mode [L, M]; NaN does not count.
        probabilities: mean probability of the word by mode [M].
        real_probability: of the word as it stands.
        modes: their names.

    Example:
        >>> from attnscope.protocols import ruscio2023
        >>> ruscio2023.best_layers([[0.1, 0.9], [0.4, 0.8]], [0.2, 0.99], 0.7, ["low", "highest"])
        BestLayer(layer=1, mode='low', rho=0.4)
    """
    values = number_array("ruscio2023.best_layers", "correlations", correlations)
    chances = number_array("ruscio2023.best_layers", "probabilities", probabilities)
    if values.ndim != 2 or values.shape[1] != len(modes) or chances.shape != (len(modes),):
        raise ValueError(
            f"ruscio2023.best_layers: correlations must have shape [L, {len(modes)}] of {len(modes)} modes, "
            f"got {values.shape}"
        )
    counted = values[:, chances < real_probability]
    names = [mode for mode, p in zip(modes, chances, strict=True) if p < real_probability]
    if not np.isfinite(counted).any():
        return BestLayer(-1, "", math.nan)
    layer, mode = np.unravel_index(np.nanargmax(counted), counted.shape)
    return BestLayer(int(layer), names[mode], float(counted[layer, mode]))
