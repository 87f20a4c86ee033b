# SPDX-License-Identifier: MIT
"""Derivative of the entropy of a row: ∂H_i/∂A_ij = −(log A_ij + 1), and 0 where A_ij is 0 or hidden."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.gradients import operators


def _evaluate(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None, normalized: bool
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    entropy, non_finite = operators.evaluate("attention_entropy", maps, lengths, seen, normalized)
    return entropy, non_finite


def _differentiate(
    gradient: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    normalized: bool,
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    weight = operators.incoming_gradient(gradient, slab, maps.shape[-2])
    if normalized:
        # a query that sees one key has no normalised entropy
        weight = torch.where(slab.visible_keys > 1, weight / slab.visible_keys.to(slab.dtype).log(), 0.0)
    attention = slab.attention
    positive = attention > 0
    logarithm = torch.where(positive, attention, 1.0).log()
    result = torch.where(positive, -weight[..., None] * (logarithm + 1), 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "attention_entropy",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-1]), operators.count()),
    _differentiate,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def attention_entropy(
    maps: Tensor, lengths: Tensor | None, support: str | Tensor, normalized: bool
) -> tuple[Tensor, Tensor]:
    """Return the entropies [..., q] and the count of maps that are not finite."""
    entropy, non_finite = _OPERATOR(maps, lengths, *operators.split_support(support), normalized)
    return entropy, non_finite
