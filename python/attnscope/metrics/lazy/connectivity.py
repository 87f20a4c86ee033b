# SPDX-License-Identifier: MIT
"""Algebraic connectivity of lazy attention with a certified interval, from products alone.

The value is a Rayleigh quotient, which λ2 never exceeds, of vectors that a block method improves (LOBPCG,
Knyazev 2001). The lower bound needs a count: no vector orthogonal to the null vector and to m vectors V at
hand has a quotient below some ρ. With that and the residual R of V, λ2 is at least the smaller eigenvalue of
[[θ, ‖R‖], [‖R‖, ρ]].

The count is taken where the scales of tokens do not matter: G − ρ is positive definite on a subspace if and
only if C = D^(−1/2) (G − ρ) D^(−1/2) is on the scaled subspace, and C <= 2. Lanczos from a random start of n
numbers misses the smallest eigenvalue of C by more than ε·(2 − λ) in k steps with a probability of at most
1.648·√n·exp(−√ε(2k − 1)) (Kuczyński and Woźniakowski 1992); independent starts multiply it. The interval
holds with a probability of at least 1 − 10⁻⁶, whatever the map is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from attnscope import _core
from attnscope._warn import warn
from attnscope.errors import UndefinedWarning
from attnscope.metrics.estimates import IntervalEstimate
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.products import non_finite_maps

#: Tokens up to which the map itself is measured.
_DENSE_TOKENS = 256
#: Vectors that one pass multiplies together, which are the block and the random starts.
_WIDTH = 16
#: Passes of the block method and of each count.
_IMPROVING_PASSES, _COUNTING_PASSES = 120, 240
#: Width of an interval, relative to its upper end, up to which there is a value.
_TOLERANCE = 1e-2
#: Probability that a count is wrong.
_FAILURE = 1e-6


class Laplacian(NamedTuple):
    """Laplacian of a graph scaled to scale·(D − W)·scale, by its products.

    Attributes:
        attention: one square map without padding, exact.
        degrees: row sums of (A + Aᵀ)/2 with the diagonal, [n].
        scale: 1 for each token, or 1/√d of the degrees without the diagonal.
        diagonal: diagonal of the scaled Laplacian, [n].
        null: its unit null vector, [n].
    """

    attention: LazyAttention
    degrees: Tensor
    scale: Tensor
    diagonal: Tensor
    null: Tensor

    def multiply(self, x: Tensor) -> Tensor:
        """Return the product with x [n, c]."""
        scaled = self.scale[:, None] * x
        product = self.degrees[:, None] * scaled - multiply_symmetric(self.attention, scaled)
        return self.scale[:, None] * product


def fiedler_intervals(attention: LazyAttention, normalized: bool) -> tuple[IntervalEstimate, int]:
    """Return λ2 of each map's graph of all weights (A + Aᵀ)/2, [..., h], and how many maps hold NaN.

    A value is NaN, with a warning, where its interval stays wider than a hundredth of its upper end.
    """
    leading = attention.shape[:-2]
    non_finite = non_finite_maps(attention)
    lengths = attention.sizes.reshape(leading)
    ends = np.full((leading.numel(), 3), math.nan)
    for place, index in enumerate(np.ndindex(*leading)):
        if not bool(non_finite[index]):
            ends[place] = _interval(attention.select_map(index, int(lengths[index])), normalized)
    undecided = int((np.isnan(ends[:, 0]) & ~np.isnan(ends[:, 2])).sum())
    if undecided:
        passes = _IMPROVING_PASSES + 2 * _COUNTING_PASSES
        message = (
            f"fiedler_value: λ2 of {undecided} of {len(ends)} matrices was not enclosed within "
            f"{_TOLERANCE:.0%} in {passes} passes; its value is NaN, low and high hold"
        )
        warn(UndefinedWarning(message, "fiedler_value", undecided))
    value, low, high = torch.from_numpy(ends).reshape(*leading, 3).unbind(-1)
    return IntervalEstimate(value, low, high), int(non_finite.sum())


def multiply_symmetric(attention: LazyAttention, x: Tensor) -> Tensor:
    """Return (A + Aᵀ)/2 times x [n, c], of one map."""
    product, transposed = attention.multiply_both(x[None])
    return (product[0] + transposed[0]) / 2


def _interval(attention: LazyAttention, normalized: bool) -> tuple[float, float, float]:
    """Return value, low and high of one map without padding."""
    n = attention.shape[-1]
    if n <= _DENSE_TOKENS:
        values, _ = _core.fiedler_value(attention.dense(), None, "mean", None, normalized, "exact")
        value = float(values)
        return value, value * (1 - 1e-9), value * (1 + 1e-9)
    laplacian = make_laplacian(attention, normalized)
    rounding = n * 2.0**-50 * (1.0 if normalized else float(laplacian.degrees.max()))
    if not bool((laplacian.diagonal > n * 2.0**-50).all()):  # a token that nothing joins
        return 0.0, 0.0, rounding
    theta, vectors, residuals = improve_vectors(laplacian)
    high = float(theta[0]) + rounding
    if high <= 2 * rounding:
        return 0.0, 0.0, high
    low = max(0.0, _lower_bound(laplacian, theta, vectors, residuals) - rounding)
    is_enclosed = high - low <= _TOLERANCE * high + 2 * rounding
    return (float(theta[0]) if is_enclosed else math.nan), low, high


def make_laplacian(attention: LazyAttention, normalized: bool) -> Laplacian:
    """Return the Laplacian of one map."""
    constant = torch.ones(attention.shape[-1], 1, dtype=torch.float64, device="cpu")
    degrees = multiply_symmetric(attention, constant)[:, 0]
    without_diagonal = degrees - attention.diagonal()[0]
    scale = without_diagonal.rsqrt() if normalized else torch.ones_like(degrees)
    null = 1 / scale
    return Laplacian(attention, degrees, scale, without_diagonal * scale.square(), null / null.norm())


def improve_vectors(laplacian: Laplacian) -> tuple[Tensor, Tensor, Tensor]:
    """Return Ritz values ascending [c], their orthonormal vectors [n, c] without the null vector, residuals.

    Directions are preconditioned by the diagonal.
    """
    n = len(laplacian.null)
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(n, _WIDTH, generator=generator, dtype=torch.float64, device="cpu")
    block = torch.linalg.qr(_take_out(start, laplacian.null[:, None]))[0]
    image = laplacian.multiply(block)
    previous, previous_image = block[:, :0], image[:, :0]
    for passes in range(1, _IMPROVING_PASSES + 1):
        theta, rotation = torch.linalg.eigh(_symmetric(block.mT @ image))
        block, image = block @ rotation, image @ rotation
        residuals = image - block * theta
        if passes == _IMPROVING_PASSES or _is_improved(theta, residuals):
            break
        directions = residuals / laplacian.diagonal[:, None]
        directions = _take_out(directions, laplacian.null[:, None])
        directions = torch.linalg.qr(_take_out(directions, block))[0]
        new_image = laplacian.multiply(directions)
        for basis, basis_image in ((block, image), (directions, new_image)):
            share = basis.mT @ previous
            previous, previous_image = previous - basis @ share, previous_image - basis_image @ share
        mix = _orthonormal_mix(previous)
        previous, previous_image = previous @ mix, previous_image @ mix
        span = torch.cat([block, directions, previous], -1)
        images = torch.cat([image, new_image, previous_image], -1)
        _, rotation = torch.linalg.eigh(_symmetric(span.mT @ images))
        rotation = rotation[:, :_WIDTH]
        previous = span[:, _WIDTH:] @ rotation[_WIDTH:]
        previous_image = images[:, _WIDTH:] @ rotation[_WIDTH:]
        block, image = span @ rotation, images @ rotation
    return theta, block, residuals


def _is_improved(theta: Tensor, residuals: Tensor) -> bool:
    """Return True if the smallest value is known far better than its interval is to be."""
    error = residuals[:, 0].norm()
    gap = max(float(theta[-1] - theta[0]), float(theta[0]) * _TOLERANCE)
    return bool(error.square() <= 1e-8 * gap * theta[0].abs())


def _lower_bound(laplacian: Laplacian, theta: Tensor, vectors: Tensor, residuals: Tensor) -> float:
    """Return a certified lower bound of λ2, 0 where no count succeeds."""
    smallest = float(theta[0])
    for m, rho in _targets(theta, residuals):
        outside = torch.cat([laplacian.null[:, None], vectors[:, :m]], -1)
        if is_least_above(laplacian, outside, rho):
            return _smaller_of_pair(smallest, float(residuals[:, :m].norm()), rho)
    return 0.0


def _targets(theta: Tensor, residuals: Tensor) -> list[tuple[int, float]]:
    """Return up to two counts to try: how many vectors are set aside, and the bound of all others.

    The first is in the middle of the widest gap that the residuals allow, the second just below λ2.
    """
    smallest = float(theta[0])
    best, chosen = 2 * _TOLERANCE, None
    for m in range(1, len(theta)):
        rho = (smallest + float(theta[m])) / 2
        gap = 1 - smallest / float(theta[m])
        low = _smaller_of_pair(smallest, float(residuals[:, :m].norm()), rho)
        if gap > best and low >= smallest * (1 - _TOLERANCE / 2):
            best, chosen = gap, (m, rho)
    plain = (0, smallest * (1 - _TOLERANCE))
    return [plain] if chosen is None else [chosen, plain]


def is_least_above(laplacian: Laplacian, outside: Tensor, rho: float) -> bool:
    """Return True if no vector orthogonal to `outside` [n, m] has a quotient below ρ.

    False where a vector has, or the passes do not suffice. True is wrong with the probability _FAILURE.
    """
    n = len(laplacian.null)
    scale = laplacian.diagonal.rsqrt()[:, None]
    basis = torch.linalg.qr(scale * outside)[0]
    generator = torch.Generator("cpu").manual_seed(1)
    start = torch.randn(n, _WIDTH, generator=generator, dtype=torch.float64, device="cpu")
    vectors = _take_out(start, basis)
    vectors = vectors / vectors.norm(dim=0)
    previous, beta = torch.zeros_like(vectors), torch.zeros(_WIDTH, dtype=torch.float64, device="cpu")
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    exponent = math.log(1.648 * math.sqrt(n)) - math.log(_FAILURE) / _WIDTH
    for step in range(1, _COUNTING_PASSES + 1):
        scaled = scale * vectors
        image = scale * (laplacian.multiply(scaled) - rho * scaled)
        image = _take_out(2 * vectors - image, basis) - beta * previous
        alpha = (image * vectors).sum(0)
        image = image - alpha * vectors
        alphas.append(alpha)
        if step % 4 == 0:
            largest = _largest_ritz_value(torch.stack(alphas), betas)
            missed = (exponent / (2 * step - 1)) ** 2
            if largest > 2:
                return False
            if missed < 1 and largest / (1 - missed) <= 2:
                return True
        beta = image.norm(dim=0)
        betas.append(beta)
        previous, vectors = vectors, image / beta.clamp(min=torch.finfo(torch.float64).tiny)
    return False


def _largest_ritz_value(alphas: Tensor, betas: list[Tensor]) -> float:
    """Return the largest eigenvalue of the tridiagonal matrices of all starts."""
    steps = len(alphas)
    off = torch.stack(betas[: steps - 1]).numpy() if steps > 1 else np.zeros((0, alphas.shape[1]))
    last = (steps - 1, steps - 1)
    return max(
        float(scipy.linalg.eigvalsh_tridiagonal(column, off[:, run], select="i", select_range=last)[0])
        for run, column in enumerate(alphas.T.contiguous().numpy())
    )


def _take_out(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return vectors without their parts along an orthonormal basis."""
    for _ in range(2):
        vectors = vectors - basis @ (basis.mT @ vectors)
    return vectors


def _orthonormal_mix(vectors: Tensor) -> Tensor:
    """Return the combinations of vectors that are an orthonormal basis of what they span."""
    if not vectors.shape[-1]:
        return torch.zeros(0, 0, dtype=torch.float64, device="cpu")
    sizes, mix = torch.linalg.eigh(_symmetric(vectors.mT @ vectors))
    is_used = sizes > 1e-20 * sizes[-1].clamp(min=torch.finfo(torch.float64).tiny)
    return mix[:, is_used] / sizes[is_used].sqrt()


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _smaller_of_pair(first: float, coupling: float, second: float) -> float:
    """Return the smaller eigenvalue of [[first, coupling], [coupling, second]]."""
    if coupling == 0:
        return min(first, second)
    return (first + second) / 2 - math.hypot((first - second) / 2, coupling)
