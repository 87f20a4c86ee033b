# SPDX-License-Identifier: MIT
"""Derivative of singular values: ∂σ_k/∂A = u_k v_kᵀ.

Equal singular values have a space of pairs, of which a decomposition takes any basis. A function that treats
them alike, such as their sum of squares, has the same gradient whichever is taken; one that does not, such as
the gap between the two largest, has no derivative there, and each of them then gets the mean over both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.gradients import operators
from attnscope.gradients.equal_values import mean_over_equal

#: Singular values whose distance is below this part of the larger one count as equal.
EQUAL = 1e-8


def _evaluate(maps: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    values, non_finite = operators.evaluate("singular_values", maps, lengths)
    return values, non_finite


def _differentiate(gradient: Tensor, maps: Tensor, lengths: Tensor | None) -> Tensor:
    slab = operators.flat_slab(maps, lengths)
    # zero rows and columns behind a map's length only add singular values of 0 at the end
    left, values, right = torch.linalg.svd(slab.wide, full_matrices=False)
    most = min(maps.shape[-2:])
    weight = torch.where(slab.places_of_values(), operators.incoming_gradient(gradient, slab, most), 0.0)
    weight = mean_over_equal(weight, values, EQUAL * values, values > 0, "a singular value")
    result = (left * weight[:, None, :]) @ right
    if slab.is_ragged:
        result = torch.where(slab.rows_inside[:, :, None] & slab.inside[:, None, :], result, 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "singular_values",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-2], min(maps.shape[-2:])), operators.count()),
    _differentiate,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def singular_values(maps: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the singular values [..., min(q, k)], descending, and the count of maps that are not finite."""
    values, non_finite = _OPERATOR(maps, lengths)
    return values, non_finite
