# SPDX-License-Identifier: MIT
"""Bootstrap intervals of many means over the same samples at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnscope.arguments.number_lists import number_array
from attnscope.arguments.scalars import flag
from attnscope.statistics._arguments import Vector, check_draws
from attnscope.statistics.intervals import FEWEST
from attnscope.statistics.resamples import (
    COUNTED,
    ROUNDED,
    all_draws,
    counts_of,
    least_chance,
    quantiles_by_chance,
)
from attnscope.statistics.rounding import least_spread, varies


def mean_intervals(
    values: Any, *, confidence: float = 0.95, draws: int = 2000, seed: int = 0, together: bool = False
) -> tuple[Vector, Vector]:
    """Return bootstrap intervals of many means over the same samples, which all are drawn from the same
    draws.

    Each is that of `bootstrap`, of the same draws and but for rounding: studentised, none below five samples.
    With `together` the chance that all of them cover is the asked one (max-T: the largest deviation of any
    mean in units of its standard error), so that the interval of the largest mean allows for its choice.
    Equal samples still give an interval of no width, which misses where they are equal by chance: m·Σ p^n of
    m means at most (p: chance of a value that is not the mean). For five samples of three equally likely
    values it is .12 with 16 means and .24 with 32, of eight .01. Numbers of few values want ten
    samples or more, as figures and reports ask for.

    Args:
        values: [means, samples]; what is not finite is left out, with `together` the sample is left out
            everywhere.
        confidence: in (0, 1).
        draws: drawings of samples with replacement; of up to eight samples all are counted, as `bootstrap`
            does.
        seed: of the draws.
        together: whether the intervals are to hold at once.

    Returns:
        Lower and upper ends, float64 [means]; NaN below five samples and where `bootstrap` has none; where
        all samples are equal they are the mean.

    Raises:
        ValueError: values that are no matrix, confidence outside (0, 1), draws below 1.

    Example:
        >>> from attnscope import statistics
        >>> low, high = statistics.mean_intervals([[2.0] * 5, [1.0, 2.0, float("nan"), 3.0, 4.0]])
        >>> low.tolist(), high.tolist()
        ([2.0, nan], [2.0, nan])

    References:
        Hall, Theoretical comparison of bootstrap confidence intervals, 1988. Westfall and Young,
        Resampling-based multiple testing, 1993 (max-T).
    """
    data = number_array("mean_intervals", "values", values)
    if data.ndim != 2:
        raise ValueError(f"mean_intervals: values must be [means, samples], got shape {data.shape}")
    confidence, draws, seed = check_draws("mean_intervals", confidence, draws, seed)
    low, high = np.full(len(data), math.nan), np.full(len(data), math.nan)
    defined: Any = np.isfinite(data)
    together = flag("mean_intervals", "together", together)
    if together:
        has_values = defined.any(axis=1, keepdims=True)
        defined = np.logical_and(has_values, (defined | ~has_values).all(axis=0))
    patterns, which = np.unique(defined, axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        n = int(pattern.sum())
        if n < FEWEST:
            continue
        rows = np.flatnonzero(which.ravel() == index)
        values_of_pattern = data[np.ix_(rows, np.flatnonzero(pattern))]
        chances = None
        if n <= COUNTED:
            places, chances = all_draws(n)
        else:  # the draws of `bootstrap`, so that one mean has one interval
            places = np.random.default_rng(seed).integers(0, n, (draws, n))
        weights = counts_of(places) / n
        # as many rows at a time as the processor's cache holds
        parts = [slice(None)] if together else [slice(at, at + 256) for at in range(0, len(rows), 256)]
        for part in parts:
            low[rows[part]], high[rows[part]] = _of_means(
                values_of_pattern[part], weights, chances, confidence, together
            )
    return low, high


def _of_means(
    data: Vector, weights: Vector, chances: Vector | None, confidence: float, together: bool
) -> tuple[Vector, Vector]:
    """Return the end of the intervals of rows that have all their samples, from the shares of the drawn
    samples and the chances of the draws, None where all have one.
    """
    n = data.shape[1]
    tail = (1 - confidence) / 2
    mean = data.mean(axis=1, keepdims=True)
    rest = data - mean
    scale = np.abs(rest).max(axis=1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    fixed = ~varies(data, axis=1)
    rest = np.where(fixed[:, None], 0.0, rest / scale)
    drawn = rest @ weights.T
    variance = np.maximum((rest**2) @ weights.T - drawn**2, 0.0) * n / (n - 1)
    # a draw that repeats one value only, but for rounding, has no standard error
    has_spread = variance > (least_spread(data, axis=1)[:, None] / scale) ** 2
    t = np.where(has_spread, drawn / np.sqrt(np.where(has_spread, variance, 1.0)), math.nan)
    spread = rest.std(axis=1, ddof=1) * scale[:, 0]
    t[fixed] = 0.0
    # many such draws leave the tails unknown
    unknown = np.average(np.isnan(t), axis=1, weights=chances) > tail + ROUNDED
    if (2 * tail if together else tail) < least_chance(chances, t.shape[1]) - ROUNDED:
        unknown |= ~fixed
    t[unknown] = 0.0
    if together:
        largest = np.nanmax(np.abs(t), axis=0, initial=0.0)
        if chances is None:
            reach = np.quantile(largest, confidence)
        else:
            (reach,) = quantiles_by_chance(largest, chances, [confidence])
        above = np.full(len(data), reach)
        below = -above
    elif chances is not None:
        below, above = quantiles_by_chance(t, chances, [tail, 1 - tail])
    else:
        below, above = np.nanquantile(t, [tail, 1 - tail], axis=1)
    below[unknown], above[unknown] = math.nan, math.nan
    return mean[:, 0] - above * spread, mean[:, 0] - below * spread
