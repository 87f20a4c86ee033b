# SPDX-License-Identifier: MIT
"""Derivative of the participation ratio S²/Q, S the sum of a spectrum and Q that of its squares.

"singular": S = ‖A‖², ∂S = 2A; Q = ‖AAᵀ‖², ∂Q = 4AAᵀA. "laplacian": S = Σ d_i, Q = Σ W_ij² + Σ d_i² with
d the degrees of W = (A + Aᵀ)/2 without its diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.gradients import operators
from attnscope.gradients.refusal import refuse_backward


def _evaluate(maps: Tensor, lengths: Tensor | None, spectrum: str) -> tuple[Tensor, Tensor]:
    ratio, non_finite = operators.evaluate("participation_ratio", maps, lengths, spectrum)
    return ratio, non_finite


def _differentiate(gradient: Tensor, maps: Tensor, lengths: Tensor | None, spectrum: str) -> Tensor:
    slab = operators.flat_slab(maps, lengths)
    largest = slab.wide.abs().flatten(1).amax(-1)[:, None, None]
    # the ratio is that of any multiple of the map, so its powers stay in range
    scale = torch.where(largest > 0, largest, 1.0)
    matrix = slab.wide / scale
    if spectrum == "singular":
        gram = matrix @ matrix.mT
        total, squares = matrix.square().flatten(1).sum(-1), gram.square().flatten(1).sum(-1)
        of_total, of_squares = 2 * matrix, 4 * gram @ matrix
    else:
        weights = (matrix + matrix.mT) / 2
        weights = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
        degree = weights.sum(-1)
        total, squares = degree.sum(-1), weights.square().flatten(1).sum(-1) + degree.square().sum(-1)
        of_total = torch.ones_like(matrix)
        of_squares = 2 * weights + degree[:, :, None] + degree[:, None, :]
        between = slab.positions[:, None] != slab.positions
        if lengths is not None:
            between = between & slab.inside[:, :, None] & slab.inside[:, None, :]
        of_total, of_squares = (torch.where(between, part, 0.0) for part in (of_total, of_squares))
    defined = squares > 0
    safe = torch.where(defined, squares, 1.0)
    weight = torch.where(defined, operators.incoming_gradient(gradient, slab), 0.0)
    by_total, by_squares = 2 * total / safe, -((total / safe) ** 2)
    result = by_total[:, None, None] * of_total + by_squares[:, None, None] * of_squares
    result = weight[:, None, None] * result / scale
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "participation_ratio",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _differentiate,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def participation_ratio(maps: Tensor, lengths: Tensor | None, spectrum: str) -> tuple[Tensor, Tensor]:
    """Return the ratios [...] and the count of maps that are not finite; "eigen" refuses to go backwards."""
    if spectrum == "eigen":
        ratio, non_finite = _evaluate(maps.detach(), lengths, spectrum)
        reason = "the eigenvalues of a map that is not symmetric move without bound where they meet"
        words = f"participation_ratio has no derivative with spectrum='eigen': {reason}"
        return refuse_backward(ratio, maps, words), non_finite
    ratio, non_finite = _OPERATOR(maps, lengths, spectrum)
    return ratio, non_finite
