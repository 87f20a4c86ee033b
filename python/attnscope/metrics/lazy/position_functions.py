# SPDX-License-Identifier: MIT
"""Functions of the core about places of keys for lazy attention, under their names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.lazy.core_functions import prepare, require_places
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.threshold_graphs import require_square


def lookback(
    attention: LazyAttention, lengths: Tensor | None, support: Any, answers: Tensor, predicting: bool
) -> tuple[Tensor, Tensor, int]:
    """Return the ratio [..., h, q] and the value [..., h] of every map."""
    require_places("lookback", attention)
    attention = prepare(attention, lengths, support)
    leading = attention.shape[:-2]
    spans = answers.reshape(-1, 3).expand(leading.numel(), 3).reshape(*leading, 3)
    start, stop, context = (spans[..., place, None] for place in range(3))
    contexts = sorted({max(0, end) for end in context.flatten().tolist()})
    mass, *of_contexts = attention.take([("mass", None), *(("first", end) for end in contexts)])
    visibility = attention.visibility
    visible = visibility.key_counts()
    in_context, context_keys = torch.zeros_like(mass), torch.zeros_like(visible)
    for end, of_context in zip(contexts, of_contexts, strict=True):
        in_context = torch.where(context == end, of_context, in_context)
        context_keys = torch.where(context == end, visibility.key_counts(end), context_keys)
    other_keys = visible - context_keys
    mean = in_context / context_keys.clamp(min=1)
    other_mean = (mass - in_context).clamp(min=0.0) / other_keys.clamp(min=1)
    shift = 1 if predicting else 0
    positions = visibility.positions
    defined = (positions >= start - shift) & (positions < stop - shift) & (start >= 0) & visibility.real
    defined &= (context_keys > 0) & (other_keys > 0) & (mean + other_mean != 0)
    non_finite = (mass.isnan() & visibility.real).any(-1)
    defined &= ~non_finite[..., None]
    ratio = torch.where(defined, mean / (mean + other_mean), torch.nan)
    return ratio, ratio.nanmean(-1), int((non_finite & (start[..., 0] >= 0)).sum())


def offset_variance(
    attention: LazyAttention, lengths: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Return mean, variance and number of the visible weights at each distance i − j, [..., h, n]."""
    require_square("offset_variance", attention)
    attention = attention if lengths is None else attention.with_lengths(lengths)
    n = attention.shape[-1]
    sums = torch.zeros(3, *attention.shape[:-1], dtype=torch.float64, device="cpu")
    non_finite = torch.zeros(attention.shape[:-2], dtype=torch.bool, device="cpu")
    visibility = attention.visibility
    for begin, maps in attention.row_slabs():
        end = begin + maps.shape[-2]
        real = visibility.real[..., begin:end]
        non_finite |= (maps.isnan().any(-1) & real).any(-1)
        seen = visibility.rows(begin, end) & real[..., None]
        weights = torch.where(seen, maps, 0.0).nan_to_num(0.0)
        for place, values in enumerate((weights, weights.square(), seen.double())):
            sums[place] += _sum_diagonals(values, begin, n)
    total, squares, count = sums
    mean = torch.where(count > 0, total / count, torch.nan)
    variance = (squares / count - mean.square()).clamp(min=0.0)
    inside = (torch.arange(n, device="cpu") < visibility.lengths[..., None]) & ~non_finite[..., None]
    mean, variance = (torch.where(inside, values, torch.nan) for values in (mean, variance))
    numbers = torch.where(inside, count, -1.0).long()
    return (mean, variance, numbers), int(non_finite.sum())


def _sum_diagonals(rows: Tensor, begin: int, n: int) -> Tensor:
    """Return sums of rows [..., r, n] that begin at query `begin`, by distance i − j, [..., n]."""
    leading, r = rows.shape[:-2], rows.shape[-2]
    padded = torch.zeros(math.prod(leading), r, n + r, dtype=torch.float64, device="cpu")
    padded[..., :n] = rows.reshape(-1, r, n).flip(-1)
    # shifted by one more place in every row, entries of a diagonal are in one column
    shifted = padded.as_strided((len(padded), r, n + r - 1), (r * (n + r), n + r - 1, 1))
    by_distance = shifted.sum(1)  # column c is of distance c + begin − n + 1
    first = n - 1 - begin
    result = torch.zeros(len(padded), n, dtype=torch.float64, device="cpu")
    width = min(n, n + r - 1 - first)
    result[:, :width] = by_distance[:, first : first + width]
    return result.reshape(*leading, n)
