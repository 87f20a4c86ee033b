# SPDX-License-Identifier: MIT
"""Sentences into token ids: the tokenizer's way, cut to the context, with BOS kept, dropped or replaced.

The token at position 0 decides much of a sink study, so nothing is left to defaults: the BOS token stays,
goes, or is replaced by an ordinary token that the seed and the sample's number fix.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: Characters of a token at first guess: of a sentence, which is seldom cut, and of all of a source joined.
_OF_SENTENCE, _OF_SOURCE = 64, 8
#: Tokens that must follow the wanted ones, so that where a text is cut does not change these.
_MARGIN = 64


@dataclass(frozen=True)
class Encoded:
    """A sentence as the model reads it."""

    ids: npt.NDArray[np.int32]
    truncated: bool
    starts_with_bos: bool


class Encoder:
    """Encodes sentences for one model.

    Args:
        tokenizer: of transformers, or None when every sentence comes as token ids.
        limit: longest input in tokens, None for no bound.
        bos: what becomes of the beginning-of-sequence token.
        vocabulary: number of token ids the model knows, None when unknown.
        seed: of the tokens that replace BOS.

    Attributes:
        longest: tokens of the longest sentence so far.
    """

    def __init__(
        self,
        tokenizer: Any,
        limit: int | None = None,
        bos: Literal["keep", "drop", "replace"] = "keep",
        vocabulary: int | None = None,
        seed: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self.bos = bos
        self.vocabulary = vocabulary
        self.seed = seed
        self.longest = 0
        self.bos_id: int | None = None
        self.pad_id = 0
        if tokenizer is not None:
            self.bos_id = (
                tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
            )
            self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's kind and the size of its vocabulary; empty for token ids."""
        if self.tokenizer is None:
            return ""
        return f"{type(self.tokenizer).__name__}, {len(self.tokenizer)} tokens"

    def encode(self, text: str | None, token_ids: Sequence[int] | None = None, sample: int = 0) -> Encoded:
        """Encode a text, or take token ids as they are.

        Args:
            sample: number of the sentence; with the seed it fixes the token that replaces BOS.
        """
        room = None if self.limit is None else self.limit + (self.bos == "drop")
        if token_ids is None:
            if self.tokenizer is None or text is None:
                raise ValueError("a text needs a tokenizer, and this model has none")
            text, ids = self._beginning(text, room, _OF_SENTENCE)
            truncated = room is not None and len(ids) > room
            if truncated:
                # by the tokenizer, which keeps the special tokens at both ends
                ids = list(self.tokenizer(text, truncation=True, max_length=room)["input_ids"])
        else:
            ids = list(token_ids)
            truncated = room is not None and len(ids) > room
            ids = ids[:room] if truncated else ids
        self._check(ids, sample)
        starts = bool(ids) and self.bos_id is not None and ids[0] == self.bos_id
        ids = self._first(ids, starts, sample)
        if self.limit is not None and len(ids) > self.limit:
            ids, truncated = ids[: self.limit], True
        self.longest = max(self.longest, len(ids))
        return Encoded(np.asarray(ids, dtype=np.int32), truncated, starts and self.bos == "keep")

    def _first(self, ids: list[int], starts: bool, sample: int) -> list[int]:
        """Return the ids with another token in the place of the BOS token that they start with."""
        if starts and self.bos == "drop":
            return ids[1:]
        return [self._ordinary(sample), *ids[1:]] if starts and self.bos == "replace" else ids

    def bare(
        self, text: str | None, token_ids: Sequence[int] | None = None, most: int | None = None
    ) -> list[int]:
        """Return a text's own tokens: none that the tokenizer sets before or behind it, nor such in its
        middle.

        Args:
            most: first tokens that are wanted; of a long text no more than they need is encoded. None: all.
        """
        if token_ids is not None:
            return list(token_ids[:most])
        if self.tokenizer is None or text is None:
            raise ValueError("a text needs a tokenizer, and this model has none")
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
        special = {getattr(self.tokenizer, name, None) for name in names}
        return self._beginning(text, most, _OF_SOURCE, special, add_special_tokens=False)[1][:most]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the tokenizer sets before a text, and behind it."""
        if self.tokenizer is None:
            return [], []
        bare = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])
        framed = list(self.tokenizer("a")["input_ids"])
        for at in range(len(framed) - len(bare) + 1):
            if bare and framed[at : at + len(bare)] == bare:
                return framed[:at], framed[at + len(bare) :]
        return [], []

    def window(self, ids: Sequence[int], sample: int = 0) -> Encoded:
        """Return a piece of text between what the tokenizer sets around a text, in as many tokens as the
        piece.

        Args:
            ids: the piece's tokens; as many as are set around it are left out at its end.
            sample: number of the window; with the seed it fixes the token that replaces BOS.
        """
        self._check(ids, sample)
        before, behind = self.frame()
        starts = bool(before) and before[0] == self.bos_id
        before = self._first(before, starts, sample)
        content = [*ids][: max(0, len(ids) - len(before) - len(behind))]
        framed = [*before, *content, *behind]
        self.longest = max(self.longest, len(framed))
        return Encoded(np.asarray(framed, dtype=np.int32), False, starts and self.bos == "keep")

    def _beginning(
        self, text: str, most: int | None, guess: int, without: Container[Any] = (), **options: bool
    ) -> tuple[str, list[int]]:
        """Return as much of a text as its first tokens need, at first `guess` characters each, and all its
        ids.
        """
        size = len(text) if most is None else guess * (most + _MARGIN)
        while True:
            ids = self.tokenizer(text[:size], verbose=False, **options)["input_ids"]
            ids = [token_id for token_id in ids if token_id not in without]
            if most is None or size >= len(text) or len(ids) >= most + _MARGIN:
                return text[:size], ids
            size *= 4

    def _check(self, ids: Sequence[int], sample: int) -> None:
        outside = [
            token_id
            for token_id in ids
            if self.vocabulary is not None and not 0 <= token_id < self.vocabulary
        ]
        if outside:
            raise ValueError(
                f"sample {sample}: token id {outside[0]} is outside the vocabulary of {self.vocabulary}"
            )

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of ids as texts; without a tokenizer, the ids themselves."""
        if self.tokenizer is None:
            return [str(token_id) for token_id in ids]
        names = self.tokenizer.convert_ids_to_tokens([int(token_id) for token_id in ids])
        return [
            str(token_id) if name is None else str(name) for name, token_id in zip(names, ids, strict=True)
        ]

    def _ordinary(self, sample: int) -> int:
        special = set(self.tokenizer.all_special_ids)
        draw = random.Random(f"{self.seed}:{sample}")
        while (token_id := draw.randrange(len(self.tokenizer))) in special:
            pass
        return token_id
