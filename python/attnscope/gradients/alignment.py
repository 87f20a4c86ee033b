# SPDX-License-Identifier: MIT
"""Derivative of the correlation between attention and the cosines of states.

With a and c the centred entries and cosines of the counted pairs, ∂r/∂a = (c/|c| − r a/|a|)/|a| and the same
with the letters exchanged; centring changes neither, because both sum to 0. A cosine u_i·u_j of unit vectors
hands its gradient on to the states by ∂u/∂s = (1 − u uᵀ)/|s|.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.alignment import states_in_block
from attnscope.devices.slab import states_by_head
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    without: Tensor | None,
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    name = "geometric_semantic_alignment"
    correlation, non_finite = operators.evaluate(name, maps, lengths, seen, states, without, None)
    return correlation, non_finite


def _differentiate(
    gradient: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    without: Tensor | None,
) -> tuple[Tensor, Tensor]:
    slab = operators.flat_slab(maps, lengths, support, visible)
    number, n, d = len(slab.maps), slab.n, states.shape[-1]
    vectors = states.detach().expand(*maps.shape[:-2], n, d).reshape(number, n, d).to(maps.device)
    wide, finite = states_in_block(slab, vectors)
    size = torch.where(slab.inside[..., None] & finite[:, None, None], vectors, 0).to(slab.dtype)
    length = torch.linalg.vector_norm(size, dim=-1, keepdim=True)
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    has_direction = norm.squeeze(-1) > 0
    unit = wide / torch.where(norm > 0, norm, 1.0)
    pairs = slab.seen & (slab.positions[:, None] != slab.positions)
    pairs = pairs & has_direction[:, :, None] & has_direction[:, None, :]
    if without is not None:
        left_out = without.to(maps.device).expand(*maps.shape[:-1]).reshape(number, n)
        pairs = pairs & ~left_out[:, None, :]
    count = pairs.flatten(1).sum(-1).clamp(min=1)[:, None, None]

    def centre(values: Tensor) -> Tensor:
        mean = torch.where(pairs, values, 0.0).sum((-2, -1), keepdim=True) / count
        return torch.where(pairs, values - mean, 0.0)

    a, c = centre(slab.wide), centre(unit @ unit.mT)
    norm_a, norm_c = (part.square().sum((-2, -1), keepdim=True).sqrt() for part in (a, c))
    varies = (norm_a > 0) & (norm_c > 0)
    a, c = (part / torch.where(varies, norm, 1.0) for part, norm in ((a, norm_a), (c, norm_c)))
    r = (a * c).sum((-2, -1), keepdim=True)
    weight = torch.where(varies.flatten(), operators.incoming_gradient(gradient, slab), 0.0)
    weight = torch.where(finite, weight, 0.0)[:, None, None]
    by_entry = weight * (c - r * a) / torch.where(varies, norm_a, 1.0)
    by_cosine = weight * (a - r * c) / torch.where(varies, norm_c, 1.0)
    by_unit = (by_cosine + by_cosine.mT) @ unit
    by_state = by_unit - (by_unit * unit).sum(-1, keepdim=True) * unit
    by_state = torch.where(length > 0, by_state / torch.where(length > 0, length, 1.0), 0.0)
    by_state = by_state.reshape(*maps.shape[:-2], n, d).to(states.device, states.dtype)
    return by_entry.reshape(maps.shape).to(maps.dtype), by_state


_OPERATOR = operators.operator_pair(
    "geometric_semantic_alignment",
    _evaluate,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _differentiate,
    lambda gradient, maps, lengths, support, visible, states, without: (
        torch.empty_like(maps),
        states.new_empty(*maps.shape[:-2], *states.shape[-2:]),
    ),
    gradients_of=(0, 4),
)


def geometric_semantic_alignment(
    maps: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the correlations [...] and the count of maps that are not finite.

    Raises:
        NotImplementedError: states of the queries, which have no derivative.
    """
    if query_states is not None:
        raise NotImplementedError(
            "geometric_semantic_alignment: query_states have no derivative; detach the tensors"
        )
    seen = operators.split_support(support)
    correlation, non_finite = _OPERATOR(maps, lengths, *seen, states_by_head(states, maps), without)
    return correlation, non_finite
