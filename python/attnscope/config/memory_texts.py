# SPDX-License-Identifier: MIT
"""Texts of a study that are in memory: sentences, columns and tables, as rows that a run stores.

A run writes them to `inputs/NAME.jsonl` of its folder, where NAME holds a digest of the rows, so that the run
resumes from its folder alone, and the same texts are the same study.

Example:
    >>> from attnscope.config.memory_texts import text_sources
    >>> text_sources("sentences.txt", ()), text_sources(["a.csv", "b.csv"], ())
    (['sentences.txt'], ['a.csv', 'b.csv'])
    >>> text_sources(["A cat sat.", "It slept."], ())[0]["rows"]
    [{'text': 'A cat sat.'}, {'text': 'It slept.'}]
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

#: Folder of a run that stored texts are in.
INPUTS = "inputs"
#: Columns that tell a row of a table from the keys of a source.
_TEXT_COLUMNS = frozenset(("text", "sentence", "content", "token_ids", "input_ids"))
_ENDINGS = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".parquet")


def text_sources(value: object, keys: Collection[str]) -> object:
    """Return the sources of texts: files and data sets by their names, texts in memory as rows.

    Args:
        value: of the setting `texts`.
        keys: of a source.

    Raises:
        ValueError: a sentence where a file is expected, or an object that holds no texts.
    """
    if isinstance(value, BaseModel) or (isinstance(value, Mapping) and _names_source(value, keys)):
        return [value]
    if isinstance(value, str) and is_sentence(value):
        raise ValueError(
            f"there is no such file, got {value!r:.80}; sentences are a list, texts=[...], and a data set's "
            "name holds no blank"
        )
    if isinstance(value, (str, Path)):
        return [value]
    if isinstance(value, (list, tuple)):
        items = list(value)
        if all(isinstance(item, (str, Path, BaseModel)) or _names_source(item, keys) for item in items):
            return items if not any(is_sentence(item) for item in items) else [_of_sentences(items)]
    return [memory_source(value)]


def memory_source(texts: object, column: str = "") -> dict[str, Any]:
    """Return a source of texts in memory.

    Args:
        texts: as `analyze` takes them; sentences or token ids.
        column: of a table, the one that holds the texts.

    Raises:
        ValueError: pairs, conversations, pictures, or an object that holds no texts.
    """
    name, rows = _rows(texts, column)
    content = json.dumps(rows)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return {"path": f"texts-{digest}.jsonl", "column": name, "rows": json.loads(content)}


def as_source(value: object) -> object:
    """Return a source as a mapping with the key `path`; rows of any kind as `memory_source` has them."""
    if isinstance(value, (str, Path)):
        return {"path": str(value)}
    if isinstance(value, Mapping) and value.get("rows") is not None and "path" not in value:
        return {**value, **memory_source(value["rows"], str(value.get("column", "")))}
    return value


def is_sentence(value: object) -> bool:
    """Return True for a text with blanks that names no file, so that it can be no source's name.

    >>> is_sentence("A cat sat."), is_sentence("my file.csv"), is_sentence("wikitext")
    (True, False, False)
    """
    return isinstance(value, str) and len(value.split()) > 1 and not _is_place(value)


def json_lines(rows: Collection[Mapping[str, Any]]) -> bytes:
    """Return rows as a file of JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii")


def _is_place(text: str) -> bool:
    if text == "sample" or text.startswith("builtin:") or text.lower().endswith(_ENDINGS):
        return True
    try:
        return Path(text).exists()
    except OSError:  # longer than a name can be
        return False


def _names_source(value: object, keys: Collection[str]) -> bool:
    """Return True for a mapping of a source's keys, as opposed to columns or a row of a table."""
    if not isinstance(value, Mapping):
        return False
    if set(value) & {"path", "rows"}:
        return True
    is_row = bool(_TEXT_COLUMNS & set(value))
    is_columns = any(isinstance(cells, (list, tuple)) or hasattr(cells, "tolist") for cells in value.values())
    return not (is_row or (is_columns and not set(value) & set(keys)))


def _of_sentences(items: list[Any]) -> dict[str, Any]:
    for item in items:
        if not isinstance(item, str) or _is_place(item):
            sentence = next(text for text in items if is_sentence(text))
            name = item if isinstance(item, (str, Path)) else "a source"
            raise ValueError(
                f"files and sentences are separate sources, got {str(name)!r:.80} and {sentence!r:.80}; "
                "sentences next to files are {'rows': [...]}"
            )
    return memory_source(items)


def _rows(texts: object, column: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the column of texts, and the rows of a table with it."""
    from attnscope.models.inputs.text_inputs import read_inputs, read_table

    try:
        entries = read_inputs("texts", texts, column, "texts")
        table = read_table("texts", texts, column)
    except ValueError as error:
        reason = str(error).removeprefix("texts: ")
        kind = "" if "got " in reason else f", got a {type(texts).__name__}"
        raise ValueError(f"{reason}{kind}") from None
    contents = [content for place, entry in enumerate(entries) for content in _contents(place, entry)]
    name = "text" if all(isinstance(content, str) for content in contents) else "token_ids"
    if table is None or len(contents) != len(entries):
        return name, [{name: content} for content in contents]
    name, columns = table
    names = [other for other in columns if other != name]
    cells = [[_plain(cell) for cell in columns[other]] for other in names]
    extras = zip(*cells, strict=True) if cells else iter([()] * len(contents))
    return name, [
        {name: content, **dict(zip(names, row, strict=True))}
        for content, row in zip(contents, extras, strict=True)
    ]


def _contents(place: int, entry: Any) -> list[Any]:
    """Return an entry as texts or token ids.

    Raises:
        ValueError: an entry of another kind.
    """
    from attnscope.models.inputs.forward_inputs import ForwardInputs

    if isinstance(entry, (str, list)):
        return [entry]
    if isinstance(entry, Mapping) and "input_ids" in entry:
        group = ForwardInputs.of("texts", entry)
        if group.is_plain:
            return list(group.ids or ())
    kind = {"Pair": "a pair of texts", "Chat": "a conversation"}.get(type(entry).__name__, "other inputs")
    raise ValueError(f"a study reads sentences or lists of token ids, got {kind} at {place}")


def _plain(value: Any) -> Any:
    """Return a cell as JSON has it; what JSON has no word for as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return (
        {str(key): _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else str(value)
    )
