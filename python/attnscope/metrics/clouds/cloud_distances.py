# SPDX-License-Identifier: MIT
"""Distances between the points of a cloud, and the checks that all functions of clouds share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative

Metric = Literal["cosine", "euclidean", "precomputed"]
METRICS = ("cosine", "euclidean", "precomputed")
#: |d_ij² − d_ji²| of given distances, over the square of the largest of them, from which on they are refused.
#: Distances that are formed of a Gram matrix lose that much to rounding: of squares, so that near points
#: differ by its root. Half types are rounded once, when distances are stored in them.
ASYMMETRY = {torch.float64: 2e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 4e-2}


class Cloud(_checks.Attention):
    """Checked points [..., n, d], and one length per cloud or None."""

    @property
    def n(self) -> int:
        return int(self.tensor.shape[-2])


@memory_errors("cloud_distances")
@without_derivative("it is made for reading; `torch.cdist` has one")
def cloud_distances(
    points: Tensor,
    *,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Distances of all pairs of points, in float64: ‖x_i − x_j‖, or 1 − cos(x_i, x_j).

    Formed from differences of coordinates (of unit vectors: 1 − cos = ½‖u − v‖²), not from a Gram matrix, so
    that near points lose no digits, a common offset does no harm, and the distance of two points does not
    depend on the others: those of a part of a cloud are the same numbers.

    Args:
        points: clouds [..., n, d], float16, bfloat16, float32 or float64, any strides, CPU or CUDA.
        metric: "euclidean", or "cosine" in [0, 2].
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        [..., n, n] float64: exactly symmetric, exactly 0 for equal rows. NaN beyond the lengths and
        throughout a cloud with NaN or infinite coordinates, with one warning. Only a distance beyond 1.8e308
        is infinite.

    Raises:
        ValueError: fewer than two dimensions, no point, wrong dtype, more than 65535 points, an unknown
            metric, a zero vector under "cosine", lengths outside 1..n.
        TypeError: no array.

    Example:
        The corner, and two points of the axes.

        >>> import torch, attnscope as asc
        >>> asc.cloud_distances(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])).tolist()
        [[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]
        >>> axes = torch.tensor([[3.0, 0.0], [0.0, 4.0], [-1.0, 0.0]])
        >>> asc.cloud_distances(axes, metric="cosine")[0].tolist()
        [0.0, 1.0, 2.0]

    References:
        Deza and Deza, Encyclopedia of distances, 2009.
    """
    name = "cloud_distances"
    chosen = scalars.choice_argument(name, "metric", metric, ("euclidean", "cosine"))
    cloud = points_argument(name, points, lengths)
    distances = distances_of(name, cloud, chosen).tensor
    # A cloud is NaN as a whole or not at all, and its first point is always inside.
    bad = int(distances[..., 0, 0].isnan().sum())
    _calls.warn_non_finite(name, cloud, None, bad, "clouds")
    return distances


def points_argument(function: str, points: Any, lengths: _checks.Lengths, name: str = "points") -> Cloud:
    """Check `points` [..., n, d] and `lengths`, without a copy.

    Points on an accelerator stay there if the function is measured there.
    """
    tensor = _checks.float_tensor(function, name, points)
    if not placement.stays(function, tensor):
        tensor = _checks.to_host(tensor)
    if tensor.ndim < 2 or 0 in tensor.shape[-2:]:
        raise ValueError(
            f"{function}: {name} must be clouds [..., n, d] with n, d >= 1, got shape {tuple(tensor.shape)}"
        )
    leading, n = tuple(tensor.shape[:-2]), int(tensor.shape[-2])
    return Cloud(tensor, _checks.lengths_argument(function, lengths, leading, n))


def visible_points(points: Tensor, lengths: Tensor | None) -> Tensor:
    """Return which points [..., n, d] are within the lengths [...], bool [..., n] where the points are."""
    place = torch.arange(points.shape[-2], device=points.device)
    inside = place >= 0 if lengths is None else place < lengths[..., None]
    return inside.expand(points.shape[:-1])


def bytes_of_spectrum(points: Tensor) -> int:
    """Return the bytes that singular values of a cloud of points [..., n, d] take on their way."""
    n, d = points.shape[-2:]
    return 8 * 6 * n * d


def distances_of(function: str, cloud: Cloud, metric: str) -> _checks.Attention:
    """Distances [..., n, n] of checked points; NaN throughout where a cloud is not finite.

    Raises:
        ValueError: a zero vector, which has no direction, under "cosine".
    """
    _few_enough(function, "points", cloud.n)
    if metric == "cosine":
        zero_points = (cloud.tensor == 0).all(-1).cpu() & cloud.inside()
        if bool(zero_points.any()):
            place = tuple(int(axis) for axis in zero_points.nonzero()[0])
            raise ValueError(
                f"{function}: cosine distances need vectors that are not 0, got a zero vector at index "
                f"{place if len(place) > 1 else place[0]}"
            )
    run = placement.computed_on(_core.cloud_distances, cloud.tensor, function)
    distances, _ = run(cloud.tensor, cloud.lengths, metric)
    return _checks.Attention(distances, cloud.lengths)


