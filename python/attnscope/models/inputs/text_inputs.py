# SPDX-License-Identifier: MIT
"""The reader of what users hand over as texts, for every function that takes some.

A sentence, sentences, token ids, a column of pandas or of a data set, pairs, a conversation, or the mapping
that a tokenizer or a processor gives. Everything else is refused by its kind: a table's column names, or a
path, would be measured as texts without a word.

Example:
    >>> from attnscope.models.inputs.text_inputs import read_inputs
    >>> read_inputs("f", "a cat"), read_inputs("f", {"text": ["a cat", "a dog"], "label": [0, 1]})
    (['a cat'], ['a cat', 'a dog'])
    >>> read_inputs("f", [("a cat", "it sat")]), read_inputs("f", [[1, 2, 3]])
    ([Pair(first='a cat', second='it sat')], [[1, 2, 3]])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attnscope.models.inputs.forward_inputs import MAIN, ForwardInputs
from attnscope.untrusted.safe_text import list_names, show_name

#: Columns of a table that are texts, the first that it has.
TEXT_COLUMNS = ("text", "sentence", "content")
#: What errors call a table that came row by row.
_ROWS = "list of rows"


class Pair(NamedTuple):
    """A pair of texts that a model reads together."""

    first: str
    second: str


class Chat(NamedTuple):
    """A conversation: messages with a role and a content."""

    messages: list[Mapping[str, Any]]


#: A text, its token ids, two texts, a conversation, or the arguments of a forward pass.
Entry = str | list[int] | Pair | Chat | Mapping[str, Any]


def read_inputs(function: str, inputs: Any, column: str = "", name: str = "inputs") -> list[Entry]:
    """Return the entries of inputs of any kind.

    Args:
        function: whose name errors begin with.
        inputs: see the module.
        column: of a table; empty takes its column text, sentence or content, or its only column of texts.
        name: of the argument, for errors.

    Raises:
        ValueError: no entries, an existing file, a table without such a column, an entry of another kind.
        TypeError: an object of another kind.
    """
    entries = _entries(function, inputs, column, name)
    if not entries:
        raise ValueError(f"{function}: there are no inputs")
    return entries


def read_table(function: str, inputs: Any, column: str = "") -> tuple[str, dict[str, list[Any]]] | None:
    """Return the name of the column of texts and every column of a table; None for inputs of other kinds.

    Args:
        function: whose name errors begin with.
        inputs: see the module.
        column: as `read_inputs` takes it.

    Raises:
        ValueError: a table without such a column.
    """
    if isinstance(inputs, (list, tuple)) and inputs and all(_is_row(item) for item in inputs):
        table: Any = _columns_of_rows(inputs)
        kind = _ROWS
    elif _is_table(inputs):
        table, kind = inputs, type(inputs).__name__
    else:
        return None
    names = _column_names(table) or []
    if not column and "input_ids" in names:
        chosen = "input_ids"
    else:
        chosen = _text_column(function, table, names, kind, column)
    return chosen, {name: _values(function, table, name) for name in names}


def stream_ids(
    function: str, inputs: Any, tokenizer: Any = None, column: str = "", name: str = "texts"
) -> Iterator[list[int]]:
    """Yield the token ids of one text after the other; a generator is not read ahead.

    Args:
        function: whose name errors begin with.
        inputs: see the module.
        tokenizer: for texts, pairs and conversations.
        column: of a table, as `read_inputs` takes it.
        name: of the argument, for errors.

    Raises:
        ValueError: as `read_inputs`, a text without a tokenizer, a mapping of more than ids and their mask.
    """
    is_stream = isinstance(inputs, Iterator)
    entries = (
        (_entry(function, place, item) for place, item in enumerate(inputs))
        if is_stream
        else read_inputs(function, inputs, column, name)
    )
    for place, entry in enumerate(entries):
        if isinstance(entry, list):
            yield entry
        elif isinstance(entry, Mapping):
            group = ForwardInputs.of(function, entry)
            if not group.is_plain:
                further = sorted({*group.tensors, *group.others} - {"input_ids", "attention_mask"})
                raise ValueError(
                    f"{function}: input {place} holds {', '.join(further) or 'a mask with gaps'}; token ids "
                    "and their padding mask are read alone"
                )
            yield from group.ids or ()
        elif tokenizer is None:
            raise ValueError(f"{function}: input {place} is a text, which needs tokenizer=...")
        else:
            yield encode_text(function, entry, tokenizer, None)["input_ids"][0]


def _entries(function: str, inputs: Any, column: str, name: str) -> list[Entry]:
    if isinstance(inputs, (str, os.PathLike)):
        return [_text(function, name, inputs)]
    if _is_table(inputs):
        return _of_columns(function, inputs, column)
    if column:
        raise ValueError(f"{function}: column {column!r} goes with a table, got {type(inputs).__name__}")
    if isinstance(inputs, Mapping) or _is_encoding(inputs):
        mapping = dict(inputs.items())
        if "role" in mapping and "content" in mapping:
            return [Chat([mapping])]
        return [mapping]
    if isinstance(inputs, (Tensor, np.ndarray)):
        return _of_array(function, inputs)
    if isinstance(inputs, (bytes, bytearray)) or not isinstance(inputs, Iterable):
        raise ValueError(
            f"{function}: {name} must be sentences, token ids, a table with a column of texts, messages or "
            f"what a tokenizer gives, got {type(inputs).__name__}"
        )
    items = inputs.to_pylist() if hasattr(inputs, "to_pylist") else list(inputs)
    if items and all(_is_message(item) for item in items):
        return [Chat(items)]
    if items and all(_is_row(item) for item in items):
        return _of_columns(function, _columns_of_rows(items), column, _ROWS)
    return [_entry(function, place, item) for place, item in enumerate(items)]


def _entry(function: str, place: int, item: Any) -> Entry:
    name = f"input {place}"
    if isinstance(item, (str, os.PathLike)):
        return _text(function, name, item)
    if isinstance(item, Mapping) or _is_encoding(item):
        mapping = dict(item.items())
        if not set(MAIN) & set(mapping):
            raise ValueError(f"{function}: {name} is a mapping of {list_names(mapping)}, not of inputs")
        return mapping
    if isinstance(item, (Tensor, np.ndarray)) and item.ndim == 1 and _is_whole(item):
        return [int(token) for token in item.tolist()]
    if isinstance(item, Sequence):
        items = list(item)
        if len(items) == 2 and all(isinstance(part, str) for part in items):
            return Pair(*(_text(function, name, part) for part in items))
        if items and all(_is_message(part) for part in items):
            return Chat(items)
        if all(isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in items):
            return [int(part) for part in items]
    raise ValueError(
        f"{function}: {name} must be a sentence or a list of token ids, got {_shown(item)}; the ids of one "
        "text are [[1, 2, 3]]"
    )


def _shown(item: Any) -> str:
    words = repr(item)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _text(function: str, name: str, text: Any) -> str:
    """Return a text that has something to read in it and is no file."""
    if isinstance(text, os.PathLike):
        raise ValueError(f"{function}: {name} is a path, {os.fspath(text)!r}; read the file first")
    words: str = text
    if not words.strip():
        raise ValueError(f"{function}: {name} is an empty text: {words!r}")
    if len(words) < 256 and "\n" not in words and "\0" not in words and Path(words).is_file():
        raise ValueError(
            f"{function}: {name} is a path, {words!r}; read the file first, or attnscope run --texts"
        )
    return words


def _is_encoding(value: Any) -> bool:
    """Return True for what a tokenizer or a processor gives, which is a mapping by its manners."""
    return (
        hasattr(value, "items") and hasattr(value, "keys") and hasattr(value, "data") and not _is_table(value)
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _is_row(value: Any) -> bool:
    """Return True for a row of a table: names of columns with a value each."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) for key in value)
        and not set(MAIN) & set(value)
        and not _is_message(value)
    )


