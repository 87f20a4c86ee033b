# SPDX-License-Identifier: MIT
"""The change of a number with depth, as the Laplacian and the Fisher notebook read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnscope.arguments.number_lists import number_array

WINDOW = 3


class MiddlePeak(NamedTuple):
    """Means over the thirds of the layers; `peak` is True if the middle mean is the largest, by `factor`."""

    early: float
    middle: float
    late: float
    peak: bool
    factor: float


def middle_peak(values: Sequence[float]) -> MiddlePeak:
    """Compare a number's mean in the middle third of the layers with both others (Laplacian notebook).

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
    layer_values = _layers("middle_peak", values)
    if layer_values.size < 3:
        return MiddlePeak(math.nan, math.nan, math.nan, False, math.nan)
    cuts = layer_values.size // 3, 2 * layer_values.size // 3
    early, middle, late = (float(part.mean()) for part in np.split(layer_values, cuts))
    ratios = [middle / other if other != 0 else math.inf for other in (early, late)]
    return MiddlePeak(early, middle, late, middle > early and middle > late, min(ratios))


def reported_layers(density: Sequence[float]) -> list[int]:
    """Return the layers that the Laplacian notebook reports: density within [0.05, 0.95], or every fourth.

    Quirk: which layers a published mean is over depends on the threshold and the sentence.

    Args:
        density: of the graph of each layer, from the first.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.reported_layers([0.01, 0.3, 0.99, 0.95, 1.0, 1.0])
        [0, 1, 3, 4]
    """
    return [layer for layer, value in enumerate(density) if 0.05 <= value <= 0.95 or layer % 4 == 0]


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
    layer_means = {
        name: number_array("ruscio2025.fiedler_correlations", name, values)
        for name, values in columns.items()
    }
    fiedler = layer_means.pop("fiedler_value")
    varies = len(fiedler) >= 3 and np.ptp(fiedler) > 0
    return {
        name: round(float(np.corrcoef(fiedler, other)[0, 1]), 12)
        if varies and np.ptp(other) > 0
        else math.nan
        for name, other in layer_means.items()
    }


class DepthTrend(NamedTuple):
    """Correlation of a number with depth, and its mean over a window of three layers."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    smoothed: list[float]


def depth_trend(values: Sequence[float]) -> DepthTrend:
    """Correlation of a number per layer with depth, and its moving mean, as in the Fisher notebook.

    The numbers are as `middle_peak` takes them.

    Returns:
        DepthTrend; correlations are NaN for fewer than three layers or without variance; `smoothed` has
        two entries fewer than `values`.

    Raises:
        ValueError: no value.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> trend = ruscio2025.depth_trend([1.0, 2.0, 4.0, 8.0])
        >>> round(trend.pearson, 3), trend.spearman, [round(v, 3) for v in trend.smoothed]
        (0.959, 1.0, [2.333, 4.667])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Fisher notebook.
    """
    from scipy import stats

    layer_values = _layers("depth_trend", values)
    window = np.ones(WINDOW) / WINDOW
    smoothed = np.convolve(layer_values, window, mode="valid").tolist() if layer_values.size >= WINDOW else []
    if layer_values.size < 3 or not np.isfinite(layer_values).all() or np.ptp(layer_values) == 0:
        return DepthTrend(np.nan, np.nan, np.nan, np.nan, smoothed)
    depth = np.arange(layer_values.size)
    r, p = stats.pearsonr(depth, layer_values)
    rho, q = stats.spearmanr(depth, layer_values)
    return DepthTrend(float(r), float(p), float(rho), float(q), smoothed)


def _layers(function: str, values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return one number per layer."""
    layer_values = number_array(f"ruscio2025.{function}", "values", values)
    if layer_values.ndim != 1 or layer_values.size == 0:
        raise ValueError(
            f"ruscio2025.{function}: values must be a list of numbers, got shape {layer_values.shape}"
        )
    return layer_values
