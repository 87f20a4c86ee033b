# SPDX-License-Identifier: MIT
"""Derivative of the divergence of heads from the mean of their layer.

With p of a head, m the mean of the h heads and g_k the gradient of head k's result, entry (i, j) of head k
gets [g_k (log p_k − log m + 1) − Σ_h g_h p_h / (h m)] / n: the second term comes from the mean, which every
head moves. An entry of 0 keeps the second term alone, because 0·log 0 is taken to have derivative 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.gradients import operators


def _evaluate(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    divergence, non_finite = operators.evaluate("head_divergence", maps, lengths, seen, None)
    return divergence, non_finite


def _differentiate(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    heads, q, k = maps.shape[-3:]
    # one head that is not finite makes its layer undefined
    finite = slab.finite.reshape(-1, heads).all(-1)
    weight = operators.incoming_gradient(gradient, slab) / slab.queries
    weight = torch.where(finite[:, None], weight.reshape(-1, heads), 0.0)[..., None, None]
    p = torch.where(slab.seen, slab.wide, 0.0).reshape(-1, heads, q, k)
    p = torch.where(finite[:, None, None, None], p, 0.0)
    mean = p.mean(1, keepdim=True)
    is_positive = p > 0
    ratio = torch.where(is_positive, p, 1.0).log() - torch.where(mean > 0, mean, 1.0).log()
    by_head = torch.where(is_positive, weight * (ratio + 1), 0.0)
    through_mean = torch.where(mean > 0, (weight * p).sum(1, keepdim=True) / (heads * mean), 0.0)
    result = torch.where(slab.seen.reshape(p.shape), by_head - through_mean, 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "head_divergence",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _differentiate,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def head_divergence(
    maps: Tensor, lengths: Tensor | None, support: str | Tensor, entropy: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the divergences [..., h] and the count of layers that are not finite."""
    divergence, non_finite = _OPERATOR(maps, lengths, *operators.split_support(support))
    return divergence, non_finite