def _columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _is_whole(value: Any) -> bool:
    kind = str(value.dtype)
    return "int" in kind


def _is_table(value: Any) -> bool:
    """Return True for tables of pandas, pyarrow, polars and datasets, and for columns of texts by name.

    Tensors by name are the inputs of a model, whatever it calls them, and hold no texts.
    """
    if isinstance(value, Mapping):
        columns = [values for values in value.values() if not isinstance(values, Tensor)]
        plain = not set(MAIN) & set(value) and not _is_message(value)
        return plain and any(isinstance(values, (list, tuple)) or _is_series(values) for values in columns)
    return _column_names(value) is not None


def _column_names(value: Any) -> list[str] | None:
    """Return the names of a table's columns; None for other objects."""
    if isinstance(value, Mapping):
        return [str(name) for name in value]
    for name in ("column_names", "columns"):
        names = getattr(value, name, None)
        if names is None or callable(names) or isinstance(names, Mapping):
            continue
        listed = list(names)
        if all(isinstance(name, (str, int)) for name in listed):
            return [str(name) for name in listed]
    return None


def _is_series(value: Any) -> bool:
    return hasattr(value, "tolist") or hasattr(value, "to_list") or hasattr(value, "to_pylist")


def _values(function: str, table: Any, name: str) -> list[Any]:
    """Return the cells of a column."""
    column = table[name]
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _of_columns(function: str, table: Any, column: str, kind: str = "") -> list[Entry]:
    names = _column_names(table) or []
    kind = kind or type(table).__name__
    if column and column not in names:
        raise ValueError(f"{function}: the {kind} has no column {column!r}, only {list_names(names)}")
    if not column and "input_ids" in names:
        fields = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "bbox")
        return [{name: _values(function, table, name) for name in names if name in fields}]
    chosen = _text_column(function, table, names, kind, column)
    return [_cell(function, chosen, row, cell) for row, cell in enumerate(_values(function, table, chosen))]


