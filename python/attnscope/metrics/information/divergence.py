# SPDX-License-Identifier: MIT
"""The difference between the heads of a layer, and the part of it that its sinks carry."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import two_heads, uneven_heads
from attnscope.metrics.information._learned_sink import divergence_of_mass, sink_mass_argument
from attnscope.metrics.information.sink_sets import PERCENTILES
from attnscope.metrics.quantity import ClosedForm, Quantity, Shared, attribute_reader, count_true


@shown_by_shape
class SinkRemoval(NamedTuple):
    """The effect of removing sink keys on the divergence of a layer's heads.

    kl_reduction [...]: mean over heads of before − after, nats. excluded [..., h]: int64, rows with nothing
    left. attention [..., h, q, k]: the rescaled maps, or None. before, after [..., h]: each head's mean
    divergence over its surviving rows, the same where no key is taken out.
    """

    kl_reduction: torch.Tensor
    excluded: torch.Tensor
    attention: torch.Tensor | None
    before: torch.Tensor
    after: torch.Tensor


@memory_errors("head_divergence")
def head_divergence(
    heads: torch.Tensor,
    *,
    sink_mass: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return how far each head is from the mean of its layer: KL(A^h_i ‖ Ā_i), averaged over queries.

    Ā is the mean over heads, KL(p‖q) = Σ_j p_j (log p_j − log q_j) in nats. Rows are taken as they are,
    never renormalised.

    Args:
        heads: all heads of a layer, [..., h, q, k].
        sink_mass: what a learned sink takes of each row, [..., h, q]: one more key. Without it rows that sum
            to less than 1 are no distributions, and their number can be negative.
        support: which keys a query sees, as in `incoming_attention`; only visible keys are summed.
        precision: "fast" adds A_ij log(A_ij / Ā_ij) of float32 and half maps in float32, sixteen queries at a
            time, with a relative error below 1e-5. Queries in which heads are too alike for that are exact,
            and their layer's maps count as having fallen back. Layers with a learned sink are exact.
        lengths: keys per layer, broadcast against [...], or against [..., h] with equal ones for its heads.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that layer.

    Returns:
        [..., h] float64 in nats, in [0, log h] for rows that sum to 1; 0 for a single head. A layer with NaN
        or infinite entries is NaN. Error below the mean over rows of 2⁻⁴⁸·Σ_j A_ij (1 + |log A_ij|).

    Raises:
        ValueError: fewer than three dimensions, and as `incoming_attention`.

    Example:
        Two heads with nothing in common are log 2 from their mean.

        >>> import math, torch, attnscope as asc
        >>> one = torch.zeros(3, 3, dtype=torch.float64); one[:, 0] = 1
        >>> other = torch.zeros(3, 3, dtype=torch.float64); other[:, 1] = 1
        >>> asc.head_divergence(torch.stack([one, other])) / math.log(2)
        tensor([1., 1.], dtype=torch.float64)

    References:
        Kullback and Leibler, On information and sufficiency, 1951. Ruscio et al., arXiv 2508.02546, 2025.
    """
    return divergence_of(
        heads,
        None,
        sink_mass=sink_mass,
        support=support,
        precision=precision,
        lengths=lengths,
        query_positions=query_positions,
        query_lengths=query_lengths,
        cross=cross,
        validate=validate,
    )


def divergence_of(
    heads: torch.Tensor,
    entropy: torch.Tensor | None,
    *,
    sink_mass: torch.Tensor | None = None,
    support: Any,
    precision: _checks.Precision,
    lengths: _checks.Lengths,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool,
) -> torch.Tensor:
    """Compute `head_divergence`, to the same bits, from `attention_entropy` of the same maps where it is
    available.
    """
    name = "head_divergence"
    _checks.precision_argument(name, precision, heads)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.heads_argument(name, heads, lengths, validate=validate, places=places)
    seen = _checks.support_argument(name, support, checked)
    # with a learned sink the sum over keys is one of two terms that may cancel
    result, non_finite = _calls.call_kernel(
        _core.head_divergence,
        checked,
        seen,
        entropy,
        function=name,
        precision="exact" if sink_mass is not None else precision,
    )
    if sink_mass is not None:
        # Behind the lengths it is 0, so the sum over queries is that over the real ones.
        sink_divergence = divergence_of_mass(sink_mass_argument(name, sink_mass, checked)).sum(-1)
        result += sink_divergence / checked.queries_inside().sum(-1)
    return _calls.warn_non_finite(name, checked.layers, result, non_finite, "layers")


