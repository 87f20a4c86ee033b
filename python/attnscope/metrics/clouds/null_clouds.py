# SPDX-License-Identifier: MIT
"""Clouds and directions drawn to have some properties of given points and no others."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics.clouds.cloud_distances import Cloud, draws_argument, labels_argument, points_argument

CloudKind = Literal["gaussian", "covariance", "template"]
DirectionKind = Literal["isotropic", "covariance", "labels"]


@memory_errors("null_clouds")
@without_derivative("its clouds are drawn")
def null_clouds(
    points: Tensor,
    kind: CloudKind,
    *,
    groups: Any = None,
    draws: int = 20,
    seed: int = 0,
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Draw Gaussian clouds with the mean and some of the spread of given clouds, as many points each.

    "gaussian" keeps the mean and the total variance, the same in every direction; "covariance" the mean and
    the covariance (of rank n − 1); "template" the means of `groups` and the covariance within them, pooled.
    The expectation is kept, a draw varies. Relabelled clouds are subsets (`statistics.exchange_labels`), and
    clouds of random weights come from a model.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA; n >= 2.
        kind: what is kept.
        groups: one label per point, [n] or [..., n]; for "template".
        draws: clouds for each that is given.
        seed: the same seed gives the same clouds, the first of them whatever the number of draws, and those
            of each given cloud as a call on it gives them, whatever the batch holds besides.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points, and
            points behind them are NaN.

    Returns:
        [draws, ..., n, d] float64; NaN for a cloud with NaN or infinite coordinates, with one warning, for
        one point, and for "template" with as many groups as points.

    Raises:
        ValueError: an unknown kind, "template" without groups, no draw, wrong dtype or rank, lengths outside
            1..n.
        TypeError: no array, no whole number.

    Example:
        Points on a line keep to it, and so do clouds with their covariance.

        >>> import torch, attnscope as asc
        >>> line = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
        >>> drawn = asc.null_clouds(line, "covariance", draws=5)
        >>> drawn.shape, drawn[..., 1].unique().tolist()
        (torch.Size([5, 3, 2]), [1.0])

    References:
        Efron and Tibshirani, An introduction to the bootstrap, 1993, for the parametric bootstrap.
    """
    name = "null_clouds"
    chosen = scalars.choice_argument(name, "kind", kind, ("gaussian", "covariance", "template"))
    number, draw = draws_argument(name, draws, seed)
    cloud = points_argument(name, points, lengths)
    if chosen == "template":
        if groups is None:
            raise ValueError(f"{name}: kind 'template' needs groups, got None")
        labels = labels_argument(name, "groups", groups, cloud).expand(*cloud.leading, cloud.n)
    else:
        labels = torch.zeros(*cloud.leading, cloud.n, dtype=torch.int64, device="cpu")
    scales = _powers.scales_of(cloud.tensor, cloud.lengths)
    wide, sees, bad = _finite_points(Cloud(_powers.scaled(cloud.tensor, scales), cloud.lengths))
    result = torch.full((number, *wide.shape), torch.nan, dtype=torch.float64, device="cpu")
    begin = draw.get_state()
    for place in np.ndindex(*cloud.leading):
        # as in a call on this cloud, wherever it stands and however far it is padded
        draw.set_state(begin)
        real = (*place, sees[place])
        if (n := len(wide[real])) == 0:
            continue
        means, number_of_groups = _group_means(wide[real], labels[real])
        if n == number_of_groups:
            continue
        for null_cloud in result:
            spread = _spread(chosen, wide[real] - means, n - number_of_groups, draw)
            null_cloud[real] = means + spread
    result = _powers.unscaled(result.movedim(0, -1), scales).movedim(-1, 0)
    return _calls.warn_non_finite(name, cloud, result, bad, "clouds")


