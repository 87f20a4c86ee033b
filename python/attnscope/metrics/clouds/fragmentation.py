# SPDX-License-Identifier: MIT
"""Into how many pieces a cloud of points falls, at given scales and without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.clouds.cloud_distances import (
    Metric,
    metric_argument,
    numbers_argument,
    subsets_argument,
)
from attnscope.metrics.quantity import ClosedForm, Quantity, Site


@shown_by_shape
class CloudComponents(NamedTuple):
    """Components of every cloud at every scale, each [..., S]; −1 (NaN) for a cloud that is not finite.

    Attributes:
        components: connected components, single points included; int64 in 1..n.
        clusters: those of at least `min_size` points; int64.
        singletons: those of one point; int64.
        largest: share of the points in the largest; float64 in (0, 1].
    """

    components: Tensor
    clusters: Tensor
    singletons: Tensor
    largest: Tensor


@memory_errors("cloud_components")
@without_derivative("it counts what a scale connects")
def cloud_components(
    points: Tensor,
    scales: Tensor | Sequence[float] | float,
    *,
    metric: Metric = "cosine",
    min_size: int = 5,
    lengths: _checks.Lengths = None,
) -> CloudComponents:
    """Return the components of the graph of all pairs of points not farther apart than a scale.

    Their number counts single points too: at a scale below all distances a cloud has n "components".

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; with "precomputed" distances
            [..., n, n].
        scales: distances, ascending.
        metric: "cosine" (1 − cos), "euclidean" or "precomputed".
        min_size: points from which on a component is a cluster.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        `CloudComponents`.

    Raises:
        ValueError: scales that are NaN or not ascending, none, `min_size` below 1, and as
            `cloud_persistence`.
        TypeError: no array, no number.

    Example:
        Two pairs of points, ten apart.

        >>> import torch, attnscope as asc
        >>> line = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> result = asc.cloud_components(line, [0.5, 1.0, 9.0], metric="euclidean", min_size=2)
        >>> result.components.tolist(), result.clusters.tolist(), result.largest.tolist()
        ([4, 2, 1], [0, 2, 1], [0.25, 0.5, 1.0])

    References:
        Edelsbrunner, Harer, Computational Topology, 2010, chapter VII.
    """
    name = "cloud_components"
    values = torch.tensor(
        [scalars.real(name, "scales", scale) for scale in numbers_argument(name, "scales", scales)],
        dtype=torch.float64,
        device="cpu",
    )
    if values.numel() == 0 or bool(values.isnan().any()) or bool((values.diff() < 0).any()):
        raise ValueError(f"{name}: scales must be one or more ascending numbers, got {scales!r}")
    least = scalars.at_least(name, "min_size", min_size, 1)
    checked = metric_argument(name, points, metric, lengths)
    kernel_arguments = (values, values.numel(), least)
    return CloudComponents(
        *_calls.call_and_warn(_core.cloud_components, name, checked, *kernel_arguments, unit="clouds")
    )


@memory_errors("fragmentation")
@without_derivative("it counts what a scale connects")
def fragmentation(
    points: Tensor,
    *,
    metric: Metric = "cosine",
    subsets: Tensor | None = None,
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Mean length of the finite H0 bars over the median distance of pairs: how evenly a cloud is spread.

    It is the area under β0 − 1 per merge, free of scale: 1 for equal distances, lower the more clustered.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; with "precomputed" distances
            [..., n, n].
        metric: "cosine" (1 − cos), "euclidean" or "precomputed".
        subsets: [s, n] boolean: the same for every subset of the points, from one matrix of distances; a
            subset gives what a call on it alone gives, bit for bit.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        [...] float64, with an axis of the subsets before; NaN for one point, where the median is 0 or
        infinite (of an even number of pairs the mean of the middle two), and for a cloud that is not finite.
        Points at distance 0 merge without a bar.

    Raises:
        ValueError: as `cloud_persistence`; subsets that are not boolean or of another shape.
        TypeError: no array.

    Example:
        The corners of a square are joined at its side, which is also the median distance; of two pairs of
        points the merges are at 1, 1 and 9, the median distance 9.5.

        >>> import torch, attnscope as asc
        >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> asc.fragmentation(square, metric="euclidean").item()
        1.0
        >>> pairs = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> round(asc.fragmentation(pairs, metric="euclidean").item() * 9.5 * 3, 9)
        11.0

    References:
        Edelsbrunner, Harer, Computational Topology, 2010, chapter VII, for the bars.
    """
    name = "fragmentation"
    checked = metric_argument(name, points, metric, lengths)
    chosen = subsets_argument(name, subsets, checked.n)
    kernel_arguments = (chosen, 1 if chosen is None else len(chosen))
    return _calls.call_and_warn(_core.fragmentation, name, checked, *kernel_arguments, unit="clouds")


# Four points on a line: merges at 1, 1 and 9; distances 1, 1, 9, 10, 10, 11.
_PAIRS = torch.tensor([[0.0], [1.0], [10.0], [11.0]], device="cpu")

SOURCES = (cloud_components,)
QUANTITIES = (
    Quantity(
        "fragmentation",
        "fragmentation",
        "fragmentation",
        "Mean length of the finite H0 bars of a cloud over the median distance of its points.",
        ClosedForm(11 / 3 / 9.5, torch.eye(2, device="cpu"), {"points": _PAIRS}),
        symbol="φ",
        options={"points": Site("points"), "metric": "euclidean"},
        scope="cloud",
        needs=("points",),
        low=0,
    ),
)
