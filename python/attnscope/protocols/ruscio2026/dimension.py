# SPDX-License-Identifier: MIT
"""Intrinsic dimension and spectrum of a cloud as the notebooks compute them."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.clouds.cloud_distances import cloud_distances
from attnscope.protocols.ruscio2026._points import one_cloud


@without_derivative("it is the published code's number, made for comparing")
def lid(points: Tensor, *, k: int = 30) -> Tensor:
    """Local intrinsic dimension: mean over points of −k/Σ_{j<=k} log(r_j/r_k + 1e-10).

    Differs from `local_dimension`: the mean of k/S is k/(k − 2) times the dimension (1.071 for k = 30) where
    the pooled (k − 1)/ΣS is unbiased; a neighbour at distance 0 is kept and adds log 1e-10; k equal distances
    give −1e10 for their point; points with r_k <= 1e-9 are left out, and 0 is returned without any point.

    Args:
        points: one cloud [n, d], four float types.
        k: number of neighbours.

    Returns:
        0-d float64; NaN for n <= k.

    Raises:
        ValueError: another shape, entries that are not finite, k below 1.
        TypeError: no array, no whole number.

    Example:
        The corners of a simplex are all equally far.

        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> round(ruscio2026.lid(torch.eye(40)).item() / 1e10, 3)
        -1.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, lid.
    """
    name = "lid"
    wide = one_cloud(name, points)
    neighbours = scalars.whole_number(name, "k", k)
    if neighbours < 1:
        raise ValueError(f"{name}: k must be at least 1, got {k!r}")
    n = len(wide)
    if n <= neighbours:
        return torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
    distances = cloud_distances(wide).fill_diagonal_(torch.inf)
    nearest = distances.topk(neighbours, largest=False).values
    farthest = nearest[:, -1:]
    values = -neighbours / torch.log(nearest / farthest + 1e-10).sum(-1)
    is_used = farthest[:, 0] > 1e-9
    return (
        values[is_used].mean()
        if bool(is_used.any())
        else torch.tensor(0.0, dtype=torch.float64, device="cpu")
    )


@without_derivative("it is the published code's number, made for comparing")
def isotropy(points: Tensor) -> Tensor:
    """Ratio of the two largest shares of variance, λ2/(λ1 + 1e-9).

    Differs from `cloud_spectrum`: 1e-9 below the line, 0 instead of NaN without variance.

    Args:
        points: one cloud [n, d], four float types.

    Returns:
        0-d float64 in [0, 1).

    Raises:
        ValueError: another shape, entries that are not finite.
        TypeError: no array.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> round(ruscio2026.isotropy(torch.cat([torch.eye(3), -torch.eye(3)])).item(), 6)
        1.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, from PCA's ratios.
    """
    squares = _singular_values(one_cloud("isotropy", points)).square()
    total = squares.sum()
    if float(total) == 0 or len(squares) < 2:
        return torch.tensor(0.0, dtype=torch.float64, device="cpu")
    ratios = squares / total
    return ratios[1] / (ratios[0] + 1e-9)


@without_derivative("it is the published code's number, made for comparing")
def entropy(points: Tensor) -> Tensor:
    """exp(−Σ p log(p + 1e-10)) with p = σ/Σσ, called "spectral entropy" there.

    Differs from the effective rank of `cloud_spectrum` by 1e-10 in the logarithm. It is inferred that the
    points are centred. The entropy grows with n: at n = 1,000 against 500 one law gives nearly twice as much.

    Args:
        points: one cloud [n, d], four float types.

    Returns:
        0-d float64 of at least 1 within rounding; NaN without variance.

    Raises:
        ValueError: another shape, entries that are not finite.
        TypeError: no array.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> round(ruscio2026.entropy(torch.cat([torch.eye(3), -torch.eye(3)])).item(), 6)
        3.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    sigma = _singular_values(one_cloud("entropy", points))
    p = sigma / sigma.sum()
    return (-(p * torch.log(p + 1e-10)).sum()).exp()


def _singular_values(points: Tensor) -> Tensor:
    rest = points - points[:1]
    return torch.linalg.svdvals(rest - rest.mean(0))
