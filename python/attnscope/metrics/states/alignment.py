# SPDX-License-Identifier: MIT
"""Agreement of attention with the geometry of the states it moves, and the distances that states move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments.host_copies import row_major
from attnscope.arguments.transforms import is_forward_mode
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics.closed_forms import aligned, uniform_causal_map
from attnscope.metrics.information.entropy import attention_entropy
from attnscope.metrics.quantity import ClosedForm, Quantity, Shared, Site


@memory_errors("geometric_semantic_alignment")
def geometric_semantic_alignment(
    attention: torch.Tensor,
    states: torch.Tensor,
    *,
    without: torch.Tensor | None = None,
    query_states: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Correlation between how much tokens attend to each other and how alike their states are.

    Pearson's r between A_ij and cos(s_i, s_j) over the visible pairs i ≠ j. The caller chooses the
    states: the value vectors of the head (after W_V) give the words' meaning, the residual stream that
    enters the layer what the head reads.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        states: of the keys, [..., k, d], leading axes broadcast against those of attention: [B, 1, k, d] is
            one state for all heads, and [B, kv, k, d] with [B, h, q, k] gives each of the kv value heads to
            its h/kv query heads. Shared states are read in place and their cosines computed once.
        without: boolean [..., k], keys to leave out (the sinks, which dominate r otherwise).
        query_states: of the queries, [..., q, d], likewise; None: those of the keys at which they stand.
        support: which keys a query sees, as in `incoming_attention`.
        precision: "exact", or "fast" with cosines in float32, sums of 64 terms of them added up in float64:
            an absolute error below 1e-5. Maps whose cosines have a standard deviation below 0.01, of which
            float32 does not hold that, are measured exactly.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [...] float64 in [−1, 1]. NaN where attention or the cosines do not vary, and for fewer than two
        pairs. A token whose state is zero has no direction, and its pairs are left out. Error below 1e-14
        for small maps whose entries vary by more than rounding.

    Raises:
        ValueError: states that neither broadcast nor group, cross attention without `query_states`, and as
            `incoming_attention`.

    Example:
        Two groups of tokens that attend to their own group, and point the same way within it.

        >>> import torch, attnscope as asc
        >>> group = torch.tensor([0, 0, 1, 1])
        >>> same = (group[:, None] == group).double()
        >>> states = torch.eye(2, dtype=torch.float64)[group]
        >>> round(asc.geometric_semantic_alignment(same / 2, states).item(), 9)
        1.0

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "geometric_semantic_alignment"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    _checks.require_map(name, checked)
    seen = _checks.support_argument(name, support, checked)
    value_states = states_argument(name, states, checked)
    if without is not None:
        without = _checks.flags_argument(name, "without", without, (*checked.leading, checked.n))
    states_of_queries = None
    if query_states is not None or checked.queries is not None:
        states_of_queries = query_states_argument(name, query_states, value_states, checked)
    return _calls.call_and_warn(
        _core.geometric_semantic_alignment,
        name,
        maps_in_range(checked),
        seen,
        value_states,
        without,
        states_of_queries,
        unit="matrices or their states",
        precision=precision,
    )


def maps_in_range(checked: _checks.Attention) -> _checks.Attention:
    """Return maps times powers of two that keep squares of their entries in float64's range."""
    if checked.queries is None:
        return checked._replace(tensor=_powers.in_range(checked.tensor, checked.lengths)[0])
    tensor = checked.tensor
    if tensor.dtype == torch.float64 and (checked.lengths is not None or checked.query_lengths is not None):
        # what lies behind the lengths has no say in the power
        real = checked.queries_inside()[..., None] & checked.inside()[..., None, :]
        tensor = torch.where(real, _checks.to_host(tensor), 0.0)
    return checked._replace(tensor=_powers.in_range(tensor)[0])