@memory_errors("sink_removal")
@without_derivative("rows with nothing left are excluded, which is a step")
def sink_removal(
    heads: torch.Tensor,
    keys: torch.Tensor | list[int],
    *,
    keep_attention: bool = True,
    sink_mass: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> SinkRemoval:
    """Return the part of the heads' divergence that disappears with the sink keys.

    The columns in `keys` are set to 0 and every row is rescaled to sum 1 over what is left of its support; a
    row with nothing left is excluded and counted. The divergence is computed again against the new mean Ā',
    over the heads whose row survives: kl_reduction = mean_h(KL_h − KL'_h), both averaged over the rows
    that survive in head h. This edits maps after the fact; `output_kl` removes the keys inside the model.

    Args:
        heads: all heads of a layer, [..., h, q, k]; support, lengths and validate are as in
            `head_divergence`.
        keys: to take out, a boolean tensor [..., k] (as `sink_tokens` of the head mean gives), or a list of
            positions for every layer.
        keep_attention: return the rescaled maps, as large as `heads` in float64.
        sink_mass: what a learned sink takes of each row, [..., h, q]: one more key, which stays.
        precision: "fast" gives the exact value: a reduction is the small difference of two
            divergences, which float32 does not hold to 1e-5.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        SinkRemoval. kl_reduction is NaN where no row survives, and 0 where no key is taken out; maps are NaN
        past a layer's own length and 0 in excluded rows.

    Raises:
        ValueError: keys that do not broadcast to [..., k] or are outside, and as `head_divergence`.

    Example:
        Heads that differ only in how much they attend to key 0 are equal without it.

        >>> import torch, attnscope as asc
        >>> strong = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64).expand(3, 3)
        >>> weak = torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64).expand(3, 3)
        >>> removed = asc.sink_removal(torch.stack([strong, weak]), [0])
        >>> removed.attention[0, 0]
        tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
        >>> removed.after.abs().max().item() < 1e-12
        True

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "sink_removal"
    _checks.precision_argument(name, precision, heads)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.heads_argument(name, heads, lengths, validate=validate, places=places)
    flags = _keys(name, keys, checked)
    before, after, excluded, attention, non_finite = _calls.call_kernel(
        _core.sink_removal,
        checked,
        _checks.support_argument(name, support, checked),
        flags,
        scalars.flag(name, "keep_attention", keep_attention),
        None if sink_mass is None else sink_mass_argument(name, sink_mass, checked).contiguous(),
    )
    inside, dropped = checked.queries_inside(), excluded.sum(-1)
    rows = inside.sum(-1)
    # means over the queries inside the lengths that are not excluded; NaN without any
    kl_before, kl_after = (
        torch.where(inside, divergence, 0.0).sum(-1) / (rows - dropped) for divergence in (before, after)
    )
    # A head without a surviving row is left out of its layer's mean; any other NaN is not.
    silent = dropped == rows
    # what is left of a row that loses nothing is the row, whatever its rounded sum
    is_removed = (flags[..., None, :] & checked.inside()).any(-1).any(-1, keepdim=True)
    kl_after = torch.where(is_removed, kl_after, kl_before)
    reduction = torch.where(silent, 0.0, kl_before - kl_after).sum(-1) / (~silent).sum(-1)
    dropped = torch.where(before.isnan().all(-1), -1, dropped)
    result = SinkRemoval(reduction, dropped, attention, kl_before, kl_after)
    return _calls.warn_non_finite(name, checked.layers, result, non_finite, "layers")


def _keys(function: str, keys: Any, checked: _checks.Attention) -> torch.Tensor:
    n = checked.n
    key_tensor = _checks.as_tensor(function, "keys", keys)
    if key_tensor.dtype == torch.bool:
        shape, words = (*checked.leading[:-1], n), "do not broadcast to"
        return _checks.flags_argument(function, "keys", key_tensor, shape, words)
    is_integer = not key_tensor.is_floating_point() and not key_tensor.is_complex()
    if key_tensor.ndim > 1 or not (is_integer or key_tensor.numel() == 0):
        raise ValueError(
            f"{function}: keys must be a boolean tensor [..., n] or a list of positions, got "
            f"{key_tensor.dtype} of shape {tuple(key_tensor.shape)}"
        )
    positions = [int(position) for position in key_tensor.reshape(-1)]
    if outside := [position for position in positions if not 0 <= position < n]:
        raise ValueError(f"{function}: keys must lie between 0 and n - 1 = {n - 1}, got {outside[0]}")
    flags = torch.zeros(n, dtype=torch.bool, device="cpu")
    flags[positions] = True
    return flags


#: Divergence of each of the uneven heads; removing key 0, the only sink of their mean, removes all of it.
REMOVED_DIVERGENCE = [
    share * math.log(share / 0.375) + 2 * rest * math.log(rest / 0.3125)
    for share, rest in ((0.5, 0.25), (0.25, 0.375))
]


def _without(percentile: int | None) -> tuple[Quantity, ...]:
    """Declare the recomputed divergence of a layer without the sink tokens (or without keys above a
    percentile of the head mean).
    """
    suffix, chosen = "", ""
    removed_keys, keys = "the sink tokens of the head mean", Shared("sink_tokens", of="head_mean")
    if percentile is not None:
        suffix, chosen = f"_{percentile}", f", {percentile}th percentile"
        removed_keys = f"the keys above the {percentile}th percentile of incoming attention"
        keys = Shared("_keys_above", (("percentile", percentile),), of="head_mean")

    def declare(name: str, metric: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
        # of few tokens no key is a sink by the test
        closed_form = ClosedForm(expected, uneven_heads(3 if percentile else 32))
        return Quantity(name + suffix, metric, label + chosen, meaning, closed_form, scope="layer", **fields)

    reduction_meaning = f"How much the heads' mean divergence falls without {removed_keys}, nats."
    share = f"Share of the head mean's mass on {removed_keys}."
    emptied = f"Rows of all heads with nothing left without {removed_keys}."
    number = f"Number of {removed_keys}."
    removal = {"options": {"keys": keys, "keep_attention": False}, "needs": ("attention", "head_mean")}
    of_mean: dict[str, Any] = {"needs": ("head_mean",), "low": 0}
    mass = {**of_mean, "high": 1, "options": {"keys": keys}}
    count = {**of_mean, "kind": "count", "high": float, "options": dict(keys.options), "read": count_true}
    if percentile is None:
        # the column of the same name of single maps is `sink_test`'s
        count["also"] = ("sink_test",)
    excluded = {"kind": "count", "low": 0, "read": lambda removal: count_true(removal.excluded)}
    reduction, all_of_it = attribute_reader("kl_reduction"), sum(REMOVED_DIVERGENCE) / 2
    return (
        declare(
            "kl_reduction",
            "sink_removal",
            "KL without sinks",
            reduction_meaning,
            all_of_it,
            read=reduction,
            **removal,
        ),
        declare("sink_concentration", "_mass_on", "mass on sinks", share, 0.375, **mass),
        declare("sink_count", keys.metric, "sink tokens per layer", number, 1, **count),
        declare("excluded_rows", "sink_removal", "emptied rows", emptied, 0, **excluded, **removal),
    )


_DIVERGENCE = Quantity.of(
    "head_divergence",
    "KL from head mean (nats)",
    "Mean over queries of KL(head ‖ mean of the heads).",
    ClosedForm(math.log(2) / 2, two_heads()),
    low=0,
)
QUANTITIES = (
    _DIVERGENCE,
    replace(
        _DIVERGENCE,
        meaning="Mean over heads and queries of KL(head ‖ mean of the heads).",
        # NumPy's pairwise sum, whatever the number of threads
        read=lambda divergence: torch.from_numpy(np.asarray(divergence.numpy().mean(-1))),
        scope="layer",
    ),
    *(quantity for percentile in (None, *PERCENTILES) for quantity in _without(percentile)),
)
