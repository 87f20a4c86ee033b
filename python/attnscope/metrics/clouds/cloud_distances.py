# SPDX-License-Identifier: MIT
"""Distances between the points of a cloud."""

from __future__ import annotations

from typing import Literal

import torch

from attnscope import _checks
from attnscope.metrics.clouds._clouds import distances_of, points_argument


def cloud_distances(
    points: torch.Tensor,
    *,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    lengths: _checks.Lengths = None,
) -> torch.Tensor:
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
        throughout a cloud with NaN or infinite coordinates, with one warning. Squares beyond 1e308 give
        infinity.

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
    chosen = _checks.choice_argument(name, "metric", metric, ("euclidean", "cosine"))
    cloud = points_argument(name, points, lengths)
    distances = distances_of(name, cloud, chosen).tensor
    # A cloud is NaN as a whole or not at all, and its first point is always inside.
    bad = int(distances[..., 0, 0].isnan().sum())
    _checks.finished(name, cloud, None, bad, "clouds")
    return distances


SOURCES = (cloud_distances,)
