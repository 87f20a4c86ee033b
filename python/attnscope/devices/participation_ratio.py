# SPDX-License-Identifier: MIT
"""Participation ratio in torch operations; the definition is `attnscope.participation_ratio`'s."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import multiply, sum_all, sum_along
from attnscope.devices.slab import NotOnDevice, Slab
from attnscope.devices.slabs import per_map


def _of_singular_values(slab: Slab) -> tuple[Tensor, Tensor]:
    """Return Σe and Σe² of the energies e = σ², as ‖A‖_F² and ‖AAᵀ‖_F²."""
    largest = slab.wide.abs().flatten(1).amax(-1)
    # powers of the entries stay in range, and the ratio is that of any multiple of the map
    scaled = slab.wide / torch.where(largest > 0, largest, 1.0)[:, None, None]
    gram = multiply(scaled, scaled.mT)
    return sum_all(scaled.square()), sum_all(gram.square())


def _of_laplacian(slab: Slab) -> tuple[Tensor, Tensor]:
    """Return the trace and the squared Frobenius norm of the Laplacian of (A + Aᵀ)/2."""
    weights = (slab.wide + slab.wide.mT) / 2
    weights = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
    largest = weights.abs().flatten(1).amax(-1)
    weights = weights / torch.where(largest > 0, largest, 1.0)[:, None, None]
    degree = sum_along(weights)
    return sum_along(degree), sum_all(weights.square()) + sum_along(degree.square())


def participation_ratio(
    attention: Tensor, lengths: Tensor | Extent | None, spectrum: str
) -> tuple[Tensor, int]:
    """Return (Σx)²/Σx² over a spectrum of every map; eigenvalues of a general matrix are the core's."""
    if spectrum == "eigen":
        raise NotOnDevice
    sums_of = _of_singular_values if spectrum == "singular" else _of_laplacian

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        total, squares = sums_of(slab)
        ratio = torch.where(squares > 0, total**2 / squares, math.nan)
        return slab.undefined_where_not_finite(ratio), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, temporaries=5)
    return result
