# SPDX-License-Identifier: MIT
"""Sums over the tokens of one site and one group of texts, of which `Moments` holds many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Tokens whose products are summed in the dtype of the inputs before they are added in float64.
_TOKENS = 1024
#: Columns of a block of a symmetric product, at least.
_COLUMNS = 128


@dataclass
class MomentSums:
    """Sums over tokens of one site and one group.

    Attributes:
        total: Σ x [d].
        second: Σ x xᵀ [d, d], or that times the sketch's directions [d, p].
        centred: the same of x less the mean of its text.
        counts: tokens, Σ‖x‖², Σ‖x − mean‖², max ‖x‖², [4].
    """

    total: Tensor
    second: Tensor
    centred: Tensor
    counts: Tensor

    def add(self, other: MomentSums) -> MomentSums:
        """The sums of both."""
        counts = self.counts + other.counts
        counts[3] = torch.maximum(self.counts[3], other.counts[3])
        return MomentSums(
            self.total + other.total, self.second + other.second, self.centred + other.centred, counts
        )

    def packed(self) -> Tensor:
        """All of it in one vector."""
        parts = (self.counts, self.total, self.second.flatten(), self.centred.flatten())
        return torch.cat(parts)

    @classmethod
    def unpacked(cls, packed: Tensor, d: int) -> MomentSums:
        """What `packed` made of sums of d numbers."""
        columns = (len(packed) - 4 - d) // (2 * d)
        counts, total, products = packed[:4], packed[4 : 4 + d], packed[4 + d :]
        second, centred = products[: d * columns], products[d * columns :]
        return cls(total, second.view(d, columns), centred.view(d, columns), counts.clone())


class MomentBatch:
    """Sums of a few texts of one site and group, their products in the dtype of the inputs.

    Args:
        x: the first text, [tokens, d].
        directions: of a sketch, [d, p].
    """

    def __init__(self, x: Tensor, directions: Tensor | None) -> None:
        d = x.shape[1]
        self._directions = None if directions is None else directions.to(x)
        self._product = x.new_zeros(d, d if directions is None else directions.shape[1])
        self._total = torch.zeros(d, dtype=torch.float64, device=x.device)
        self._means: list[Tensor] = []
        self._tokens, self._energy, self._largest = 0, 0.0, 0.0

    def takes(self, x: Tensor) -> bool:
        """Whether a further text fits."""
        return (
            self._tokens + len(x) <= _TOKENS
            and x.dtype == self._product.dtype
            and x.device == self._product.device
        )

    def add(self, x: Tensor) -> None:
        """Adds a text."""
        if not len(x):
            return
        squares, total = x.square().sum(1, dtype=torch.float64), x.sum(0, dtype=torch.float64)
        self._tokens += len(x)
        self._energy += float(squares.sum())
        self._largest = max(self._largest, float(squares.max()))
        self._total += total
        self._means.append(total / math.sqrt(len(x)))
        if self._directions is not None:
            self._product.addmm_(x.mT, x @ self._directions)
            return
        # the product is symmetric: of every block of columns the rows down to its end are enough
        for first, end in self._blocks():
            self._product[:end, first:end].addmm_(x[:, :end].mT, x[:, first:end])

    def _blocks(self) -> Iterator[tuple[int, int]]:
        d = len(self._product)
        step = max(_COLUMNS, -(-d // 8))
        for first in range(0, d, step):
            yield first, min(d, first + step)

    def sums(self) -> MomentSums:
        """The sums, in float64."""
        if self._directions is None:
            for first, end in self._blocks():
                self._product[first:end, :first] = self._product[:first, first:end].mT
        second = self._product.double().cpu()
        # about the means of texts: Σ x xᵀ − (Σ x)(Σ x)ᵀ/n of each
        means = torch.stack(self._means).cpu() if self._means else second.new_zeros(1, len(second))
        across = means if self._directions is None else means @ self._directions.double().cpu()
        rest = max(0.0, self._energy - float(means.square().sum()))
        counts = torch.tensor([self._tokens, self._energy, rest, self._largest], dtype=torch.float64)
        centred = torch.addmm(second, means.mT, across, alpha=-1)
        return MomentSums(self._total.cpu(), second, centred, counts)
