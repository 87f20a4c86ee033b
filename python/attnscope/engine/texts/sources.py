# SPDX-License-Identifier: MIT
"""Sentences of a study: read from files or data sets, chosen by a seeded rule, with their place of origin.

pandas reads CSV, and rows that it would fill up or take for an index are errors. JSONL is read by the
standard library: pandas makes 12776324570088369205 of the number 123456789012345678901, and names no line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nearest import nearest
from attnscope.engine.config import ConfigError, TextSource
from attnscope.engine.discovery import studies
from attnscope.engine.texts.wordnet import wordnet_rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns, and row groups, of a Parquet file that is opened; a hundred thousand take half a gigabyte.
MOST_PARQUET_COLUMNS = 100_000
#: Sentences that come with the package, of four fields, in the shape of a file of one's own.
SAMPLE = Path(__file__).with_name("sample.csv")
#: Column names taken when a table has several and none is asked for.
USUAL_COLUMNS = ("text", "sentence", "content", "token_ids")
#: Columns of the `samples` table that a source's own column must not overwrite.
RESERVED = (
    "model", "revision", "step", "sample", "group", "text", "tokens", "token_ids", "n_tokens", "truncated",
    "bos", "causal", "source", "source_row",
)  # fmt: skip
_LINE_ENDS = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Sentence:
    """One input: text, or token ids that are taken as they are, and where it comes from."""

    sample: int
    group: str
    text: str | None
    token_ids: tuple[int, ...] | None
    source: str
    source_row: int
    extra: dict[str, Any] = field(default_factory=dict)
    cut: bool = False


Row = tuple[int, Any, dict[str, Any]]
#: A rule by which texts are chosen: rows, their source, the seeded generator -> positions, ascending.
Sampler = Callable[[Sequence[Row], TextSource, np.random.Generator], Sequence[int]]


def read_sentences(
    sources: Sequence[TextSource], seed: int = 0, samplers: Mapping[str, Sampler] = MappingProxyType({})
) -> list[Sentence]:
    """Reads every source, applies its sampling rule and numbers the chosen sentences from 0.

    A source that is cut into windows is one text here, all its sentences joined. Each draws from its own
    stream.
    """
    chosen: list[Sentence] = []
    for position, source in enumerate(sources):
        rows = [row for row in _rows(source) if row[1]]
        if not rows:
            raise ConfigError(f"texts[{position}]: {source.path} holds no sentence")
        rows = _of_length(rows, source, f"texts[{position}]: {source.path}")
        if source.per == "window":
            chosen.append(_joined(rows, source, position))
            continue
        keep = choose(rows, source, np.random.default_rng([seed, position]), samplers)
        for row, content, extra in (rows[index] for index in keep):
            text, ids = (content, None) if isinstance(content, str) else (None, tuple(content))
            kept = text and text[: source.max_characters]
            number, cut = len(chosen), kept != text
            chosen.append(Sentence(number, source.group, kept, ids, origin(source), row, extra, cut))
    return chosen


def origin(source: TextSource) -> str:
    """A source as tables name it."""
    return Path(source.path).name if Path(source.path).exists() else source.path


def _joined(rows: Sequence[Row], source: TextSource, position: int) -> Sentence:
    """All sentences of a source as one text, a space between two; lists of token ids as one list."""
    texts = [content[: source.max_characters] for _, content, _ in rows if isinstance(content, str)]
    ids = None if texts else tuple(one for _, content, _ in rows for one in content)
    return Sentence(position, source.group, " ".join(texts) if texts else None, ids, origin(source), 0)


def words(content: Any) -> int:
    """Words of a text, tokens of a list of token ids."""
    return len(content.split()) if isinstance(content, str) else len(content)


def _of_length(rows: list[Row], source: TextSource, where: str) -> list[Row]:
    least, most = source.min_words, source.max_words
    if least is None and most is None:
        return rows
    kept = [row for row in rows if (least or 0) <= words(row[1]) <= (most or math.inf)]
    if not kept:
        lengths = sorted(words(row[1]) for row in rows)
        raise ConfigError(
            f"{where}: no sentence has {least or 0} to {most or 'any number of'} words; "
            f"its {len(rows)} sentences have {lengths[0]} to {lengths[-1]}"
        )
    return kept


def choose(
    rows: Sequence[Row],
    source: TextSource,
    draw: np.random.Generator,
    samplers: Mapping[str, Sampler] = MappingProxyType({}),
) -> Sequence[int]:
    """Positions of the rows that the source's rule keeps, ascending.

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


