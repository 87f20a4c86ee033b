# SPDX-License-Identifier: MIT
"""Graph Laplacians and their spectra in torch operations; the definitions are
`attnscope.laplacian_eigenvalues`'.

The padding of a ragged batch becomes isolated nodes, whose diagonal entry puts their eigenvalues above all
others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.devices.slab import Slab, refuse_float32
from attnscope.devices.slabs import per_map


def graph_weights(slab: Slab, symmetrize: str, threshold: float | None) -> Tensor:
    """Return the symmetric weights of every map's graph [m, n, n], with a zero diagonal."""
    maps, mirrored = slab.wide, slab.wide.mT
    if threshold is not None:
        joined = torch.maximum(maps, mirrored) >= threshold
        weights = (joined & slab.inside[:, :, None] & slab.inside[:, None, :]).to(slab.dtype)
    elif symmetrize == "mean":
        weights = (maps + mirrored) / 2
    else:
        weights = torch.maximum(maps, mirrored)
    same_node = slab.positions[:, None] == slab.positions
    return torch.where(same_node, 0.0, weights)


def component_counts(slab: Slab, weights: Tensor) -> Tensor:
    """Return how many components of positive weights each map has, [m].

    The reachability matrix is squared until paths of every length are in it.
    """
    reach = ((weights > 0) | (slab.positions[:, None] == slab.positions)).to(torch.float32)
    for _ in range(max(1, math.ceil(math.log2(max(2, slab.n))))):
        reach = (reach @ reach > 0).to(torch.float32)
    # a component is counted at its first node
    first = torch.where(reach > 0, slab.positions, slab.n).amin(-1)
    return ((first == slab.positions) & slab.inside).sum(-1)


def laplacian(slab: Slab, weights: Tensor, normalized: bool) -> tuple[Tensor, Tensor]:
    """Return the Laplacians [m, n, n] and unit null vectors [m, n]; 0 on padding, whose rows are 0."""
    degree = weights.sum(-1)
    if not normalized:
        constant = slab.inside / slab.lengths.to(slab.dtype).sqrt()[:, None]
        return torch.diag_embed(degree) - weights, constant
    scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
    diagonal = torch.where(degree == 0, 0.0, 1.0)
    matrix = torch.diag_embed(diagonal) - scale[:, :, None] * weights * scale[:, None, :]
    null = degree.clamp(min=0).sqrt()
    total = torch.linalg.vector_norm(null, dim=-1, keepdim=True)
    return matrix, null / torch.where(total > 0, total, 1.0)


def above_all(slab: Slab, matrix: Tensor) -> Tensor:
    """Return the matrices with the diagonal of padding above their largest eigenvalue."""
    bound = 2 * matrix.abs().sum(-1).amax(-1) + 1
    return matrix + torch.diag_embed(torch.where(slab.inside, 0.0, bound[:, None]))


def laplacian_eigenvalues(
    attention: Tensor,
    lengths: Tensor | None,
    k: int,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
) -> tuple[Tensor, int]:
    """Return the k smallest eigenvalues of every map's Laplacian, ascending; NaN behind the map's length.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        weights = graph_weights(slab, symmetrize, threshold)
        matrix, _ = laplacian(slab, weights, normalized)
        values = torch.linalg.eigvalsh(above_all(slab, matrix))
        # weights that are not negative: as many zeros as components, and nothing below
        ordinary = (weights >= 0).flatten(1).all(-1)
        zeros = slab.positions < component_counts(slab, weights)[:, None]
        exact = torch.where(zeros, 0.0, values.clamp(min=0))
        values = torch.where(ordinary[:, None], exact, values)
        if normalized:
            # a negative degree has no square root
            undefined = (weights.sum(-1) < 0).any(-1)
            values = torch.where(undefined[:, None], math.nan, values)
        return slab.undefined_outside(values)[:, :k], slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, temporaries=6)
    return result
