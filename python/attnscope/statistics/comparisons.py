# SPDX-License-Identifier: MIT
"""Differences of means with the sample as unit: t-tests, and corrections for many of them at once.

Heads of one text and layers of one model are not independent; texts are. So each test has one number a text,
and what is printed together is corrected together: Holm against any false discovery, Benjamini and Hochberg
for their expected share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnscope.arguments.scalars import fraction_argument
from attnscope.statistics._arguments import Vector, pairs, vector
from attnscope.statistics.rounding import ROUNDED, is_one_number, resolution_argument, without_rounding


class Comparison(NamedTuple):
    """A difference of means with its interval, t, degrees of freedom, two-sided p, and samples (pairs)."""

    difference: float
    low: float
    high: float
    statistic: float
    freedom: float
    p_value: float
    n: int


def paired_test(a: Any, b: Any, *, confidence: float = 0.95, resolution: float = ROUNDED) -> Comparison:
    """Return the paired t-test of the mean of a − b over the same samples.

    p and the interval agree on 0. Differences are supposed to vary symmetrically, as those of two alike sets
    do (p below .05 in .02 to .08 of cases at any number of pairs, lognormal values included). The interval
    misses the mean of lognormal differences of sigma 1 in .10 to .18 of cases at 2 to 50 pairs, where that of
    `bootstrap` does in .07 to .12 from five on.

    Args:
        a: one number a sample.
        b: the same samples in the same order; a pair with NaN is left out.
        confidence: of the interval of the difference.
        resolution: numbers that differ by less of themselves are equal. What sums in another order differ by
            is the default; 2⁻²⁰ leaves out what a model that runs in float32 rounds.

    Returns:
        Comparison; p_value is NaN where no test exists: for fewer than two pairs, and where all differences
        are 0 or one is infinite. Where all are equal, but for rounding, and not 0, Student's test has no
        spread to go by: p_value is that of their signs, 2/2ⁿ, and there is no interval.

    Raises:
        ValueError: different lengths, confidence outside (0, 1), resolution outside [0, 1).

    Example:
        >>> from attnscope import statistics
        >>> statistics.paired_test([3.0, 4.0, 8.0], [2.0, 2.0, 5.0]).difference
        2.0

    References:
        Student, The probable error of a mean, 1908.
    """
    confidence = fraction_argument("paired_test", "confidence", confidence)
    resolution = resolution_argument("paired_test", resolution)
    x, y = pairs("paired_test", a, b)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite has no test
        difference = np.where(is_one_number(x, y, resolution), 0.0, x - y)
        n = len(difference)
        mean = float(difference.mean()) if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Comparison(mean, *(math.nan,) * 5, n)
    rounding = resolution * np.maximum(np.abs(x), np.abs(y))
    is_one = bool((difference - rounding).max() <= (difference + rounding).min())
    if is_one and np.ptp(np.sign(difference)) == 0:
        return _without_spread(mean, n - 1, n, 2.0 ** (1 - n))
    # without a scale small variances would vanish
    scale = float(np.abs(difference).max())
    variance = float((difference / scale).var(ddof=1)) / n
    return by_student(mean, math.sqrt(variance) * scale, n - 1, n, confidence)


def welch_test(a: Any, b: Any, *, confidence: float = 0.95, resolution: float = ROUNDED) -> Comparison:
    """Return Welch's t-test of the difference of means of two independent sets of samples.

    p and the interval agree on 0. Sets of two or three samples hardly know their spread: beside three times
    as many samples of a third of it p is below .05 in .11 and .07 of cases of normal values, and of
    lognormal ones of sigma 1 in .21 at two and .1 at fifty.

    Args:
        a: one number a sample; NaN is left out.
        b: other samples.
        confidence: of the interval of the difference.
        resolution: as in `paired_test`.

    Returns:
        Comparison, n the samples of both; p_value is NaN where no test exists: where either holds fewer
        than two, all values are equal, or one is infinite. Where all of either are equal and the two differ
        it is the share of the divisions of all samples into two sets of these sizes in which they differ as
        much, and there is no interval.

    Raises:
        ValueError: confidence outside (0, 1), resolution outside [0, 1).

    Example:
        >>> from attnscope import statistics
        >>> round(statistics.welch_test([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]).freedom, 3)
        4.959

    References:
        Welch, The generalization of Student's problem when several different population variances are
        involved, 1947.
    """
    from scipy import special

    confidence = fraction_argument("welch_test", "confidence", confidence)
    resolution = resolution_argument("welch_test", resolution)
    x, y = (vector("welch_test", name, values) for name, values in (("a", a), ("b", b)))
    x, y = (without_rounding(values[~np.isnan(values)], resolution) for values in (x, y))
    n = len(x) + len(y)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite has no test
        mean = float(x.mean() - y.mean()) if len(x) and len(y) else math.nan
    if min(len(x), len(y)) < 2 or not math.isfinite(mean):
        return Comparison(mean, *(math.nan,) * 5, n)
    if np.ptp(x) == 0 and np.ptp(y) == 0:
        alike = is_one_number(x[0], y[0], resolution)
        as_far = 2 if len(x) == len(y) else 1  # the sets may change places
        return _without_spread(0.0 if alike else mean, n - 2, n, as_far / float(special.comb(n, len(x))))
    # without a scale small variances would vanish
    rest = x - x.mean(), y - y.mean()
    scale = float(max(np.abs(values).max() for values in rest))
    u, v = (float((values / scale).var(ddof=1)) / len(values) for values in rest)
    freedom = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1))
    return by_student(mean, math.sqrt(u + v) * scale, freedom, n, confidence)


def holm(p_values: Any) -> Vector:
    """Return Holm's adjusted p-values: the chance of any false discovery in the family stays below the
    level.

    Args:
        p_values: the family that is printed together; NaN stays NaN and does not count.

    Returns:
        Adjusted p-values in the order given, float64, at most 1.

    Raises:
        ValueError: a p-value outside [0, 1].

    Example:
        >>> from attnscope import statistics
        >>> statistics.holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]

    References:
        Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    return _adjusted("holm", p_values, _step_down)


