# SPDX-License-Identifier: MIT
"""Sentences of a study: chosen by a seeded rule from files or data sets, with their place of origin.

A rule that takes the first texts stops reading behind the last of them; a random one reads the source twice,
to count its texts and to take those that were drawn, and holds no others in memory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nearest import nearest
from attnscope.config.run_config import TextSource
from attnscope.errors import ConfigError
from attnscope.texts.readers import read_rows, refuse_surrogates
from attnscope.texts.sentence import Row, Sentence
from attnscope.untrusted.limits import MAX_TEXTS

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the `samples` table that a source's own column must not overwrite, and columns that Arrow adds
#: to each file that it reads.
RESERVED = (
    "model",
    "revision",
    "step",
    "sample",
    "group",
    "text",
    "tokens",
    "token_ids",
    "n_tokens",
    "truncated",
    "bos",
    "text_unit",
    "causal",
    "source",
    "source_row",
    "__fragment_index",
    "__batch_index",
    "__last_in_fragment",
    "__filename",
)


#: A rule by which texts are chosen: rows, their source, the seeded generator -> positions, ascending.
Sampler = Callable[[Sequence[Row], TextSource, np.random.Generator], Sequence[int]]


def read_sentences(
    sources: Sequence[TextSource], seed: int = 0, samplers: Mapping[str, Sampler] = MappingProxyType({})
) -> list[Sentence]:
    """Read every source, apply its sampling rule and number the chosen sentences from 0.

    A source that is cut into windows is one text here, all its sentences joined. Each draws from its own
    stream.
    """
    chosen: list[Sentence] = []
    for position, (source, name) in enumerate(zip(sources, origins(sources), strict=True)):
        where = f"texts[{position}]: {source.path}"
        rows = _TextRows(source, where)
        if source.per == "window":
            chosen.append(_joined(rows.read_all(), source, position, name))
            continue
        draw = np.random.default_rng([seed, position])
        for row, content, extra in _sample_rows(rows, source, draw, samplers):
            text, ids = (content, None) if isinstance(content, str) else (None, tuple(content))
            for column, cell in extra.items():
                refuse_surrogates(column, f"{where}, row {row}: the name of a column")
                if isinstance(cell, str):
                    refuse_surrogates(cell, f"{where}, row {row}: {column!r:.80}")
            beginning = text and text[: source.max_characters]
            number, cut = len(chosen), beginning != text
            chosen.append(Sentence(number, source.group, beginning, ids, name, row, extra, cut))
    return chosen


class _TextRows:
    """The rows of a source that hold a text of the right length, read anew by each iteration.

    Args:
        source: of the settings.
        where: the source, for messages.
    """

    def __init__(self, source: TextSource, where: str) -> None:
        self.source = source
        self.where = where

    def __iter__(self) -> Iterator[Row]:
        return self.read()

    def count(self) -> int:
        """Return the number of rows."""
        return sum(1 for _ in self.read(extras=False))

    def read(self, *, extras: bool = True) -> Iterator[Row]:
        """Give the rows; ConfigError at the end where there was none."""
        least, most = self.source.min_words, self.source.max_words
        filled, fitting, shortest, longest = 0, 0, math.inf, 0
        for row in read_rows(self.source, extras=extras):
            if not row[1]:
                continue
            filled += 1
            if least is not None or most is not None:
                count = words(row[1])
                shortest, longest = min(shortest, count), max(longest, count)
                if not (least or 0) <= count <= (most or math.inf):
                    continue
            fitting += 1
            yield row
        if not filled:
            raise ConfigError(f"{self.where} holds no sentence")
        if not fitting:
            raise ConfigError(
                f"{self.where}: no sentence has {least or 0} to {most or 'any number of'} words; "
                f"its {filled} sentences have {shortest} to {longest}"
            )

    def read_all(self) -> list[Row]:
        """Return all rows; ConfigError where they are more than a study can hold."""
        rows = list(islice(self, MAX_TEXTS + 1))
        if len(rows) > MAX_TEXTS:
            raise ConfigError(
                f"{self.where} holds more than {MAX_TEXTS:,} texts; texts.samples and "
                "texts.sampling=first or random take fewer without reading all into memory"
            )
        return rows


def _sample_rows(
    rows: _TextRows, source: TextSource, draw: np.random.Generator, samplers: Mapping[str, Sampler]
) -> Sequence[Row]:
    """Return the rows that the source's rule keeps, in their order; the same rows as `choose` of all."""
    if source.samples is None or source.sampling not in ("first", "random"):
        held = rows.read_all()
        return [held[place] for place in choose(held, source, draw, samplers)]
    if source.sampling == "first":
        return list(islice(rows, min(source.samples, sys.maxsize)))
    count = rows.count()
    places = draw.choice(count, min(source.samples, count), replace=False).tolist()
    drawn = set(places)
    sample = [row for place, row in enumerate(rows) if place in drawn]
    if len(sample) != len(drawn):
        raise ConfigError(f"{rows.where} changed while it was read")
    return sample


