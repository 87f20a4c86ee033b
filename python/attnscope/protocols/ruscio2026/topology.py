# SPDX-License-Identifier: MIT
"""The boundary between two clouds, and the topology of the points near it, as the notebooks compute them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.clouds.cloud_distances import cloud_distances
from attnscope.metrics.clouds.cloud_persistence import cloud_persistence
from attnscope.protocols.ruscio2026._points import one_cloud

#: The scale at which bars are counted, the share of points that are near, and the most of them.
SCALE, NEAR, MOST = 0.15, 0.4, 200


class Topology(NamedTuple):
    """Counts of bars at the scale 0.15.

    Attributes:
        beta0: bars of H0 that end beyond it, the infinite one among them.
        beta1: bars of H1 that hold it strictly inside.
        points: number of points read.
    """

    beta0: int
    beta1: int
    points: int


@without_derivative("it is the published code's number, made for comparing")
def boundary(reference: Tensor, other: Tensor) -> Tensor:
    """v/(‖v‖ + 1e-9), v the difference of the means.

    Differs from `boundary`: its norm is below 1, by a hundredth where ‖v‖ is 1e-7, and clouds of one mean
    give zeros instead of NaN.

    Args:
        reference: [n, d], four float types.
        other: [m, d].

    Returns:
        [d] float64.

    Raises:
        ValueError: other shapes, entries that are not finite.
        TypeError: no arrays.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.boundary(torch.zeros(2, 3), torch.zeros(4, 3)).tolist()
        [0.0, 0.0, 0.0]

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    name = "boundary"
    reference_cloud, other_cloud = one_cloud(name, reference, "reference"), one_cloud(name, other, "other")
    if reference_cloud.shape[-1] != other_cloud.shape[-1]:
        raise ValueError(
            f"{name}: reference and other must have one d, got shapes {tuple(reference_cloud.shape)} and "
            f"{tuple(other_cloud.shape)}"
        )
    v = other_cloud.mean(0) - reference_cloud.mean(0)
    return v / (v.norm() + 1e-9)


@without_derivative("it is the published code's number, made for comparing")
def topology(points: Tensor, direction: Tensor, *, draw: np.random.RandomState | None = None) -> Topology:
    """Bars of the cosine distances of the points near the boundary, counted at 0.15.

    Near are those whose |x·b − mean| is at most its 40 % quantile, of which at most 200 are drawn. Differs
    from `cloud_components` and `betti_curve`: it counts single points as components and the infinite bar
    too, so that n points without any structure have β0 = n; it reads only points near one direction; bars
    are compared strictly, in float32 as ripser.py gives them; and the drawn points depend on NumPy's state.

    Args:
        points: one cloud [n, d] without a zero vector, four float types.
        direction: [d].
        draw: the state that draws; None: NumPy's global one, as there.

    Returns:
        Topology.

    Raises:
        ValueError: other shapes, entries that are not finite, a zero vector.
        TypeError: no arrays.

    Example:
        Points on the axes are at distance 1 from each other: as many components as points.

        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.topology(torch.eye(50), torch.zeros(50))
        Topology(beta0=50, beta1=0, points=50)

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, Ripser up to H1.
    """
    name = "topology"
    wide = one_cloud(name, points)
    along = one_cloud(name, direction[None] if getattr(direction, "ndim", 0) == 1 else direction, "direction")
    if along.shape != (1, wide.shape[1]):
        raise ValueError(
            f"{name}: direction must be [{wide.shape[1]}], got shape {tuple(getattr(direction, 'shape', ()))}"
        )
    projected = wide @ along[0]
    apart = (projected - projected.mean()).abs().numpy()
    chosen = np.flatnonzero(apart <= np.quantile(apart, NEAR))
    if len(chosen) > MOST:
        drawn = (np.random if draw is None else draw).choice(len(chosen), MOST, replace=False)
        chosen = chosen[drawn]
    distances = cloud_distances(wide[torch.from_numpy(chosen)], metric="cosine").float()
    components, loops = cloud_persistence(distances, metric="precomputed")[()]
    return Topology(
        int((components[:, 1] > SCALE).sum()),
        int(((loops[:, 0] < SCALE) & (loops[:, 1] > SCALE)).sum()),
        len(chosen),
    )
