# SPDX-License-Identifier: MIT
"""Correlation over samples: its interval and its p-value at any number of samples.

Drawing samples again makes intervals of correlations too short, and those of few samples far too short: a
draw that repeats samples is nearly a line. Here the interval is Student's on Fisher's scale, with a standard
error from what each sample contributes, and never shorter than Fisher's.

    >>> from attnscope import statistics
    >>> few = statistics.correlation([1.0, 2.0, 3.0], [1.0, 2.0, 3.5], method="spearman")
    >>> round(few.p_value, 6), few.low
    (0.333333, nan)
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attnscope.arguments import scalars
from attnscope.statistics._arguments import Vector, pairs
from attnscope.statistics.intervals import FEWEST
from attnscope.statistics.rounding import varies

Array = npt.NDArray[np.float64]

#: Samples up to which the p-value of ranks is counted over all their orders.
COUNTED = 9
#: The share of its residual that a sample keeps at least when it is left out of its own fit.
_LEAST_REST = 0.1
#: A correlation nearer to 1 is a line, and what is left is rounding.
_LINE = 2.0**-40


class Correlation(NamedTuple):
    """A correlation over samples with its interval (NaN without one), two-sided p, and samples."""

    r: float
    low: float
    high: float
    p_value: float
    n: int


def correlation(
    x: Any, y: Any, *, method: Literal["pearson", "spearman"] = "pearson", confidence: float = 0.95
) -> Correlation:
    """Return Pearson's or Spearman's correlation over samples, with its interval.

    The interval is that of z = artanh r: z less and more the larger of Student's t times the standard error
    of z, and of Fisher's normal quantile/√(n − 3). The standard error is that of the samples' influences uv −
    r(u² + v²)/2 of standardised values, each divided by 1 − its leverage. Measured coverage of a nominal 95 %
    at 5 to 60 samples, of Pearson: normal values .96 to .99, lognormal ones of sigma 1 .96 to .99, y = x
    times noise .95 to .98 (Fisher's alone: .74 to .86); of Spearman: .95 to .99.

    Args:
        x: one number a sample.
        y: the same samples; a pair with NaN is left out.
        method: of values, or of ranks (mean ranks on ties).
        confidence: in (0, 1).

    Returns:
        Correlation; all NaN for fewer than three pairs, without variance but for rounding, and for an
        infinite value that is not ranked; low and high NaN below five pairs.
        p_value is that of Student's t with n − 2 degrees of freedom; of up to nine ranks it is the share of
        their orders that correlate as much, ties as they are, and of more it is never below 2/n!. Both test
        independence: of uncorrelated numbers that depend on each other (y = x times noise) Pearson's p is
        below .05 in .17 of cases at 5 pairs and in .26 at 50, Spearman's in .1. The interval does not suppose
        independence, and may hold 0 beside a p below .05: of normal values that correlate by .5 in .13 to
        .25 of cases at 8 to 20 pairs.

    Raises:
        ValueError: different lengths, an unknown method, confidence outside (0, 1).

    Example:
        >>> from attnscope import statistics
        >>> statistics.correlation([1, 2, 3, 4], [1, 8, 27, 64], method="spearman").r
        1.0

    References:
        Spearman, The proof and measurement of association between two things, 1904. Fisher, On the probable
        error of a coefficient of correlation, 1921. MacKinnon and White, Some heteroskedasticity-consistent
        covariance matrix estimators with improved finite sample properties, 1985 (the leverage).
    """
    scalars.choice_argument("correlation", "method", method, ("pearson", "spearman"))
    confidence = scalars.fraction_argument("correlation", "confidence", confidence)
    first, second = pairs("correlation", x, y)
    n = len(first)
    ranked = method == "spearman"
    if n < 3 or not (ranked or np.isfinite([first, second]).all()):
        return Correlation(math.nan, math.nan, math.nan, math.nan, n)
    if not (varies(first) and varies(second)):
        return Correlation(math.nan, math.nan, math.nan, math.nan, n)
    values = (rank_of(first), rank_of(second)) if ranked else (first, second)
    residuals = np.column_stack([_centred(column) for column in values])
    r = cosine(*residuals.T)
    low, high = correlation_bounds(residuals, np.arange(n), confidence, ranked=ranked)
    return Correlation(r, low, high, correlation_p_value(residuals, n, ranked=ranked), n)


def rank_of(values: Array) -> Array:
    """Return the ranks along the first axis, the mean rank on ties."""
    from scipy import stats

    return np.asarray(stats.rankdata(values, axis=0), dtype=np.float64)


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of two centred vectors, NaN where one has no length."""
    size = math.sqrt(float(first @ first) * float(second @ second))
    return min(1.0, max(-1.0, float(first @ second) / size)) if size > 0 else math.nan


def correlation_bounds(
    residuals: Array,
    units: npt.NDArray[np.int64],
    confidence: float,
    *,
    ranked: bool,
    covariates: int = 0,
    leverage: Any = 0.0,
    samples: int | None = None,
) -> tuple[float, float]:
    """Return the interval of the correlation of two centred columns [n, 2].

    Args:
        residuals: what covariates leave of both variables.
        units: number of each row's unit; rows of a unit count as a whole.
        confidence: in (0, 1).
        ranked: whether the variables were ranks: ranks in one order are no line.
        covariates: how many were taken out.
        leverage: of each row on these covariates.
        samples: independent rows, of which Fisher's interval is; None: the units.

    Returns:
        NaN below five units and where the covariates leave no degree of freedom.
    """
    from scipy import special

    count = int(units.max()) + 1
    spare = (samples or count) - 3 - covariates
    r = cosine(*residuals.T)
    if count < max(FEWEST, 3 + covariates) or spare < 1 or math.isnan(r):
        return math.nan, math.nan
    if not ranked and 1 - abs(r) < _LINE:
        return r, r
    z, error = fisher_z(residuals, units, ranked=ranked, leverage=leverage)
    student = float(special.stdtrit(count - 2 - covariates, (1 + confidence) / 2))
    normal = float(special.ndtri((1 + confidence) / 2))
    fisher = math.sqrt((1 + math.tanh(z) ** 2 / 2 if ranked else 1) / spare)
    reach = max(student * error, normal * fisher)
    return min(r, math.tanh(z - reach)), max(r, math.tanh(z + reach))


def fisher_z(
    residuals: Array, units: npt.NDArray[np.int64], *, ranked: bool, leverage: Any = 0.0
) -> tuple[float, float]:
    """Return artanh r of two centred columns with its standard error from what each unit contributes.

    Arguments as of `correlation_bounds`, which has the intervals from it.
    """
    rows, count, r = len(residuals), int(units.max()) + 1, cosine(*residuals.T)
    # Ranks in one order are half an exchange of two neighbours away from a line.
    inside = min(abs(r), 1 - 6 / (count**3 - count)) if ranked else abs(r)
    inside = math.copysign(inside, r)
    u, v = (residuals / np.sqrt(np.square(residuals).mean(0))).T
    squares = np.square(u) + np.square(v)
    influence = u * v - r * squares / 2
    distance = (squares - 2 * r * u * v) / max(1 - r * r, _LINE)
    own_share = np.bincount(units, (1 + distance) / rows + leverage)
    sums = np.bincount(units, influence) / np.clip(1 - own_share, _LEAST_REST, 1)
    spread = math.sqrt((count - 1) / count * float(np.square(sums).sum())) / rows
    return math.atanh(inside), spread / (1 - inside * inside)


def correlation_p_value(residuals: Array, n: int, *, ranked: bool, covariates: int = 0) -> float:
    """Return the two-sided p of the correlation of two centred columns of n units.

    By Student's t, NaN without a degree of freedom. Few ranks are counted over all their orders, as they are
    or, given covariates, as so many fewer without ties. More have no smaller p than 2/n!, the chance of the
    two extreme orders.
    """
    from scipy import special

    freedom, items, r = n - 2 - covariates, n - covariates, cosine(*residuals.T)
    if freedom < 1:
        return math.nan
    if ranked and items <= COUNTED:
        if n == len(residuals) and not covariates:
            first, second = residuals.T
        else:
            first = second = np.arange(items, dtype=np.float64) - (items - 1) / 2
        scale = math.sqrt(float(first @ first) * float(second @ second))
        return float((np.abs(_sums_over_orders(first, second)) >= (abs(r) - 1e-9) * scale).mean())
    t = r * math.sqrt(freedom / (1 - r * r)) if abs(r) < 1 else math.inf
    p_value = 2 * float(special.stdtr(freedom, -abs(t)))
    return max(p_value, 2 / math.factorial(min(items, 170))) if ranked else p_value


def _sums_over_orders(first: Vector, second: Vector) -> Vector:
    """Return products of the first with every order of the second."""
    return np.asarray(second[_orders(len(second))] @ first, dtype=np.float64)


@functools.lru_cache(maxsize=COUNTED)
def _orders(n: int) -> npt.NDArray[np.int8]:
    """Return all orders of n places, [n!, n]."""
    if n < 2:
        return np.zeros((1, n), dtype=np.int8)
    fewer = _orders(n - 1)
    return np.concatenate([np.insert(fewer, place, n - 1, axis=1) for place in range(n)])


def _centred(values: Vector) -> Vector:
    """Return values less their mean, scaled so that squares neither vanish nor overflow."""
    rest = values - values.mean()
    return np.asarray(rest / np.abs(rest).max(), dtype=np.float64)
