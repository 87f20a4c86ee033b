# SPDX-License-Identifier: MIT
"""Trees over prompt and answer, in torch operations; the definition is `attnscope.prompt_divergence`'s."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import NotOnDevice, Slab
from attnscope.devices.slabs import per_map


class PromptTree(NamedTuple):
    """The tree of each map of a slab; an entry for each token, of which those of the answer count, [m, n].

    Attributes:
        in_answer: True for tokens of the answer.
        similarity: of the token to the tree, at most 1.
        neighbour: the token by which it is joined, of the prompt or of the answer.
        prompt_similarity: of the token to the prompt, at most 1.
        prompt_neighbour: the token of the prompt that is most similar.
    """

    in_answer: Tensor
    similarity: Tensor
    neighbour: Tensor
    prompt_similarity: Tensor
    prompt_neighbour: Tensor


def grow_trees(slab: Slab, spans: Tensor) -> PromptTree:
    """Return the trees of answers [start, stop), [m, 2], grown from the prompt by Prim's algorithm."""
    start, stop = spans[:, :1], spans[:, 1:]
    positions = slab.positions
    in_answer = (positions >= start) & (positions < stop) & (start >= 0)
    weights = torch.maximum(slab.attention, slab.attention.mT).clamp(max=1.0)
    to_prompt = torch.where((positions < start)[:, None, :], weights, -math.inf)
    prompt_similarity, prompt_neighbour = to_prompt.max(-1)
    best, origin = prompt_similarity.clone(), prompt_neighbour.clone()
    similarity, neighbour = prompt_similarity.clone(), prompt_neighbour.clone()
    outside = in_answer.clone()
    rows = torch.arange(len(weights), device=weights.device)
    steps = int((stop - start).max()) if len(weights) else 0
    for _ in range(steps):
        nearest = torch.where(outside, best, -math.inf).argmax(-1)
        joins = outside[rows, nearest]
        similarity[rows, nearest] = torch.where(joins, best[rows, nearest], similarity[rows, nearest])
        neighbour[rows, nearest] = torch.where(joins, origin[rows, nearest], neighbour[rows, nearest])
        outside[rows, nearest] = False
        closer = (weights[rows, nearest] > best) & joins[:, None]
        best = torch.where(closer, weights[rows, nearest], best)
        origin = torch.where(closer, nearest[:, None], origin)
    return PromptTree(in_answer, similarity, neighbour, prompt_similarity, prompt_neighbour)


def prompt_divergence(
    attention: Tensor, lengths: Tensor | None, support: str | Tensor, answers: Tensor
) -> tuple[tuple[Tensor, ...], int]:
    """Return per_token, total and star of every map, and how many maps are not finite."""
    if attention.shape[-1] != attention.shape[-2]:
        raise NotOnDevice("the last rows of maps")
    leading = attention.shape[:-2]
    spans = answers.reshape(-1, 2).expand(math.prod(leading), 2).reshape(*leading, 2)

    def compute(slab: Slab, borders: Tensor) -> list[Tensor]:
        tree = grow_trees(slab, borders)
        tokens = (borders[:, 1] - borders[:, 0]).to(slab.dtype)
        total = sum_along(torch.where(tree.in_answer, 1.0 - tree.similarity, 0.0))
        star = sum_along(torch.where(tree.in_answer, 1.0 - tree.prompt_similarity, 0.0)) / tokens
        defined = slab.finite & (borders[:, 0] > 0)
        fields = (total / tokens, total, star)
        return [
            *(torch.where(defined, number, math.nan) for number in fields),
            slab.finite | (borders[:, 0] < 0),
        ]

    # all entries count where nothing is said of the support
    seen = "full" if isinstance(support, str) and support == "auto" else support
    *fields, non_finite = per_map(compute, attention, lengths, seen, (spans,))
    return tuple(fields), non_finite
