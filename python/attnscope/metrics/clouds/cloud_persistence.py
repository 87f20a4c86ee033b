# SPDX-License-Identifier: MIT
"""Persistent homology of a cloud of points."""

from __future__ import annotations

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.clouds.cloud_distances import Metric, metric_argument
from attnscope.metrics.homology.barcodes import Barcodes


@memory_errors("cloud_persistence")
@without_derivative("it is made for reading; `persistence` of a map has one")
def cloud_persistence(
    points: torch.Tensor,
    *,
    metric: Metric = "cosine",
    max_dimension: int = 1,
    lengths: _checks.Lengths = None,
) -> Barcodes:
    """Bars of H0 (components) and H1 (loops) of the Vietoris–Rips filtration of each cloud, over Z/2.

    Edges enter in the order of their distance, ties by (row, column), row > column; births and deaths are
    distances. Bars of length 0 are left out, so points at distance 0 merge without one. `betti_curve`,
    `total_persistence` and the others read the result.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; with "precomputed" distances
            [..., n, n], which are ordered in their own precision.
        metric: "cosine" (1 − cos), "euclidean" or "precomputed".
        max_dimension: 0 for components alone, which is much cheaper, 1 for loops too.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        Barcodes, one slice per cloud. Infinite distances are pairs that nothing joins: there is an infinite
        H0 bar for each component, one where all distances are finite, and a loop that only such pairs would
        fill is an infinite H1 bar. A cloud with NaN or infinite coordinates, or a NaN among its distances,
        has an empty slice.

    Raises:
        ValueError: a zero vector under "cosine" (with its index), distances that are negative, not square or
            asymmetric, more than 65535 points, a `max_dimension` other than 0 and 1 (GUDHI computes H2), an
            unknown metric, wrong dtype or rank, lengths outside 1..n.
        TypeError: no array.

    Example:
        The corners of a unit square: one loop, open from the sides on until the diagonals fill it.

        >>> import torch, attnscope as asc
        >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> for bars in asc.cloud_persistence(square, metric="euclidean")[()]:
        ...     print(bars.round(6).tolist())
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, inf]]
        [[1.0, 1.414214]]

    References:
        Edelsbrunner, Harer, Computational Topology, 2010, chapter VII. The algorithm is that of
        `persistence`.
    """
    name = "cloud_persistence"
    dimension = scalars.whole_number(name, "max_dimension", max_dimension)
    if isinstance(max_dimension, bool) or dimension not in (0, 1):
        raise ValueError(
            f"{name}: max_dimension must be 0 or 1, got {max_dimension!r}; GUDHI computes higher ones "
            "(gudhi.RipsComplex)"
        )
    checked = metric_argument(name, points, metric, lengths)
    kernel_arguments = (dimension, "max", "distance")
    bars = _calls.call_and_warn(_core.persistence, name, checked, *kernel_arguments, unit="clouds")
    return Barcodes(*(*bars, checked.leading))


SOURCES = (cloud_persistence,)
