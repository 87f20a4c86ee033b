# SPDX-License-Identifier: MIT
"""One word a text, and the tokens that hold it."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import regex
import torch
from torch import Tensor

from attnscope._nearest import nearest
from attnscope.capture.likelihood.vocabulary import NEITHER, blank_ids, forms, special_ids
from attnscope.models.inputs.forward_inputs import ForwardInputs

#: Unicode's own boundaries of words (annex 29), which keep a letter and its marks together.
_BOUNDARY = regex.compile(r"\b", regex.WORD)
_LETTER = regex.compile(r"\p{L}")
_LETTERS = regex.compile(r"[\p{L}\p{M}]+")
#: What a reader takes for one letter, composed or not.
_GRAPHEME = regex.compile(r"\X")


class WordSpans(NamedTuple):
    """The chosen word of each text.

    Attributes:
        spans: its first token and one past its last [B, 2] int64; (−1, −1) where no word was found.
        words: the words; "" where none was found.
        reasons: why none was found; "" where one was. Of several the commonest: token ids, ids differ, no
            word, not in the text, more than once, cut off, shared token, too many pieces, too early, too
            late, a piece is no text of letters.
    """

    spans: Tensor
    words: list[str]
    reasons: list[str]


def word_spans(
    tokenizer: Any,
    texts: Sequence[str | None],
    words: str | Sequence[str | None] = "middle",
    *,
    inputs: Any = None,
    max_pieces: int = 4,
    min_letters: int = 3,
    min_left: int = 4,
    seed: int = 0,
    samples: Sequence[int] | None = None,
) -> WordSpans:
    """Choose one word a text and return the tokens that share a character with it.

    A candidate is a word by Unicode's boundaries (annex 29) of letters and their marks alone, which stands
    exactly once in the text and is neither its first nor its last word; composed and decomposed letters are
    the same. Its tokens must be contiguous, hold nothing but letters and blanks of its own, and have
    four tokens before them and one behind that are not special.

    Args:
        tokenizer: a fast one, which knows the characters of each token.
        texts: as they are written; None for one that came as token ids, which has no word.
        words: "middle": the usable candidate nearest the middle, ties to the left; "random": one of them by
            hashed draw; or a word for each text, of which only the rules on tokens are asked and that it
            stands once.
        inputs: what the model reads, input_ids with attention_mask or a list of ids each; None encodes the
            texts. They may be cut, and lack BOS or hold another token in its place.
        max_pieces: most tokens of a word.
        min_letters: fewest letters of a candidate.
        min_left: fewest tokens before it.
        seed: of the draw.
        samples: numbers of the texts in the draw; None counts them.

    Returns:
        `WordSpans`, as ids of `inputs`.

    Raises:
        ValueError: a tokenizer without offsets, an unknown way to choose, other numbers of texts, words,
            inputs.

    Example:
        Every byte is a token behind BOS: "sat" begins at token 7.

        >>> import attnscope as asc
        >>> from attnscope.demo.texts import byte_tokenizer
        >>> found = asc.word_spans(byte_tokenizer(), ["A cat sat on it"])
        >>> found.spans.tolist(), found.words
        ([[7, 10]], ['sat'])
    """
    name = "word_spans"
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{name}: tokenizer must know the characters of its tokens (a fast one), got "
            f"{type(tokenizer).__name__}"
        )
    if isinstance(words, str) and words not in ("middle", "random"):
        raise ValueError(f"{name}: unknown words {words!r}{nearest(words, ('middle', 'random'))}")
    id_rows = _ids(inputs, name)
    for label, values in (("words", words), ("inputs", id_rows), ("samples", samples)):
        if values is not None and not isinstance(values, str) and len(values) != len(texts):
            raise ValueError(f"{name}: {label} must be one for each of {len(texts)} texts, got {len(values)}")
    chooser = _Chooser(tokenizer, max_pieces, min_left)
    spans, placed_words, reasons = [], [], []
    for row, text in enumerate(texts):
        row_word = None if isinstance(words, str) else (words[row] or "")
        if text is None:
            span, word, reason = _NONE, "", "token ids"
        else:
            number = row if samples is None else int(samples[row])
            key = (seed, number, "word", 0) if words == "random" else None
            span, word, reason = chooser.choose(
                text, None if id_rows is None else id_rows[row], row_word, min_letters, key
            )
        spans.append(span)
        placed_words.append(word)
        reasons.append(reason)
    return WordSpans(
        torch.tensor(spans, dtype=torch.int64, device="cpu").reshape(-1, 2), placed_words, reasons
    )


_NONE = (-1, -1)


@dataclass(frozen=True)
class _Tokens:
    """The tokens of one text: ids, the characters of each, and whether it is special."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    special: list[bool]


def _ids(inputs: Any, function: str) -> list[list[int]] | None:
    """Return lists of ids, without padding."""
    if inputs is None:
        return None
    if isinstance(inputs, Mapping):
        ids = ForwardInputs.of(function, {name: inputs[name] for name in _READ if name in inputs}).ids
        if ids is None:
            raise ValueError(f"{function}: inputs need input_ids, got {', '.join(map(str, inputs))}")
        return ids
    return [[int(token) for token in row] for row in inputs]


#: What says which tokens a text has.
_READ = ("input_ids", "attention_mask")