def _text_column(function: str, table: Any, names: Sequence[str], kind: str, column: str) -> str:
    """Return the name of the column of texts."""
    chosen = column or next((name for name in TEXT_COLUMNS if name in names), "")
    if not chosen:
        texts = [
            name
            for name in names
            if (cells := _values(function, table, name)) and all(isinstance(cell, str) for cell in cells)
        ]
        if len(texts) != 1:
            raise ValueError(
                f"{function}: which column of the {kind} holds the texts? It has "
                f"{list_names(names)}; hand over that column alone"
            )
        chosen = texts[0]
    return chosen


def _cell(function: str, column: str, row: int, cell: Any) -> Entry:
    if isinstance(cell, str):
        if not cell.strip():
            where = f"row {row} of column {show_name(column)}"
            raise ValueError(f"{function}: {where} is an empty text: {cell!r}")
        return cell
    return _entry(function, row, cell)


def _of_array(function: str, array: Any) -> list[Entry]:
    if isinstance(array, np.ndarray) and array.dtype.kind in "UO":
        return [_entry(function, place, item) for place, item in enumerate(array.ravel().tolist())]
    if not _is_whole(array) or array.ndim not in (1, 2):
        raise ValueError(
            f"{function}: a tensor of inputs must hold token ids [tokens] or [texts, tokens], got shape "
            f"{tuple(array.shape)} of {array.dtype}"
        )
    rows = array if array.ndim == 2 else array[None]
    return [[int(token) for token in row.tolist()] for row in rows]


def encode_text(function: str, text: str | Pair | Chat, tokenizer: Any, limit: int | None) -> dict[str, Any]:
    """Return all that a tokenizer makes of a text, a pair or a conversation, as a batch of one.

    Args:
        function: whose name errors begin with.
        text: as `read_inputs` gives it.
        tokenizer: of transformers.
        limit: most tokens; None for no bound.
    """
    if isinstance(text, Chat):
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"{function}: {type(tokenizer).__name__} has no chat template for a conversation of "
                f"{len(text.messages)} messages"
            )
        ids = tokenizer.apply_chat_template(text.messages, tokenize=True, return_dict=False)
        return {"input_ids": [[int(token) for token in ids]]}
    texts = (text.first, text.second) if isinstance(text, Pair) else (text,)
    cut = {} if limit is None else {"truncation": True, "max_length": limit}
    return {name: [list(values)] for name, values in tokenizer(*texts, **cut).items()}
