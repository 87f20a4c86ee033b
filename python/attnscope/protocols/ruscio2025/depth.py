# SPDX-License-Identifier: MIT
"""How a number changes with depth, as the Laplacian notebook reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LOWEST_DENSITY, HIGHEST_DENSITY = 0.05, 0.95
EVERY = 4


class MiddlePeak(NamedTuple):
    """Means over the thirds of the layers, whether the middle one is the largest, and by what factor."""

    early: float
    middle: float
    late: float
    peak: bool
    factor: float


def middle_peak(values: Sequence[float]) -> MiddlePeak:
    """Whether a number is larger in the middle third of the layers than in both others.

    factor = min(middle/early, middle/late); thirds are cut at L//3 and 2L//3.

    Args:
        values: one number per layer, from the first.

    Returns:
        MiddlePeak; NaN and False for fewer than three layers.

    Raises:
        ValueError: no value.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.middle_peak([1.0, 1.0, 3.0, 3.0, 2.0, 2.0])
        MiddlePeak(early=1.0, middle=3.0, late=2.0, peak=True, factor=1.5)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Laplacian notebook.
    """
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or given.size == 0:
        raise ValueError(f"ruscio2025.middle_peak: values must be a list of numbers, got shape {given.shape}")
    if given.size < 3:
        return MiddlePeak(math.nan, math.nan, math.nan, False, math.nan)
    cuts = given.size // 3, 2 * given.size // 3
    early, middle, late = (float(part.mean()) for part in np.split(given, cuts))
    ratios = [middle / other if other != 0 else math.inf for other in (early, late)]
    return MiddlePeak(early, middle, late, middle > early and middle > late, min(ratios))


def reported_layers(density: Sequence[float]) -> list[int]:
    """The layers that the notebook reports: density within [0.05, 0.95], or a number divisible by four.

    Quirk: which layers a published mean is over depends on the threshold and the sentence.

    Args:
        density: of the graph of each layer, from the first.

    Returns:
        Ascending layer numbers.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.reported_layers([0.01, 0.3, 0.99, 0.95, 1.0, 1.0])
        [0, 1, 3, 4]
    """
    return [
        layer
        for layer, value in enumerate(density)
        if LOWEST_DENSITY <= value <= HIGHEST_DENSITY or layer % EVERY == 0
    ]


def fiedler_correlations(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Pearson's r over layers of the layer means of λ2 with those of the other statistics.

    Args:
        columns: `fiedler_value` and others by name, one mean per layer each.

    Returns:
        r by name, NaN for fewer than three layers or without variance.

    Raises:
        ValueError: no `fiedler_value`.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.fiedler_correlations({"fiedler_value": [1.0, 2.0, 3.0], "gini": [0.3, 0.2, 0.1]})
        {'gini': -1.0}
    """
    if "fiedler_value" not in columns:
        raise ValueError(
            f"ruscio2025.fiedler_correlations: columns must hold 'fiedler_value', got {', '.join(columns)}"
        )
    fiedler = np.asarray(columns["fiedler_value"], dtype=np.float64)
    found = {}
    for name, values in columns.items():
        if name == "fiedler_value":
            continue
        other = np.asarray(values, dtype=np.float64)
        defined = len(fiedler) >= 3 and np.ptp(fiedler) > 0 and np.ptp(other) > 0
        found[name] = round(float(np.corrcoef(fiedler, other)[0, 1]), 12) if defined else math.nan
    return found
