# SPDX-License-Identifier: MIT
"""The entries of a tokenizer's vocabulary: those that begin a word, those that go on, and all others."""

from __future__ import annotations

import re
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from attnscope._tokens import byte_of

#: An entry that is no text of letters: special, unused, punctuation, digits, half a character.
NEITHER = 0
#: An entry that begins a word.
BEGINS = 1
#: An entry inside a word.
GOES_ON = 2

#: Letters with their marks, composed or not.
_LETTERS = regex.compile(r"[\p{L}\p{M}]+")
_BLANK = "▁"
_CONTINUED = "##"


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of no text: BOS, padding, masks and added special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return {*tokenizer.all_special_ids, *(token_id for token_id, token in added.items() if token.special)}


#: Texts of entries by tokenizer, which take a second for a large vocabulary.
_texts: weakref.WeakKeyDictionary[Any, list[tuple[str | None, bool]]] = weakref.WeakKeyDictionary()


#: Special ids and forms by tokenizer.
_forms: weakref.WeakKeyDictionary[Any, tuple[set[int], npt.NDArray[np.int8]]] = weakref.WeakKeyDictionary()


def entry_texts(tokenizer: Any) -> list[tuple[str | None, bool]]:
    """Return for each id below `len(tokenizer)` its text, None where its bytes are none, and whether it
    begins a word.

    A byte-level entry is decoded first: its name writes each byte as one letter.
    """
    texts = _texts.get(tokenizer)
    if texts is None or len(texts) != len(tokenizer):
        texts = _texts[tokenizer] = _entry_texts(tokenizer)
    return texts


def _entry_texts(tokenizer: Any) -> list[tuple[str | None, bool]]:
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    pieces = [name or "" for name in names]
    kind = _kind(tokenizer, pieces)
    if kind == "continued":
        return [
            (name.removeprefix(_CONTINUED), not name.startswith(_CONTINUED)) if name else (None, False)
            for name in pieces
        ]
    if kind == "blank":
        return [(name.removeprefix(_BLANK), name.startswith(_BLANK)) for name in pieces]
    return [_of_bytes(name) for name in pieces]


def forms(tokenizer: Any) -> npt.NDArray[np.int8]:
    """Return the form of each id below `len(tokenizer)`: `BEGINS`, `GOES_ON` or `NEITHER`.

    >>> from attnscope.demo.texts import byte_tokenizer
    >>> forms(byte_tokenizer())[[0, ord("a") + 1, ord("7") + 1]].tolist()
    [0, 2, 0]
    """
    special = special_ids(tokenizer)
    stored = _forms.get(tokenizer)
    if stored is None or len(stored[1]) != len(tokenizer) or stored[0] != special:
        forms = np.zeros(len(tokenizer), np.int8)
        for token, (text, begins) in enumerate(entry_texts(tokenizer)):
            if text is not None and token not in special and _LETTERS.fullmatch(text):
                forms[token] = BEGINS if begins else GOES_ON
        stored = _forms[tokenizer] = (special, forms)
    return stored[1].copy()


def blank_ids(tokenizer: Any) -> set[int]:
    """Return the ids whose text is a blank and nothing else."""
    return {
        token
        for token, (text, _) in enumerate(entry_texts(tokenizer))
        if text is not None and not text.strip()
    }


def _kind(tokenizer: Any, names: list[str]) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model = type(getattr(backend, "model", None)).__name__
    if model == "WordPiece" or (backend is None and any(re.match(r"##\w", name) for name in names)):
        return "continued"
    return "blank" if any(name.startswith(_BLANK) for name in names) else "bytes"


def _of_bytes(name: str) -> tuple[str | None, bool]:
    try:
        text = bytes(byte_of()[letter] for letter in name).decode("utf-8")
    except (KeyError, UnicodeDecodeError):  # an added token's plain name, or a part of a character
        return None, False
    begins = text.startswith(" ")
    return text.removeprefix(" "), begins
