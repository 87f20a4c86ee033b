# SPDX-License-Identifier: MIT
"""The share of a head's output that comes from a set of reference tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import first_key_map, identity
from attnscope.metrics.quantity import ClosedForm, Quantity, Shared, Site, attribute_reader
from attnscope.metrics.states.alignment import maps_in_range, states_argument


@shown_by_shape
class ReferenceInfluence(NamedTuple):
    """Influence per query, each [..., q]: ‖c_R‖/‖c‖, cos(c_R, c) and 1 − cos(c, c_N); NaN inside the
    reference.
    """

    relative_magnitude: torch.Tensor
    directional: torch.Tensor
    information_change: torch.Tensor


@memory_errors("reference_influence")
def reference_influence(
    attention: torch.Tensor,
    states: torch.Tensor,
    reference: torch.Tensor,
    *,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> ReferenceInfluence:
    """Return the contribution of the reference tokens to the output of every other query.

    The output c_i = Σ_j A_ij s_j splits into c_R, the part from the reference R, and c_N, the rest. Relative
    magnitude is ‖c_R‖/‖c‖ (above 1 where the two parts work against each other), directional influence
    cos(c_R, c), and information change 1 − cos(c, c_N): how far the direction turns when the reference is
    taken away.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        states: of the keys, [..., k, d], as in `geometric_semantic_alignment`.
        reference: boolean [..., k], for example `sink_tokens`; broadcasts against the leading axes.
        support: which keys a query sees, as in `incoming_attention`.
        precision: "exact", or "fast" with products in float32, sums of 64 terms of them added up in float64:
            relative errors of the norms below 1e-5, so 2e-5·(1 + value) of a relative magnitude, and absolute
            errors of the other two below 1e-5. Maps of a query whose parts nearly cancel, a norm below a
            fiftieth of the sum of its terms' norms, and states beyond float32's range are measured exactly.
        lengths: keys per map, broadcast against the leading axes.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        ReferenceInfluence, each [..., q] float64: relative_magnitude >= 0, directional in [−1, 1],
        information_change in [0, 2]. NaN for queries in the reference, past a map's own length, and where a
        norm that divides is 0 (all mass on the reference leaves c_N without direction). Errors below
        1e-14·(1 + value) for small maps.

    Raises:
        ValueError: a reference that is not boolean or does not broadcast, and as
            `geometric_semantic_alignment`.

    Example:
        Every query puts 3/5 on a reference along x and 4/5 on a token along y.

        >>> import torch, attnscope as asc
        >>> attention = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64).expand(3, 3)
        >>> states = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> reference = torch.tensor([True, False, False])
        >>> result = asc.reference_influence(attention, states, reference)
        >>> [round(part[2].item(), 9) for part in result]
        [0.6, 0.6, 0.2]

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "reference_influence"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    _checks.require_map(name, checked)
    seen = _checks.support_argument(name, support, checked)
    value_states = states_argument(name, states, checked)
    marked = _checks.flags_argument(name, "reference", reference, (*checked.leading, checked.n))
    kernel_arguments, unit = (seen, value_states, marked), "matrices or their states"
    maps = maps_in_range(checked)
    return ReferenceInfluence(
        *_calls.call_and_warn(
            _core.reference_influence, name, maps, *kernel_arguments, unit=unit, precision=precision
        )
    )


def _of_some_reference(influence: ReferenceInfluence, reference: torch.Tensor) -> ReferenceInfluence:
    """Set NaN for maps without a reference, whose influence is not defined."""
    has_reference = reference.any(-1, keepdim=True)
    return ReferenceInfluence(*(torch.where(has_reference, part, torch.nan) for part in influence))


SOURCES = (reference_influence,)
DERIVED = {"_influence_of_sinks": ("reference_influence", _of_some_reference)}


def _of_sinks(name: str, field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    """Declare a field, on the head's value vectors, with its sink tokens as the reference."""
    return Quantity(
        name,
        "_influence_of_sinks",
        label,
        meaning,
        ClosedForm(expected, _HALF, _SIDES, (-1,)),
        options={"states": Site("value"), "reference": Shared("sink_tokens")},
        read=attribute_reader(field),
        needs=("attention", "value"),
        axes=("query",),
        **{"low": 0, **fields},
    )


# Every query but the first takes (0.6, 0) from key 0, the sink, and (0, 0.8) from itself.
_HALF = 0.75 * first_key_map(32) + 0.25 * identity(32)
_SIDES = {"value": torch.tensor([[0.8, 0.0], *[[0.0, 3.2]] * 31], dtype=torch.float64, device="cpu")[None]}

QUANTITIES = (
    _of_sinks(
        "reference_magnitude",
        "relative_magnitude",
        "reference, magnitude",
        "Norm of what the sink tokens contribute to a query's output, over the norm of the output.",
        0.6,
    ),
    _of_sinks(
        "reference_directional",
        "directional",
        "reference, direction",
        "Cosine between that contribution and the whole output.",
        0.6,
        low=-1,
        high=1,
    ),
    _of_sinks(
        "reference_information",
        "information_change",
        "reference, turn",
        "How far the output turns without it: 1 − cosine.",
        0.2,
        high=2,
    ),
)
