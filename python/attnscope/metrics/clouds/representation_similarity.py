# SPDX-License-Identifier: MIT
"""Agreement of two representations of the same points: centred kernel alignment and shared neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _calls
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics.clouds.cloud_distances import Cloud, distances_of, points_argument


@memory_errors("cka")
def cka(x: Tensor, y: Tensor, *, debiased: bool = True) -> Tensor:
    """Return the linear centred kernel alignment of two representations.

    HSIC(K, L)/√(HSIC(K, K) HSIC(L, L)) with K = XXᵀ, L = YYᵀ. The debiased estimate is near 0 for independent
    points of any dimension and may be negative; the biased one grows with the dimensions.

    Args:
        x: points [..., n, d].
        y: the same points, row by row, in another representation [..., n, e].
        debiased: Song et al.'s unbiased HSIC, for n >= 4.

    Returns:
        [...] float64, at most 1 up to rounding; NaN where a representation does not vary, and, with
        one warning, where it is not finite.

    Raises:
        ValueError: other numbers of points, fewer than four for the debiased estimate.

    Example:
        A turned and stretched copy is the same representation.

        >>> import torch, attnscope as asc
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 5.0], [4.0, 3.0], [2.0, 2.0]])
        >>> round(asc.cka(x, 3 * x.flip(-1)).item(), 9)
        1.0

    References:
        Kornblith et al., Similarity of neural network representations revisited, 2019. Song et al., Feature
        selection via dependence maximization, 2012, for the unbiased estimate.
    """
    name = "cka"
    first, second = _pair(name, x, y)
    unbiased = scalars.flag(name, "debiased", debiased)
    n = first.shape[-2]
    if unbiased and n < 4:
        raise ValueError(f"{name}: the debiased estimate needs at least 4 points, got {n}")
    value, finite = placement.per_cloud(
        name,
        lambda x, y: (_alignments(x, y, debiased=unbiased), _are_finite(x) & _are_finite(y)),
        first,
        second,
        bytes_of_one=8 * n * (3 * (first.shape[-1] + second.shape[-1]) + 6 * n),
    )
    return _calls.warn_non_finite(name, Cloud(first, None), value, int((~finite).sum()), "clouds")


def _are_finite(points: Tensor) -> Tensor:
    """Return which clouds [..., n, d] hold no NaN and no infinity."""
    return points.isfinite().all((-2, -1))


def _alignments(x: Tensor, y: Tensor, *, debiased: bool) -> Tensor:
    """Return the alignment of two representations [..., n, d] and [..., n, e] of the same points."""
    kernels = []
    for points in (x, y):
        scaled, _ = _powers.in_range(points.double())
        # From the first point on, so that a common offset does no harm: both estimates are of centred points.
        rows = scaled - scaled[..., :1, :]
        rows = rows - rows.mean(-2, keepdim=True)
        kernels.append(rows @ rows.mT)
    if debiased:
        kernels = [_without_row_means(kernel) for kernel in kernels]
    of_x, of_y = kernels
    norm = _product(of_x, of_x) * _product(of_y, of_y)
    return torch.where(norm > 0, _product(of_x, of_y) / torch.where(norm > 0, norm, 1.0).sqrt(), torch.nan)


def _product(of_x: Tensor, of_y: Tensor) -> Tensor:
    """Return Σ K_ij L_ij [...]: the biased HSIC of centred kernels but for a factor, which cancels."""
    return (of_x * of_y).sum((-2, -1))


def _without_row_means(kernel: Tensor) -> Tensor:
    """Return kernels [..., n, n] whose products are n(n − 3) times Song et al.'s unbiased HSIC.

    Their diagonal is 0, and so is the sum of every row. Points that agree but for one have no other part,
    and rounding, which is all that is left of their kernel, is 0 too.
    """
    n = kernel.shape[-1]
    pairs = ~torch.eye(n, dtype=torch.bool, device=kernel.device)
    kernel = torch.where(pairs, kernel, 0.0)
    rows = kernel.sum(-1, keepdim=True) / (n - 2)
    rest = kernel - rows - rows.mT + rows.sum((-2, -1), keepdim=True) / (n - 1)
    rest = torch.where(pairs, rest, 0.0)
    rounding = 16 * torch.finfo(torch.float64).eps * kernel.abs().amax((-2, -1), keepdim=True)
    return torch.where(rest.abs().amax((-2, -1), keepdim=True) > rounding, rest, 0.0)


@memory_errors("neighbourhood_overlap")
@without_derivative("ranks of distances are a step function of points")
def neighbourhood_overlap(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Return the mean share of the k nearest points that two representations have in common.

    Distances are Euclidean; of equally near points those of smaller index are taken. Independent
    representations share k/(n − 1).

    Args:
        x: points [..., n, d].
        y: the same points, row by row, in another representation [..., n, e].
        k: neighbours, from 1 to n − 1.

    Returns:
        [...] float64 in [0, 1]; NaN, with one warning, where a representation is not finite.

    Raises:
        ValueError: other numbers of points, k outside 1..n − 1.

    Example:
        Four points on a line have the same neighbours when the line is stretched.

        >>> import torch, attnscope as asc
        >>> line = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> asc.neighbourhood_overlap(line, 2 * line, 2).item()
        1.0

    References:
        Doimo et al., Hierarchical nucleation in deep neural networks, 2020.
    """
    name = "neighbourhood_overlap"
    first, second = _pair(name, x, y)
    n = first.shape[-2]
    count = scalars.at_least(name, "k", k, 1)
    if count > n - 1:
        raise ValueError(f"{name}: k must be at most n - 1 = {n - 1}, got {k}")
    neighbours, finite = [], torch.tensor(True, device="cpu")
    for points in (first, second):
        # a cloud is NaN as a whole or not at all
        distances = distances_of(name, Cloud(points, None), "euclidean").tensor.clone()
        finite = finite & ~distances[..., 0, 0].isnan()
        distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        nearest = distances.sort(dim=-1, stable=True).indices[..., :count]
        neighbours.append(torch.zeros_like(distances, dtype=torch.bool).scatter(-1, nearest, True))
    shared = (neighbours[0] & neighbours[1]).sum((-2, -1)).double() / (n * count)
    overlap = torch.where(finite, shared, torch.nan)
    return _calls.warn_non_finite(name, Cloud(first, None), overlap, int((~finite).sum()), "clouds")


def _pair(function: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two representations of the same points."""
    first = points_argument(function, x, None, "x").tensor
    second = points_argument(function, y, None, "y").tensor
    if first.shape[:-1] != second.shape[:-1]:
        raise ValueError(
            f"{function}: x and y must hold the same points, got shapes {tuple(first.shape)} and "
            f"{tuple(second.shape)}"
        )
    return first, second
