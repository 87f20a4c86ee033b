# SPDX-License-Identifier: MIT
"""Intrinsic dimension of a cloud of points, from the distances of nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.clouds.cloud_distances import (
    distances_or_euclidean,
    labels_argument,
    numbers_argument,
    subsets_argument,
)
from attnscope.metrics.quantity import ClosedForm, Quantity, Site


@shown_by_shape
class LocalDimension(NamedTuple):
    """The dimension of every cloud, under every number of neighbours k.

    Attributes:
        value: Σ (k − 1)/Σ S_i, [..., K] float64; NaN where no point has k neighbours.
        points: (k − 2)/S_i, [..., K, n] float64; NaN at points that are not used and for k = 2.
        used: points with k neighbours that are not all equally far, [..., K] int64.
        duplicates: points that equal another one of the cloud, [..., K] int64.
        tied: points whose k neighbours are all equally far, to 1e-12 of the distance, and are left out,
            [..., K] int64.
    """

    value: Tensor
    points: Tensor
    used: Tensor
    duplicates: Tensor
    tied: Tensor


@memory_errors("local_dimension")
@without_derivative("it is made for reading")
def local_dimension(
    points: Tensor | None,
    *,
    k: int | Sequence[int] = 20,
    distances: Tensor | None = None,
    groups: Any = None,
    across: bool = False,
    subsets: Tensor | None = None,
    lengths: _checks.Lengths = None,
) -> LocalDimension:
    """Return the dimension in which the number of neighbours grows with distance, pooled over the points of a
    cloud.

    With the distances r_1 <= … <= r_k of a point's nearest others, S_i = Σ_{j<k} log(r_k/r_j); the value is
    Σ (k − 1)/Σ S_i, the maximum likelihood of points that are spread evenly at the scale of r_k. Points at
    distance 0 are no neighbours. From about ten dimensions on it is too small (a cube of 20 dimensions, 500
    points: 13.6 at k = 10), so clouds are compared, at one k and one number of points.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; None with `distances`.
        k: number of neighbours, one or several, each at least 2.
        distances: [..., n, n] symmetric instead of the Euclidean ones of `points`.
        groups: one label per point, [n] or [..., n].
        across: leave out neighbours of the same group.
        subsets: [s, n] boolean: the same for every subset of the points, from one matrix of distances; a
            subset gives what a call on it alone gives, bit for bit.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        `LocalDimension`, with an axis K of the numbers of neighbours behind the leading ones, and one of the
        subsets before them. n <= k, equal points, one point: NaN. Points at an infinite distance are no
        neighbours. A cloud with NaN or infinite coordinates, or a NaN among its distances: NaN, counts −1,
        one warning.

    Raises:
        ValueError: k below 2, wrong dtype, rank or shape, negative or asymmetric distances, subsets that are
            not boolean, `across` without groups, lengths outside 1..n.
        TypeError: no array, no whole number.

    Example:
        The numbers 0, 1 and e: S is 1, log(e − 1) and 1 − log(e − 1), the value 3·1/2.

        >>> import math, torch, attnscope as asc
        >>> line = torch.tensor([[0.0], [1.0], [math.e]], dtype=torch.float64)
        >>> result = asc.local_dimension(line, k=2)
        >>> round(result.value.item(), 12), result.used.item(), result.tied.item()
        (1.5, 3, 0)

    References:
        Levina and Bickel, Maximum likelihood estimation of intrinsic dimension, 2004; pooled as by MacKay and
        Ghahramani, Comments on it, 2005.
    """
    name = "local_dimension"
    neighbour_counts = [scalars.whole_number(name, "k", count) for count in numbers_argument(name, "k", k)]
    if not neighbour_counts or min(neighbour_counts) < 2:
        raise ValueError(f"{name}: k must be one or more numbers of at least 2, got {k!r}")
    checked = distances_or_euclidean(name, points, distances, lengths)
    chosen = subsets_argument(name, subsets, checked.n)
    labels = None if groups is None else labels_argument(name, "groups", groups, checked)
    if not scalars.flag(name, "across", across):
        labels = None
    elif labels is None:
        raise ValueError(f"{name}: across needs groups, got None")
    is_shared = labels is None or labels.ndim == 1
    kernel_arguments = (labels, is_shared, chosen, 1 if chosen is None else len(chosen), neighbour_counts)
    return LocalDimension(
        *_calls.call_and_warn(_core.local_dimension, name, checked, *kernel_arguments, unit="clouds")
    )


@memory_errors("two_nn")
@without_derivative("it is a fit to sorted distances")
def two_nn(
    points: Tensor | None,
    *,
    discard: float = 0.0,
    distances: Tensor | None = None,
    subsets: Tensor | None = None,
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Return the dimension from the ratio of the second to the first neighbour's distance: (N − 1)/Σ
    log(r_2/r_1).

    It looks at a smaller scale than `local_dimension` and is more easily misled by noise. With `discard`
    the fit of Facco et al. instead: the slope through the origin of −log(1 − i/N) on the ascending
    log(r_2/r_1), without that share of the largest.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; None with `distances`.
        discard: share of the largest ratios that is left out, in [0, 1).
        distances: [..., n, n] symmetric instead of the Euclidean ones of `points`.
        subsets: [s, n] boolean, as `local_dimension` takes them.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        [...] float64, above 0, with an axis of the subsets before; points at distance 0 are no neighbours.
        Fewer than two points with two neighbours, or all of them tied to 1e-12 of the distance, as in a
        grid: NaN.

    Raises:
        ValueError: discard outside [0, 1), wrong dtype, rank or shape, negative or asymmetric distances,
            subsets that are not boolean, lengths outside 1..n.
        TypeError: no array, no number.

    Example:
        The numbers 0, 1 and e: log ratios 1, log(e − 1) and 1 − log(e − 1), whose sum is 2.

        >>> import math, torch, attnscope as asc
        >>> line = torch.tensor([[0.0], [1.0], [math.e]], dtype=torch.float64)
        >>> round(asc.two_nn(line).item(), 12)
        1.0

    References:
        Facco, d'Errico, Rodriguez and Laio, Estimating the intrinsic dimension of datasets by a minimal
        neighborhood information, 2017.
    """
    name = "two_nn"
    share = scalars.real(name, "discard", discard)
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{name}: discard must lie in [0, 1), got {discard!r}")
    checked = distances_or_euclidean(name, points, distances, lengths)
    chosen = subsets_argument(name, subsets, checked.n)
    kernel_arguments = (chosen, 1 if chosen is None else len(chosen), share)
    return _calls.call_and_warn(_core.two_nn, name, checked, *kernel_arguments, unit="clouds")


# The numbers 0, 1 and e.
_LINE = torch.tensor([[0.0], [1.0], [torch.e]], dtype=torch.float64, device="cpu")

QUANTITIES = (
    Quantity(
        "local_dimension",
        "local_dimension",
        "local dimension",
        "Dimension in which the number of neighbours grows with distance, from the k nearest of each point.",
        ClosedForm(1.5, torch.eye(2, device="cpu"), {"points": _LINE}, options={"k": 2}),
        read=lambda result: result.value[..., 0],
        options={"points": Site("points")},
        scope="cloud",
        needs=("points",),
        low=0,
    ),
    Quantity(
        "two_nn",
        "two_nn",
        "dimension from two neighbours",
        "Dimension from the ratio of the distances of the two nearest neighbours of each point.",
        ClosedForm(1.0, torch.eye(2, device="cpu"), {"points": _LINE}),
        options={"points": Site("points")},
        scope="cloud",
        needs=("points",),
        low=0,
    ),
)
