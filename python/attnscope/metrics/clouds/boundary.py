# SPDX-License-Identifier: MIT
"""The difference of the means of two clouds of points."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments.host_copies import row_major
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.clouds.cloud_distances import Cloud, points_argument


@shown_by_shape
class Boundary(NamedTuple):
    """The difference of the means of every pair of clouds, float64.

    Attributes:
        direction: v/‖v‖, [..., d]; NaN where v = 0.
        norm: ‖v‖, [...].
        relative_norm: ‖v‖ over the mean norm of the points of both clouds, [...].
        distance2: ‖v‖² less what the scatter of the points adds to it, [...]; unbiased, so it may be below 0,
            and NaN for a single point or pair.
        center: halfway between the means, [..., d].
    """

    direction: Tensor
    norm: Tensor
    relative_norm: Tensor
    distance2: Tensor
    center: Tensor


@memory_errors("boundary")
@without_derivative("it is made for reading")
def boundary(
    reference: Tensor,
    other: Tensor,
    *,
    pairs: Tensor | None = None,
    lengths: _checks.Lengths = None,
    other_lengths: _checks.Lengths = None,
) -> Boundary:
    """Return the vector v = mean of `other` − mean of `reference`, or the mean difference within pairs.

    Args:
        reference: clouds [..., n, d], four float types, any strides, CPU or CUDA.
        other: clouds [..., m, d] with the same leading axes and d.
        pairs: [p, 2] whole numbers: a point of `reference` and the point of `other` that belongs to it.
        lengths: points per cloud of `reference`, broadcast against the leading axes; not with pairs.
        other_lengths: of `other`.

    Returns:
        `Boundary`. NaN for clouds with NaN or infinite coordinates, with one warning.

    Raises:
        ValueError: shapes that do not fit, wrong dtype, pairs of another shape or outside the clouds, pairs
            with lengths, lengths outside 1..n.
        TypeError: no array.

    Example:
        Two points of spread 2 about 0, two about 3: the squared distance of the means, 9, is 2 more than what
        remains when the scatter of each mean, 2/2, is taken off.

        >>> import torch, attnscope as asc
        >>> result = asc.boundary(torch.tensor([[-1.0], [1.0]]), torch.tensor([[2.0], [4.0]]))
        >>> result.norm.item(), result.distance2.item(), result.center.tolist()
        (3.0, 7.0, [1.5])

    References:
        Ruscio and Thompson, arXiv 2603.13911, 2026, for the direction; Bai and Saranadasa, Effect of high
        dimension, 1996, for the unbiased squared distance.
    """
    name = "boundary"
    reference_cloud = points_argument(name, reference, lengths, "reference")
    other_cloud = points_argument(name, other, other_lengths, "other")
    if (
        reference_cloud.leading != other_cloud.leading
        or reference_cloud.tensor.shape[-1] != other_cloud.tensor.shape[-1]
    ):
        raise ValueError(
            f"{name}: reference and other must agree in all but the number of points, got "
            f"{tuple(reference_cloud.tensor.shape)} and {tuple(other_cloud.tensor.shape)}"
        )
    if pairs is not None:
        if reference_cloud.lengths is not None or other_cloud.lengths is not None:
            raise ValueError(f"{name}: pairs choose their points, so no lengths go with them")
        places = _pairs_argument(name, pairs, reference_cloud.n, other_cloud.n)
        reference_cloud = Cloud(reference_cloud.tensor[..., places[:, 0], :], None)
        other_cloud = Cloud(other_cloud.tensor[..., places[:, 1], :], None)
    scales = _powers.smaller_scales(
        _powers.scales_of(reference_cloud.tensor, reference_cloud.lengths),
        _powers.scales_of(other_cloud.tensor, other_cloud.lengths),
    )
    reference_cloud, other_cloud = (
        Cloud(_powers.scaled(cloud.tensor, scales), cloud.lengths) for cloud in (reference_cloud, other_cloud)
    )
    first, second = _Moments.of(reference_cloud), _Moments.of(other_cloud)
    v = second.mean - first.mean
    squared = v.square().sum(-1)
    if pairs is None:
        scatter = first.scatter + second.scatter
    else:
        scatter = _Moments.of(
            Cloud(other_cloud.tensor.double() - reference_cloud.tensor.double(), None)
        ).scatter
    norm = squared.sqrt()
    points = first.size + second.size
    bad = first.mean.isnan().any(-1) | second.mean.isnan().any(-1)
    result = Boundary(
        torch.where(norm[..., None] > 0, v / norm[..., None], torch.nan),
        _powers.unscaled(norm, scales),
        norm / ((first.norms + second.norms) / points),
        _powers.unscaled(squared - scatter, scales, power=2),
        _powers.unscaled((first.mean + second.mean) / 2, scales),
    )
    return _calls.warn_non_finite(name, reference_cloud, result, int(bad.sum()), "clouds")


class _Moments(NamedTuple):
    """Moments of the points of a cloud: their number, mean, sum of norms, and variance of the mean summed
    over axes.
    """

    size: Tensor
    mean: Tensor
    norms: Tensor
    scatter: Tensor

    @staticmethod
    def of(cloud: Cloud) -> _Moments:
        sees = cloud.inside()[..., None]
        wide = torch.where(sees, row_major(cloud.tensor.double()), 0)
        wide = torch.where(wide.isfinite().all((-2, -1), keepdim=True), wide, torch.nan)
        count = sees.sum((-2, -1))
        mean = wide.sum(-2) / count[..., None]
        rest = torch.where(sees, wide - mean[..., None, :], 0)
        scatter = rest.square().sum((-2, -1)) / (count - 1) / count
        return _Moments(count, mean, wide.norm(dim=-1).sum(-1), torch.where(count > 1, scatter, torch.nan))


def _pairs_argument(function: str, pairs: Any, n: int, m: int) -> Tensor:
    tensor = _checks.as_tensor(function, "pairs", pairs).detach().cpu()
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{function}: pairs must be whole numbers, got {tensor.dtype}")
    if tensor.ndim != 2 or tensor.shape[-1] != 2 or len(tensor) == 0:
        raise ValueError(f"{function}: pairs must be [p, 2] with p >= 1, got shape {tuple(tensor.shape)}")
    outside = (tensor < 0) | (tensor >= torch.tensor([n, m], device="cpu"))
    if bool(outside.any()):
        row = int(outside.any(-1).nonzero()[0])
        raise ValueError(
            f"{function}: pairs must be points of {n} and {m}, got {tuple(tensor[row].tolist())} in row {row}"
        )
    return tensor.long()


SOURCES = (boundary,)
