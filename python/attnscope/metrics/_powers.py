# SPDX-License-Identifier: MIT
"""Powers of two that bring matrices into the range in which squares of their entries have all digits.

Most numbers here are ratios of sums of squares, which do not change when all entries are multiplied by a
power of two. Entries far from 1 are multiplied by one first, which rounds nothing; all others are taken as
they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _core

#: Matrices whose largest entry lies between these are taken as they are.
SMALLEST_UNSCALED, LARGEST_UNSCALED = 1e-60, 1e60


def scales_of(matrices: Tensor, lengths: Tensor | None = None) -> Tensor | None:
    """Return the power of two [...] of each matrix [..., m, n], or None where none is needed.

    Args:
        matrices: float tensors on any device; only float64 ones are looked at.
        lengths: rows of each matrix that count, and columns of a square one, int64 [...].
    """
    if torch.compiler.is_compiling() or matrices.dtype != torch.float64:
        return None
    if matrices.is_cpu:
        return _core.power_scales(matrices.detach(), lengths)
    return _scales_in_torch(matrices.detach(), lengths)


def _scales_in_torch(matrices: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Return what the core's `power_scales` does, in torch operations on the matrices' device."""
    rows, columns = matrices.shape[-2:]
    counts = matrices.isfinite()
    if lengths is not None:
        ends = lengths.to(matrices.device)[..., None, None]
        counts = counts & (torch.arange(rows, device=matrices.device)[:, None] < ends)
        if rows == columns:
            counts = counts & (torch.arange(columns, device=matrices.device) < ends)
    largest = torch.where(counts, matrices.abs(), 0.0).amax((-2, -1))
    far = (largest > 0) & ((largest <= SMALLEST_UNSCALED) | (largest >= LARGEST_UNSCALED))
    if not bool(far.any()):
        return None
    exponents = -torch.frexp(largest).exponent.clamp(-1022, 1022)
    powers = torch.ldexp(torch.ones_like(largest), exponents)
    return torch.where(far, powers, 1.0)


def in_range(matrices: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the matrices times their `scales_of`, and those; or the tensor itself, and None."""
    scales = scales_of(matrices, lengths)
    return (matrices, None) if scales is None else (scaled(matrices, scales), scales)


def scaled(matrices: Tensor, scales: Tensor | None) -> Tensor:
    """Return matrices [..., m, n] times a number [...] each."""
    return matrices if scales is None else matrices * scales[..., None, None]


def unscaled(values: Tensor, scales: Tensor | None, power: int = 1) -> Tensor:
    """Return values [..., *] of scaled matrices divided by that power of their scales [...]."""
    if scales is None:
        return values
    divisor = scales.reshape((*scales.shape, *[1] * (values.ndim - scales.ndim)))
    for _ in range(power):
        values = values / divisor
    return values


def smaller_scales(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the scales that suit two groups of matrices at once, [...] or None."""
    if first is None or second is None:
        only = second if first is None else first
        return None if only is None else only.clamp(max=1.0)
    return torch.minimum(first, second)