def distances_argument(
    function: str, distances: Any, lengths: _checks.Lengths, name: str = "distances"
) -> _checks.Attention:
    """Check distances [..., n, n]: square, symmetric but for rounding in their dtype, none below 0.

    NaN entries are let through, and infinite ones: such a pair is never joined.
    """
    # nothing of given distances is measured on a device
    tensor = _checks.to_host(_checks.float_tensor(function, name, distances))
    checked = _checks.attention_argument(function, tensor, lengths, name=name)
    _few_enough(function, name, checked.n)
    tensor = checked.tensor
    if torch.equal(tensor, tensor.mT) and (tensor.numel() == 0 or bool(tensor.amin() >= 0)):
        return checked
    sees = checked.inside()
    visible_pairs = sees[..., :, None] & sees[..., None, :]
    if bool((negative := (tensor < 0) & visible_pairs).any()):
        place = tuple(int(axis) for axis in negative.nonzero()[0])
        raise ValueError(f"{function}: {name} must not be negative, got {tensor[place].item()} at {place}")
    largest = (
        torch.where(visible_pairs, tensor, 0).nan_to_num(0, posinf=0).amax((-2, -1), keepdim=True).double()
    )
    # Shares of the largest, whose squares stay in range.
    share = tensor.double() / torch.where(largest > 0, largest, 1.0)
    skew = ((share - share.mT) * (share + share.mT)).abs().nan_to_num(0, posinf=0)
    one_sided = visible_pairs & (tensor.isinf() != tensor.mT.isinf()) & ~(tensor.isnan() | tensor.mT.isnan())
    if bool((apart := visible_pairs & (skew > ASYMMETRY[tensor.dtype]) | one_sided).any()):
        place = tuple(int(axis) for axis in apart.nonzero()[0])
        other = (*place[:-2], place[-1], place[-2])
        raise ValueError(
            f"{function}: {name} must be symmetric, got {tensor[place].item()} at {place} and "
            f"{tensor[other].item()} at {other}"
        )
    return checked


def metric_argument(function: str, points: Any, metric: Any, lengths: _checks.Lengths) -> _checks.Attention:
    """Distances [..., n, n] under `metric`, of points or as they are given."""
    chosen = scalars.choice_argument(function, "metric", metric, METRICS)
    if chosen == "precomputed":
        return distances_argument(function, points, lengths, "points")
    return distances_of(function, points_argument(function, points, lengths), chosen)


def distances_or_euclidean(
    function: str, points: Any, distances: Any, lengths: _checks.Lengths
) -> _checks.Attention:
    """Return `distances` if passed, otherwise the Euclidean ones of `points`."""
    if distances is None:
        return distances_of(function, points_argument(function, points, lengths), "euclidean")
    checked = distances_argument(function, distances, lengths)
    if points is not None:
        cloud = points_argument(function, points, lengths)
        if (*cloud.leading, cloud.n) != tuple(checked.tensor.shape[:-1]):
            raise ValueError(
                f"{function}: distances of shape {tuple(checked.tensor.shape)} do not belong to points of "
                f"shape {tuple(cloud.tensor.shape)}"
            )
    return checked


def subsets_argument(function: str, subsets: Any, n: int) -> Tensor | None:
    """Subsets [s, n] as a contiguous boolean tensor on the CPU, or None."""
    if subsets is None:
        return None
    tensor = _checks.as_tensor(function, "subsets", subsets)
    if tensor.dtype != torch.bool or tensor.ndim != 2 or tensor.shape[-1] != n:
        raise ValueError(
            f"{function}: subsets must be boolean of shape [s, {n}], got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}"
        )
    return _checks.to_host(tensor).contiguous()


def labels_argument(function: str, name: str, labels: Any, cloud: _checks.Attention) -> Tensor:
    """Return one label per point, [n] for all clouds or [..., n], as whole numbers 0, 1, …; words are
    numbered.
    """
    if isinstance(labels, Tensor):
        labels = _checks.as_tensor(function, name, labels).detach().cpu()
    try:
        label_array = np.asarray(labels)
        _, inverse = np.unique(label_array, return_inverse=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{function}: {name} must be one label per point: {error}") from None
    if label_array.shape not in ((cloud.n,), (*cloud.leading, cloud.n)):
        raise ValueError(
            f"{function}: {name} must hold one label per point, [{cloud.n}], got shape {label_array.shape}"
        )
    return torch.from_numpy(inverse.reshape(label_array.shape).astype(np.int64))


def draws_argument(function: str, draws: Any, seed: Any) -> tuple[int, torch.Generator]:
    """Return a number of draws, at least 1, and the generator that makes them."""
    number = scalars.at_least(function, "draws", draws, 1)
    return number, torch.Generator().manual_seed(scalars.at_least(function, "seed", seed, 0))


def numbers_argument(function: str, name: str, values: Any) -> Sequence[Any]:
    """Return a number or several as a list."""
    if isinstance(values, Tensor):
        values = _checks.as_tensor(function, name, values).detach().cpu()
    if isinstance(values, (Tensor, np.ndarray)):
        if values.ndim > 1:
            raise ValueError(f"{function}: {name} must be a list of numbers, got shape {tuple(values.shape)}")
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        return [values]
    return values


def _few_enough(function: str, name: str, n: int) -> None:
    if n > _core.max_vertices:
        raise ValueError(f"{function}: {name} must hold at most {_core.max_vertices} points, got {n}")


SOURCES = (cloud_distances,)
