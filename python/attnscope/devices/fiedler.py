# SPDX-License-Identifier: MIT
"""λ2 and its vector in torch operations; the definitions are `attnscope.fiedler_value`'s and `fiedler_vector`'s.

λ2 is the smallest eigenvalue of M = L + s·uuᵀ with u the unit null vector and s above λ2. Eigensolvers of devices are
slow for batches of small matrices, so M is factorised, M = CCᵀ, and Lanczos steps with its inverse find 1/λ2, for all
maps of a slab side by side. Each step is two products with C⁻¹. Maps whose residual has not fallen when the steps end
are the core's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope import _core
from attnscope.devices.laplacian import above_all, component_counts, graph_weights, laplacian
from attnscope.devices.slabs import Slab, per_map

#: Relative residual of 1/λ2 at which the steps end, and the most steps.
TOLERANCE, MOST_STEPS = 1e-11, 64
#: Steps between two looks at the residuals.
STEPS_BETWEEN_LOOKS = 8


def _shifted(slab: Slab, weights: Tensor, normalized: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return L, u, and M = L + s·uuᵀ with the padding's eigenvalues above all others."""
    matrix, null = laplacian(slab, weights, normalized)
    mean_degree = weights.flatten(1).sum(-1) / slab.lengths
    shift = 2 * mean_degree
    shift = torch.full_like(shift, 2.0) if normalized else torch.where(shift > 0, shift, 1.0)
    lifted = matrix + shift[:, None, None] * null[:, :, None] * null[:, None, :]
    return matrix, null, above_all(slab, lifted)


def _start(slab: Slab, null: Tensor) -> Tensor:
    """Return a start vector that no symmetry of a graph respects, orthogonal to the null vector, [m, n, 1]."""
    start = torch.sin(1 + 1.618033988749895 * (slab.positions.to(slab.dtype) + 1) ** 2)
    start = torch.where(slab.inside, start, 0.0)
    start = start - (start * null).sum(-1, keepdim=True) * null
    return (start / torch.linalg.vector_norm(start, dim=-1, keepdim=True).clamp(min=1e-300))[..., None]


def _largest_of_inverse(slab: Slab, shifted: Tensor, null: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue θ of M⁻¹ and its relative residual, [m]; NaN where M has no factor."""
    factor, info = torch.linalg.cholesky_ex(shifted)
    identity = torch.eye(slab.n, dtype=slab.dtype, device=shifted.device).expand(shifted.shape)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    basis = [_start(slab, null)]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    theta = residual = torch.full_like(null[:, 0], math.nan)
    steps = min(MOST_STEPS, slab.n)
    for step in range(1, steps + 1):
        vector = basis[-1]
        image = inverse.mT @ (inverse @ vector)
        diagonal.append((vector * image).sum((-2, -1)))
        known = torch.cat(basis, -1)
        # twice, because one pass leaves what rounding makes of it
        image = image - known @ (known.mT @ image)
        image = image - known @ (known.mT @ image)
        length = torch.linalg.vector_norm(image, dim=(-2, -1))
        if step % STEPS_BETWEEN_LOOKS == 0 or step == steps:
            tridiagonal = torch.diag_embed(torch.stack(diagonal, -1))
            if beside:
                off = torch.stack(beside, -1)
                tridiagonal = tridiagonal + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
            values, vectors = torch.linalg.eigh(torch.nan_to_num(tridiagonal.cpu()))
            theta = values[:, -1].to(null.device)
            last = vectors[:, -1, -1].abs().to(null.device)
            residual = length * last / theta.clamp(min=1e-300)
            if bool((residual <= TOLERANCE).all()):
                break
        # a Krylov space that is exhausted goes on as zeros
        scale = torch.where(length > 1e-14 * diagonal[0].abs(), length, math.inf)
        beside.append(torch.where(scale.isinf(), 0.0, length))
        basis.append(image / scale[:, None, None])
    failed = info != 0
    return torch.where(failed, math.nan, theta), torch.where(failed, math.inf, residual)


def fiedler_value(
    attention: Tensor,
    lengths: Tensor | None,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str,
) -> tuple[Tensor, int]:
    """Return λ2 of every map's Laplacian; exactly 0 for a graph that falls apart and for one token."""

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
        _, null, shifted = _shifted(slab, safe, normalized)
        theta, residual = _largest_of_inverse(slab, shifted, null)
        values = torch.where(solvable, 1 / theta, 0.0)
        values = values if normalized else values / scale
        undecided = slab.finite & ((solvable & ~(residual <= TOLERANCE)) | ~ordinary)
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
    """Return the unit eigenvector of λ2 of every map, its largest component positive; NaN for one token."""

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        weights = graph_weights(slab, symmetrize, threshold)
        _, _, shifted = _shifted(slab, weights, normalized)
        vector = torch.linalg.eigh(shifted).eigenvectors[..., 0]
        size = vector.abs()
        first = torch.where(size == size.amax(-1, keepdim=True), slab.positions, slab.n).amin(
            -1, keepdim=True
        )
        vector = vector * vector.gather(-1, first).sign()
        defined = (slab.lengths > 1)[:, None]
        return torch.where(defined, slab.undefined_outside(vector), math.nan), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, temporaries=8)
    return result
