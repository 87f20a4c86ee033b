# SPDX-License-Identifier: MIT
"""Heads that look at the first key, at a neighbour, at a copy of their token, or at keys of a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics._spans import integers_argument
from attnscope.metrics.closed_forms import identity
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader

#: Patterns of positions, which need no tokens.
POSITIONS = ("first", "self", "previous", "next")
#: Patterns of tokens.
COPIES = ("duplicate", "induction")


@shown_by_shape
class PatternShare(NamedTuple):
    """Attention to the keys T(i) of a pattern; each [...], or [..., P] of several patterns.

    Attributes:
        share: mean over the queries with a key in T(i) of Σ_{j∈T(i)} A_ij, float64 in [0, 1]; of all
            attention, ΣA∘1_T/ΣA.
        uniform: the same under uniform attention.
        boost: share/uniform.
        queries: how many queries have a key in T(i), int64; −1 where the map is not finite.
        distance: ‖A − P‖_F/√(‖A‖² + ‖P‖²) in [0, 1], P uniform on T(i) and 0 elsewhere.
    """

    share: Tensor
    uniform: Tensor
    boost: Tensor
    queries: Tensor
    distance: Tensor


@memory_errors("pattern_share")
def pattern_share(
    attention: Tensor,
    pattern: str | Sequence[str] | Tensor,
    *,
    tokens: Any = None,
    over: Literal["matching", "all"] = "matching",
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> PatternShare:
    """Return how much of the attention follows a pattern, next to what uniform attention gives it.

    T(i) are the visible keys that match for query i. "first", "self", "previous" and "next" are key 0, i,
    i − 1 and i + 1. "duplicate" are the other keys of the same token; "induction" the keys behind another
    copy of token i, but i itself: tokens_{j−1} = tokens_i. On `copying_sequences` the share of "induction" is
    the prefix matching score. A mask is for delimiters, punctuation, registers.

    Args:
        attention: maps [..., n, n], any strides; rows are queries.
        pattern: a name, several (the results get a last axis), or a boolean mask: of keys [..., n], or of
            queries and keys [..., n, n].
        tokens: ids of the tokens, whole numbers [..., n], for "duplicate" and "induction".
        over: "matching" is the mean over the queries with a key in T(i); "all" the part of all attention, as
            `detect_head` of TransformerLens has it ("mul"); its "induction" counts j = i, and this one not.
        support: which keys a query sees: "auto", "causal", "full", or a boolean tensor.
        precision: "fast" gives the exact value: reading the map is what it costs, and the distance
            of a head that has the pattern is a difference that needs float64.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        PatternShare; NaN and 0 queries where nothing matches. Rows are not normalised.

    Raises:
        ValueError: an unknown pattern, a pattern of tokens without `tokens`, tokens of another length, a mask
            that is not boolean or does not broadcast, and as `incoming_attention`.

    Example:
        Every query attends to the token before it, the first to itself.

        >>> import torch, attnscope as asc
        >>> before = torch.eye(4).roll(1, 0); before[0] = torch.eye(4)[0]
        >>> result = asc.pattern_share(before, "previous")
        >>> round(result.share.item(), 9), round(result.boost.item() * 13 / 36, 9), result.queries.item()
        (1.0, 1.0, 3)

    References:
        Clark et al., What does BERT look at?, 2019. Olsson et al., In-context learning and induction heads,
        2022.
    """
    name = "pattern_share"
    _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    seen = _checks.support_argument(name, support, checked)
    scalars.choice_argument(name, "over", over, ("matching", "all"))
    names, marked = _pattern_argument(name, pattern, checked)
    ids = _tokens_argument(name, tokens, names, checked)
    results = _calls.call_and_warn(
        _core.pattern_share, name, checked, seen, names, ids, marked, over == "all"
    )
    several = not isinstance(pattern, (str, Tensor)) and marked is None
    return PatternShare(*(values if several else values.squeeze(-1) for values in results))


def _pattern_argument(
    function: str, pattern: Any, checked: _checks.Attention
) -> tuple[list[str], Tensor | None]:
    """Return the names of the patterns, and the mask of "marked" [..., n or 1, n]."""
    words = [pattern] if isinstance(pattern, str) else pattern
    if isinstance(words, (list, tuple)) and words and all(isinstance(word, str) for word in words):
        return [
            scalars.choice_argument(function, "pattern", word, (*POSITIONS, *COPIES)) for word in words
        ], None
    mask = _checks.as_tensor(function, "pattern", pattern)
    n, shape = checked.n, (*checked.leading, checked.n, checked.n)
    of_pairs = mask.ndim >= 2 and mask.shape[-2:] == (n, n)
    if (
        of_pairs
        and mask.ndim <= len(checked.leading) + 1
        and mask.shape == (*checked.leading, n)[-mask.ndim :]
    ):
        raise ValueError(
            f"{function}: pattern of shape {tuple(mask.shape)} may be of keys or of queries and keys; "
            "pattern[..., None, :] is of keys"
        )
    if not of_pairs and mask.ndim and (mask.ndim < 2 or mask.shape[-2] != 1):
        mask = mask.unsqueeze(-2)
    return ["marked"], _checks.flags_argument(function, "pattern", mask, shape)


def _tokens_argument(
    function: str, tokens: Any, names: Sequence[str], checked: _checks.Attention
) -> Tensor | None:
    """Return the token ids of each map, flat and contiguous int64, or of all maps; None if not needed."""
    of_tokens = [name for name in names if name in COPIES]
    if tokens is None:
        if of_tokens:
            raise ValueError(f"{function}: pattern {of_tokens[0]!r} needs tokens, got None")
        return None
    ids = integers_argument(function, "tokens", tokens, (*checked.leading, checked.n))
    if not of_tokens:
        return None
    if ids.ndim > 1:
        ids = ids.expand(*checked.leading, checked.n)
    return ids.contiguous().flatten()


def _map_of(*keys: int) -> Tensor:
    """Return the map in which query i attends to key keys[i] alone."""
    return identity(len(keys))[list(keys)]


_PREVIOUS = _map_of(0, 0, 1, 2)
#: Tokens a b a b: of query 2 the copy is 0 and the key behind it 1, of query 3 they are 1 and 2.
_COPIED = {"tokens": torch.tensor([[0, 1, 0, 1]], device="cpu")}

#: Each pattern's label, and the map, share, uniform share and squared distance of its closed form.
_FORMS: dict[str, tuple[str, Tensor, float, float, float]] = {
    "first": ("the first token", _PREVIOUS, 1 / 2, 25 / 48, 1 / 2),
    "self": ("the token itself", _PREVIOUS, 1 / 4, 25 / 48, 3 / 4),
    "previous": ("the token before", _PREVIOUS, 1, 13 / 36, 1 / 7),
    "next": ("the token behind", _map_of(1, 2, 3, 3), 1, 1 / 4, 1 / 7),
    "duplicate": ("copies of the token", _map_of(0, 1, 0, 1), 1, 7 / 24, 1 / 3),
    "induction": ("the token behind a copy", _map_of(0, 1, 1, 1), 1 / 2, 7 / 24, 2 / 3),
}


def _columns_of(pattern: str) -> tuple[Quantity, ...]:
    """Return the share, boost and distance of a pattern as quantities."""
    label, attention, share, uniform, squared_distance = _FORMS[pattern]
    of_tokens = pattern in COPIES
    options: dict[str, Any] = {"pattern": pattern}
    if of_tokens:
        options["tokens"] = Site("tokens")

    def column(field: str, words: str, meaning: str, expected: float, **fields: Any) -> Quantity:
        return Quantity(
            f"{pattern}_{field}",
            "pattern_share",
            words,
            meaning,
            ClosedForm(expected, attention, _COPIED if of_tokens else {}),
            low=0,
            options=options,
            read=attribute_reader(field),
            needs=("attention", "tokens") if of_tokens else ("attention",),
            **fields,
        )

    return (
        column(
            "share",
            f"attention to {label}",
            f"Mean attention to {label}, over the queries that have one.",
            share,
            high=1,
        ),
        column(
            "boost",
            f"attention to {label} / uniform",
            f"Attention to {label} over that of uniform attention.",
            share / uniform,
            kind="ratio",
        ),
        column(
            "distance",
            f"distance to a map of {label}",
            f"Distance between the map and one of attention to {label} alone, over their joint norm.",
            squared_distance**0.5,
            high=1,
        ),
    )


#: Several patterns are measured in one read of the map.
JOINT = {"pattern_share": "pattern"}
QUANTITIES = tuple(column for pattern in (*POSITIONS, *COPIES) for column in _columns_of(pattern))
