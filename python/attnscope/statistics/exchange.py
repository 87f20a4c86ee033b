# SPDX-License-Identifier: MIT
"""Tests that exchange the labels of items, and the null law of the largest of many statistics.

If two labels mean nothing, they can be exchanged: the statistic of the observed labels is compared with those
of exchanged ones, within pairs or groups where only these are alike. For many statistics at once the largest
is compared with the largest of every exchange, which needs no correction afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnscope.arguments.number_lists import number_array
from attnscope.statistics import _arguments

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]
#: Fewer labellings than this have no p-value worth printing.
FEWEST = 20


class Exchange(NamedTuple):
    """A statistic of labelled items, and its values under other labellings.

    Attributes:
        observed: of the labels as they are, [...].
        drawn: of the drawn labellings, [draws, ...]; `max_t` takes both.
        p_value: (1 + #{drawn >= observed})/(1 + draws), [...]; NaN where the observed value is NaN, or where
            fewer than 20 labellings exist.
        permutations: number of labellings, infinite beyond 1e308.
        labels: the drawn labellings, [draws, n]; True is the second label.
    """

    observed: Array
    drawn: Array
    p_value: Array
    permutations: float
    labels: Labels


class MaxT(NamedTuple):
    """Statistics of one family in units of their spread, and the test of their largest.

    Attributes:
        statistic: (observed − mean)/deviation over all labellings, [m]; NaN where nothing varies.
        p_adjusted: (1 + #{largest drawn >= own})/(1 + draws), [m].
        p_value: the smallest of them, of the family.
    """

    statistic: Array
    p_adjusted: Array
    p_value: float


def exchange_labels(
    statistic: Callable[[Labels], Any],
    labels: Any,
    *,
    pairs: Any = None,
    clusters: Any = None,
    draws: int = 999,
    seed: int = 0,
) -> Exchange:
    """Return a test of two labels that would be exchangeable if they made no difference.

    With `pairs` the two items of a pair exchange labels by a fair coin. With `clusters` (templates) labels
    are permuted inside each cluster that holds both; where every cluster holds a single label, entire
    clusters are permuted. Otherwise all labels are.

    Args:
        statistic: of several labellings at once, boolean [m, n] -> [m, ...]; larger is further from what no
            difference would give, so a two-sided test gives absolute values.
        labels: one of two values per item, [n]; the larger one is True.
        pairs: one id per item; two items of different labels share each.
        clusters: one id per item.
        draws: labellings that are drawn, at least 999 where a p-value is printed.
        seed: the same seed draws the same labellings.

    Returns:
        Exchange. A drawn statistic that is NaN counts as reached.

    Raises:
        ValueError: other than two labels, pairs that do not hold one item of each, another number of ids,
            pairs and clusters at once, draws below 1, a statistic of another shape.
        TypeError: what is no label or no function.

    Example:
        Ten pairs that all differ in the same direction.

        >>> import numpy as np
        >>> from attnscope import statistics
        >>> values = np.arange(20.0)
        >>> result = statistics.exchange_labels(
        ...     lambda drawn: abs((np.where(drawn, 1, -1) * values).sum(-1)),
        ...     [0, 1] * 10,
        ...     pairs=np.arange(20) // 2,
        ... )
        >>> result.observed.item(), result.permutations, result.p_value.item() < 0.01
        (10.0, 1024.0, True)

    References:
        Fisher, The design of experiments, 1935. Phipson and Smyth, Permutation p-values should never be zero,
        2010.
    """
    name = "exchange_labels"
    draws, seed = _arguments.check_draws(name, 0.5, draws, seed)[1:]
    if not callable(statistic):
        raise TypeError(f"{name}: statistic must be a function, got {type(statistic).__name__}")
    values, item_labels = _arguments.label_numbers(name, "labels", labels)
    if len(values) != 2:
        raise ValueError(f"{name}: labels must have two values, got {len(values)}")
    if pairs is not None and clusters is not None:
        raise ValueError(f"{name}: pairs or clusters, got both")
    draw = np.random.default_rng(seed)
    if pairs is not None:
        _, pair_numbers = _arguments.label_numbers(name, "pairs", pairs, len(item_labels))
        drawn, ways = _within_pairs(name, item_labels == 1, pair_numbers, draws, draw)
    else:
        together = np.zeros(len(item_labels)) if clusters is None else clusters
        _, groups = _arguments.label_numbers(name, "clusters", together, len(item_labels))
        drawn, ways = _within_clusters(item_labels == 1, groups, draws, draw)
    labellings = np.concatenate([item_labels[None] == 1, drawn])
    result = np.asarray(statistic(labellings), dtype=np.float64)
    if result.shape[:1] != (len(labellings),):
        raise ValueError(
            f"{name}: statistic must give a row per labelling, [{len(labellings)}, ...], got shape "
            f"{result.shape}"
        )
    observed, rest = result[0], result[1:]
    # A labelling that gives the same groups may round otherwise.
    reached = ~(rest < observed - 1e-12 * np.abs(observed))
    p = (1 + reached.sum(0)) / (1 + draws)
    defined = np.isfinite(observed) & (ways >= FEWEST)
    return Exchange(observed, rest, np.where(defined, p, math.nan), ways, drawn)


def max_t(observed: Any, drawn: Any) -> MaxT:
    """Adjust many statistics of the same drawn labellings by the law of their largest.

    Each is taken in units of its own spread over all labellings, the observed one among them, so that no one
    of them alone determines the largest.

    Args:
        observed: statistics of a family, [m]; larger is further from the null.
        drawn: the same of every drawn labelling, [draws, m].

    Returns:
        MaxT; a statistic that is undefined or does not vary is NaN and in no family.

    Raises:
        ValueError: shapes that do not fit, no draw.
        TypeError: no numbers.

    Example:
        Two statistics alike are one.

        >>> import numpy as np
        >>> from attnscope import statistics
        >>> drawn = np.linspace(-1, 1, 99)[:, None].repeat(2, 1)
        >>> statistics.max_t([2.0, 2.0], drawn).p_adjusted.tolist()
        [0.01, 0.01]

    References:
        Westfall and Young, Resampling-based multiple testing, 1993.
    """
    name = "max_t"
    observed_values, drawn_values = (
        number_array(name, "observed", observed),
        number_array(name, "drawn", drawn),
    )
    if (
        observed_values.ndim != 1
        or drawn_values.ndim != 2
        or drawn_values.shape[1] != len(observed_values)
        or len(drawn_values) == 0
    ):
        raise ValueError(
            f"{name}: observed must be [m] and drawn [draws, m], got shapes {observed_values.shape} and "
            f"{drawn_values.shape}"
        )
    all_values = np.concatenate([observed_values[None], drawn_values])
    if len(observed_values) == 0:
        return MaxT(observed_values, observed_values, math.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = all_values.std(0)
        t = (all_values - all_values.mean(0)) / np.where(
            spread > 1e-12 * np.abs(all_values).max(0), spread, math.nan
        )
    defined = ~np.isnan(t).any(0)
    p = np.full(len(observed_values), math.nan)
    if defined.any():
        largest = t[1:, defined].max(1)
        reached = largest[:, None] >= t[0, defined] - 1e-12 * np.abs(t[0, defined])
        p[defined] = (1 + reached.sum(0)) / (1 + len(drawn_values))
    smallest = float(p[defined].min()) if defined.any() else math.nan
    return MaxT(np.where(defined, t[0], math.nan), p, smallest)


def _within_pairs(
    function: str, labels: Labels, pairs: npt.NDArray[np.int64], draws: int, draw: np.random.Generator
) -> tuple[Labels, float]:
    count = int(pairs.max()) + 1
    pair_counts = np.bincount(pairs, minlength=count), np.bincount(pairs[labels], minlength=count)
    if (pair_counts[0] != 2).any() or (pair_counts[1] != 1).any():
        first = int(np.flatnonzero((pair_counts[0] != 2) | (pair_counts[1] != 1))[0])
        raise ValueError(
            f"{function}: every pair must hold one item of each label, got {pair_counts[0][first]} items in "
            f"the pair of item {int(np.flatnonzero(pairs == first)[0])}"
        )
    coins = draw.integers(0, 2, (draws, count)).astype(bool)
    return labels ^ coins[:, pairs], float(2.0**count) if count < 1024 else math.inf


def _within_clusters(
    labels: Labels, clusters: npt.NDArray[np.int64], draws: int, draw: np.random.Generator
) -> tuple[Labels, float]:
    sizes = np.bincount(clusters)
    marked = np.bincount(clusters[labels], minlength=len(sizes))
    crossed = np.flatnonzero((marked > 0) & (marked < sizes))
    if len(crossed) == 0:
        is_marked = marked > 0
        drawn = np.stack([draw.permutation(is_marked)[clusters] for _ in range(draws)])
        return drawn, _ways([(len(sizes), int(is_marked.sum()))])
    drawn = np.repeat(labels[None], draws, 0)
    for cluster in crossed:
        places = np.flatnonzero(clusters == cluster)
        drawn[:, places] = draw.permuted(drawn[:, places], axis=1)
    return drawn, _ways([(int(sizes[cluster]), int(marked[cluster])) for cluster in crossed])


def _ways(chosen: list[tuple[int, int]]) -> float:
    logarithm = math.fsum(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for n, k in chosen)
    if logarithm < 30:
        return float(math.prod(math.comb(n, k) for n, k in chosen))
    return math.exp(logarithm) if logarithm < 709 else math.inf
