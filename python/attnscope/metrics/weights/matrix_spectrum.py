# SPDX-License-Identifier: MIT
"""Energy, leading squared singular values and participation ratio of matrices, dense or of low rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope._evaluation import full_precision
from attnscope.metrics.weights.low_rank import LowRank

#: Up to so many rows or columns the smaller Gram matrix is decomposed; beyond, what follows is estimated.
EXACT = 2048
PROBES = 64
_OVERSAMPLING = 16
_ITERATIONS = 3


class Spectrum(NamedTuple):
    """The spectrum of every matrix, float64.

    Attributes:
        energy: ‖M‖_F², [...]; NaN where it is 0 or not finite, so that shares of it have no value.
        top: [..., <= k] largest σ², descending.
        participation_ratio: (Σσ²)²/Σσ⁴, [...].
        exact: True if top and ratio come from a decomposition.
    """

    energy: Tensor
    top: Tensor
    participation_ratio: Tensor
    exact: bool


def spectrum_of(matrix: Tensor | LowRank, k: int) -> Spectrum:
    """Return the spectrum of matrices [..., m, n]; k = 0 gives only the energy."""
    if isinstance(matrix, LowRank):
        if not bool(matrix.left.isfinite().all() and matrix.right.isfinite().all()):
            undefined = torch.full((), torch.nan, dtype=torch.float64, device="cpu")
            return _spectrum(undefined, undefined.expand(min(k, matrix.rank)), undefined, True)
        squares = matrix.singular_values().square()
        return _spectrum(_defined(matrix.energy()), squares[:k], squares.square().sum(), True)
    finite = matrix.isfinite().all((-2, -1))
    wide = torch.where(finite[..., None, None], matrix, 0)
    energy = _defined(torch.where(finite, _energy(wide), torch.nan))
    smaller = min(matrix.shape[-2:])
    if k == 0:
        return Spectrum(energy, energy[..., None][..., :0], torch.full_like(energy, torch.nan), True)
    if smaller <= EXACT:
        wide = wide.double()
        gram = wide @ wide.mT if matrix.shape[-2] <= matrix.shape[-1] else wide.mT @ wide
        squares = torch.linalg.eigvalsh(gram).flip(-1).clamp_min(0)
        return _spectrum(energy, squares[..., :k], gram.square().sum((-2, -1)), True)
    return _estimated(wide, energy, k)


def _spectrum(energy: Tensor, top: Tensor, fourth: Tensor, exact: bool) -> Spectrum:
    return Spectrum(energy, top, energy.square() / fourth, exact)


@full_precision()
def _estimated(matrix: Tensor, energy: Tensor, k: int) -> Spectrum:
    """Estimate by subspace iteration, which reaches the leading values from below, and random probes."""
    generator = torch.Generator().manual_seed(0)
    _rows, columns = matrix.shape[-2:]
    drawn = torch.randn(columns, PROBES, generator=generator, dtype=matrix.dtype, device="cpu")
    probed = matrix.mT @ (matrix @ drawn)
    # tr(M²) of M = AᵀA: the mean of ‖M g‖² over Gaussian g
    fourth = probed.double().square().sum((-2, -1)) / PROBES
    start = torch.randn(
        columns, min(columns, k + _OVERSAMPLING), generator=generator, dtype=matrix.dtype, device="cpu"
    )
    basis = matrix @ start
    for _ in range(_ITERATIONS):
        basis = matrix @ (matrix.mT @ torch.linalg.qr(basis).Q)
    squares = torch.linalg.svdvals(torch.linalg.qr(basis).Q.mT @ matrix).double().square()
    return _spectrum(energy, squares[..., :k], fourth, False)


def _energy(matrix: Tensor) -> Tensor:
    """‖M‖_F² in float64 without a float64 copy of it."""
    if matrix.dtype == torch.float64:
        return matrix.square().sum((-2, -1))
    blocks = [matrix[..., at : at + 256, :] for at in range(0, matrix.shape[-2], 256)]
    return torch.stack([block.double().square().sum((-2, -1)) for block in blocks]).sum(0)


def _defined(energy: Tensor) -> Tensor:
    return torch.where((energy > 0) & energy.isfinite(), energy, torch.nan)
