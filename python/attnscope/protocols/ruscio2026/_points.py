# SPDX-License-Identifier: MIT
"""Arguments of the notebooks' functions of points."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnscope.metrics.clouds.cloud_distances import points_argument


def one_cloud(function: str, points: Any, name: str = "points") -> Tensor:
    """Return one cloud [n, d] in float64."""
    tensor = points_argument(function, points, None, name).tensor
    if tensor.ndim != 2:
        raise ValueError(f"{function}: {name} must be one cloud [n, d], got shape {tuple(tensor.shape)}")
    wide = tensor.double()
    if not bool((finite := wide.isfinite()).all()):
        row = int((~finite).any(-1).nonzero()[0])
        raise ValueError(f"{function}: {name} must be finite, got {wide[row].tolist()[:4]} … in row {row}")
    return wide
