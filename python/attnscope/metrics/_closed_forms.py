# SPDX-License-Identifier: MIT
"""Maps of which closed forms are known, for the examples of quantities."""

from __future__ import annotations

import torch
from torch import Tensor


def star(n: int) -> Tensor:
    """Every query on key 0."""
    return torch.eye(1, n, dtype=torch.float64).repeat(n, 1)


def causal(n: int) -> Tensor:
    """Uniform among the keys up to the query."""
    maps = torch.ones(n, n, dtype=torch.float64).tril()
    return maps / maps.sum(-1, keepdim=True)


def full(n: int) -> Tensor:
    """Uniform among all keys."""
    return torch.full((n, n), 1 / n, dtype=torch.float64)


def identity(n: int) -> Tensor:
    """Every query on itself."""
    return torch.eye(n, dtype=torch.float64)


def ring() -> Tensor:
    """Four tokens in a ring, each attending to its two neighbours."""
    one_way = identity(4).roll(1, 0)
    return (one_way + one_way.T) / 2


def hadamard() -> Tensor:
    """Rows 1 to 7 standardise to orthogonal signs, so that all seven eigenvalues are 1; row 0 is constant."""
    signs = torch.tensor([[1, 1], [1, -1]], dtype=torch.float64)
    return 0.125 + 0.0625 * torch.kron(signs, torch.kron(signs, signs))


def aligned() -> tuple[Tensor, Tensor]:
    """Attention that grows linearly with the cosine of the states, and the states."""
    angles = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    return 0.3 + 0.1 * torch.cos(angles[:, None] - angles), torch.stack([angles.cos(), angles.sin()], -1)


def two_heads() -> Tensor:
    """Row 1 of one head on key 0, of the other on key 1: each diverges from their mean by log 2 there."""
    return torch.tensor([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], dtype=torch.float64)


def uneven_heads() -> Tensor:
    """Two heads that differ only in how much they attend to key 0, which alone is a sink of their mean."""
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.375, 0.375]], dtype=torch.float64)
    return rows[:, None, :].expand(2, 3, 3).contiguous()


def detail(n: int, scale: int) -> Tensor:
    """Uniform among all keys, and one Daubechies wavelet of two vanishing moments: one detail coefficient.

    Scale 3 of signals of 32 keys is the finest of three; each coarser one is refined once more.
    """
    root = 3**0.5
    low = torch.tensor([1 + root, 3 + root, 3 - root, 1 - root], dtype=torch.float64) / (4 * 2**0.5)
    high = torch.stack([low[3], -low[2], low[1], -low[0]])
    signal = torch.ones(1, dtype=torch.float64)
    for level in range(4 - scale):
        taps = low if level else high
        refined = torch.zeros(2 * len(signal) + 2, dtype=torch.float64)
        for place, coefficient in enumerate(signal):
            refined[2 * place : 2 * place + 4] += coefficient * taps
        signal = refined
    row = torch.full((n,), 1 / n, dtype=torch.float64)
    row[1 : 1 + len(signal)] += signal / (4 * n)
    return row.expand(n, n).contiguous()
