# SPDX-License-Identifier: MIT
"""Influence of reference tokens on every position, as the reference notebook computes it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from attnscope import _calls
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.information import sink_sets
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, count_true
from attnscope.metrics.states import reference_influence as exact
from attnscope.protocols.ruscio2025._maps import as_exact, head_mean, hidden_states
from attnscope.protocols.ruscio2025.sinks import sink_tokens

LARGEST_STATE = 1e5
LARGEST_CHANGE = 1e6
SMALLEST_NORM = 1e-10


@shown_by_shape
class ReferenceInfluence(NamedTuple):
    """Per query, each [..., n], queries in the reference included; reference [..., n] bool."""

    relative_magnitude: torch.Tensor
    directional: torch.Tensor
    information_change: torch.Tensor
    reference: torch.Tensor


@memory_errors("reference_influence")
@without_derivative("it is the published code's number, made for comparing")
def reference_influence(attention: torch.Tensor, hidden: torch.Tensor) -> ReferenceInfluence:
    """Return the contribution of the reference tokens to Σ_j Ā_ij h_j.

    The reference R is found by the rule "reference" of `sink_tokens`. relative_magnitude = ‖c_R‖/‖c‖ cut to
    [0, 1]; directional = (cos(c_R, c) + 1)/2; information_change = ‖c − c_N‖₂, at most 1e6.

    Quirks of the reference notebook: rows are normalised; states with an entry above 1e5 are scaled down
    whole; hidden states take the place of values; queries in R enter with 0.5, 0.5 and 0, which pulls means
    towards these; information_change is ‖c_R‖ again, in the units of the residual stream; a vanishing ‖c‖
    gives magnitude 0 or 1.

    Args:
        attention: head mean [..., n, n].
        hidden: residual stream that enters the layer, [..., n, d].

    Returns:
        ReferenceInfluence, float64; a map or state with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `reference_influence`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> star = torch.zeros(4, 4); star[:, 0] = 1
        >>> result = ruscio2025.reference_influence(star, torch.ones(4, 2))
        >>> result.relative_magnitude
        tensor([0.5000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
        >>> result.directional
        tensor([0.5000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, reference notebook.
    """
    name = "ruscio2025.reference_influence"
    maps, bad, checked = head_mean(name, attention)
    states, lost = hidden_states(name, hidden, checked)
    bad = bad | lost
    size = states.abs().amax((-2, -1), keepdim=True)
    states = torch.where(size > LARGEST_STATE, states * (LARGEST_STATE / size), states)
    reference = sink_tokens(maps, rule="reference") & ~bad.unsqueeze(-1)
    mass = maps.sum(-1, keepdim=True)
    mass = torch.where(mass > 0, mass, 1.0)
    marked = reference.unsqueeze(-1)
    part = maps @ torch.where(marked, states, 0.0) / mass
    output = part + maps @ torch.where(marked, 0.0, states) / mass
    norm_part, norm = part.norm(dim=-1), output.norm(dim=-1)
    vanishing = torch.where(norm_part < SMALLEST_NORM, 0.0, 1.0)
    magnitude = torch.where(norm < SMALLEST_NORM, vanishing, norm_part / norm).clamp(0, 1)
    cosine = (part * output).sum(-1) / (norm_part * norm)
    none = (norm < SMALLEST_NORM) | (norm_part < SMALLEST_NORM)
    directional = torch.where(none, 0.5, ((cosine + 1) / 2).clamp(0, 1))
    change = norm_part.clamp(max=LARGEST_CHANGE)

    def outside(values: torch.Tensor, inside: float) -> torch.Tensor:
        return torch.where(bad.unsqueeze(-1), torch.nan, torch.where(reference, inside, values))

    result = ReferenceInfluence(
        outside(magnitude, 0.5), outside(directional, 0.5), outside(change, 0.0), reference
    )
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()), "matrices or their states")


# Of two tokens with equal states the first is the reference. The first query is in it; the second takes half
# of its output from it.
_STATES = {"hidden": torch.ones(2, 3, dtype=torch.float64, device="cpu")}


def _of_second(name: str, meaning: str, expected: float, **changed: Any) -> Quantity:
    """Like an exact quantity, of the influence that is computed here of the hidden states."""
    changed = {
        "module": exact,
        "closed_form": ClosedForm(expected, uniform_map(2), _STATES, entry=(1,)),
        "high": 1,
        **changed,
    }
    changed |= {"options": {"hidden": Site("hidden")}, "needs": ("attention", "hidden"), "low": 0}
    return as_exact(name=name, metric="reference_influence", meaning=meaning, **changed)


QUANTITIES = (
    _of_second(
        "reference_magnitude",
        "Norm of what the reference contributes to a query's output over the norm of the output, at most 1.",
        0.5,
    ),
    _of_second("reference_directional", "(cos + 1)/2 between that contribution and the whole output.", 1.0),
    _of_second(
        "reference_information",
        "Norm of the output minus what is left without the reference: of the contribution once more.",
        0.5 * math.sqrt(3),
        label="reference, size",
        high=None,
    ),
    _of_second(
        "reference_count",
        "Number of keys that the notebook's rule takes for the reference.",
        1,
        module=sink_sets,
        closed_form=ClosedForm(1, uniform_map(2), _STATES),
        high=float,
        read=lambda influence: count_true(influence.reference),
    ),
)
