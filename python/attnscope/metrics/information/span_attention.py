# SPDX-License-Identifier: MIT
"""A word's attention to itself, to special tokens and to the rest, and the attention that it receives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics._spans import spans_argument
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader


@shown_by_shape
class SpanAttention(NamedTuple):
    """Attention of a word, the keys S = [a, b), whose m queries stand there; query i sees v_i keys.

    Each [...] float64. The numbers of the word's own queries are NaN in a map that has none of them, as in
    cross attention; `received` is then what all queries give the span.

    Attributes:
        share: (1/m) Σ_{i∈S} Σ_{j∈S} A_ij, the word's attention to itself, 0 … 1.
        uniform: (1/m) Σ_{i∈S} |S ∩ seen by i|/v_i, the same under uniform attention.
        boost: share/uniform.
        diagonal: (1/m) Σ_{i∈S} A_ii.
        special: the rows' mean attention to special keys outside S, 0 … 1.
        context: the same to all other keys outside S. share + special + context is the mean row sum.
        received: mean of Σ_{j∈S} A_ij over the queries outside S that see one of S; NaN without one.
        received_uniform: the same under uniform attention.
    """

    share: torch.Tensor
    uniform: torch.Tensor
    boost: torch.Tensor
    diagonal: torch.Tensor
    special: torch.Tensor
    context: torch.Tensor
    received: torch.Tensor
    received_uniform: torch.Tensor


@memory_errors("span_attention")
@without_derivative("it is made for reading; sums of the entries have one")
def span_attention(
    attention: torch.Tensor,
    spans: Any,
    *,
    special: Any = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> SpanAttention:
    """Return how much the tokens of a span attend to each other and to the rest, and how much they receive.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        spans: first token and one past the last of each map's span, int64 [..., 2], broadcast against the
            leading axes; (−1, −1) where a map has none.
        special: keys that are special tokens, boolean [..., k], broadcast likewise; None for none.
        support: which keys a query sees: "auto", "causal", "full", or a boolean tensor.
        precision: "fast" gives the exact value: reading the map is what it costs.
        lengths: keys per map, broadcast against the leading axes.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        SpanAttention. All fields are in [0, 1] but the boost, which is at least 0. NaN for a map without a
        span and for one that is not finite. Rows are not normalised.

    Raises:
        ValueError: as `incoming_attention`; spans that are no integers, do not
            broadcast, or are outside their map's tokens; special that is not boolean or does not broadcast.

    Example:
        Uniform causal attention among nine tokens: query 3 gives 1/4 to tokens 3 and 4, query 4 gives 2/5.

        >>> import torch, attnscope as asc
        >>> attention = torch.ones(9, 9, dtype=torch.float64).tril()
        >>> attention /= attention.sum(-1, keepdim=True)
        >>> result = asc.span_attention(attention, [3, 5], special=torch.arange(9) == 0)
        >>> [round(result.share.item(), 9), result.boost.item(), round(result.special.item(), 9)]
        [0.325, 1.0, 0.225]

        A picture of two tokens among five keys of cross attention receives 2/5 of uniform attention:

        >>> cross = torch.full((3, 5), 0.2, dtype=torch.float64)
        >>> round(asc.span_attention(cross, [0, 2], cross=True).received.item(), 9)
        0.4

    References:
        Ruscio et al., Attention-likelihood relationship in transformers, arXiv 2303.08288, 2023, whose mean
        of A[a:b, a:b] is share/m.
    """
    name = "span_attention"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    seen = _checks.support_argument(name, support, checked)
    ends = spans_argument(name, "spans", spans, checked).flatten().tolist()
    if special is not None:
        special = _checks.flags_argument(name, "special", special, (*checked.leading, checked.n))
    return SpanAttention(*_calls.call_and_warn(_core.span_attention, name, checked, seen, ends, special))


#: Tokens 3 and 4 of nine, of which token 0 is special, under uniform causal attention.
_SITES = {
    "word_span": torch.tensor([[3, 5]], device="cpu"),
    "special_keys": (torch.arange(9, device="cpu") == 0)[None],
}


def _field(name: str, label: str, meaning: str, expected: float, high: float | None = 1) -> Quantity:
    return Quantity(
        f"span_{name}",
        "span_attention",
        label,
        meaning,
        ClosedForm(expected, uniform_causal_map(9), _SITES),
        kind="ratio" if name == "boost" else "value",
        low=0,
        high=high,
        options={"spans": Site("word_span"), "special": Site("special_keys")},
        read=attribute_reader(name),
        needs=("attention", "word_span", "special_keys"),
    )


QUANTITIES = (
    _field("share", "attention of the word to itself", "Mean over the rows of a word's tokens.", 0.325),
    _field(
        "uniform",
        "uniform attention of the word to itself",
        "Mean over rows of the word's part of what is seen.",
        0.325,
    ),
    _field(
        "boost",
        "attention to itself / uniform",
        "Attention of a word to itself over the uniform one.",
        1.0,
        None,
    ),
    _field(
        "diagonal",
        "attention of its tokens to themselves",
        "Mean over the word's tokens of the diagonal.",
        0.225,
    ),
    _field(
        "special",
        "attention of the word to special tokens",
        "Mean over the word's rows, outside the word.",
        0.225,
    ),
    _field(
        "context",
        "attention of the word to the rest",
        "Mean over the word's rows, outside word and special tokens.",
        0.45,
    ),
    _field(
        "received",
        "attention of other tokens to the word",
        "Mean attention to the word of the other queries that see it.",
        sum(2 / n for n in (6, 7, 8, 9)) / 4,
    ),
    _field(
        "received_uniform",
        "uniform attention of others to the word",
        "Mean over the other queries that see the word of its part of what they see.",
        sum(2 / n for n in (6, 7, 8, 9)) / 4,
    ),
)
