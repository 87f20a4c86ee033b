# SPDX-License-Identifier: MIT
"""Distances between the points of a cloud, in torch operations; the definition is
`attnscope.cloud_distances`'.

Differences of coordinates are squared and summed, without a Gram matrix, so that the distance of two points
does not depend on the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.devices.slab import refuse_float32
from attnscope.devices.slabs import per_cloud

#: Distances outside of these have squares that lost digits, or that no number holds.
SMALLEST, LARGEST = 1e-140, 1e150
#: Numbers of the differences that are looked at together where squares have no digits.
NUMBERS_TOGETHER = 1 << 22


def cloud_distances(points: Tensor, lengths: Tensor | None, metric: str) -> tuple[Tensor, int]:
    """Return the distances of all pairs of points of every cloud [..., n, n], and how many are not finite.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(points)
    n, d = points.shape[-2:]

    def compute(clouds: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        inside = torch.ones(clouds.shape[:-1], dtype=torch.bool, device=clouds.device)
        if ends is not None:
            inside = torch.arange(n, device=clouds.device) < ends[:, None]
        wide = torch.where(inside[..., None], clouds, 0).double()
        finite = wide.isfinite().flatten(1).all(-1)
        wide = torch.where(finite[:, None, None], wide, 0.0)
        distances = _cosine(wide) if metric == "cosine" else _euclidean(wide)
        visible = inside[:, :, None] & inside[:, None, :] & finite[:, None, None]
        return torch.where(visible, distances, math.nan), finite

    # points and unit vectors, distances and what is compared of them
    bytes_of_one = 8 * (4 * n * d + 6 * n * n)
    distances, finite = per_cloud(compute, (points, lengths), bytes_of_one)
    return distances, int((~finite).sum())


def _plain(points: Tensor) -> Tensor:
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def _cosine(points: Tensor) -> Tensor:
    """Return ½‖u − v‖² of unit vectors, at most 2."""
    largest = points.abs().amax(-1, keepdim=True)
    scaled = points / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    distances = _plain(scaled / torch.where(norm > 0, norm, 1.0))
    return (distances.square() / 2).clamp(max=2.0)


def _euclidean(points: Tensor) -> Tensor:
    """Return ‖x − y‖; of pairs whose squares leave float64's range from scaled coordinates."""
    distances = _plain(points)
    maps, first, second = ((distances < SMALLEST) | ~(distances < LARGEST)).nonzero(as_tuple=True)
    step = max(1, NUMBERS_TOGETHER // points.shape[-1])
    for start in range(0, len(maps), step):
        part = slice(start, start + step)
        pair = (maps[part], first[part], second[part])
        distances[pair] = _of_pairs(points[pair[0], pair[1]], points[pair[0], pair[2]])
    return distances


def _of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return the distances of pairs of points [p, d] of any size; infinite only where no number holds one."""
    # a quarter of each, because a difference can exceed the largest number
    difference = left / 4 - right / 4
    largest = difference.abs().amax(-1, keepdim=True)
    # of numbers near the smallest ones a quarter is 0
    difference = torch.where(largest > 0, difference, left - right)
    scale = torch.where(largest > 0, 4.0, 1.0)
    largest = difference.abs().amax(-1, keepdim=True)
    shares = difference / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(shares, dim=-1, keepdim=True)
    return (norm * largest * scale).squeeze(-1)
