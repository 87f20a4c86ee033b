# SPDX-License-Identifier: MIT
"""Derivatives of the attention to a pattern: of sums, of ratios of sums, and of a distance over a norm.

The distance d = √(‖A − P‖²/(‖A‖² + ‖P‖²)) has ((A − P) − d²A)/(d(‖A‖² + ‖P‖²)), and 0 where it is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.pattern_share import pattern_keys, sum_pattern
from attnscope.devices.slab import Slab
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    patterns: str,
    tokens: Tensor | None,
    marked: Tensor | None,
    over_all: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    fields, non_finite = operators.evaluate(
        "pattern_share", maps, lengths, seen, patterns.split(), tokens, marked, over_all
    )
    share, uniform, boost, queries, distance = fields
    return share, boost, distance, uniform, queries, non_finite


def _differentiate(
    of_share: Tensor,
    of_boost: Tensor,
    of_distance: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    patterns: str,
    tokens: Tensor | None,
    marked: Tensor | None,
    over_all: bool,
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    names = patterns.split()
    number, n = len(slab.maps), slab.n
    ids = None if tokens is None else tokens.to(maps.device).reshape(-1, n).expand(number, n)
    marks = None if marked is None else marked.to(maps.device).expand(maps.shape).reshape(number, n, n)
    gradients = [
        operators.incoming_gradient(gradient, slab, len(names))
        for gradient in (of_share, of_boost, of_distance)
    ]
    result = torch.zeros_like(slab.wide)
    for place, name in enumerate(names):
        targets = pattern_keys(slab, name, ids, marks)
        weights = [gradient[:, place] for gradient in gradients]
        result = result + _gradient_of(slab, targets, over_all, *weights)
    return torch.where(slab.seen, result, 0.0).reshape(maps.shape).to(maps.dtype)


def _gradient_of(
    slab: Slab, targets: Tensor, over_all: bool, of_share: Tensor, of_boost: Tensor, of_distance: Tensor
) -> Tensor:
    """Return the gradient [m, n, n] of one pattern's numbers, whose own gradients are [m]."""
    sums = sum_pattern(slab, targets, over_all)
    defined = sums.queries > 0
    has_share = defined & (sums.divisor != 0)
    weight = torch.where(has_share, (of_share + of_boost / sums.uniform) / sums.divisor, 0.0)
    result = weight[:, None, None] * targets.to(slab.dtype)
    if over_all:
        # the divisor is a sum of the same entries
        result = result - torch.where(has_share, weight * sums.share, 0.0)[:, None, None]
    distance = (sums.difference / sums.norms).sqrt()
    slope = torch.where(defined & (distance > 0), of_distance / (distance * sums.norms), 0.0)
    apart = (slab.attention - sums.ideal) - (sums.difference / sums.norms)[:, None, None] * slab.attention
    return result + torch.where(slope[:, None, None] != 0, slope[:, None, None] * apart, 0.0)


def _empty_results(maps: Tensor, patterns: str) -> tuple[Tensor, ...]:
    """Return uninitialised results of several patterns."""
    shape = (*maps.shape[:-2], len(patterns.split()))
    queries = torch.empty(shape, dtype=torch.int64, device="cpu")
    return (*(operators.empty(*shape) for _ in range(4)), queries, operators.count())


_OPERATOR = operators.operator_pair(
    "pattern_share",
    _evaluate,
    lambda maps, lengths, support, visible, patterns, *_: _empty_results(maps, patterns),
    _differentiate,
    lambda of_share, of_boost, of_distance, maps, *_: torch.empty_like(maps),
    outputs=3,
)


def pattern_share(
    maps: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    patterns: list[str],
    tokens: Tensor | None,
    marked: Tensor | None,
    over_all: bool,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the five fields of `PatternShare`, [..., P], and the count of maps that are not finite."""
    share, boost, distance, uniform, queries, non_finite = _OPERATOR(
        maps, lengths, *operators.split_support(support), " ".join(patterns), tokens, marked, over_all
    )
    return (share, uniform.detach(), boost, queries, distance), non_finite
