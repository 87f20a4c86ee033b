# SPDX-License-Identifier: MIT
"""Derivative of the trees over prompt and answer: −1 at the larger entry of each edge of weight below 1.

An edge that joins the answer to the prompt is the entry that is largest. Where entries are equal, the later
token's row is taken, and where edges are equal, the one that Prim's algorithm meets first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.answers.prompt_divergence import grow_trees
from attnscope.devices.slab import Slab
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None, answers: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    fields, non_finite = operators.evaluate("prompt_divergence", maps, lengths, seen, answers)
    per_token, total, star = fields
    return per_token, total, star, non_finite


def _add_edges(result: Tensor, slab: Slab, neighbours: Tensor, similarity: Tensor, weight: Tensor) -> None:
    """Add a weight [m, n] to the larger entry of the edge of each token, where it is seen and below 1."""
    maps = torch.arange(len(result), device=result.device)[:, None].expand(neighbours.shape)
    tokens = slab.positions.expand(neighbours.shape)
    later, earlier = torch.maximum(tokens, neighbours), torch.minimum(tokens, neighbours)
    is_lower = slab.attention[maps, later, earlier] >= slab.attention[maps, earlier, later]
    queries = torch.where(is_lower, later, earlier)
    keys = torch.where(is_lower, earlier, later)
    counts = slab.seen[maps, queries, keys] & (similarity < 1)
    result.index_put_((maps, queries, keys), torch.where(counts, weight, 0.0), accumulate=True)


def _differentiate(
    of_token: Tensor,
    of_total: Tensor,
    of_star: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    answers: Tensor,
) -> Tensor:
    # all entries count where nothing is said of the support
    slab = operators.flat_slab(maps, lengths, "full" if support == "auto" else support, visible)
    spans = answers.to(maps.device).reshape(-1, 2).expand(len(slab.maps), 2)
    tree = grow_trees(slab, spans)
    size = (spans[:, 1] - spans[:, 0]).clamp(min=1).to(slab.dtype)
    counts = tree.in_answer & (spans[:, :1] > 0)
    by_token, by_total, by_star = (
        operators.incoming_gradient(part, slab) for part in (of_token, of_total, of_star)
    )
    result = torch.zeros_like(slab.wide)
    for neighbours, similarity, gradient in (
        (tree.neighbour, tree.similarity, by_total + by_token / size),
        (tree.prompt_neighbour, tree.prompt_similarity, by_star / size),
    ):
        weight = torch.where(counts, -gradient[:, None], 0.0)
        _add_edges(result, slab, neighbours, similarity, weight)
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "prompt_divergence",
    _evaluate,
    lambda maps, *_: (*(operators.empty(*maps.shape[:-2]) for _ in range(3)), operators.count()),
    _differentiate,
    lambda of_token, of_total, of_star, maps, *_: torch.empty_like(maps),
    outputs=3,
)


def prompt_divergence(
    maps: Tensor, lengths: Tensor | None, support: str | Tensor, answers: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return per_token, total and star [...], and the count of maps that are not finite."""
    *fields, non_finite = _OPERATOR(maps, lengths, *operators.split_support(support), answers)
    return tuple(fields), non_finite
