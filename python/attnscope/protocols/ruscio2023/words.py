# SPDX-License-Identifier: MIT
"""The place of a lemma among the tokens of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.arguments.tokenizers import tokenizer_argument

#: What is put before a lemma, in the order in which it is looked for.
BEFORE = ("", " ", "-", ".")


def find_span(tokenizer: Any, ids: Sequence[int], lemma: str) -> tuple[int, int]:
    """Return the first token of a lemma and one past its last, (−1, −1) unless it occurs exactly once.

    The ids of the bare lemma are looked for anywhere in the sentence's ids; only where they are nowhere,
    those of the lemma behind a blank, a hyphen and a full stop in turn, of which the first that is there
    counts.

    Differs from the exact `word_spans`, which goes by the characters of each token: ids of a bare lemma can
    be the tail of another word, "un" and "able".

    Args:
        tokenizer: of transformers.
        ids: of the sentence, special tokens included.
        lemma: as it is written.

    Example:
        >>> from attnscope.demo.texts import byte_tokenizer
        >>> from attnscope.protocols import ruscio2023
        >>> tokenizer = byte_tokenizer()
        >>> ruscio2023.find_span(tokenizer, tokenizer("unable to")["input_ids"], "able")
        (3, 7)
        >>> ruscio2023.find_span(tokenizer, tokenizer("a cat, a cat")["input_ids"], "cat")
        (-1, -1)
    """
    tokenizer_argument("ruscio2023.find_span", tokenizer, is_needed=True)
    text_ids = [int(token) for token in ids]
    for before in BEFORE:
        lemma_ids = list(tokenizer(before + lemma, add_special_tokens=False)["input_ids"])
        size = len(lemma_ids)
        places = [
            at for at in range(len(text_ids) - size + 1) if size and text_ids[at : at + size] == lemma_ids
        ]
        if places:
            return (places[0], places[0] + size) if len(places) == 1 else (-1, -1)
    return -1, -1
