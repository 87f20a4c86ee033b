# SPDX-License-Identifier: MIT
r"""Rows of text files and data sets, read one after the other, so that a reader may stop early.

pandas reads CSV, and rows that it would fill up or take for an index are errors. JSONL is read by the
standard library: pandas makes 12776324570088369205 of the number 123456789012345678901, and names no line.
No file is in memory as a whole; `attnscope.untrusted.limits` bounds a row.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.config.run_config import TextSource
    >>> from attnscope.texts.readers import read_rows
    >>> file = Path(tempfile.mkdtemp()) / "texts.jsonl"
    >>> _ = file.write_text('{"text": "the cat", "kind": "a"}\n')
    >>> next(read_rows(TextSource(path=file)))
    (0, 'the cat', {'kind': 'a'})
"""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._nearest import nearest
from attnscope.config.memory_texts import is_sentence
from attnscope.config.run_config import TextSource
from attnscope.config.study_folders import studies
from attnscope.errors import ConfigError, DocumentError
from attnscope.texts.wordnet import wordnet_rows
from attnscope.untrusted.documents import parse_json
from attnscope.untrusted.limits import MAX_PARQUET_COLUMNS, MAX_ROW_CHARACTERS
from attnscope.untrusted.safe_text import list_names

if TYPE_CHECKING:
    from attnscope.texts.sentence import Row

#: Sentences that come with the package, of four fields, in the shape of a user's file.
SAMPLE = Path(__file__).with_name("sample.csv")
#: Column names taken when a table has several and none is asked for.
USUAL_COLUMNS = ("text", "sentence", "content", "token_ids")
#: Rows of CSV and Parquet that are in memory at a time.
_ROWS_AT_A_TIME = 1024
#: Lines that are looked at to tell prose from lists.
_LINES_EXAMINED = 10_000


