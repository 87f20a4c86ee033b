# SPDX-License-Identifier: MIT
"""Which word of each text is replaced, and which texts exchange words."""

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

#: Fewer texts than these are measured, and said to be few.
FEW = 20
COLUMN = "column:"


def find(unit: Unit, run: StageRun, options: LikelihoodOptions) -> pd.DataFrame:
    """Of every text its word or why it has none, and what it exchanges words with: rows of `targets`."""
    tokenizer = run.encoder.tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"attention_likelihood: {len(unit.inputs)} texts came as token ids and the model has no "
            "tokenizer; words need texts"
        )
    ids = [one.encoded.ids.tolist() for one in unit.inputs]
    samples = [one.sentence.sample for one in unit.inputs]
    try:
        found = word_spans(
            tokenizer,
            [one.sentence.text if one.sentence.token_ids is None else None for one in unit.inputs],
            wanted(unit.inputs, options.word),
            inputs=ids,
            max_pieces=options.max_pieces,
            min_letters=options.min_letters,
            min_left=options.min_left,
            seed=run.settings.seed,
            samples=samples,
        )
    except ValueError as error:
        raise ConfigError(f"attention_likelihood: {error}") from None
    spans, reasons = found.spans.tolist(), list(found.reasons)
    form = forms(tokenizer)
    for at, span in enumerate(spans):
        if span[0] >= 0 and candidates(ids[at], span, form, options.candidates, tokenizer) < FEWEST:
            spans[at], reasons[at] = [-1, -1], "few candidates"
    counts = Counter(reason for reason in reasons if reason)
    words = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    every = len(ids) == run.samples
    if every and sum(counts.values()) == len(ids):
        raise ConfigError(f"attention_likelihood: no text of {len(ids)} has a usable word ({words})")
    if counts:
        run.note(f"attention_likelihood: {sum(counts.values())} of {len(ids)} texts are left out ({words})")
    kept = len(ids) - sum(counts.values())
    if every and kept < FEW:
        run.note(f"attention_likelihood: {kept} texts have a word; below {FEW} little can be said")
    partners = [-1] * len(ids)
    if options.swap:
        for one, other in exchanges(ids, spans, form):
            partners[one], partners[other] = other, one
    first: dict[str, int] = {}
    rows = []
    for at, given in enumerate(unit.inputs):
        (start, stop), other = spans[at], partners[at]
        rows.append(
            {
                "sample": samples[at],
                "word": found.words[at] if start >= 0 else None,
                "start": None if start < 0 else start,
                "stop": None if start < 0 else stop,
                "n_tokens": len(ids[at]),
                "reason": reasons[at] or None,
                "partner": None if other < 0 else samples[other],
                "swap_ids": [] if other < 0 else ids[other][slice(*spans[other])],
                "text_unit": first.setdefault(given.sentence.text or str(ids[at]), samples[at]),
            }
        )
    return pd.DataFrame(rows).astype(dict.fromkeys(("start", "stop", "partner"), "Int64"))


def candidates(ids: Sequence[int], span: Sequence[int], form: Any, which: str, tokenizer: Any) -> int:
    """How many ids may stand for the piece of a word that has the fewest."""
    outside = {*ids[: span[0]], *ids[span[1] :]}
    found = []
    for piece in ids[span[0] : span[1]]:
        allowed = form == form[piece]
        if which == "all":
            allowed = np.ones(len(form), dtype=bool)
            allowed[[one for one in special_ids(tokenizer) if one < len(form)]] = False
        allowed[[one for one in outside if one < len(form)]] = False
        found.append(int(allowed.sum()))
    return min(found)


def store(run: StageRun, found: pd.DataFrame) -> None:
    """Writes the table `targets`."""
    run.write("targets", **{str(name): found[name] for name in found})


def with_word(unit: Unit, run: StageRun, options: LikelihoodOptions) -> pd.DataFrame:
    """Rows of `targets` that have a word, by sample; found anew where the stage before has stored none.

    A dry run tries each stage on a few texts alone.
    """
    stored = "targets" in run.stored.tables()
    table = run.read("targets") if stored else find(unit, run, options)
    return table[table["reason"].isna()].set_index("sample")


def wanted(inputs: Sequence[Input], word: str) -> str | list[str | None]:
    """What `word_spans` is asked for: a way to choose, or the word of each text's own column."""
    if not word.startswith(COLUMN):
        return word
    name = word.removeprefix(COLUMN)
    known = dict.fromkeys(key for one in inputs for key in one.sentence.extra)
    if name not in known:
        raise ConfigError(f"options.word: the texts have no column {name!r}{nearest(name, known)}")
    cells = [one.sentence.extra.get(name) for one in inputs]
    return [None if cell is None else str(cell) for cell in cells]


def exchanges(
    ids: Sequence[Sequence[int]], spans: Sequence[Sequence[int]], form: Any
) -> list[tuple[int, int]]:
    """Pairs of texts that exchange words: each with the first one waiting whose word has the same forms.

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
        list(own[start:stop]) if start >= 0 else [] for own, (start, stop) in zip(ids, spans, strict=True)
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
