# SPDX-License-Identifier: MIT
"""Derivatives of what reference tokens contribute to each query's output.

All three numbers of a query depend on two vectors, the part c_R from the reference and the part c_N from the
other tokens. Both parts are linear in attention and in states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.slab import states_by_head
from attnscope.gradients import operators


def _evaluate(
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    reference: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    answers = operators.evaluate("reference_influence", maps, lengths, seen, states, reference)
    magnitude, direction, change, non_finite = answers
    return magnitude, direction, change, non_finite


def _by_parts(
    from_reference: Tensor, from_others: Tensor, by_magnitude: Tensor, by_direction: Tensor, by_change: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both parts [m, n, d] from those of the three numbers [m, n].

    With c = c_R + c_N: the magnitude is |c_R|/|c|, the direction cos(c_R, c) and the change
    1 − cos(c_N, c). A number with a vector of length 0 in it is undefined and has no gradient.
    """
    output = from_reference + from_others
    norm_r, norm_n, norm = (
        torch.linalg.vector_norm(part, dim=-1, keepdim=True) for part in (from_reference, from_others, output)
    )
    unit_r, unit_n, unit = (
        part / torch.where(length > 0, length, 1.0)
        for part, length in ((from_reference, norm_r), (from_others, norm_n), (output, norm))
    )
    inverse_r, inverse_n, inverse = (
        torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)
        for length in (norm_r, norm_n, norm)
    )
    cosine_r, cosine_n = ((part * unit).sum(-1, keepdim=True) for part in (unit_r, unit_n))
    magnitude = by_magnitude[..., None] * inverse
    direction, change = by_direction[..., None], by_change[..., None]
    direction = torch.where((norm_r > 0) & (norm > 0), direction, 0.0)
    change = torch.where((norm_n > 0) & (norm > 0), change, 0.0)
    by_output = -magnitude * norm_r * inverse * unit + inverse * (
        direction * (unit_r - cosine_r * unit) - change * (unit_n - cosine_n * unit)
    )
    by_reference = magnitude * unit_r + direction * inverse_r * (unit - cosine_r * unit_r)
    by_others = -change * inverse_n * (unit - cosine_n * unit_n)
    return by_reference + by_output, by_others + by_output


def _differentiate(
    by_magnitude: Tensor,
    by_direction: Tensor,
    by_change: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    states: Tensor,
    reference: Tensor,
) -> tuple[Tensor, Tensor]:
    slab = operators.flat_slab(maps, lengths, support, visible)
    number, n, d = len(slab.maps), slab.n, states.shape[-1]
    vectors = states.detach().expand(*maps.shape[:-2], n, d).reshape(number, n, d).to(maps.device)
    vectors = torch.where(slab.inside[..., None], vectors, 0).to(slab.dtype)
    finite = vectors.isfinite().flatten(1).all(-1) & slab.finite
    vectors = torch.where(finite[:, None, None], vectors, 0.0)
    marked = reference.to(maps.device).expand(*maps.shape[:-2], n).reshape(number, n)
    answered = slab.rows_inside & ~slab.at_queries(marked) & finite[:, None]
    attention = slab.attention
    from_reference = torch.where(marked[:, None, :], attention, 0.0) @ vectors
    from_others = torch.where(marked[:, None, :], 0.0, attention) @ vectors
    numbers = (
        torch.where(answered, operators.incoming_gradient(gradient, slab, maps.shape[-2]), 0.0)
        for gradient in (by_magnitude, by_direction, by_change)
    )
    by_reference, by_others = _by_parts(from_reference, from_others, *numbers)
    by_entry = torch.where(marked[:, None, :], by_reference @ vectors.mT, by_others @ vectors.mT)
    by_entry = torch.where(slab.seen, by_entry, 0.0)
    by_state = torch.where(marked[..., None], attention.mT @ by_reference, attention.mT @ by_others)
    by_state = by_state.reshape(*maps.shape[:-2], n, d).to(states.device, states.dtype)
    return by_entry.reshape(maps.shape).to(maps.dtype), by_state


def _fake(maps: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = maps.shape[:-1]
    return (*(operators.empty(*shape) for _ in range(3)), operators.count())  # type: ignore[return-value]


_OPERATOR = operators.operator_pair(
    "reference_influence",
    _evaluate,
    _fake,
    _differentiate,
    lambda magnitude, direction, change, maps, lengths, support, visible, states, reference: (
        torch.empty_like(maps),
        states.new_empty(*maps.shape[:-2], *states.shape[-2:]),
    ),
    outputs=3,
    gradients_of=(0, 4),
    of_each_map=(0, 1, 4, 5),
)


def reference_influence(
    maps: Tensor, lengths: Tensor | None, support: str | Tensor, states: Tensor, reference: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return magnitude, direction and change [..., q], and the count of maps that are not finite."""
    seen = operators.split_support(support)
    vectors = states_by_head(states, maps)
    magnitude, direction, change, non_finite = _OPERATOR(maps, lengths, *seen, vectors, reference)
    return magnitude, direction, change, non_finite