@memory_errors("null_directions")
@without_derivative("its directions are drawn")
def null_directions(
    states: Tensor,
    kind: DirectionKind = "isotropic",
    *,
    labels: Any = None,
    draws: int = 20,
    seed: int = 0,
) -> Tensor:
    """Draw unit vectors with which a direction found in states is compared.

    "isotropic": uniform on the sphere. "covariance": Σ_i g_i (h_i − μ) with independent normal g, so that
    directions in which the states spread are drawn more often. "labels": the difference of means of a random
    relabelling, as many states of each label as there are.

    Args:
        states: [n, d], four float types, any strides, CPU or CUDA; of "isotropic" only d is read.
        kind: which law.
        labels: for "labels", two different values, one per state.
        draws: number of directions.
        seed: the same seed gives the same directions, the first of them whatever the number of draws.

    Returns:
        [draws, d] float64 of norm 1; NaN where the states do not spread or are not finite.

    Raises:
        ValueError: an unknown kind, "labels" without labels or with other than two values, no draw, states
            that are no matrix.
        TypeError: no array, no whole number.

    Example:
        States on a line spread along it alone.

        >>> import torch, attnscope as asc
        >>> line = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
        >>> asc.null_directions(line, "covariance", draws=4).abs().tolist()
        [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]

    References:
        Muller, A note on a method for generating points uniformly on n-dimensional spheres, 1959.
    """
    name = "null_directions"
    chosen = scalars.choice_argument(name, "kind", kind, ("isotropic", "covariance", "labels"))
    number, draw = draws_argument(name, draws, seed)
    cloud = points_argument(name, states, None, "states")
    if cloud.tensor.ndim != 2:
        raise ValueError(f"{name}: states must be [n, d], got shape {tuple(cloud.tensor.shape)}")
    wide = _powers.in_range(cloud.tensor.double().contiguous())[0]
    n, d = wide.shape
    if chosen == "isotropic":
        drawn = torch.stack(
            [torch.randn(d, generator=draw, dtype=torch.float64, device="cpu") for _ in range(number)]
        )
        return drawn / drawn.norm(dim=-1, keepdim=True)
    rest = wide - wide[:1]
    rest = rest - rest.mean(0)
    if chosen == "covariance":
        weights = torch.stack(
            [torch.randn(n, generator=draw, dtype=torch.float64, device="cpu") for _ in range(number)]
        )
    else:
        if labels is None:
            raise ValueError(f"{name}: kind 'labels' needs labels, got None")
        is_second_label = labels_argument(name, "labels", labels, cloud).double()
        if float(is_second_label.max()) != 1:
            raise ValueError(f"{name}: labels must have two values, got {int(is_second_label.max()) + 1}")
        signed = is_second_label / is_second_label.sum() - (1 - is_second_label) / (1 - is_second_label).sum()
        weights = torch.stack(
            [signed[torch.randperm(n, generator=draw, device="cpu")] for _ in range(number)]
        )
    directions = weights @ rest
    norms = directions.norm(dim=-1, keepdim=True)
    return torch.where(norms > 0, directions / norms, torch.nan)


def _spread(kind: str, rest: Tensor, freedom: int, draw: torch.Generator) -> Tensor:
    """Draw how far the points of a cloud of one kind lie from the means of their groups, [n, d].

    Args:
        kind: what is kept.
        rest: the given points less the means of their groups, [n, d].
        freedom: points less groups.
        draw: where the normal numbers come from.
    """
    n, d = rest.shape
    columns = d if kind == "gaussian" else n
    normal = torch.randn(n, columns, generator=draw, dtype=torch.float64, device="cpu")
    if kind == "gaussian":
        return normal * (rest.square().sum() / freedom / d).sqrt()
    return (normal @ rest) / math.sqrt(freedom)


def _finite_points(cloud: Cloud) -> tuple[Tensor, Tensor, int]:
    """Return points in float64, zeros outside; a mask of the points of finite clouds; the number of other
    clouds.
    """
    # Sums in one order, whatever the strides.
    wide, sees = cloud.tensor.double().contiguous(), cloud.inside()
    finite = (wide.isfinite() | ~sees[..., None]).all((-2, -1))
    sees = sees & finite[..., None]
    return torch.where(sees[..., None], wide, 0), sees, int((~finite).sum())


def _group_means(points: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Return the mean of each point's group, [n, d], and the number of groups of a cloud [n, d]."""
    _, groups = np.unique(labels.numpy(), return_inverse=True)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(groups)).double()
    first = points[:1]
    means = (one_hot.mT @ (points - first)) / one_hot.sum(0)[:, None]
    return first + one_hot @ means, one_hot.shape[-1]


SOURCES = (null_clouds, null_directions)
