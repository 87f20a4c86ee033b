# SPDX-License-Identifier: MIT
"""Maps of which closed forms are known, for the examples of quantities."""

from __future__ import annotations

import torch
from torch import Tensor


def first_key_map(n: int) -> Tensor:
    """Return the map in which every query attends to key 0."""
    return torch.eye(1, n, dtype=torch.float64, device="cpu").repeat(n, 1)


def uniform_causal_map(n: int) -> Tensor:
    """Return the map in which every query attends evenly to the keys up to itself."""
    maps = torch.ones(n, n, dtype=torch.float64, device="cpu").tril()
    return maps / maps.sum(-1, keepdim=True)


def uniform_map(n: int) -> Tensor:
    """Return the map in which every query attends evenly to all keys."""
    return torch.full((n, n), 1 / n, dtype=torch.float64, device="cpu")


def identity(n: int) -> Tensor:
    """Return the map in which every query attends to itself."""
    return torch.eye(n, dtype=torch.float64, device="cpu")


def ring() -> Tensor:
    """Four tokens in a ring, each attending to its two neighbours."""
    one_way = identity(4).roll(1, 0)
    return (one_way + one_way.T) / 2


def hadamard() -> Tensor:
    """Rows 1 to 7 standardise to orthogonal signs, so that all seven eigenvalues are 1; row 0 is constant."""
    signs = torch.tensor([[1, 1], [1, -1]], dtype=torch.float64, device="cpu")
    return 0.125 + 0.0625 * torch.kron(signs, torch.kron(signs, signs))


def aligned() -> tuple[Tensor, Tensor]:
    """Attention that grows linearly with the cosine of the states, and the states."""
    angles = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, device="cpu")
    return 0.3 + 0.1 * torch.cos(angles[:, None] - angles), torch.stack([angles.cos(), angles.sin()], -1)


def two_heads() -> Tensor:
    """Row 1 of one head on key 0, of the other on key 1: each diverges from their mean by log 2 there."""
    return torch.tensor([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], dtype=torch.float64, device="cpu")


def uneven_heads(n: int = 3) -> Tensor:
    """Two heads that differ only in how much they attend to key 0, which alone is a sink of their mean."""
    first = torch.tensor([[0.5], [0.25]], dtype=torch.float64, device="cpu")
    rows = torch.cat([first, ((1 - first) / (n - 1)).expand(2, n - 1)], 1)
    return rows[:, None, :].expand(2, n, n).contiguous()


def detail(n: int, scale: int) -> Tensor:
    """Uniform among all keys, and one Daubechies wavelet of two vanishing moments: one detail coefficient.

    Scale 3 of signals of 32 keys is the finest of three; each coarser one is refined once more.
    """
    root = 3**0.5
    low = torch.tensor([1 + root, 3 + root, 3 - root, 1 - root], dtype=torch.float64, device="cpu") / (
        4 * 2**0.5
    )
    high = torch.stack([low[3], -low[2], low[1], -low[0]])
    signal = high
    for _ in range(3 - scale):
        signal = torch.nn.functional.conv_transpose1d(signal[None], low[None, None], stride=2)[0]
    row = torch.full((n,), 1 / n, dtype=torch.float64, device="cpu")
    row[1 : 1 + len(signal)] += signal / (4 * n)
    return row.expand(n, n).contiguous()
