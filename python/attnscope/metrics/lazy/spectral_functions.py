# SPDX-License-Identifier: MIT
"""Functions of the core about singular values for lazy attention, under their names.

Leading singular values come from block Krylov spaces of AᵀA (Musco and Musco 2015). A Ritz value never
exceeds the singular value of its rank; an upper bound follows from the residual and from the energy that is
left outside the space, which Σ A² gives exactly. Traces of powers are estimated with random probes outside
such a space (Meyer, Musco, Musco and Woodruff 2021).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy
import torch
from torch import Tensor

from attnscope.metrics.estimates import IntervalEstimate, LeadingSingularValues
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.passes import Border
from attnscope.metrics.lazy.products import (
    energy_of,
    multiply_gram,
    non_finite_maps,
    random_directions,
    weight_error,
)
from attnscope.metrics.lazy.threshold_graphs import require_square

#: Singular values that are asked for where the caller names no number.
DEFAULT_COUNT = 8
#: Vectors of a block, which one pass multiplies together.
_WIDTH = 16
#: Blocks of the space of leading singular values: the space holds _WIDTH·_BLOCKS vectors.
_BLOCKS = 6
#: Blocks of the space that is left out of the probes of a trace, and the number of probes.
_BLOCKS_OF_TRACE, _PROBES = 2, 96
_CONFIDENCE = 0.95
#: Rows, and columns, whose products with each other are summed together.
_OPPOSITE_ROWS = 128
#: Keys at a distance from their query: all but its own.
_OTHER_KEYS = Border("window", 0.0)
#: Share of a block below which a direction is rounding.
_NEGLIGIBLE = 1e-11


class KrylovSpace(NamedTuple):
    """An orthonormal basis of directions of keys [..., h, k, m], and AᵀA times each of its vectors."""

    basis: Tensor
    images: Tensor


def singular_values(
    attention: LazyAttention, lengths: Tensor | None, count: int | None = None
) -> tuple[LeadingSingularValues, int]:
    """Return the largest singular values with their bounds, [..., h, count]."""
    attention = attention if lengths is None else attention.with_lengths(lengths)
    most = min(attention.shape[-2:])
    count = min(DEFAULT_COUNT if count is None else count, most)
    width = max(_WIDTH, count)
    space = _krylov_space(attention, width, _BLOCKS, seed=0)
    energy = energy_of(attention)
    squares, upper = _bounds(space, energy, count)
    sizes = attention.visibility.real.sum(-1).clamp(max=attention.sizes)
    exists = torch.arange(count, device="cpu") < sizes[..., None]
    non_finite = non_finite_maps(attention)
    exists &= ~non_finite[..., None]
    # Products with A and Aᵀ, the space and its eigenvalues are off by so much of the largest square, of
    # which a small value's own square may be less.
    share = 2 * weight_error(attention) + 4 * max(attention.shape[-2:]) * torch.finfo(torch.float64).eps
    rounding = share[..., None] * squares[..., :1]
    value, high = squares.sqrt(), (upper + rounding).sqrt()
    low = (squares - rounding).clamp(min=0.0).sqrt()
    value, low, high = (torch.where(exists, bound, torch.nan) for bound in (value, low, high))
    energy = torch.where(non_finite, torch.nan, energy)
    return LeadingSingularValues(value, low, high, energy), int(non_finite.sum())


def participation_ratio(
    attention: LazyAttention, lengths: Tensor | None, spectrum: str, seed: int = 0
) -> tuple[IntervalEstimate | Tensor, int]:
    """Return ‖A‖_F⁴/‖AᵀA‖_F² with an interval of 95 %, or the ratio of another spectrum exactly, [..., h]."""
    attention = attention if lengths is None else attention.with_lengths(lengths)
    if spectrum != "singular":
        require_square(f"participation_ratio of the spectrum {spectrum!r}", attention)
        exact = _participation_of_diagonal if spectrum == "eigen" else _participation_of_laplacian
        non_finite = non_finite_maps(attention)
        return torch.where(non_finite, torch.nan, exact(attention)), int(non_finite.sum())
    energy = energy_of(attention)
    space = _krylov_space(attention, _WIDTH, _BLOCKS_OF_TRACE, seed)
    inside = space.images.square().sum((-2, -1))
    mean, spread = _trace_outside(attention, space, seed)
    # the logarithm of a mean of squares is nearer to normal than the mean
    quantile = float(scipy.special.stdtrit(_PROBES - 1, 0.5 + _CONFIDENCE / 2))
    factor = torch.exp(quantile * spread)
    rounding = 4 * weight_error(attention)
    value, low, high = (
        energy.square() / (inside + outside) for outside in (mean, mean * factor, mean / factor)
    )
    non_finite = non_finite_maps(attention)
    empty = non_finite | (energy == 0)
    ends = (value, (low * (1 - rounding)).clamp(min=1.0), high * (1 + rounding))
    value, low, high = (torch.where(empty, torch.nan, end) for end in ends)
    return IntervalEstimate(value, low, high), int(non_finite.sum())


def _participation_of_diagonal(attention: LazyAttention) -> Tensor:
    """Return the ratio of the eigenvalues of a causal map, which are its diagonal, [..., h]."""
    if not attention.causal:
        raise ValueError(
            "participation_ratio: the eigenvalues of lazy attention are known where it is causal, and this "
            "is not; LazyAttention.dense() makes the map"
        )
    values = attention.diagonal().nan_to_num(0.0)
    return values.sum(-1).square() / values.square().sum(-1)


def _participation_of_laplacian(attention: LazyAttention) -> Tensor:
    """Return tr(L)²/‖L‖_F² of the Laplacian of (A + Aᵀ)/2 without its diagonal, [..., h]."""
    # added without the diagonal: of a map that holds little else a difference would be rounding
    names = ("far_mass", "far_squares", "far_incoming")
    mass, squares, incoming = (
        values.nan_to_num(0.0) for values in attention.take([(name, _OTHER_KEYS) for name in names])
    )
    degrees = (mass + incoming) / 2
    # Σ_{i≠j} w² = (Σ A² + Σ A_ij·A_ji)/2, and in a causal map one of the two is 0
    opposite = torch.zeros_like(degrees[..., 0]) if attention.causal else _sum_opposite(attention)
    return degrees.sum(-1).square() / (degrees.square().sum(-1) + (squares.sum(-1) + opposite) / 2)


def _sum_opposite(attention: LazyAttention) -> Tensor:
    """Return Σ_{i≠j} A_ij·A_ji of each map, [..., h], a block of rows and of columns at a time."""
    total = torch.zeros(attention.shape[:-2], dtype=torch.float64, device="cpu")
    attention = attention.with_log_z(attention.log_z)
    for begin in range(0, attention.shape[-1], _OPPOSITE_ROWS):
        block = slice(begin, begin + _OPPOSITE_ROWS)
        rows, columns = attention.tile(block, slice(None)), attention.tile(slice(None), block)
        products = rows.nan_to_num(0.0) * columns.nan_to_num(0.0).mT
        products.diagonal(begin, -2, -1).zero_()
        total += products.sum((-2, -1))
    return total


def leading_basis(attention: LazyAttention, blocks: int, seed: int) -> Tensor:
    """Return an orthonormal basis of leading directions of keys [..., h, k, m], some columns zeros."""
    return _krylov_space(attention, _WIDTH, blocks, seed).basis


def _trace_outside(attention: LazyAttention, space: KrylovSpace, seed: int) -> tuple[Tensor, Tensor]:
    """Return an estimate of ‖AᵀA(I − QQᵀ)‖_F² and the standard error of its logarithm, [..., h]."""
    samples = []
    directions = space.basis.square().sum(-2).round().sum(-1)
    size = (attention.sizes.double() - directions)[..., None]
    probes = random_directions(attention, _PROBES, seed + 1)
    probes = probes - space.basis @ (space.basis.mT @ probes)
    norms = probes.square().sum(-2)
    for begin in range(0, _PROBES, _WIDTH):
        images = multiply_gram(attention, probes[..., begin : begin + _WIDTH])
        samples.append(images.square().sum(-2))
    # directions alone, because the lengths of probes only add noise
    values = torch.cat(samples, -1) / norms.clamp(min=torch.finfo(torch.float64).tiny) * size.clamp(min=0.0)
    mean = values.mean(-1)
    error = values.std(-1) / math.sqrt(_PROBES)
    return mean, torch.where(mean > 0, error / torch.where(mean > 0, mean, 1.0), 0.0)


def _krylov_space(attention: LazyAttention, width: int, blocks: int, seed: int) -> KrylovSpace:
    """Return the space of AᵀA from random directions; of a small map all directions."""
    keys = attention.shape[-1]
    if keys <= width * blocks:
        basis = torch.eye(keys, dtype=torch.float64, device="cpu").expand(*attention.shape[:-2], keys, keys)
        return KrylovSpace(basis, multiply_gram(attention, basis))
    start = random_directions(attention, width, seed)
    block = _orthonormalize(start, start)
    basis, images = block, multiply_gram(attention, block)
    for _ in range(blocks - 1):
        previous = images[..., -width:]
        block = _orthonormalize(previous - basis @ (basis.mT @ previous), previous)
        # once is not enough in floating point
        block = _orthonormalize(block - basis @ (basis.mT @ block), block)
        basis = torch.cat([basis, block], -1)
        images = torch.cat([images, multiply_gram(attention, block)], -1)
    return KrylovSpace(basis, images)


def _orthonormalize(block: Tensor, before: Tensor) -> Tensor:
    """Return an orthonormal basis of a block; columns of zeros stand for directions that are rounding alone.

    `before` is the block before others were taken out of it, which gives its scale.
    """
    left, sizes, _ = torch.linalg.svd(block, full_matrices=False)
    scale = before.square().sum((-2, -1)).sqrt()[..., None]
    return left * (sizes > _NEGLIGIBLE * scale)[..., None, :]


def _bounds(space: KrylovSpace, energy: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest Ritz values of AᵀA, descending, and an upper bound of each eigenvalue."""
    projected = space.basis.mT @ space.images
    values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
    values, vectors = values.flip(-1).clamp(min=0.0), vectors.flip(-1)
    residuals = space.images @ vectors - (space.basis @ vectors) * values[..., None, :]
    left = (energy - values.sum(-1)).clamp(min=0.0)
    coupling = residuals.square().sum((-2, -1)).sqrt()
    upper = _largest_of_pair(values, coupling[..., None], left[..., None])
    # The first m vectors alone couple less with the rest, whose largest eigenvalue is bounded by the above.
    for m in range(1, min(count, values.shape[-1] - 1) + 1):
        part = residuals[..., :m].square().sum((-2, -1)).sqrt()[..., None]
        bound = _largest_of_pair(values[..., :m], part, upper[..., m : m + 1])
        upper[..., :m] = torch.minimum(upper[..., :m], bound)
    upper[..., 0] = torch.minimum(upper[..., 0], _largest_ratio(space, vectors[..., :1]))
    return values[..., :count], torch.maximum(upper[..., :count], values[..., :count])


def _largest_ratio(space: KrylovSpace, vector: Tensor) -> Tensor:
    """Return a bound of the largest eigenvalue, max (AᵀA x)_i / x_i of a positive x (Collatz, Wielandt)."""
    direction, image = (space.basis @ vector).squeeze(-1), (space.images @ vector).squeeze(-1)
    sign = direction.sum(-1, keepdim=True).sign()
    direction, image = direction * sign, image * sign
    ratio = torch.where(direction > 0, image / direction, torch.inf)
    unused = (image == 0) & (direction.abs() <= _NEGLIGIBLE)
    return torch.where(unused, 0.0, ratio).amax(-1)


def _largest_of_pair(first: Tensor, coupling: Tensor, second: Tensor) -> Tensor:
    """Return the larger eigenvalue of [[first, coupling], [coupling, second]]."""
    return (first + second) / 2 + (((first - second) / 2).square() + coupling.square()).sqrt()
