# SPDX-License-Identifier: MIT
"""How much of what a head writes comes from a set of reference tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnscope import _checks, _core
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.states._states import states_argument, tokens_argument


@shown_by_shape
class ReferenceInfluence(NamedTuple):
    """Per query, each [..., n]: ‖c_R‖/‖c‖, cos(c_R, c) and 1 − cos(c, c_N); NaN inside the reference."""

    relative_magnitude: torch.Tensor
    directional: torch.Tensor
    information_change: torch.Tensor


def reference_influence(
    attention: torch.Tensor,
    states: torch.Tensor,
    reference: torch.Tensor,
    *,
    support: Any = "auto",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> ReferenceInfluence:
    """What the reference tokens contribute to the output of every other query.

    The output c_i = Σ_j A_ij s_j splits into c_R, the part from the reference R, and c_N, the rest. Relative
    magnitude is ‖c_R‖/‖c‖ (above 1 where the two parts work against each other), directional influence
    cos(c_R, c), and information change 1 − cos(c, c_N): how far the direction turns when the reference is
    taken away.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        states: [..., n, d], as in `geometric_semantic_alignment`: shared and grouped heads are read in
            place.
        reference: boolean [..., n], for example `sink_tokens`; broadcasts against the leading axes.
        support: which keys a query sees: "auto", "causal", "full", or a boolean tensor.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        ReferenceInfluence, each [..., n] float64: relative_magnitude >= 0, directional in [−1, 1],
        information_change in [0, 2]. NaN for queries in the reference, past a map's own length, and where a
        norm that divides is 0 (all mass on the reference leaves c_N without direction). Errors below
        1e-14·(1 + value) for small maps.

    Raises:
        ValueError: as `geometric_semantic_alignment`, and a reference that is not boolean or does not
            broadcast.

    Example:
        Every query puts 3/5 on a reference along x and 4/5 on a token along y.

        >>> import torch, attnscope as asc
        >>> attention = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64).expand(3, 3)
        >>> states = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> reference = torch.tensor([True, False, False])
        >>> found = asc.reference_influence(attention, states, reference)
        >>> [round(part[2].item(), 9) for part in found]
        [0.6, 0.6, 0.2]

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "reference_influence"
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    *parts, spoiled = _core.reference_influence(
        checked.tensor,
        checked.lengths,
        _checks.support_argument(name, support, checked),
        states_argument(name, states, checked),
        tokens_argument(name, "reference", reference, checked),
    )
    result = ReferenceInfluence(*parts)
    return _checks.finished(name, checked, result, spoiled, "matrices or their states")  # type: ignore[no-any-return]
