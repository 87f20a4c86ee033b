# SPDX-License-Identifier: MIT
"""The law of random subspaces: the effect of a matrix on directions that are drawn independently of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars


@memory_errors("haar_deviation")
def haar_deviation(pr: Tensor | float, other_pr: Tensor | float, d: int | Tensor) -> Tensor:
    """Return the standard deviation of the alignment gain of two matrices, one of them turned at random.

    √(2·(d/pr − 1)·(d/other_pr − 1)/((d − 1)(d + 2))) around the mean 1. A k-dimensional subspace is a matrix
    of participation ratio k; the deviation of a subspace fraction is k/d times that of its gain.

    Args:
        pr: participation ratio (tr M)²/tr M² of one, in [1, d]; any shape.
        other_pr: of the other; broadcast.
        d: dimension of the space, at least 2; broadcast.

    Returns:
        The deviation, float64, >= 0; NaN where a ratio is or where d < 2.

    Raises:
        ValueError: a participation ratio outside [1, d], beyond rounding.

    Example:
        A line in the plane turned at random against another: the squared cosine has the deviation 1/√8 around
        1/2, its gain (twice that) 1/√2.

        >>> import attnscope as asc
        >>> round(asc.haar_deviation(1.0, 1.0, 2).item() ** 2, 12)
        0.5

    References:
        Mardia and Jupp, Directional statistics, 2000, for moments of uniform directions; the variance of
        tr(M Q S Qᵀ) follows from the fourth moments of Haar matrices (Collins and Śniady, 2006).
    """
    name = "haar_deviation"
    participation, other_participation, size = (
        _checks.as_tensor(name, argument, value, torch.float64)
        for argument, value in (("pr", pr), ("other_pr", other_pr), ("d", d))
    )
    for argument, value in (("pr", participation), ("other_pr", other_participation)):
        outside = (value < 1 - 1e-6) | (value > size * (1 + 1e-6))
        if bool(outside.any()):
            first = float(value.expand(outside.shape)[outside][0])
            raise ValueError(f"{name}: {argument} must lie in [1, d], got {first}")
    spread = (size / participation - 1).clamp_min(0) * (size / other_participation - 1).clamp_min(0)
    return torch.where(size < 2, torch.nan, (2 * spread / ((size - 1) * (size + 2))).sqrt())


@memory_errors("haar_basis")
def haar_basis(d: int, k: int, seed: int = 0) -> Tensor:
    """Return an orthonormal basis of a k-dimensional subspace of d dimensions, uniform over all of them.

    Args:
        d: dimension of the space, at least 1.
        k: of the subspace, in 1..d.
        seed: the same seed gives the same basis.

    Returns:
        [d, k] float64 with orthonormal columns.

    Raises:
        ValueError: k outside 1..d, a negative seed.
        TypeError: no whole numbers.

    Example:
        >>> import torch, attnscope as asc
        >>> basis = asc.haar_basis(5, 2)
        >>> basis.shape, torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64))
        (torch.Size([5, 2]), True)

    References:
        Mezzadri, How to generate random matrices from the classical compact groups, 2007.
    """
    name = "haar_basis"
    size, width, start = (
        scalars.whole_number(name, argument, value)
        for argument, value in (("d", d), ("k", k), ("seed", seed))
    )
    if not 1 <= width <= size:
        raise ValueError(f"{name}: k must lie in 1..d = {size}, got {k!r}")
    if start < 0:
        raise ValueError(f"{name}: seed must be at least 0, got {seed!r}")
    draw = torch.Generator().manual_seed(start)
    q, r = torch.linalg.qr(torch.randn(size, width, generator=draw, dtype=torch.float64, device="cpu"))
    # QR chooses signs; those of a positive diagonal make the law uniform.
    return q * r.diagonal().sign()


def upper_tail(value: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """P(X >= value) of the Beta law on [0, 1] with this mean and deviation; NaN where it does not vary.

    For a matrix of rank one it is exact: Beta(k/2, (d − k)/2).
    """
    from scipy.stats import beta

    with torch.no_grad():
        concentration = mean * (1 - mean) / deviation.square() - 1
        a, b = mean * concentration, (1 - mean) * concentration
        fits = (deviation > 0) & (concentration > 0)
        tail: Any = beta.sf(value.clamp(0, 1).numpy(), a.abs().numpy(), b.abs().numpy())
        return torch.where(fits, torch.as_tensor(tail, dtype=torch.float64, device="cpu"), torch.nan)
