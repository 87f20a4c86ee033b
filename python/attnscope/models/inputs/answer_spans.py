# SPDX-License-Identifier: MIT
"""Answers of texts as spans of tokens, from spans of tokens or of characters.

Example:
    Every byte is a token behind BOS, so character 2 is token 3.

    >>> from attnscope.demo.texts import byte_tokenizer
    >>> tokenizer = byte_tokenizer()
    >>> ids = [tokenizer("a cat")["input_ids"]]
    >>> answer_spans("f", [(2, 5)], ids, texts=["a cat"], tokenizer=tokenizer, unit="characters")
    [(3, 6)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: The span of a text without an answer.
NO_ANSWER = (-1, -1)
UNITS = ("tokens", "characters")


def answer_spans(
    function: str,
    answers: Any,
    ids: Sequence[Sequence[int]],
    *,
    texts: Sequence[str | None],
    tokenizer: Any = None,
    unit: str = "tokens",
) -> list[tuple[int, int]]:
    """Return the first token of each text's answer and one past its last, (−1, −1) for None.

    Args:
        function: whose name errors begin with.
        answers: for each text a pair of whole numbers, or None; a tensor or array [texts, 2].
        ids: the tokens of each text, as the model reads them.
        texts: each text, None for one that came as token ids.
        tokenizer: a fast one, for characters.
        unit: "tokens" or "characters".

    Raises:
        ValueError: another number of answers; an answer that is no pair, empty, reversed or outside its text;
            characters of token ids, without a fast tokenizer, or of a text that the model reads otherwise.
    """
    if unit not in UNITS:
        raise ValueError(f"{function}: answer_unit must be 'tokens' or 'characters', got {unit!r}")
    rows = answers.tolist() if hasattr(answers, "tolist") else list(answers)
    if len(ids) == 1 and len(rows) == 2 and all(isinstance(row, (int, np.integer)) for row in rows):
        rows = [rows]
    if len(rows) != len(ids):
        raise ValueError(f"{function}: answer must be one span for each of {len(ids)} texts, got {len(rows)}")
    spans = []
    for number, (row, tokens, text) in enumerate(zip(rows, ids, texts, strict=True)):
        span = _pair(function, number, row)
        if span == NO_ANSWER:
            spans.append(span)
            continue
        characters = unit == "characters"
        if characters and text is None:
            raise ValueError(f"{function}: text {number} came as token ids; its answer must be tokens")
        size = len(text) if characters and text is not None else len(tokens)
        if not 0 <= span[0] < span[1] <= size:
            raise ValueError(
                f"{function}: answer of text {number} must hold 0 <= start < stop <= {size}, its {unit}, "
                f"got {span}"
            )
        if characters and text is not None:
            span = _tokens_of(function, number, span, tokens, text, tokenizer)
        spans.append(span)
    return spans


def _pair(function: str, number: int, row: Any) -> tuple[int, int]:
    if row is None:
        return NO_ANSWER
    try:
        start, stop = row
    except (TypeError, ValueError):
        raise ValueError(f"{function}: answer of text {number} must be start and stop, got {row!r}") from None
    for end in (start, stop):
        if not isinstance(end, (int, np.integer)) or isinstance(end, bool):
            raise ValueError(f"{function}: answer of text {number} must hold whole numbers, got {row!r}")
    return int(start), int(stop)


def _tokens_of(
    function: str, number: int, span: tuple[int, int], ids: Sequence[int], text: str, tokenizer: Any
) -> tuple[int, int]:
    """Return the tokens that share a character with a span of characters."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{function}: answers in characters need a tokenizer that knows the characters of its tokens (a "
            f"fast one), got {type(tokenizer).__name__}"
        )
    encoding = tokenizer(text, return_offsets_mapping=True, verbose=False)
    offsets = encoding["offset_mapping"]
    is_read_so = [int(token) for token in encoding["input_ids"][: len(ids)]] == [int(token) for token in ids]
    if not is_read_so:
        raise ValueError(
            f"{function}: text {number} is read in other tokens than its tokenizer gives; its answer must be "
            "tokens"
        )
    inside = [
        place
        for place, (start, stop) in enumerate(offsets)
        if start < span[1] and stop > span[0] and start < stop
    ]
    if not inside or inside[-1] >= len(ids):
        raise ValueError(
            f"{function}: answer of text {number}, characters {span}, is outside the {len(ids)} tokens that "
            "are read"
        )
    return inside[0], inside[-1] + 1
