# SPDX-License-Identifier: MIT
"""The deviation of a mean over matrices when the subspaces that they share are turned at random.

Matrices that read or write one residual stream are measured in subspaces of one space: q and k of a layer
share their inputs, those of other layers read much of the same directions, and every o and down writes to one
unembedding. One random rotation therefore turns the subspaces of all of them. Where the changes have
directions in common their fractions then rise and fall together, and the mean over matrices strays further
than that of as many independent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.weights.low_rank import LowRank

#: Side and subspace in one space for all matrices -> the roles whose mean claims are about.
SHARING: dict[tuple[str, str], tuple[str, ...]] = {
    ("in", "inputs"): ("q", "k"),
    ("out", "prediction"): ("o", "down"),
}
#: Widths up to which changes are kept whole: a float32 [512, 512] of every layer takes 1 MB.
EXACT_WIDTH = 512
#: Random directions in which wider changes are seen: traces are then known up to √(2/256) = 9 %, deviations
#: up to half of that.
PROBES = 256


@dataclass
class _Subspace:
    """The changes that are measured in one subspace.

    Attributes:
        basis: [d, k] orthonormal.
        changes: Σ (M/tr M − I/d)·d/k of the matrices' Gram matrices M, times the probes, [d, probes].
    """

    basis: Tensor
    changes: Tensor


class SharedSubspaces:
    """The changes of a pair's matrices, by the subspace that they share."""

    def __init__(self) -> None:
        self._subspaces: dict[tuple[str, str], dict[tuple[int, int], _Subspace]] = {}
        self._matrices: dict[tuple[str, str], int] = {}
        self._probes: dict[int, Tensor] = {}

    def add(self, matrix: Tensor | LowRank, basis: Tensor, *, side: str, subspace: str, layer: int) -> None:
        """Add a change [out, in], measured in a basis [d, k] of one side."""
        family = (side, subspace)
        d, k = basis.shape
        turned = matrix if side == "in" else matrix.T
        probes = self._probes_of(d)
        image = turned @ probes.to(basis.dtype)
        written = (turned.T @ image).double()
        # E of the same product: tr M = ‖ΔW‖², known without probes
        energy = float(matrix.energy() if isinstance(matrix, LowRank) else matrix.double().square().sum())
        change = ((written / energy - probes.double() / d) * (d / k)).float()
        key = (d, layer if side == "in" else 0)
        shared = self._subspaces.setdefault(family, {})
        if key in shared:
            shared[key].changes += change
        else:
            shared[key] = _Subspace(basis.double(), change)
        self._matrices[family] = self._matrices.get(family, 0) + 1

    def _probes_of(self, d: int) -> Tensor:
        if d not in self._probes:
            generator = torch.Generator().manual_seed(0)
            self._probes[d] = (
                torch.eye(d, dtype=torch.float32, device="cpu")
                if d <= EXACT_WIDTH
                else torch.randn(d, PROBES, generator=generator, dtype=torch.float32, device="cpu")
                / math.sqrt(PROBES)
            )
        return self._probes[d]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `mean_deviations`.

        With traceless parts M° of changes and Π° of projections, Haar's fourth moments give the covariance of
        two fractions under one rotation: 2·tr(M°M'°)·tr(Π°Π'°)/((d − 1)(d + 2)).
        """
        return [
            {
                "side": side,
                "subspace": subspace,
                "roles": " ".join(SHARING[side, subspace]),
                "matrices": self._matrices[side, subspace],
                "deviation": math.sqrt(_variance(shared)) / self._matrices[side, subspace],
            }
            for (side, subspace), shared in self._subspaces.items()
        ]


def _variance(shared: dict[tuple[int, int], _Subspace]) -> float:
    """Return the variance of the sum of relative fractions; spaces of other widths turn independently."""
    total = 0.0
    for (d, _), first in shared.items():
        if d < 2:
            return math.nan
        for (width, _), other in shared.items():
            if width == d:
                projections = float((first.basis.mT @ other.basis).square().sum())
                projections -= first.basis.shape[1] * other.basis.shape[1] / d
                changes = float((first.changes * other.changes).sum(dtype=torch.float64))
                total += 2 * projections * changes / ((d - 1) * (d + 2))
    return max(total, 0.0)