def read_rows(source: TextSource, *, extras: bool = True) -> Iterator[Row]:
    """Give the rows of a source one after the other: number, content, other columns; empty ones too.

    Args:
        extras: False leaves the other columns out where that saves reading them.
    """
    path = Path(source.path)
    if source.rows is not None:
        return _of_cells(source.rows, _column(source, [*dict.fromkeys(chain(*source.rows))], path), path)
    if source.path.startswith("builtin:"):
        return _builtin(source)
    if source.path == "sample" and not path.exists():
        return _read_csv(SAMPLE, source)
    readers = {".txt": _read_txt, ".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix.lower() in readers:
        if not path.is_file():
            hint = f", {source.about}" if source.about else ""
            raise ConfigError(
                f"texts: there is no file {path}{hint}; --set texts.path=FILE says where it is, and "
                "--texts sample takes sentences that come with the package"
            )
        if path.suffix.lower() == ".parquet":
            return _read_parquet(path, source, extras)
        return readers[path.suffix.lower()](path, source)
    if path.is_file():
        raise ConfigError(f"texts: {path}: the ending says what a file is; known: {', '.join(readers)}")
    if is_sentence(source.path):
        raise ConfigError(
            f"texts: there is no file {source.path!r:.80}, and the name of a data set holds no blank"
        )
    return _read_datasets(source)


def _lines(path: Path, encoding: str, newline: str | None = None) -> Iterator[str]:
    """Give the lines of a text file without their ends.

    Args:
        newline: as `open` takes it; None ends a line at any line end.

    Raises:
        ConfigError: another encoding, named by place and never replaced by question marks, or a line of more
            than `MAX_ROW_CHARACTERS`.
    """
    codec = _codec(encoding)
    try:
        with open(path, encoding=codec, newline=newline) as file:
            number = 0
            while line := file.readline(MAX_ROW_CHARACTERS + 1):
                number += 1
                if len(line) > MAX_ROW_CHARACTERS:
                    raise ConfigError(
                        f"texts: {path}, line {number}: more than {MAX_ROW_CHARACTERS:,} characters"
                    )
                yield line.removesuffix("\n")
    except LookupError:
        raise ConfigError(f"texts: {path}: unknown encoding {encoding!r}") from None
    except UnicodeDecodeError:
        raise _misencoded(path, encoding) from None


def _codec(encoding: str) -> str:
    """Return the name of a codec, for UTF-8 the one that drops a byte order mark."""
    return "utf-8-sig" if encoding.lower().replace("-", "") == "utf8" else encoding


def _misencoded(path: Path, encoding: str) -> ConfigError:
    """Return an error that names the first byte that is not of an encoding, and its line."""
    decoder = codecs.getincrementaldecoder(_codec(encoding))()
    line, mark = 1, b""
    with open(path, "rb") as file:
        while True:
            block = file.read(1024**2)
            mark = mark or block[:2]
            pending = decoder.getstate()[0]
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                data = bytes(error.object)
                line += data[: error.start].count(b"\n") - pending.count(b"\n")
                guess = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
                return ConfigError(
                    f"texts: {path} is not {encoding}: byte 0x{data[error.start]:02x} "
                    f"at line {line}; say its encoding, for example --set texts.encoding={guess}"
                )
            if not block:
                return ConfigError(f"texts: {path} changed while it was read")
            line += block.count(b"\n")


def _read_txt(path: Path, source: TextSource) -> Iterator[Row]:
    if source.column:
        raise ConfigError(f"texts: {path} has no columns, {source.column!r} was asked for")
    lines = enumerate(_lines(path, source.encoding))
    if source.per != "paragraph":
        for number, line in lines:
            yield number, line.strip(), {}
        return
    parts: list[str] = []
    first, size = 0, 0
    for number, line in lines:
        if line.strip():
            first = first if parts else number
            parts.append(line.strip())
            size += len(line)
            if size > MAX_ROW_CHARACTERS:
                where = f"texts: {path}, the paragraph at line {first + 1}"
                raise ConfigError(f"{where}: more than {MAX_ROW_CHARACTERS:,} characters")
        elif parts:
            yield first, " ".join(parts), {}
            parts, size = [], 0
    if parts:
        yield first, " ".join(parts), {}


def looks_wrapped(source: TextSource) -> bool:
    """Return True if a text file read line by line has the shape of prose: blocks of lines, blank between."""
    path = Path(source.path)
    if path.suffix.lower() != ".txt" or source.per != "line" or not path.is_file():
        return False
    lines = list(islice(_lines(path, source.encoding), _LINES_EXAMINED))
    while lines and not lines[-1].strip():
        lines.pop()
    start = next((place for place, line in enumerate(lines) if line.strip()), 0)
    lines = lines[start:]
    blank = sum(not line.strip() for line in lines)
    broken = sum(
        bool(above.strip() and below[:1].islower()) and above.rstrip()[-1:] not in ".!?"
        for above, below in pairwise(lines)
    )
    return blank > 0 and broken > 0


def _read_csv(path: Path, source: TextSource) -> Iterator[Row]:
    import pandas as pd

    # "NA" is a text, and only what a row lacks is missing; rows that are too long are no index, but an error
    strict: dict[str, Any] = {"dtype": str, "keep_default_na": False, "index_col": False, "engine": "python"}
    strict |= {"skip_blank_lines": False, "chunksize": _ROWS_AT_A_TIME}
    column, number = "", 0
    try:
        with open(path, encoding=_codec(source.encoding), newline="") as file:
            with _strict_csv():
                chunks = pd.read_csv(file, **strict)
            while True:
                with _strict_csv():
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                column = column or _column(source, [*chunk], path)
                missing = chunk.isna().sum(axis=1).tolist()
                for cells, lacks in zip(chunk.to_dict("records"), missing, strict=True):
                    if 0 < lacks < len(cells):
                        raise ConfigError(
                            f"texts: {path}, row {number + 1}: {len(cells) - lacks} fields, "
                            f"the header names {len(cells)}"
                        )
                    if not lacks:
                        text = str(cells.pop(column)).strip()
                        yield number, text, {str(name): cell for name, cell in cells.items()}
                    number += 1
    except ConfigError:
        raise
    except LookupError:
        raise ConfigError(f"texts: {path}: unknown encoding {source.encoding!r}") from None
    except UnicodeDecodeError:
        raise _misencoded(path, source.encoding) from None
    except (ValueError, pd.errors.ParserWarning) as error:
        raise ConfigError(f"texts: {path}: {error}") from error


@contextmanager
def _strict_csv() -> Iterator[None]:
    """Read long fields, and make what pandas warns of an error; only while pandas reads."""
    import pandas as pd

    limit = csv.field_size_limit(MAX_ROW_CHARACTERS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    finally:
        csv.field_size_limit(limit)


def _read_jsonl(path: Path, source: TextSource) -> Iterator[Row]:
    column = ""
    # str.splitlines would also cut at U+2028 and other marks that JSON allows inside a text
    for number, line in enumerate(_lines(path, source.encoding, "\n")):
        if not line.strip():
            continue
        where = f"texts: {path}, line {number + 1}"
        try:
            cells = parse_json(line)
        except DocumentError as error:
            raise ConfigError(f"{where} is not JSON: {str(error).removeprefix('not JSON: ')}") from error
        if not isinstance(cells, dict):
            raise ConfigError(f"{where}: expected an object, got a {type(cells).__name__}")
        column = column or _column(source, list(cells), path)
        if column not in cells:
            raise ConfigError(f"{where}: no key {column!r}{nearest(column, cells)}")
        yield number, _content(cells.pop(column), where, column), cells


def _read_parquet(path: Path, source: TextSource, extras: bool = True) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Each column costs kilobytes as soon as the file is opened.
        with pq.ParquetFile(path, thrift_container_size_limit=MAX_PARQUET_COLUMNS) as file:
            column = _column(source, file.schema_arrow.names, path)
            columns = None if extras else [column]
            batches = file.iter_batches(_ROWS_AT_A_TIME, columns=columns, use_threads=False)
            yield from _of_cells((row for batch in batches for row in batch.to_pylist()), column, path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        too_large = f"it describes more than {MAX_PARQUET_COLUMNS:,} columns or row groups"
        why = too_large if "size limit" in str(error) else error
        raise ConfigError(f"texts: {path} is not a readable Parquet file: {why}") from error


def _read_datasets(source: TextSource) -> Iterator[Row]:
    path = Path(source.path)
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        kind = "is a folder" if path.is_dir() else "is no file"
        raise ConfigError(
            f"texts: {source.path} {kind}; as a data set it needs the package `datasets` of PyPI"
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
    """Yield rows whose cells bear the names of their columns."""
    for number, row in enumerate(rows):
        cells = dict(row)
        yield number, _content(cells.pop(column), f"texts: {path}, row {number}", column), cells


def _builtin(source: TextSource) -> Iterator[Row]:
    """Return text on this machine: Python's manual, WordNet's examples, the prompts that a study comes
    with.
    """
    prompts = {
        f"builtin:{study.name}": study.path / "prompts" / f"{study.name}.csv" for study in studies().values()
    }
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
    """Yield sentences of the Python manual: text that every Python carries."""
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
    columns = names if len(names) == 1 else [name for name in USUAL_COLUMNS if name in names]
    if not columns:
        raise ConfigError(f"texts: {path}: which column? there are: {list_names(names)}")
    return columns[0]


def _content(value: Any, where: str, column: str) -> str | list[int]:
    if isinstance(value, str):
        refuse_surrogates(value, f"{where}: {column!r}")
        return value.strip()
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return value
    raise ConfigError(f"{where}: {column!r} must be a text or a list of token ids, got {value!r:.60}")


def refuse_surrogates(text: str, where: str) -> None:
    """Raise ConfigError for halves of surrogate pairs, which no tokenizer and no table takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where} holds half of a surrogate pair, U+{ord(text[error.start]):04X}, "
            f"at character {error.start + 1}"
        ) from None
