# SPDX-License-Identifier: MIT
"""Sums and products of matrices whose error does not grow with what is summed, where there is no float64.

Numbers in float64 are summed as torch does. In float32, on a device without float64, a sum is a tree of
exact additions, each of which keeps what rounding takes away (Knuth, The art of computer programming 2,
4.2.2, 1969): its error is one rounding of the result, and 2⁻⁴⁶ of the sum of magnitudes. A product of
matrices is such a sum of products of a few columns with as many rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Columns that are multiplied together in float32; the error of their sum is at most that many roundings.
COLUMNS_TOGETHER = 8


def sum_along(values: Tensor, dim: int = -1, *, keepdim: bool = False) -> Tensor:
    """Return the sums of numbers over one axis; an infinite or undefined sum is what torch gives."""
    if values.dtype != torch.float32:
        return values.sum(dim, keepdim=keepdim)
    high = values.movedim(dim, -1)
    if not high.shape[-1]:
        return values.sum(dim, keepdim=keepdim)
    low = torch.zeros_like(high)
    while (size := high.shape[-1]) > 1:
        half = size // 2
        total, lost = _exact_sum(high[..., :half], high[..., half : 2 * half])
        lost = lost + low[..., :half] + low[..., half : 2 * half]
        # the last of an odd number waits for the next round
        high = torch.cat([total, high[..., 2 * half :]], -1)
        low = torch.cat([lost, low[..., 2 * half :]], -1)
    result = _rounded(high, low).movedim(-1, dim)
    return result if keepdim else result.squeeze(dim)


def sum_all(values: Tensor) -> Tensor:
    """Return the sums of numbers [m, ...] over all axes but the first, [m]."""
    return sum_along(values.flatten(1))


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Return products of matrices [..., q, s] and [..., s, k]."""
    if left.dtype != torch.float32:
        return left @ right
    high = torch.zeros((), dtype=left.dtype, device=left.device)
    low = high
    for start in range(0, left.shape[-1], COLUMNS_TOGETHER):
        stop = start + COLUMNS_TOGETHER
        high, lost = _exact_sum(high, left[..., start:stop] @ right[..., start:stop, :])
        low = low + lost
    return _rounded(high, low)


def norms_of(vectors: Tensor) -> Tensor:
    """Return the Euclidean norms of vectors over the last axis."""
    if vectors.dtype != torch.float32:
        return torch.linalg.vector_norm(vectors, dim=-1)
    return sum_along(vectors.square()).sqrt()


def _exact_sum(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum of two numbers and what rounding took away, which together are exact."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


def _rounded(high: Tensor, low: Tensor) -> Tensor:
    return torch.where(high.isfinite(), high + low, high)
