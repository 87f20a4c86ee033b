# SPDX-License-Identifier: MIT
"""Intervals and tests with the sentence as unit: heads and layers of one sentence are not replicates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Comparison",
    "Correlation",
    "Interval",
    "benjamini_hochberg",
    "bootstrap",
    "correlation",
    "holm",
    "paired_test",
    "per_sentence",
    "welch_test",
]

Vector = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate, its percentile interval, and the number of sentences it rests on."""

    estimate: float
    low: float
    high: float
    n: int


class Comparison(NamedTuple):
    """A difference of means with its interval, t, degrees of freedom, two-sided p, and sentences (pairs)."""

    difference: float
    low: float
    high: float
    statistic: float
    freedom: float
    p_value: float
    n: int


class Correlation(NamedTuple):
    """A correlation over sentences with its bootstrap interval and two-sided p."""

    r: float
    low: float
    high: float
    p_value: float
    n: int


def per_sentence(table: pd.DataFrame, metric: str, by: Sequence[str] = ()) -> pd.Series[float]:
    """One number a sentence: the mean of `metric` over the rows (layers, heads) of each sample.

    Args:
        table: rows with `sample` and the metric.
        metric: a column of it; NaN rows are left out.
        by: further columns that keep sentences apart, for example ["model"].

    Returns:
        A Series indexed by (`by`…, sample).

    Raises:
        ValueError: a missing column, a metric that is not numbers.
        TypeError: no table.

    Example:
        >>> import pandas as pd
        >>> from attnscope import statistics
        >>> table = pd.DataFrame({"sample": [0, 0, 1], "x": [1.0, 3.0, 5.0]})
        >>> statistics.per_sentence(table, "x").tolist()
        [2.0, 5.0]
    """
    table_argument("per_sentence", table, ("sample",), metric, by)
    result: pd.Series[float] = table.groupby([*by, "sample"])[metric].mean()
    return result


