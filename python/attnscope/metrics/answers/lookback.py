# SPDX-License-Identifier: MIT
"""The share of attention that an answer's tokens give to their context rather than to the answer so far."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics._spans import integers_argument
from attnscope.metrics.answers.partial_maps import (
    answers_argument,
    call_partial,
    partial_argument,
    partial_support,
)
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader


@shown_by_shape
class Lookback(NamedTuple):
    """Lookback ratios of an answer, float64.

    Attributes:
        ratio: of each query, [..., n]; NaN for queries that are not the answer's, and where the context or
            the rest has no visible key.
        value: the mean over the defined queries, [...]; NaN without one.
    """

    ratio: Tensor
    value: Tensor


@memory_errors("lookback")
def lookback(
    attention: Tensor,
    answer: Any,
    *,
    context: Any = None,
    rows: Literal["predicting", "own"] = "predicting",
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> Lookback:
    """Return how much the answer looks at its context: m_c/(m_c + m_o) for each of its queries.

    m_c is the mean of A_qj over the visible keys j < context, m_o the mean over the other visible keys.
    Uniform attention gives 1/2 on any support. A learned sink takes from both means and changes nothing.

    Args:
        attention: maps [..., n, n], any strides; or the last q rows of causal maps, [..., q, k].
        answer: first token of the answer and one past its last, int64 [..., 2]; (−1, −1) for none.
        context: the first key that is not context, an integer or int64 [...]; None: where the answer starts.
            Lookback Lens ends the context before the prompt's closing words.
        rows: "predicting" are the queries start − 1 … stop − 2, whose next token is the answer's; "own" the
            answer's tokens. The query before the answer sees nothing but its context, so its ratio is NaN
            unless `context` is smaller.
        support: which keys a query sees: "auto", "causal", "full", or a boolean tensor.
        precision: "fast" gives the exact value: reading the map is what it costs.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        Lookback, in [0, 1]; NaN for a map without an answer, without a query that sees keys on both sides of
        `context`, or not finite.

    Raises:
        ValueError: an answer that is empty, reversed or outside its map, a context outside 0..n, rows of
            the answer that are not among the last q, and as `incoming_attention`.

    Example:
        The first key is context; every query attends to it alone.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(6, 6); star[:, 0] = 1
        >>> asc.lookback(star, [2, 6], rows="own").value.item()
        1.0

    References:
        Chuang et al., Lookback Lens, arXiv 2407.07071, 2024.
    """
    name = "lookback"
    _checks.precision_argument(name, precision, attention)
    checked = partial_argument(name, attention, lengths, validate=validate)
    scalars.choice_argument(name, "rows", rows, ("predicting", "own"))
    seen = partial_support(name, support, checked)
    spans = answers_argument(name, answer, checked, first=1 if rows == "predicting" else 0)
    spans = _with_context(name, spans, context, checked)
    ratio, value = call_partial(_core.lookback, name, checked, seen, spans.flatten(), rows == "predicting")
    return Lookback(ratio[..., ratio.shape[-1] - checked.query_count :], value)


def _with_context(function: str, spans: Tensor, context: Any, checked: _checks.Attention) -> Tensor:
    """Return start, stop and context of each map, or of all maps."""
    if context is None:
        return torch.from_numpy(spans.numpy()[:, [0, 1, 0]])
    ends = integers_argument(function, "context", context, checked.leading)
    outside = ends[(ends < 0) | (ends > checked.n)]
    if len(outside):
        raise ValueError(f"{function}: context must lie between 0 and n = {checked.n}, got {outside[0]}")
    if ends.ndim or len(spans) > 1:
        ends = ends.expand(checked.leading).reshape(-1)
        spans = spans.expand(len(ends), 2)
    return torch.cat([spans, ends.reshape(-1, 1)], 1).contiguous()


#: Tokens 3 to 5 of six answer. The query before them sees no other token, the rest see context and answer.
_ANSWER = {"answer": torch.tensor([[3, 6]], device="cpu")}

QUANTITIES = (
    Quantity.of(
        "lookback",
        "lookback ratio",
        "Mean over the queries that predict the answer of the attention to its context, against the rest.",
        ClosedForm(0.5, uniform_causal_map(6), _ANSWER),
        low=0,
        high=1,
        options={"answer": Site("answer")},
        read=attribute_reader("value"),
        needs=("attention", "answer"),
    ),
)