def origins(sources: Sequence[TextSource]) -> list[str]:
    """Return the name of each source in tables: a file's own, with as many of its folders as tell it from the
    other files.
    """
    paths = {Path(source.path) for source in sources}
    return [
        _telling_name(Path(source.path), paths) if Path(source.path).exists() else source.path
        for source in sources
    ]


def _telling_name(path: Path, paths: Collection[Path]) -> str:
    """Return the last parts of a path that no other one ends with."""
    for count in range(1, len(path.parts)):
        end = path.parts[-count:]
        if all(other == path or other.parts[-count:] != end for other in paths):
            return str(Path(*end))
    return str(path)


def _joined(rows: Sequence[Row], source: TextSource, position: int, name: str) -> Sentence:
    """Return all sentences of a source as one text, a space between two; lists of token ids as one list.

    Raises:
        ConfigError: both kinds in one source.
    """
    first_rows = {type(content): row for row, content, _ in reversed(rows)}
    if len(first_rows) > 1:
        raise ConfigError(
            f"texts[{position}]: {source.path}: row {first_rows[str]} is a text and row {first_rows[list]} a "
            "list of token ids; windows are cut from one or the other"
        )
    texts = [content[: source.max_characters] for _, content, _ in rows if isinstance(content, str)]
    ids = None if texts else tuple(token_id for _, content, _ in rows for token_id in content)
    return Sentence(position, source.group, " ".join(texts) if texts else None, ids, name, 0)


def words(content: Any) -> int:
    """Return the number of words of a text, or of tokens of a list of token ids."""
    return len(content.split()) if isinstance(content, str) else len(content)


def choose(
    rows: Sequence[Row],
    source: TextSource,
    draw: np.random.Generator,
    samplers: Mapping[str, Sampler] = MappingProxyType({}),
) -> Sequence[int]:
    """Return positions of the rows that the source's rule keeps, ascending.

    `first` takes the first ones, `random` draws without replacement; a study declares others.
    """
    count = len(rows) if source.samples is None else min(source.samples, len(rows))
    if source.sampling == "first":
        return list(range(count))
    if source.sampling == "random":
        return sorted(draw.choice(len(rows), count, replace=False).tolist())
    if source.sampling not in samplers:
        raise ConfigError(
            f"{source.path}: there is no sampling rule {source.sampling!r}"
            f"{nearest(source.sampling, ['first', 'random', *samplers])}"
        )
    return samplers[source.sampling](rows, source, draw)


def extra_columns(sentences: Sequence[Sentence]) -> dict[str, pa.Array]:
    """Return the sources' columns, one value per sentence, under names that are free in `samples`.

    Numbers and texts stay what they are when the whole column is of one kind; anything else becomes text.
    """
    names = dict.fromkeys(name for sentence in sentences for name in sentence.extra)
    columns = {}
    for name in names:
        values = [sentence.extra.get(name) for sentence in sentences]
        columns[_free_name(name, names)] = _column_of(values)
    return columns


def _free_name(name: str, names: Collection[str]) -> str:
    """Return a column's name, behind `source_` where `samples` has it, twice where the source has that."""
    if name not in RESERVED:
        return name
    free = f"source_{name}"
    while free in names:
        free = f"source_{free}"
    return free


def _column_of(values: Sequence[Any]) -> pa.Array:
    """Return numbers, flags or texts as they are; values of several kinds, or beyond 64 bits, as JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or kinds <= {bool} or kinds <= {str}:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, OverflowError):
            pass  # an integer of more than 64 bits, or beside fractions one of more than 53
    return pa.array(
        [
            value if value is None or isinstance(value, str) else json.dumps(value, default=str)
            for value in values
        ]
    )