def bootstrap(
    values: Any,
    statistic: Callable[[Vector], Any] | None = None,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """A percentile bootstrap interval over sentences.

    Args:
        values: one number a sentence; NaN is left out, and `n` counts what is left.
        statistic: a function of an array along its last axis; None: the mean.
        confidence: in (0, 1).
        draws: samples with replacement.
        seed: the same seed gives the same interval.

    Returns:
        Interval; all NaN without values, and no width for a single one.

    Raises:
        ValueError: values of more than one dimension, confidence outside (0, 1), draws below 1, a statistic
            that does not work along the last axis.
        TypeError: what is no number or no function.

    Example:
        >>> from attnscope import statistics
        >>> statistics.bootstrap([2.0, 2.0, 2.0])
        Interval(estimate=2.0, low=2.0, high=2.0, n=3)

    References:
        Efron, Bootstrap methods: another look at the jackknife, 1979.
    """
    data = _vector("bootstrap", "values", values)
    data = data[~np.isnan(data)]
    confidence, draws, seed = check_draws("bootstrap", confidence, draws, seed)
    if statistic is not None and not callable(statistic):
        raise TypeError(f"bootstrap: statistic must be a function, got {type(statistic).__name__}")
    if len(data) == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    function = (lambda x: x.mean(-1)) if statistic is None else statistic
    index = np.random.default_rng(seed).integers(0, len(data), (draws, len(data)))
    drawn = np.asarray(function(data[index]))
    if drawn.shape != (draws,):
        raise ValueError(
            f"bootstrap: statistic must work along the last axis and make {draws} numbers of {index.shape}, "
            f"got shape {drawn.shape}"
        )
    low, high = _percentiles(drawn, confidence)
    return Interval(float(function(data)), low, high, len(data))


def paired_test(a: Any, b: Any, *, confidence: float = 0.95) -> Comparison:
    """Paired t-test of the mean of a − b over the same sentences.

    Args:
        a: one number a sentence.
        b: the same sentences in the same order; a pair with NaN is left out.
        confidence: of the interval of the difference.

    Returns:
        Comparison; p_value is NaN for fewer than two pairs, and 0 where all differences are equal and not 0.

    Raises:
        ValueError: different lengths, confidence outside (0, 1).

    Example:
        >>> from attnscope import statistics
        >>> statistics.paired_test([3.0, 4.0, 8.0], [2.0, 2.0, 5.0]).difference
        2.0

    References:
        Student, The probable error of a mean, 1908.
    """
    confidence = _check_confidence("paired_test", confidence)
    x, y = _pairs("paired_test", a, b)
    difference = x - y
    n = len(difference)
    if n < 2:
        mean = float(difference.mean()) if n else math.nan
        return Comparison(mean, math.nan, math.nan, math.nan, math.nan, math.nan, n)
    error = float(difference.std(ddof=1)) / math.sqrt(n)
    return _t_test(float(difference.mean()), error, n - 1, n, confidence)


def welch_test(a: Any, b: Any, *, confidence: float = 0.95) -> Comparison:
    """Welch's t-test of the difference of means of two independent sets of sentences.

    Args:
        a: one number a sentence; NaN is left out.
        b: other sentences.
        confidence: of the interval of the difference.

    Returns:
        Comparison, n the sentences of both; p_value is NaN where either holds fewer than two.

    Raises:
        ValueError: confidence outside (0, 1).

    Example:
        >>> from attnscope import statistics
        >>> round(statistics.welch_test([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]).freedom, 3)
        4.959

    References:
        Welch, The generalization of Student's problem when several different population variances are
        involved, 1947.
    """
    confidence = _check_confidence("welch_test", confidence)
    x, y = (_vector("welch_test", name, values) for name, values in (("a", a), ("b", b)))
    x, y = x[~np.isnan(x)], y[~np.isnan(y)]
    n = len(x) + len(y)
    if min(len(x), len(y)) < 2:
        mean = float(x.mean() - y.mean()) if len(x) and len(y) else math.nan
        return Comparison(mean, math.nan, math.nan, math.nan, math.nan, math.nan, n)
    u, v = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    freedom = float(n - 2)
    if (both := u + v) > 0:
        # Of shares, whose squares do not vanish as those of small variances do.
        freedom = 1 / ((u / both) ** 2 / (len(x) - 1) + (v / both) ** 2 / (len(y) - 1))
    return _t_test(float(x.mean() - y.mean()), math.sqrt(both), freedom, n, confidence)


def correlation(
    x: Any,
    y: Any,
    *,
    method: Literal["pearson", "spearman"] = "pearson",
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Pearson's or Spearman's correlation over sentences, with a bootstrap interval.

    Args:
        x: one number a sentence.
        y: the same sentences; a pair with NaN is left out.
        method: of values, or of ranks (mean ranks on ties).
        confidence: in (0, 1).
        draws: samples of pairs with replacement.
        seed: of the bootstrap.

    Returns:
        Correlation; all NaN for fewer than three pairs or without variance. p_value is that of Student's t
        with n − 2 degrees of freedom.

    Raises:
        ValueError: different lengths, an unknown method, confidence outside (0, 1), draws below 1.

    Example:
        >>> from attnscope import statistics
        >>> statistics.correlation([1, 2, 3, 4], [1, 8, 27, 64], method="spearman").r
        1.0

    References:
        Spearman, The proof and measurement of association between two things, 1904.
    """
    from scipy import stats

    name = "correlation"
    if not isinstance(method, str) or method not in ("pearson", "spearman"):
        raise ValueError(f"{name}: method must be 'pearson' or 'spearman', got {method!r}")
    confidence, draws, seed = check_draws(name, confidence, draws, seed)
    a, b = _pairs(name, x, y)
    n = len(a)
    nothing = Correlation(math.nan, math.nan, math.nan, math.nan, n)
    if n < 3:
        return nothing

    def r_of(first: Vector, second: Vector) -> Vector:
        if method == "spearman":
            first, second = (stats.rankdata(values, axis=-1) for values in (first, second))
        first, second = _centred(first), _centred(second)
        result = (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
        clipped: Vector = np.clip(result, -1, 1)
        return clipped

    r = float(r_of(a, b))
    if math.isnan(r):
        return nothing
    index = np.random.default_rng(seed).integers(0, n, (draws, n))
    drawn = r_of(a[index], b[index])
    # A draw that repeats one sentence only has no correlation.
    low, high = _percentiles(drawn[~np.isnan(drawn)], confidence)
    t = abs(r) * math.sqrt((n - 2) / max(1 - r * r, 1e-300))
    return Correlation(r, low, high, float(2 * stats.t.sf(t, n - 2)), n)


def holm(p_values: Any) -> Vector:
    """Holm's adjusted p-values: the chance of any false discovery in the family stays below the level.

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
    p, order, result = _family("holm", p_values)
    m = len(order)
    adjusted = p[order] * np.arange(m, 0, -1)
    result[order] = np.minimum(np.maximum.accumulate(adjusted), 1)
    return result


def benjamini_hochberg(p_values: Any) -> Vector:
    """Benjamini and Hochberg's adjusted p-values: the expected share of false discoveries is held.

    Args:
        p_values: the family that is printed together; NaN stays NaN and does not count.

    Returns:
        Adjusted p-values in the order given, float64, at most 1.

    Raises:
        ValueError: a p-value outside [0, 1].

    Example:
        >>> from attnscope import statistics
        >>> statistics.benjamini_hochberg([0.01, 0.04, 0.03]).round(6).tolist()
        [0.03, 0.04, 0.04]

    References:
        Benjamini and Hochberg, Controlling the false discovery rate, 1995.
    """
    p, order, result = _family("benjamini_hochberg", p_values)
    m = len(order)
    adjusted = p[order] * (m / np.arange(1, m + 1))  # this factor is never below 1, and 1 for the largest
    result[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 1)
    return result


def _family(function: str, p_values: Any) -> tuple[Vector, npt.NDArray[np.intp], Vector]:
    """The p-values, the order of those that are not NaN, and a result of NaN."""
    p = _vector(function, "p_values", p_values)
    counted = p[~np.isnan(p)]
    if ((counted < 0) | (counted > 1)).any():
        raise ValueError(f"{function}: p_values must lie between 0 and 1, got {counted.tolist()}")
    order = np.argsort(np.where(np.isnan(p), np.inf, p), kind="stable")[: len(counted)]
    return p, order, np.full(len(p), math.nan)


def _t_test(mean: float, error: float, freedom: float, n: int, confidence: float) -> Comparison:
    from scipy import stats

    half = float(stats.t.ppf(0.5 + confidence / 2, freedom)) * error
    if error > 0:
        t = mean / error
    else:
        t = math.copysign(math.inf, mean) if mean != 0 else math.nan
    p_value = float(2 * stats.t.sf(abs(t), freedom)) if not math.isnan(t) else 1.0
    return Comparison(mean, mean - half, mean + half, t, float(freedom), p_value, n)


def _centred(values: Vector) -> Vector:
    """Values less their mean along the last axis, the largest of magnitude 1; NaN where all are equal."""
    rest = values - values.mean(-1, keepdims=True)
    # A computed mean of equal values is not always their value.
    rest = np.where(np.ptp(values, axis=-1, keepdims=True) > 0, rest, math.nan)
    scaled: Vector = rest / np.abs(rest).max(-1, keepdims=True)
    return scaled


def _percentiles(values: Vector, confidence: float) -> tuple[float, float]:
    if len(values) == 0:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _vector(function: str, name: str, values: Any) -> Vector:
    try:
        data = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError(f"{function}: {name} must be numbers: {error}") from None
    if data.ndim != 1:
        raise ValueError(f"{function}: {name} must have one dimension, got shape {data.shape}")
    return data


def _pairs(function: str, a: Any, b: Any) -> tuple[Vector, Vector]:
    x, y = _vector(function, "the first argument", a), _vector(function, "the second argument", b)
    if len(x) != len(y):
        raise ValueError(
            f"{function}: both arguments must hold the same sentences, got {len(x)} and {len(y)}"
        )
    both = ~(np.isnan(x) | np.isnan(y))
    return x[both], y[both]


def check_draws(function: str, confidence: Any, draws: Any, seed: Any) -> tuple[float, int, int]:
    """The arguments of a bootstrap as numbers.

    Raises:
        ValueError: confidence outside (0, 1), draws below 1, a negative seed.
        TypeError: no numbers.
    """
    whole = []
    for name, value, least in (("draws", draws, 1), ("seed", seed, 0)):
        try:
            whole.append(operator.index(value))
        except (TypeError, RuntimeError):
            raise TypeError(f"{function}: {name} must be a whole number, got {value!r}") from None
        if whole[-1] < least:
            raise ValueError(f"{function}: {name} must be at least {least}, got {value!r}")
        if whole[-1] >= 2**63:
            raise ValueError(f"{function}: {name} must fit in 64 bits, got {value!r}")
    return _check_confidence(function, confidence), whole[0], whole[1]


def number(function: str, name: str, value: Any) -> float:
    """`value` as a float.

    Raises:
        TypeError: it is no number.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise TypeError(f"{function}: {name} must be a number, got {value!r}")


def table_argument(
    function: str, table: Any, needed: Sequence[str], metric: Any, by: Sequence[Any] = ()
) -> None:
    """A table with the columns that a function reads, `metric` of numbers among them.

    Raises:
        TypeError: no table.
        ValueError: a missing column, a metric that is not numbers, `by` a single string.
    """
    if not hasattr(table, "groupby") or not hasattr(table, "columns"):
        raise TypeError(f"{function}: table must be a pandas DataFrame, got {type(table).__name__}")
    if isinstance(by, str):
        raise ValueError(f"{function}: by must be a list of columns, got the string {by!r}")
    if not isinstance(by, (list, tuple)):
        raise TypeError(f"{function}: by must be a list of columns, got {by!r}")
    present = list(table.columns)
    for column in (*needed, metric, *by):
        if not isinstance(column, str) or present.count(column) != 1:
            raise ValueError(
                f"{function}: the table has no column {column!r}, only {', '.join(map(str, present))}"
            )
    if table[metric].dtype.kind not in "biuf":
        raise ValueError(f"{function}: column {metric!r} must hold numbers, got {table[metric].dtype}")


def _check_confidence(function: str, confidence: Any) -> float:
    value = number(function, "confidence", confidence)
    if not 0.0 < value < 1.0:
        raise ValueError(f"{function}: confidence must lie strictly between 0 and 1, got {confidence!r}")
    return value
