# SPDX-License-Identifier: MIT
"""The share of attention that stays near."""

from __future__ import annotations

import math
from typing import Any

import torch

from attnscope import _calls, _checks, _core
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Quantity

#: Tokens that no text has: wider windows hold as much, and their number does not fit in 64 bits.
_WIDEST = 2**53


@without_derivative("take `attention_entropy` or `sink_share`, or sum the entries")
def local_global_ratio(
    attention: torch.Tensor,
    *,
    window: float = 8,
    drop_first: bool = False,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Attention to keys at most `window` away over attention to all others.

    Σ_{|i−j| <= w} A_ij / Σ_{|i−j| > w} A_ij over visible pairs, i the key at which the query stands.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        window: w in tokens, or below 1 a fraction of each map's own keys, rounded down (0.1: a tenth).
        drop_first: leave out key 0, whose attention is far for most queries.
        support: which keys a query sees, as in `incoming_attention`.
        precision: "fast" adds both sums in float32 in one read of float32 and half maps whose rows are
            contiguous, with a relative error below 2e-6. Maps with a mask, a negative entry or positions of
            their queries, and those without key 0, are exact.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [...] float64, in [0, ∞]: infinity without attention to farther keys, NaN without any attention.

    Raises:
        ValueError: a negative or infinite window, cross attention, which has no distances, and as
            `incoming_attention`.

    Example:
        Uniform causal attention among four tokens, w = 1: far are 1/3 of query 2 and 2/4 of query 3.

        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(4, 4, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> round(asc.local_global_ratio(uniform, window=1).item(), 9)  # (4 - 5/6) / (5/6)
        3.8

    References:
        Ruscio et al., arXiv 2410.18067, 2024.
    """
    name = "local_global_ratio"
    bare = (support, precision, lengths, query_positions, query_lengths, cross, validate)
    if type(window) is int and 0 <= window < _WIDEST and drop_first is False and _checks.is_bare(*bare):
        results = _calls.called_at_once(
            _core.local_global_ratio, name, attention, support, window, drop_first, precision=precision
        )
        if results is not None:
            return results[0]
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    refuse_cross(name, checked)
    window = scalars.real(name, "window", window)
    if not 0.0 <= window < math.inf:
        raise ValueError(f"{name}: window must be a number of tokens or a fraction below 1, got {window!r}")
    window = min(window, _WIDEST)
    kernel_arguments = (_checks.support_argument(name, support, checked), window)
    dropped = scalars.flag(name, "drop_first", drop_first)
    return _calls.call_and_warn(
        _core.local_global_ratio, name, checked, *kernel_arguments, dropped, precision=precision
    )


def refuse_cross(function: str, attention: _checks.Attention) -> None:
    """Raise for maps whose queries stand at no key, which have no distances."""
    if attention.cross:
        raise ValueError(
            f"{function}: in cross attention queries stand at no key, so nothing is near or far; got maps of "
            f"{attention.query_count} queries x {attention.n} keys with cross=True"
        )


QUANTITIES = (
    # of four keys the last query gives 2/4 to those two or more away, the one before it 1/3
    Quantity.of(
        "local_global_ratio",
        "local / global",
        "Attention to keys at most `window` (8) tokens away over attention to all others.",
        ClosedForm(3.8, uniform_causal_map(4), options={"window": 1}),
        kind="ratio",
        low=0,
        # a map that holds nothing beyond the window has no ratio that could enter a mean
        read=lambda ratio: ratio.masked_fill(ratio.isinf(), math.nan),
    ),
    Quantity(
        "local_share",
        "local_global_ratio",
        "local share",
        "Share of attention given to keys at most `window` (8) tokens away.",
        ClosedForm(3.8 / 4.8, uniform_causal_map(4), options={"window": 1}),
        low=0,
        high=1,
        read=lambda ratio: torch.where(ratio.isinf(), 1.0, ratio / (1.0 + ratio)),
    ),
)
