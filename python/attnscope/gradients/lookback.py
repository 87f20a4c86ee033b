# SPDX-License-Identifier: MIT
"""Derivative of lookback ratios c/(c + o): o/(c + o)² for the mean c of the context, −c/(c + o)² for o."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.answers.lookback import context_means
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    answers: Tensor,
    predicting: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    ratio, value, non_finite = operators.evaluate("lookback", maps, lengths, seen, answers, predicting)
    return ratio, value, non_finite


def _differentiate(
    of_ratio: Tensor,
    of_value: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    answers: Tensor,
    predicting: bool,
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    spans = answers.to(maps.device).reshape(-1, 3).expand(len(slab.maps), 3)
    means = context_means(slab, spans, predicting)
    count = means.defined.sum(-1, keepdim=True).clamp(min=1)
    weight = operators.incoming_gradient(of_ratio, slab, slab.n)
    weight = weight + operators.incoming_gradient(of_value, slab)[:, None] / count
    weight = torch.where(means.defined, weight / (means.context + means.others).square(), 0.0)
    to_context = weight * means.others / means.context_keys.clamp(min=1)
    to_others = weight * means.context / means.other_keys.clamp(min=1)
    result = torch.where(means.in_context, to_context[..., None], -to_others[..., None])
    return torch.where(slab.seen, result, 0.0).reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "lookback",
    _evaluate,
    lambda maps, *_: (
        operators.empty(*maps.shape[:-1]),
        operators.empty(*maps.shape[:-2]),
        operators.count(),
    ),
    _differentiate,
    lambda of_ratio, of_value, maps, *_: torch.empty_like(maps),
    outputs=2,
)


def lookback(
    maps: Tensor, lengths: Tensor | None, support: str | Tensor, answers: Tensor, predicting: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ratios [..., n], their means [...] and the count of maps that are not finite."""
    ratio, value, non_finite = _OPERATOR(
        maps, lengths, *operators.split_support(support), answers, predicting
    )
    return ratio, value, non_finite
