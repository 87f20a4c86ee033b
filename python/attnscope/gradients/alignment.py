# SPDX-License-Identifier: MIT
"""Derivative of the correlation between attention and the cosines of states.

With a and c the centred entries and cosines of the counted pairs, ∂r/∂a = (c/|c| − r a/|a|)/|a| and the same
with the letters exchanged; centring changes neither, because both sum to 0. A cosine u_i·u_j of unit vectors
hands its gradient on to the states by ∂u/∂s = (1 − u uᵀ)/|s|.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.alignment import Directions, pairs_of_states, read_directions
from attnscope.devices.slab import states_by_head
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None,
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    name = "geometric_semantic_alignment"
    correlation, non_finite = operators.evaluate(name, maps, lengths, seen, states, without, query_states)
    return correlation, non_finite


def _by_states(states: Tensor, directions: Directions, by_unit: Tensor) -> Tensor:
    """Return the gradient of states [..., n, d] from that of their unit vectors [m, n, d]."""
    unit, norms = directions.unit, directions.norms
    by_state = by_unit - (by_unit * unit).sum(-1, keepdim=True) * unit
    by_state = torch.where(norms > 0, by_state / torch.where(norms > 0, norms, 1.0), 0.0)
    return by_state.reshape(states.shape).to(states.device, states.dtype)


def _differentiate(
    gradient: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    slab = operators.flat_slab(maps, lengths, support, visible)
    number, n, d = len(slab.maps), slab.n, states.shape[-1]

    def read(vectors: Tensor, inside: Tensor) -> Directions:
        flat = vectors.detach().reshape(number, -1, d).to(maps.device)
        return read_directions(flat, inside, slab.dtype)

    keys = read(states, slab.inside)
    queries = keys if query_states is None else read(query_states, slab.rows_inside)
    finite = keys.finite & queries.finite
    left_out = None
    if without is not None:
        left_out = without.to(maps.device).expand(*maps.shape[:-2], n).reshape(number, n)
    pairs = pairs_of_states(slab, queries, keys, left_out)
    count = pairs.flatten(1).sum(-1).clamp(min=1)[:, None, None]

    def centre(values: Tensor) -> Tensor:
        mean = torch.where(pairs, values, 0.0).sum((-2, -1), keepdim=True) / count
        return torch.where(pairs, values - mean, 0.0)

    a, c = centre(slab.wide), centre(queries.unit @ keys.unit.mT)
    norm_a, norm_c = (part.square().sum((-2, -1), keepdim=True).sqrt() for part in (a, c))
    varies = (norm_a > 0) & (norm_c > 0)
    a, c = (part / torch.where(varies, norm, 1.0) for part, norm in ((a, norm_a), (c, norm_c)))
    r = (a * c).sum((-2, -1), keepdim=True)
    weight = torch.where(varies.flatten(), operators.incoming_gradient(gradient, slab), 0.0)
    weight = torch.where(finite, weight, 0.0)[:, None, None]
    by_entry = weight * (c - r * a) / torch.where(varies, norm_a, 1.0)
    by_cosine = weight * (a - r * c) / torch.where(varies, norm_c, 1.0)
    by_entry = by_entry.reshape(maps.shape).to(maps.dtype)
    of_keys, of_queries = by_cosine.mT @ queries.unit, by_cosine @ keys.unit
    if query_states is None:
        return by_entry, _by_states(states, keys, of_keys + of_queries), states.new_empty(0)
    by_query = _by_states(query_states, queries, of_queries)
    return by_entry, _by_states(states, keys, of_keys), by_query


_OPERATOR = operators.operator_pair(
    "geometric_semantic_alignment",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _differentiate,
    lambda gradient, maps, lengths, support, visible, states, without, query_states: (
        torch.empty_like(maps),
        states.new_empty(states.shape),
        states.new_empty(0) if query_states is None else query_states.new_empty(query_states.shape),
    ),
    gradients_of=(0, 4, 6),
    of_each_map=(0, 1, 4, 6),
)


def geometric_semantic_alignment(
    maps: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the correlations [...] and the count of maps that are not finite."""
    seen = operators.split_support(support)
    of_queries = None if query_states is None else states_by_head(query_states, maps)
    correlation, non_finite = _OPERATOR(
        maps, lengths, *seen, states_by_head(states, maps), without, of_queries
    )
    return correlation, non_finite
