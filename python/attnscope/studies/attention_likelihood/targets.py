# SPDX-License-Identifier: MIT
"""Choice of the word of each text, and of the pairs of texts that exchange words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope import word_spans
from attnscope._nearest import nearest
from attnscope.capture.likelihood.replacements import FEWEST
from attnscope.capture.likelihood.vocabulary import forms, special_ids
from attnscope.errors import ConfigError

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Input, Unit

#: Below this number of texts a note says that they are few.
FEW = 20
COLUMN = "column:"


def find(unit: Unit, run: StageRun, options: LikelihoodOptions) -> pd.DataFrame:
    """Return the rows of `targets`: each text's word, or the reason why it has none, and its exchange."""
    tokenizer = run.encoder.tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"attention_likelihood: {len(unit.inputs)} texts came as token ids and the model has no "
            "tokenizer; words need texts"
        )
    ids = [text.encoded.ids.tolist() for text in unit.inputs]
    samples = [text.sentence.sample for text in unit.inputs]
    try:
        words_of_texts = word_spans(
            tokenizer,
            [text.sentence.text if text.sentence.token_ids is None else None for text in unit.inputs],
            requested_words(unit.inputs, options.word),
            inputs=ids,
            max_pieces=options.max_pieces,
            min_letters=options.min_letters,
            min_left=options.min_left,
            seed=run.settings.seed,
            samples=samples,
        )
    except ValueError as error:
        raise ConfigError(f"attention_likelihood: {error}") from None
    spans, reasons = words_of_texts.spans.tolist(), list(words_of_texts.reasons)
    form = forms(tokenizer)
    for at, span in enumerate(spans):
        if span[0] >= 0 and candidates(ids[at], span, form, options.candidates, tokenizer) < FEWEST:
            spans[at], reasons[at] = [-1, -1], "few candidates"
    counts = Counter(reason for reason in reasons if reason)
    words = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    is_whole_run = len(ids) == run.samples
    if is_whole_run and sum(counts.values()) == len(ids):
        raise ConfigError(f"attention_likelihood: no text of {len(ids)} has a usable word ({words})")
    if counts:
        run.note(f"attention_likelihood: {sum(counts.values())} of {len(ids)} texts are left out ({words})")
    usable = len(ids) - sum(counts.values())
    if is_whole_run and usable < FEW:
        run.note(f"attention_likelihood: {usable} texts have a word; below {FEW} little can be said")
    units = [text.sentence.sample if text.first_equal is None else text.first_equal for text in unit.inputs]
    partners = [-1] * len(ids)
    if options.swap:
        for first, second in exchanges(ids, first_of_each(units, spans), form):
            partners[first], partners[second] = second, first
    rows = []
    for at in range(len(ids)):
        (start, stop), other = spans[at], partners[at]
        rows.append(
            {
                "sample": samples[at],
                "word": words_of_texts.words[at] if start >= 0 else None,
                "start": None if start < 0 else start,
                "stop": None if start < 0 else stop,
                "n_tokens": len(ids[at]),
                "reason": reasons[at] or None,
                "partner": None if other < 0 else samples[other],
                "swap_ids": [] if other < 0 else ids[other][slice(*spans[other])],
                "text_unit": units[at],
            }
        )
    return pd.DataFrame(rows).astype(dict.fromkeys(("start", "stop", "partner"), "Int64"))


def candidates(ids: Sequence[int], span: Sequence[int], form: Any, which: str, tokenizer: Any) -> int:
    """Return the smallest number of ids that may replace a piece of a word."""
    outside = {*ids[: span[0]], *ids[span[1] :]}
    counts = []
    for piece in ids[span[0] : span[1]]:
        allowed = form == form[piece]
        if which == "all":
            allowed = np.ones(len(form), dtype=bool)
            allowed[[token for token in special_ids(tokenizer) if token < len(form)]] = False
        allowed[[token for token in outside if token < len(form)]] = False
        counts.append(int(allowed.sum()))
    return min(counts)


def store(run: StageRun, targets: pd.DataFrame) -> None:
    """Write the table `targets`."""
    run.write("targets", **{str(name): targets[name] for name in targets})


def with_word(unit: Unit, run: StageRun, options: LikelihoodOptions) -> pd.DataFrame:
    """Return the rows of `targets` that have a word, by sample; computed where the stage before stored none.

    A dry run tries each stage on a few texts alone.
    """
    stored = "targets" in run.stored.tables()
    table = run.read("targets") if stored else find(unit, run, options)
    return table[table["reason"].isna()].set_index("sample")


def requested_words(inputs: Sequence[Input], word: str) -> str | list[str | None]:
    """Return the choice that `word_spans` takes: a rule, or the word of each text's column."""
    if not word.startswith(COLUMN):
        return word
    name = word.removeprefix(COLUMN)
    columns = dict.fromkeys(key for text in inputs for key in text.sentence.extra)
    if name not in columns:
        raise ConfigError(f"options.word: the texts have no column {name!r}{nearest(name, columns)}")
    cells = [text.sentence.extra.get(name) for text in inputs]
    return [None if cell is None else str(cell) for cell in cells]


def first_of_each(units: Sequence[int], spans: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return the word of the first of equal texts that has one, (−1, −1) of the others.

    Pairs that share a text would pass for independent ones.

    >>> first_of_each([0, 0, 0, 3], [(-1, -1), (1, 2), (1, 2), (4, 5)])
    [(-1, -1), (1, 2), (-1, -1), (4, 5)]
    """
    texts_with_words: set[int] = set()
    words: list[Sequence[int]] = []
    for text, span in zip(units, spans, strict=True):
        words.append(span if text not in texts_with_words else (-1, -1))
        if span[0] >= 0:
            texts_with_words.add(text)
    return words


def exchanges(
    ids: Sequence[Sequence[int]], spans: Sequence[Sequence[int]], form: Any
) -> list[tuple[int, int]]:
    """Return the pairs of texts that exchange words: each with the first waiting text of the same forms.

    Neither word may occur in the other text.

    Args:
        ids: of every text.
        spans: of its word, (−1, −1) for none.
        form: of every id.

    >>> form = [0, 1, 1, 1, 1, 2]
    >>> exchanges([[0, 1, 2], [0, 2, 1], [0, 3, 3], [0, 4, 4]], [(1, 2), (1, 2), (1, 2), (1, 2)], form)
    [(0, 2), (1, 3)]
    """
    waiting: list[int] = []
    pairs = []
    words = [
        list(token_ids[start:stop]) if start >= 0 else []
        for token_ids, (start, stop) in zip(ids, spans, strict=True)
    ]
    kinds = [tuple(int(form[piece]) for piece in word) for word in words]
    for at, word in enumerate(words):
        if not word:
            continue
        for other in waiting:
            if kinds[at] == kinds[other] and not (_holds(ids[at], words[other]) or _holds(ids[other], word)):
                waiting.remove(other)
                pairs.append((other, at))
                break
        else:
            waiting.append(at)
    return pairs


def _holds(ids: Sequence[int], word: Sequence[int]) -> bool:
    text = np.asarray(ids)
    if len(word) > len(text):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(text, len(word))
    return bool((windows == np.asarray(word)).all(-1).any())