def _step_down(p_values: Vector) -> Vector:
    """Return the k-th smallest p times m − k + 1, never below that of a smaller p, in the order given.

    statsmodels collects garbage at every call, which takes longer than a study's tests.
    """
    order = np.argsort(p_values, kind="stable")
    steps = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty_like(steps)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def benjamini_hochberg(p_values: Any) -> Vector:
    """Return Benjamini and Hochberg's adjusted p-values: the expected share of false discoveries is held.

    Arguments, results and errors are those of `holm`.

    Example:
        >>> from attnscope import statistics
        >>> statistics.benjamini_hochberg([0.01, 0.04, 0.03]).round(6).tolist()
        [0.03, 0.04, 0.04]

    References:
        Benjamini and Hochberg, Controlling the false discovery rate, 1995.
    """
    from scipy.stats import false_discovery_control

    return _adjusted("benjamini_hochberg", p_values, false_discovery_control)


def _adjusted(function: str, p_values: Any, adjust: Callable[[Vector], Vector]) -> Vector:
    """Return the family adjusted, NaN left where it was."""
    p = vector(function, "p_values", p_values)
    counted = ~np.isnan(p)
    if ((p[counted] < 0) | (p[counted] > 1)).any():
        raise ValueError(f"{function}: p_values must lie between 0 and 1, got {p[counted].tolist()}")
    result = np.full(len(p), math.nan)
    if counted.any():
        result[counted] = adjust(p[counted])
    return result


def by_student(mean: float, error: float, freedom: float, n: int, confidence: float) -> Comparison:
    """Return Student's t of a mean with its standard error."""
    from scipy import special

    statistic, reach = mean / error, float(special.stdtrit(freedom, (1 + confidence) / 2)) * error
    p_value = 2 * float(special.stdtr(freedom, -abs(statistic)))
    return Comparison(mean, mean - reach, mean + reach, statistic, float(freedom), p_value, n)


def _without_spread(mean: float, freedom: int, n: int, p_value: float) -> Comparison:
    """Return a difference of samples that do not vary, with the p-value that their number allows.

    The limit of Student's test as the spread goes to 0 is a p-value of 0, of two samples as of a hundred.
    """
    if not mean:
        return Comparison(mean, mean, mean, math.nan, float(freedom), math.nan, n)
    statistic = math.copysign(math.inf, mean)
    return Comparison(mean, math.nan, math.nan, statistic, float(freedom), p_value, n)
