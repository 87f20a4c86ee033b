# SPDX-License-Identifier: MIT
"""Lookback ratios of answers, in torch operations; the definition is `attnscope.lookback`'s."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import NotOnDevice, Slab
from attnscope.devices.slabs import per_map


class ContextMeans(NamedTuple):
    """The two means of each row of a slab, [m, n], and the keys that they are over.

    Attributes:
        context: mean attention to the visible keys before the end of the context.
        others: mean attention to the other visible keys.
        context_keys: number of visible keys of the context.
        other_keys: number of the others.
        in_context: True for visible keys of the context, [m, n, n].
        defined: True for rows of the answer with a ratio.
    """

    context: Tensor
    others: Tensor
    context_keys: Tensor
    other_keys: Tensor
    in_context: Tensor
    defined: Tensor


def context_means(slab: Slab, spans: Tensor, predicting: bool) -> ContextMeans:
    """Return the means of each row; `spans` are start, stop and end of the context, [m, 3]."""
    start, stop, end = (spans[:, place, None] for place in range(3))
    in_context = slab.seen & (slab.positions < end)[:, None, :]
    context_keys = in_context.sum(-1)
    other_keys = slab.visible_keys - context_keys
    context = sum_along(torch.where(in_context, slab.attention, 0.0)) / context_keys.clamp(min=1)
    others = sum_along(torch.where(in_context, 0.0, slab.attention)) / other_keys.clamp(min=1)
    shift = 1 if predicting else 0
    in_answer = (slab.positions >= start - shift) & (slab.positions < stop - shift) & (start >= 0)
    defined = in_answer & (context_keys > 0) & (other_keys > 0) & (context + others != 0)
    return ContextMeans(context, others, context_keys, other_keys, in_context, defined & slab.finite[:, None])


def lookback(
    attention: Tensor, lengths: Tensor | None, support: str | Tensor, answers: Tensor, predicting: bool
) -> tuple[Tensor, Tensor, int]:
    """Return the ratio [..., n] and the value [...] of every map, and how many maps are not finite."""
    if attention.shape[-1] != attention.shape[-2]:
        raise NotOnDevice("the last rows of maps")
    leading = attention.shape[:-2]
    spans = answers.reshape(-1, 3).expand(math.prod(leading), 3).reshape(*leading, 3)

    def compute(slab: Slab, borders: Tensor) -> list[Tensor]:
        means = context_means(slab, borders, predicting)
        ratio = torch.where(means.defined, means.context / (means.context + means.others), math.nan)
        value = sum_along(ratio.nan_to_num(0.0)) / means.defined.sum(-1)
        return [ratio, value, slab.finite | (borders[:, 0] < 0)]

    ratio, value, non_finite = per_map(compute, attention, lengths, support, (spans,))
    return ratio, value, non_finite
