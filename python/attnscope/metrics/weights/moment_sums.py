# SPDX-License-Identifier: MIT
"""Sums over the tokens of one site and one group of texts, of which `Moments` holds many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Tokens whose products are summed together before they are added to those of a group.
_TOKENS = 1024
#: Numbers that `MomentSums.counts` holds.
COUNTS = 4
#: Columns of a block of a symmetric product, at least.
_COLUMNS = 128


@dataclass
class MomentSums:
    """Sums over tokens of one site and one group.

    Attributes:
        total: Σ x [d].
        second: Σ x xᵀ [d, d], of which what is on and above the diagonal counts, or all of it times the
            sketch's directions [d, p].
        centred: the same of x less the mean of its text.
        counts: tokens, Σ‖x‖², Σ‖x − mean‖², max ‖x‖², [4] (`COUNTS`).
    """

    total: Tensor
    second: Tensor
    centred: Tensor
    counts: Tensor

    def add(self, other: MomentSums) -> MomentSums:
        """Return the sums of both."""
        counts = self.counts + other.counts
        counts[3] = torch.maximum(self.counts[3], other.counts[3])
        return MomentSums(
            self.total + other.total, self.second + other.second, self.centred + other.centred, counts
        )

    def packed(self) -> Tensor:
        """Return all sums in one vector."""
        parts = (self.counts, self.total, self.second.flatten(), self.centred.flatten())
        return torch.cat(parts)

    @classmethod
    def unpacked(cls, packed: Tensor, d: int) -> MomentSums:
        """Return the sums of d numbers from the vector of `packed`."""
        columns = (len(packed) - COUNTS - d) // (2 * d)
        counts, total, products = packed[:COUNTS], packed[COUNTS : COUNTS + d], packed[COUNTS + d :]
        second, centred = products[: d * columns], products[d * columns :]
        return cls(total, second.view(d, columns), centred.view(d, columns), counts.clone())


class MomentBatch:
    """Sums of a few texts of one site and group, their products in float64.

    A product of float32 numbers is exact there: in float32, directions with less than 1e-7 of the largest
    energy would be those of rounding.

    Args:
        x: the first text, [tokens, d] float64.
        directions: of a sketch, [d, p].
    """

    def __init__(self, x: Tensor, directions: Tensor | None) -> None:
        self._directions = None if directions is None else directions.to(x)
        self._panels: list[Tensor] = []
        self._total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        self._means: list[Tensor] = []
        self._tokens, self._energy, self._largest = 0, 0.0, 0.0

    def takes(self, x: Tensor) -> bool:
        """Return True if a further text fits."""
        panel = self._panels[0]
        return self._tokens + len(x) <= _TOKENS and x.device == panel.device

    def add(self, x: Tensor) -> None:
        """Add a text."""
        squares, total = x.square().sum(1), x.sum(0)
        self._tokens += len(x)
        self._energy += float(squares.sum())
        self._largest = max(self._largest, *squares.tolist())
        self._total += total
        self._means.append(total / math.sqrt(max(1, len(x))))
        if self._directions is None:
            factors = [(x[:, :end], x[:, first:end]) for first, end in self._blocks()]
        else:
            factors = [(x, x @ self._directions)]
        if not self._panels:  # nothing is set to zero first: at this size that takes as long as a product
            self._panels = [left.mT @ right for left, right in factors]
            return
        for panel, (left, right) in zip(self._panels, factors, strict=True):
            panel.addmm_(left.mT, right)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Columns of a panel. A whole product is symmetric: its rows down to the last of them are enough."""
        d = len(self._total)
        columns, step = d, max(_COLUMNS, -(-d // 8))
        if self._directions is not None:
            columns = step = self._directions.shape[1]
        for first in range(0, columns, step):
            yield first, min(columns, first + step)

    def sums(self) -> MomentSums:
        """Return the sums, in float64."""
        means = torch.stack(self._means).cpu()
        across = means if self._directions is None else means @ self._directions.double().cpu()
        second = torch.zeros(means.shape[1], across.shape[1], dtype=torch.float64, device="cpu")
        for panel, (first, end) in zip(self._panels, self._blocks(), strict=True):
            second[: len(panel), first:end] = panel
        # about the means of texts: Σ x xᵀ − (Σ x)(Σ x)ᵀ/n of each
        rest = max(0.0, self._energy - float(means.square().sum()))
        counts = torch.tensor(
            [self._tokens, self._energy, rest, self._largest], dtype=torch.float64, device="cpu"
        )
        centred = torch.addmm(second, means.mT, across, alpha=-1)
        return MomentSums(self._total.cpu(), second, centred, counts)