def query_states_argument(
    function: str, query_states: Any, states: torch.Tensor, attention: _checks.Attention
) -> torch.Tensor:
    """Return states of the queries [..., q, d], one for each map, as wide as those of the keys.

    Without any, each query has the state of the key at which it stands.
    """
    if query_states is None:
        if attention.cross:
            raise ValueError(f"{function}: queries of cross attention stand at no key; give query_states")
        places = attention.places().clamp(0, attention.n - 1)
        return _states_at(_checks.to_host(states), places)
    vectors = states_argument(function, query_states, attention, of_queries=True)
    if vectors.shape[-1] != states.shape[-1]:
        raise ValueError(
            f"{function}: query_states must be as wide as states, {states.shape[-1]}, got "
            f"{tuple(vectors.shape)}"
        )
    return vectors.to(states)


def _states_at(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return states [..., k, d] at places [q] or [..., q]."""
    if places.ndim == 1:
        return states[..., places, :]
    return torch.take_along_dim(states, places[..., None], -2)


def states_argument(
    function: str, states: Any, attention: _checks.Attention, *, of_queries: bool = False
) -> torch.Tensor:
    """`states` [..., k, d] with one entry per matrix of `attention`, shared ones by stride 0, no copy.

    Leading axes broadcast against those of attention. Grouped queries: where attention has h heads and
    states have kv of them, kv dividing h, head k belongs to state k // (h // kv), as in the model.
    """
    # No result depends on the size of the states.
    name, count = ("query_states", attention.query_count) if of_queries else ("states", attention.n)
    tensor = _powers.in_range(states_of_tokens(function, name, states, count))[0]
    leading, state_leading, trailing = attention.leading, tuple(tensor.shape[:-2]), tensor.shape[-2:]
    with contextlib.suppress(RuntimeError):
        return tensor.expand(*leading, *trailing)
    if leading and state_leading and state_leading[-1] > 1 and leading[-1] % state_leading[-1] == 0:
        grouped = (*leading[:-1], state_leading[-1], leading[-1] // state_leading[-1])
        with contextlib.suppress(RuntimeError):
            return tensor.unsqueeze(-3).expand(*grouped, *trailing)
    raise ValueError(
        f"{function}: {name} of shape {tuple(tensor.shape)} neither broadcast to attention of shape "
        f"{tuple(attention.tensor.shape)} nor divide its heads into groups"
    )


def states_of_tokens(function: str, name: str, states: Any, n: int) -> torch.Tensor:
    """Return `states` [..., n, d], one for each of n tokens, where the function is measured."""
    # a call of the core answers what takes ten steps otherwise
    plain = not torch.compiler.is_compiling() and not is_forward_mode()
    if plain and _core.are_plain_vectors(states):
        tensor = states
    else:
        tensor = _checks.float_tensor(function, name, states)
        if not placement.stays(function, tensor):
            tensor = _checks.to_host(tensor)
    if tensor.ndim < 2 or tensor.shape[-2] != n or tensor.shape[-1] == 0:
        needed = f"[..., n, d] with n = {n} and d >= 1"
        raise ValueError(f"{function}: {name} must have shape {needed}, got {tuple(tensor.shape)}")
    return tensor


@memory_errors("transformation_magnitude")
@without_derivative("it is made for reading")
def transformation_magnitude(
    before: torch.Tensor, after: torch.Tensor, *, lengths: _checks.Lengths = None
) -> torch.Tensor:
    """Return how far each token moves: ‖after_i − before_i‖₂.

    Before and after the attention sub-layer, or before and after the block.

    Args:
        before: states [..., n, d].
        after: states of a shape that broadcasts against `before`.
        lengths: tokens per text, broadcast against the leading axes.

    Returns:
        [..., n] float64, >= 0; NaN past a text's own length, and for a token with a NaN or infinite entry,
        with one warning.

    Raises:
        ValueError: fewer than two dimensions, no numbers per token, wrong dtype, shapes that do not
            broadcast or differ in n or d.

    Example:
        >>> import torch, attnscope as asc
        >>> asc.transformation_magnitude(torch.zeros(2, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.], dtype=torch.float64)

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "transformation_magnitude"
    result = _distances(before, after)
    text_lengths = _checks.lengths_argument(name, lengths, tuple(result.shape[:-1]), result.shape[-1])
    inside = _checks.Attention(result.unsqueeze(-2), text_lengths).inside()
    _warn_non_finite_parts(name, result, inside)
    return torch.where(inside, result, torch.nan)


def _distances(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return the distance of each token's states, NaN where one of them is not finite."""
    name = "transformation_magnitude"
    start, stop = two_states(name, before, after)
    difference = stop - start
    # The largest entry is taken out, so that no square over- or underflows.
    largest = difference.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    result = torch.linalg.vector_norm(difference / scale, dim=-1) * scale.squeeze(-1)
    return torch.where(largest.squeeze(-1).isfinite(), result, torch.nan)


def _warn_non_finite_parts(function: str, distances: torch.Tensor, inside: torch.Tensor) -> None:
    """Warn where the distance of a token that belongs to a text is NaN; padding may hold anything."""
    _calls.warn_non_finite_parts(function, (distances.isnan() & inside).detach(), "tokens")


def two_states(
    function: str, before: torch.Tensor, after: torch.Tensor, fewest: int = 0
) -> tuple[torch.Tensor, ...]:
    """States [..., n, d] of at least so many tokens, in float64, broadcast against each other."""
    start, stop = (
        row_major(_checks.to_host(_checks.float_tensor(function, name, states)).double())
        for name, states in (("before", before), ("after", after))
    )
    shapes = f"{tuple(start.shape)} and {tuple(stop.shape)}"
    n, d = (0, 0, *start.shape)[-2:]
    if start.ndim < 2 or stop.shape[-2:] != (n, d) or n < fewest or d < 1:
        needed = f"[..., n, d] with n >= {fewest} and d >= 1"
        raise ValueError(f"{function}: before and after must both have shape {needed}, got {shapes}")
    try:
        return torch.broadcast_tensors(start, stop)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(f"{function}: before and after of shapes {shapes} do not broadcast") from None


@memory_errors("entropy_magnitude_correlation")
@without_derivative("take `attention_entropy` and correlate in torch")
def entropy_magnitude_correlation(
    attention: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    *,
    support: Any = "auto",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Do tokens that spread their attention move further? Pearson's r over tokens.

    Between `attention_entropy` of each query and `transformation_magnitude` of the same token.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `attention_entropy`.
        before: states of the queries, [..., q, d]; leading axes broadcast against those of attention.
        after: the same shape.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64 in [−1, 1]; NaN for fewer than two tokens, or where either does not vary.

    Raises:
        ValueError: as the two functions, and magnitudes that do not broadcast to [..., q].

    Example:
        Under uniform causal attention entropy grows with log(i + 1); here the magnitudes do as well.

        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(5, 5, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> after = torch.arange(1, 6, dtype=torch.float64).log().unsqueeze(-1)
        >>> round(asc.entropy_magnitude_correlation(uniform, torch.zeros(5, 1), after).item(), 9)
        1.0

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "entropy_magnitude_correlation"
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    with _calls.named_as("attention_entropy", name):
        entropy = attention_entropy(
            checked.tensor,
            support=support,
            lengths=lengths,
            query_positions=query_positions,
            query_lengths=query_lengths,
            cross=cross,
        )
    return _correlation_of(entropy, before, after, real_queries=checked.queries_inside())


def _correlation_of(
    entropy: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    *,
    real_queries: torch.Tensor,
) -> torch.Tensor:
    """`entropy_magnitude_correlation` from the entropies [..., q] and which queries are no padding."""
    name = "entropy_magnitude_correlation"
    words = "+ [d] do not broadcast to"
    with _calls.named_as("transformation_magnitude", name):
        distances = _distances(before, after)
    magnitude = _checks.expanded(f"{name}: states", distances, entropy.shape, words)
    _warn_non_finite_parts(name, magnitude, real_queries)
    return pearson(entropy, magnitude, real_queries)


def pearson(x: torch.Tensor, y: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Pearson's r along the last axis over the entries marked `inside`; NaN without variance.

    A variable whose spread is within rounding of its size does not vary.
    """
    count = inside.sum(-1, keepdim=True)

    def centred(values: torch.Tensor) -> torch.Tensor:
        values = torch.where(inside, values, 0.0)
        return torch.where(inside, values - values.sum(-1, keepdim=True) / count, 0.0)

    def norm(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        size = torch.where(inside, original.abs(), 0.0).amax(-1)
        length = torch.linalg.vector_norm(values, dim=-1)
        rounding = 4 * torch.finfo(torch.float64).eps * size * count.squeeze(-1).sqrt()
        return torch.where(length > rounding, length, torch.nan)

    a, b = centred(x), centred(y)
    return ((a * b).sum(-1) / norm(a, x) / norm(b, y)).clamp(-1, 1)


DERIVED = {"entropy_magnitude_correlation": ("attention_entropy", _correlation_of)}

_ATTENTION, _STATES = aligned()
_GROWING = torch.arange(1, 6, dtype=torch.float64, device="cpu").log().unsqueeze(-1)
_RIGHT_ANGLE = torch.tensor([[3.0, 4.0], [0.0, 5.0]], dtype=torch.float64, device="cpu")
_CORRELATION: dict[str, Any] = {"symbol": "r", "low": -1, "high": 1}


def _alignments(site: str, label: str, states: str) -> Iterator[Quantity]:
    """Declare the alignment with the states of a site, and the same without the head's sinks."""
    alignment = Quantity(
        f"alignment_{site}",
        "geometric_semantic_alignment",
        f"alignment with {label}",
        f"Correlation of attention with the cosine of {states}, over visible pairs.",
        ClosedForm(1.0, _ATTENTION, {site: _STATES[None] if site == "value" else _STATES}),
        options={"states": Site(site)},
        needs=("attention", site),
        **_CORRELATION,
    )
    yield alignment
    yield replace(
        alignment.with_options(without=Shared("sink_tokens")),
        name=f"{alignment.name}_without_sinks",
        label=f"{alignment.label}, no sinks",
        meaning="The same with the head's sink tokens left out of the keys.",
    )


def _correlation(name: str, label: str, mover: str, site: str, after: str = "") -> Quantity:
    """Declare the correlation of entropies with how far tokens move, as in `_moved`."""
    sites = {site: torch.zeros(5, 1, dtype=torch.float64, device="cpu"), after or site: _GROWING}
    return Quantity(
        name,
        "entropy_magnitude_correlation",
        label,
        f"Correlation over tokens of a row's entropy with how far the {mover} moves the token.",
        ClosedForm(1.0, uniform_causal_map(5), sites),
        options={"before": Site(site, origin=not after), "after": Site(after or site)},
        needs=("attention", *sites),
        **_CORRELATION,
    )


def _moved(
    name: str, label: str, phrase: str, site: str, after: str = "", *, median: bool = False
) -> Quantity:
    """Declare how far the tokens of a text move: from a site to another, or from nothing to what it holds."""
    state_sites = {site: _RIGHT_ANGLE} | ({after: 2 * _RIGHT_ANGLE} if after else {})
    return Quantity(
        name,
        "transformation_magnitude",
        label,
        f"{'Median' if median else 'Mean'} over tokens of {phrase}.",
        ClosedForm(5.0, torch.eye(2, dtype=torch.float64, device="cpu"), state_sites),
        low=0,
        options={"before": Site(site, origin=not after), "after": Site(after or site)},
        read=partial(torch.nanquantile, q=0.5, dim=-1) if median else partial(torch.nanmean, dim=-1),
        scope="layer",
        needs=tuple(state_sites),
    )


_BY_BLOCK = ("the distance between a block's output and input", "hidden", "block_output")
QUANTITIES = (
    *_alignments("value", "values", "value vectors"),
    *_alignments("hidden", "states", "hidden states"),
    _correlation("entropy_magnitude_correlation", "entropy with change", "block", "hidden", "block_output"),
    _correlation(
        "entropy_magnitude_correlation_attention",
        "entropy with change by attention",
        "attention sub-layer",
        "attention_output",
    ),
    _moved("state_norm", "norm of states", "the norm of the states that enter", "hidden"),
    _moved("transformation_magnitude", "change by the block", *_BY_BLOCK),
    _moved("transformation_magnitude_median", "change by the block (median)", *_BY_BLOCK, median=True),
    _moved(
        "transformation_magnitude_attention",
        "change by attention",
        "the norm of what the attention sub-layer adds",
        "attention_output",
    ),
    _moved(
        "transformation_magnitude_mlp", "change by the MLP", "the norm of what the MLP adds", "mlp_output"
    ),
)
