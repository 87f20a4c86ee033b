# SPDX-License-Identifier: MIT
"""λ2 and its vector in torch operations; the definitions are `attnscope.fiedler_value`'s and
`fiedler_vector`'s.

λ2 is the smallest eigenvalue of M = L + s·uuᵀ with u the unit null vector and s above λ2. Eigensolvers of
devices are slow for batches of small matrices, and Lanczos steps are many launches of little work. So M is
factorised and inverted for all maps of a slab side by side, and the inverse is squared until only the
eigenspace of its largest eigenvalue is left: k squarings are the power 2^k, a few large products. λ2 is the
Rayleigh quotient of L with the vector that remains. A map whose residual has not fallen when the squarings
end is the core's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope import _core
from attnscope.devices.graphs.laplacian import above_all, component_counts, graph_weights, laplacian
from attnscope.devices.slab import Slab, refuse_float32
from attnscope.devices.slabs import per_map

#: Residual, relative to λ2, at which the squarings end. The error of λ2 is of its square.
TOLERANCE = 1e-9
#: Relative difference up to which components of a vector are the largest together, as in the core.
TIE = 1e-9
#: Squarings between two looks at the residuals; their sum resolves eigenvalues that differ in the ninth
#: digit.
SQUARINGS = (10, 8, 8, 6)


def _shifted(slab: Slab, weights: Tensor, normalized: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return L, u, and M = L + s·uuᵀ with the padding's eigenvalues above all others."""
    matrix, null = laplacian(slab, weights, normalized)
    mean_degree = weights.flatten(1).sum(-1) / slab.lengths
    # λ2 is at most twice the mean degree, for two tokens exactly that; normalized at most 2
    shift = 4 * mean_degree
    shift = torch.full_like(shift, 4.0) if normalized else torch.where(shift > 0, shift, 1.0)
    lifted = matrix + shift[:, None, None] * null[:, :, None] * null[:, None, :]
    return matrix, null, above_all(slab, lifted)


def _smallest(matrix: Tensor, shifted: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Return λ2 of L, [m], from L and L + s·uuᵀ, and True where its residual is small enough."""
    factor, info = torch.linalg.cholesky_ex(shifted)
    n = shifted.shape[-1]
    identity = torch.eye(n, dtype=shifted.dtype, device=shifted.device).expand(shifted.shape)
    inverse_factor = torch.linalg.solve_triangular(factor, identity, upper=False)
    power = inverse_factor.mT @ inverse_factor
    for squarings in SQUARINGS:
        for _ in range(squarings):
            power = power / power.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
            power = power @ power
        strongest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
        vector = power.gather(-1, strongest[:, None, None].expand(-1, n, 1))
        vector = vector / torch.linalg.vector_norm(vector, dim=-2, keepdim=True)
        image = matrix @ vector
        value = (vector * image).sum((-2, -1))
        residual = torch.linalg.vector_norm(image - value[:, None, None] * vector, dim=(-2, -1))
        solved = (info == 0) & ((residual <= TOLERANCE * value) | (residual <= floor))
        if bool(solved.all()):
            break
    return value, solved


def fiedler_value(
    attention: Tensor,
    lengths: Tensor | None,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str = "exact",
) -> tuple[Tensor, int]:
    """Return λ2 of every map's Laplacian; exactly 0 for a graph that falls apart and for one token.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        # a power of two that brings the largest entry near 1 keeps factors in range and changes no digit
        largest = slab.wide.abs().flatten(1).amax(-1)
        exponent = torch.where(largest > 0, torch.frexp(largest).exponent, 0)
        scale = (
            torch.ldexp(torch.ones_like(largest), -exponent)
            if threshold is None
            else torch.ones_like(largest)
        )
        weights = graph_weights(slab, symmetrize, threshold) * scale[:, None, None]
        ordinary = (weights >= 0).flatten(1).all(-1)
        connected = (component_counts(slab, weights) == 1) & (slab.lengths > 1)
        solvable = ordinary & connected
        identity = (slab.positions[:, None] != slab.positions).to(slab.dtype)
        # maps without a connected graph hold the complete one, so that every factor exists
        safe = torch.where(solvable[:, None, None], weights, identity)
        matrix, _, shifted = _shifted(slab, safe, normalized)
        degree = torch.ones_like(largest) if normalized else safe.sum(-1).amax(-1)
        value, solved = _smallest(matrix, shifted, slab.n * 2.0**-50 * degree)
        values = torch.where(solvable, value, 0.0)
        values = values if normalized else values / scale
        undecided = slab.finite & ((solvable & ~solved) | ~ordinary)
        if bool(undecided.any()):
            chosen = undecided.nonzero().flatten()
            maps, sizes = slab.maps[chosen].cpu(), slab.lengths[chosen].cpu()
            exact, _ = _core.fiedler_value(maps, sizes, symmetrize, threshold, normalized, precision)
            values = values.index_put((chosen,), exact.to(values))
        return slab.undefined_where_not_finite(values), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, temporaries=12)
    return result


def fiedler_vector(
    attention: Tensor,
    lengths: Tensor | None,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
) -> tuple[Tensor, int]:
    """Return the unit eigenvector of λ2 of every map, its largest component positive; NaN for one token.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        weights = graph_weights(slab, symmetrize, threshold)
        _, _, shifted = _shifted(slab, weights, normalized)
        vector = torch.linalg.eigh(shifted).eigenvectors[..., 0]
        size = vector.abs()
        # entries that tie in exact arithmetic differ by rounding
        largest = size >= size.amax(-1, keepdim=True) * (1.0 - TIE)
        first = torch.where(largest, slab.positions, slab.n).amin(-1, keepdim=True)
        vector = vector * vector.gather(-1, first).sign()
        defined = (slab.lengths > 1)[:, None]
        return torch.where(defined, slab.undefined_outside(vector), math.nan), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, temporaries=8)
    return result
