# SPDX-License-Identifier: MIT
"""Distances between the bars of two maps: how far a head has moved between checkpoints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.homology.barcodes import DIMENSIONS, Barcodes

Array = np.ndarray[Any, np.dtype[np.float64]]


@without_derivative("the matching of bars is a choice")
def diagram_distance(a: Barcodes, b: Barcodes, *, order: float = 1) -> Tensor:
    """Return the distance of two persistence diagrams, by dimension.

    (Σ ‖x − π(x)‖_∞^order)^{1/order} under the best matching π, in which a bar may be matched with the
    diagonal, at a cost of half its length; with order = ∞ the largest cost (bottleneck). Infinite bars are
    matched with each other by birth.

    Args:
        a: barcodes of some maps.
        b: barcodes of as many maps; map k is compared with map k.
        order: 1, 2, any number from 1 on, or infinity.

    Returns:
        [..., 2] float64, at least 0; infinite where the numbers of infinite bars differ, NaN where a map is
        not finite.

    Raises:
        ValueError: barcodes of another shape, an order below 1.
        TypeError: what is no result of `persistence`.

    Example:
        One ring is at distance 1/2, the other at 3/4: three bars and a loop that differ by 1/4 each.

        >>> import math, torch, attnscope as asc
        >>> ring = torch.zeros(4, 4); ring[range(4), [1, 2, 3, 0]] = 0.5
        >>> near, far = asc.persistence(ring), asc.persistence(ring / 2)
        >>> asc.diagram_distance(near, far).tolist()
        [0.75, 0.25]
        >>> asc.diagram_distance(near, far, order=math.inf).tolist()
        [0.25, 0.25]

    References:
        Edelsbrunner and Harer, Computational topology, 2010, chapter VIII.
    """
    name = "diagram_distance"
    for label, barcodes in (("a", a), ("b", b)):
        if not isinstance(barcodes, Barcodes):
            raise TypeError(
                f"{name}: {label} must be the result of persistence, got {type(barcodes).__name__}"
            )
    if a.shape != b.shape:
        raise ValueError(f"{name}: barcodes must be of as many maps, got shapes {a.shape} and {b.shape}")
    power = scalars.real(name, "order", order)
    if not power >= 1:
        raise ValueError(f"{name}: order must be at least 1, got {order!r}")
    result = np.full((*a.shape, DIMENSIONS), np.nan)
    for index in np.ndindex(*a.shape):
        bars_of_a, bars_of_b = a[index], b[index]
        if not len(bars_of_a[0]) or not len(bars_of_b[0]):
            continue  # a map that is not finite has no bar
        for dimension in range(DIMENSIONS):
            place = (*index, dimension)
            result[place] = _distance(bars_of_a[dimension], bars_of_b[dimension], power)
    return torch.from_numpy(result)


def _distance(first: Array, second: Array, order: float) -> float:
    """Return the distance of bars [k, 2] and [m, 2]."""
    endless = [np.sort(bars[np.isinf(bars[:, 1]), 0]) for bars in (first, second)]
    if len(endless[0]) != len(endless[1]):
        return math.inf
    costs = np.abs(endless[0] - endless[1])
    first, second = (bars[np.isfinite(bars[:, 1])] for bars in (first, second))
    matrix = _costs(first, second)
    if math.isinf(order):
        return max([_bottleneck(matrix, len(first), len(second)), *costs.tolist()])
    from scipy.optimize import linear_sum_assignment

    # Powers neither vanish nor overflow as shares of the largest cost, high ones of the largest that is paid.
    largest = matrix.max(initial=0.0) if order <= 2 else _bottleneck(matrix, len(first), len(second))
    unit = max(largest, costs.max(initial=0.0))
    if not 0 < unit < math.inf:
        return float(unit)
    with np.errstate(over="ignore"):
        # a matching of shares of at most 1 exists, so that no cost above their number is part of the best
        powers = np.minimum((matrix / unit) ** order, len(matrix) + 1.0)
    rows, columns = linear_sum_assignment(powers)
    total = powers[rows, columns].sum() + ((costs / unit) ** order).sum()
    return float(unit * total ** (1 / order))


def _costs(first: Array, second: Array) -> Array:
    """Return the costs of matching bars with bars, bars with the diagonal, and the diagonal with itself."""
    k, m = len(first), len(second)
    matrix = np.zeros((k + m, k + m))
    matrix[:k, :m] = np.abs(first[:, None] - second[None]).max(-1)
    # any bar may go to the diagonal, so every copy of the diagonal costs a bar the same
    matrix[:k, m:] = ((first[:, 1] - first[:, 0]) / 2)[:, None]
    matrix[k:, :m] = ((second[:, 1] - second[:, 0]) / 2)[None]
    return matrix


def _bottleneck(matrix: Array, k: int, m: int) -> float:
    """Return the smallest cost under which a perfect matching exists."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not k + m:
        return 0.0
    candidates = np.unique(matrix)
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        graph = csr_array((matrix <= candidates[middle]).astype(np.int8))
        if (maximum_bipartite_matching(graph, perm_type="column") >= 0).all():
            high = middle
        else:
            low = middle + 1
    return float(candidates[low])