def unicode_words(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text that hold a letter, each with its first character and one past its last.

    >>> [word for word, _, _ in unicode_words("It's 7 pre\u0301fe\u0301re\u0301e, isn't it?")] == [
    ...     "It's", "pre\u0301fe\u0301re\u0301e", "isn't", "it"]
    True
    """
    ends = sorted({0, len(text), *(match.start() for match in _BOUNDARY.finditer(text))})
    spans = pairwise(ends)
    return [(text[start:stop], start, stop) for start, stop in spans if _LETTER.search(text, start, stop)]


def _composed(word: str) -> str:
    return unicodedata.normalize("NFC", word)


def _places(word: str, text: str) -> list[tuple[str, int, int]]:
    """Return the places of a word where no letter stands before or behind it, composed or not."""
    forms = {word, _composed(word), unicodedata.normalize("NFD", word)} - {""}
    if not forms:
        return []
    alternatives = "|".join(regex.escape(form) for form in sorted(forms, key=len, reverse=True))
    pattern = regex.compile(rf"(?<![\p{{L}}\p{{M}}])(?:{alternatives})(?![\p{{L}}\p{{M}}])")
    return [(match.group(), match.start(), match.end()) for match in pattern.finditer(text)]


class _Chooser:
    """Chooses words for one tokenizer."""

    def __init__(self, tokenizer: Any, max_pieces: int, min_left: int) -> None:
        self.tokenizer, self.max_pieces, self.min_left = tokenizer, max_pieces, min_left
        self.special, self.blank = special_ids(tokenizer), blank_ids(tokenizer)
        self.forms = forms(tokenizer)

    def choose(
        self,
        text: str,
        ids: list[int] | None,
        word: str | None,
        min_letters: int,
        key: tuple[object, ...] | None,
    ) -> tuple[tuple[int, int], str, str]:
        """Return the span, the word and the reason of one text."""
        tokens = self.tokens(text, ids)
        if tokens is None:
            return _NONE, "", "ids differ"
        runs = unicode_words(text) if word is None else _places(word, text)
        if word is not None:
            if len(runs) != 1:
                return _NONE, "", "more than once" if runs else "not in the text"
        else:
            counts = Counter(_composed(run) for run, _, _ in runs)
            runs = [
                run
                for run in runs[1:-1]
                if counts[_composed(run[0])] == 1
                and _LETTERS.fullmatch(run[0])
                and len(_GRAPHEME.findall(run[0])) >= min_letters
            ]
        usable, refused = [], Counter[str]()
        for run, start, stop in runs:
            span, reason = self.span(text, tokens, start, stop)
            if reason:
                refused[reason] += 1
            else:
                usable.append((span, run))
        if not usable:
            return _NONE, "", refused.most_common(1)[0][0] if refused else "no word"
        if key is not None:
            return *usable[hashed_draw(0, len(usable), *key)], ""
        return *min(
            usable, key=lambda candidate: (abs(sum(candidate[0]) - len(tokens.ids)), candidate[0])
        ), ""

    def tokens(self, text: str, ids: list[int] | None) -> _Tokens | None:
        """Return the tokens of a text as the model reads them; None where the tokenizer makes others."""
        if ids is None:
            return self._encoded(text, 0, None)
        for dropped in (0, 1):
            encoded = self._encoded(text, dropped, len(ids))
            if encoded.ids == ids:
                return encoded
            if not dropped and encoded.special[:1] == [True] and encoded.ids[1:] == ids[1:]:
                return _Tokens(ids, encoded.offsets, encoded.special)
        return None

    def _encoded(self, text: str, dropped: int, length: int | None) -> _Tokens:
        cut = {} if length is None else {"truncation": True, "max_length": length + dropped}
        encoding = self.tokenizer(text, return_offsets_mapping=True, verbose=False, **cut)
        ids, offsets = list(encoding["input_ids"]), [tuple(offset) for offset in encoding["offset_mapping"]]
        special = [token_id in self.special for token_id in ids]
        if dropped and special[:1] != [True]:
            dropped = 0
        return _Tokens(ids[dropped:], offsets[dropped:], special[dropped:])

    def span(self, text: str, tokens: _Tokens, start: int, stop: int) -> tuple[tuple[int, int], str]:
        """Return the tokens of the characters [start, stop), or why they make no word."""
        covered = [
            place
            for place, (low, high) in enumerate(tokens.offsets)
            if low < stop and high > start and tokens.ids[place] not in self.blank
        ]
        if not covered or tokens.offsets[covered[-1]][1] < stop or tokens.offsets[covered[0]][0] > start:
            return _NONE, "cut off"
        for place in covered:
            low, high = tokens.offsets[place]
            if (text[low:start] + text[stop:high]).strip():
                return _NONE, "shared token"
        first, last = covered[0], covered[-1] + 1
        if covered != list(range(first, last)):
            return _NONE, "shared token"
        if last - first > self.max_pieces:
            return _NONE, "too many pieces"
        if sum(not is_special for is_special in tokens.special[:first]) < self.min_left:
            return _NONE, "too early"
        if all(tokens.special[last:]):
            return _NONE, "too late"
        if any(
            tokens.ids[place] >= len(self.forms) or self.forms[tokens.ids[place]] == NEITHER
            for place in covered
        ):
            return _NONE, "a piece is no text of letters"
        return (first, last), ""


def hashed_draw(low: int, high: int, *key: object) -> int:
    """Return an integer of low … high − 1: low + ⌊u·(high − low)⌋, u the first 8 bytes of SHA-256 over 2⁶⁴ of
    the key, its parts joined by colons. It is the same in every order, batch and implementation.

    >>> hashed_draw(0, 1, 7, "low", 0), 3 <= hashed_draw(3, 9, 0, 5, "mid", 0) < 9
    (0, True)
    """
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return low + (int.from_bytes(digest[:8], "big") * (high - low) >> 64)