def _rows(source: TextSource) -> Iterator[Row]:
    path = Path(source.path)
    if source.path.startswith("builtin:"):
        return _builtin(source)
    if source.path == "sample" and not path.exists():
        return _read_csv(SAMPLE, source)
    readers = {".txt": _read_txt, ".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix.lower() in readers:
        if not path.is_file():
            about = f", {source.about}" if source.about else ""
            raise ConfigError(
                f"texts: there is no file {path}{about}; --set texts.path=FILE says where it is, and "
                "--texts sample takes sentences that come with the package"
            )
        return readers[path.suffix.lower()](path, source)
    if path.is_file():
        raise ConfigError(f"texts: {path}: the ending says what a file is; known: {', '.join(readers)}")
    return _read_datasets(source)


def _decoded(path: Path, encoding: str) -> str:
    """The file's text; another encoding is named by place, never replaced by question marks."""
    data = path.read_bytes()
    if encoding.lower().replace("-", "") == "utf8":
        encoding = "utf-8-sig"
    try:
        return str(data.decode(encoding))
    except LookupError:
        raise ConfigError(f"texts: {path}: unknown encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        guess = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        raise ConfigError(
            f"texts: {path} is not {encoding.replace('-sig', '')}: byte 0x{data[error.start]:02x} "
            f"at line {line}; say its encoding, for example --set texts.encoding={guess}"
        ) from None


def _read_txt(path: Path, source: TextSource) -> Iterator[Row]:
    if source.column:
        raise ConfigError(f"texts: {path} has no columns, {source.column!r} was asked for")
    lines = _LINE_ENDS.split(_decoded(path, source.encoding))
    if source.per == "paragraph":
        for filled, block in groupby(enumerate(lines), lambda pair: bool(pair[1].strip())):
            if filled:
                numbers, paragraph = zip(*block, strict=True)
                yield numbers[0], " ".join(line.strip() for line in paragraph), {}
        return
    for number, line in enumerate(lines):
        yield number, line.strip(), {}


def looks_wrapped(source: TextSource) -> bool:
    """Whether a text file read line by line has the shape of prose: blocks of lines, blank between."""
    path = Path(source.path)
    if path.suffix.lower() != ".txt" or source.per != "line" or not path.is_file():
        return False
    lines = _LINE_ENDS.split(_decoded(path, source.encoding).strip())
    blank = sum(not line.strip() for line in lines)
    broken = sum(
        bool(above.strip() and below[:1].islower()) and above.rstrip()[-1:] not in ".!?"
        for above, below in pairwise(lines)
    )
    return blank > 0 and broken > 0


def _read_csv(path: Path, source: TextSource) -> Iterator[Row]:
    import pandas as pd

    text = _decoded(path, source.encoding)
    limit = csv.field_size_limit(max(len(text), 131072))
    # "NA" is a text, and only what a row lacks is missing; rows that are too long are no index, but an error
    strict: dict[str, Any] = {"dtype": str, "keep_default_na": False, "index_col": False, "engine": "python"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(io.StringIO(text, newline=""), skip_blank_lines=False, **strict)
    except (ValueError, pd.errors.ParserWarning) as error:
        raise ConfigError(f"texts: {path}: {error}") from error
    finally:
        csv.field_size_limit(limit)
    column = _column(source, [*table], path)
    missing = table.isna().sum(axis=1).tolist()
    for number, (cells, lacks) in enumerate(zip(table.to_dict("records"), missing, strict=True)):
        if 0 < lacks < len(cells):
            raise ConfigError(
                f"texts: {path}, row {number + 1}: {len(cells) - lacks} fields, the header names {len(cells)}"
            )
        if not lacks:
            yield number, str(cells.pop(column)).strip(), {str(name): cell for name, cell in cells.items()}


def _read_jsonl(path: Path, source: TextSource) -> Iterator[Row]:
    column = ""
    # str.splitlines would also cut at U+2028 and other marks that JSON allows inside a text
    for number, line in enumerate(_decoded(path, source.encoding).split("\n")):
        if not line.strip():
            continue
        where = f"texts: {path}, line {number + 1}"
        try:
            cells = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error
        if not isinstance(cells, dict):
            raise ConfigError(f"{where}: expected an object, got a {type(cells).__name__}")
        column = column or _column(source, list(cells), path)
        if column not in cells:
            raise ConfigError(f"{where}: no key {column!r}{nearest(column, cells)}")
        yield number, _content(cells.pop(column), where, column), cells


def _read_parquet(path: Path, source: TextSource) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Each column costs kilobytes as soon as the file is opened.
        file = pq.ParquetFile(path, thrift_container_size_limit=MOST_PARQUET_COLUMNS)
        column = _column(source, file.schema_arrow.names, path)
        rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
        yield from _of_cells(rows, column, path)
    except (pa.ArrowInvalid, OSError) as error:
        many = f"it describes more than {MOST_PARQUET_COLUMNS:,} columns or row groups"
        why = many if "size limit" in str(error) else error
        raise ConfigError(f"texts: {path} is not a readable Parquet file: {why}") from error


def _read_datasets(source: TextSource) -> Iterator[Row]:
    path = Path(source.path)
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        what = "is a folder" if path.is_dir() else "is no file"
        raise ConfigError(
            f"texts: {source.path} {what}; as a data set it needs the package `datasets` of PyPI"
        ) from None
    try:
        if any((path / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
            table = datasets.load_from_disk(str(path))
        else:
            table = datasets.load_dataset(source.path, source.subset or None, split=source.split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(f"texts: there is no file {source.path}, and as a data set: {error}") from error
    if isinstance(table, dict):
        if source.split not in table:
            raise ConfigError(f"texts: {path} has no split {source.split!r}{nearest(source.split, table)}")
        table = table[source.split]
    yield from _of_cells(table, _column(source, list(table.column_names), path), path)


def _of_cells(rows: Iterable[Mapping[str, Any]], column: str, path: Path) -> Iterator[Row]:
    """Rows whose cells bear the names of their columns."""
    for number, row in enumerate(rows):
        cells = dict(row)
        yield number, _content(cells.pop(column), f"texts: {path}, row {number}", column), cells


def _builtin(source: TextSource) -> Iterator[Row]:
    """Text on this machine: Python's manual, WordNet's examples, the prompts that a study comes with."""
    prompts = {f"builtin:{one.name}": one.path / "prompts" / f"{one.name}.csv" for one in studies().values()}
    readers: dict[str, Callable[[], Iterator[Row]]] = {
        "builtin:pydoc": _read_pydoc,
        "builtin:sample": lambda: _read_csv(SAMPLE, source),
        "builtin:wordnet": wordnet_rows,
        **{name: partial(_read_csv, file, source) for name, file in prompts.items() if file.is_file()},
    }
    if source.path not in readers:
        raise ConfigError(f"texts: {source.path!r} is not built in{nearest(source.path, readers)}")
    return readers[source.path]()


def _read_pydoc() -> Iterator[Row]:
    """Sentences of the Python manual: text that every Python carries."""
    from pydoc_data.topics import topics

    number = 0
    for topic in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            # indented paragraphs are code and grammar
            if paragraph.startswith((" ", "*", "-", "+", "|")):
                continue
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                if 6 <= len(sentence.split()) <= 50 and sentence.endswith((".", "!", "?")):
                    yield number, sentence, {"topic": topic}
                    number += 1


def _column(source: TextSource, names: list[str], path: Path) -> str:
    if source.column:
        if source.column not in names:
            raise ConfigError(f"texts: no column {source.column!r} in {path}{nearest(source.column, names)}")
        return source.column
    found = names if len(names) == 1 else [name for name in USUAL_COLUMNS if name in names]
    if not found:
        raise ConfigError(f"texts: {path}: which column? there are: {', '.join(names[:20]) or 'none'}")
    return found[0]


def _content(value: Any, where: str, column: str) -> str | list[int]:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return value
    raise ConfigError(f"{where}: {column!r} must be a text or a list of token ids, got {value!r:.60}")


def extra_columns(sentences: Sequence[Sentence]) -> dict[str, pa.Array]:
    """The sources' own columns, one value per sentence, under names that are free in the `samples` table.

    Numbers and texts stay what they are when the whole column is of one kind; anything else becomes text.
    """
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys(name for sentence in sentences for name in sentence.extra):
        values = [sentence.extra.get(name) for sentence in sentences]
        kinds = {type(value) for value in values if value is not None}
        if not (kinds <= {int, float} or kinds <= {bool}):
            values = [
                value if value is None or isinstance(value, str) else json.dumps(value, default=str)
                for value in values
            ]
        columns[f"source_{name}" if name in RESERVED else name] = pa.array(values)
    return columns
