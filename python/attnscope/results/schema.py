# SPDX-License-Identifier: MIT
"""Layout of stored tables: the names that the engine gives, and errors of readers.

Keys are declared by studies and are in the metadata of each file. This module needs nothing but Python until
a table is at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope._nearest import nearest
from attnscope.errors import DocumentError, MissingError, ResultsError
from attnscope.untrusted.documents import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

#: Keys that say which weights a row belongs to.
CHECKPOINT_KEYS = ("model", "revision", "step")
#: Keys of a number per map; without "head" those of a number per layer.
HEAD_KEYS = (*CHECKPOINT_KEYS, "sample", "layer", "head", "protocol")
#: Keys of a table of controls, behind those of its own.
VARIANT_KEYS = ("variant", "seed", "scope")
#: Keys that say which quantity a row holds; there is no mean over them.
QUANTITY_KEYS = ("protocol", "metric", "quantity", "measure", "statistic")
#: What `layer` counts in tables of hidden states.
STATES = {"layer": "Behind which the states stand; −1: those that enter layer 0."}
#: Columns that are keys wherever a table does not say which of its columns are.
AXES = (
    *CHECKPOINT_KEYS,
    *("base_revision", "base_step", "sample", "group", "layer", "head", "protocol", "threshold"),
    *VARIANT_KEYS,
)
#: States of a folder, in its provenance, in which nothing is to be done: of a run, and of saved results.
FINISHED, SAVED = "finished", "saved"
#: Types of the entries of a provenance that a later process reads; those it lacks are left out.
_ENTRIES: dict[str, type] = {
    "machines": dict,
    "models": dict,
    "measured_on": dict,
    "packages": dict,
    "skipped": list,
    "tables": dict,
    "left_out": dict,
    "shard": str,
}
#: What pandas notes of a table whose rows have no labels.
_NO_INDEX: dict[str, Any] = {"index_columns": [], "column_indexes": [], "pandas_version": "2.0.0"}


def head_means_of(table: str) -> str:
    """Return the name of the table that holds the same numbers of each layer's mean over its heads.

    >>> head_means_of("heads"), head_means_of("graphs")
    ('head_means', 'head_mean_graphs')
    """
    return "head_means" if table == "heads" else f"head_mean_{table}"


def variants_of(table: str) -> str:
    """Return the name of the table that holds the rows of controls.

    >>> variants_of("heads")
    'heads_variants'
    """
    return f"{table}_variants"


def check_columns(table: str, columns: Sequence[str], present: Iterable[str]) -> None:
    """Raise MissingError if a column is missing."""
    names = list(present)
    for column in columns:
        if column not in names:
            raise MissingError(f"no column {column!r} in table {table!r}{nearest(str(column), names)}")


def column_list(function: str, argument: str, columns: Any) -> list[str] | None:
    """Return columns as a list, whatever lists them; a single text is a single name, and None stays None.

    An iterator is read once: who checks its names first would find none left.

    >>> column_list("table", "columns", "entropy"), column_list("table", "columns", iter(["a", "b"]))
    (['entropy'], ['a', 'b'])
    """
    if columns is None or isinstance(columns, str):
        return None if columns is None else [columns]
    if not isinstance(columns, Iterable):
        raise TypeError(f"{function}: {argument} must be a list of names, got {columns!r:.60}")
    return list(columns)


def table_metadata(schema: pa.Schema) -> dict[str, Any]:
    """Return what the file of a table says of it: its name, version and keys; {} where it says nothing.

    Raises:
        ResultsError: the metadata are damaged.
    """
    text = (schema.metadata or {}).get(b"attnscope_table", b"{}")
    try:
        facts = parse_json(text.decode())
        keys = facts.get("keys", ())
        if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise TypeError("a key is no text")
    except (ValueError, TypeError, AttributeError) as error:
        raise ResultsError(f"the keys in a table's metadata cannot be read: {text!r:.80}") from error
    return dict(facts)


def keys_in(schema: pa.Schema) -> list[str]:
    """Return the key columns that a table's metadata name; else the `AXES` among its columns."""
    keys = table_metadata(schema).get("keys", AXES)
    return [key for key in dict.fromkeys(keys) if key in schema.names]


def check_provenance(facts: Any) -> None:
    """Raise DocumentError where an entry of a provenance is of another type than this package writes."""
    if not isinstance(facts, dict):
        raise DocumentError(f"expected an object, got {type(facts).__name__}")
    for name, kind in _ENTRIES.items():
        if name in facts and not isinstance(facts[name], kind):
            raise DocumentError(f"{name!r} must be a {kind.__name__}, got {facts[name]!r:.60}")
    for name in ("machines", "measured_on", "models", "tables"):
        for key, entry in facts.get(name, {}).items():
            if not isinstance(entry, dict):
                raise DocumentError(f"{name!r}: {key!r:.60} must be a dict, got {entry!r:.60}")
    for entry in facts.get("skipped", ()):
        if not isinstance(entry, dict) or {type(entry.get(key)) for key in ("checkpoint", "reason")} != {str}:
            raise DocumentError(f"'skipped' must name checkpoints and reasons, got {entry!r:.60}")


def newer_version(facts: Mapping[str, Any]) -> str:
    """Return the version of attnscope that a provenance names, where columns may mean other things than here
    because it is a later one than this; "" of others. Versions that differ in the third number alone read
    each other's tables.

    >>> newer_version({"attnscope": "1000.0.1"}), newer_version({"attnscope": "0.0.9"}), newer_version({})
    ('1000.0.1', '', '')
    """
    from attnscope import __version__

    stored = str(facts.get("attnscope") or "")
    written, installed = (re.match(r"(\d{1,9})\.(\d{1,9})", version) for version in (stored, __version__))
    is_later = written and installed and [*map(int, written.groups())] > [*map(int, installed.groups())]
    return stored[:40] if is_later else ""


def without_empty(column: Any) -> Any:
    """Return an Arrow column of texts with null where a text is "", any other as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def with_keys(table: pa.Table, name: str, keys: Sequence[str]) -> pa.Table:
    """Return the table with what it says of itself, its keys among it, as its only metadata."""
    metadata = table.schema.metadata or {}
    table_facts = {key: text for key, text in metadata.items() if key.startswith(b"attnscope_")}
    if keys and b"attnscope_table" not in table_facts:
        table_facts[b"attnscope_table"] = json.dumps({"name": name, "version": 1, "keys": [*keys]}).encode()
    columns = zip(table.column_names, table.columns, strict=True)
    table_facts |= pandas_note(table.schema, [name for name, column in columns if column.null_count])
    return table.replace_schema_metadata(table_facts)


def nullable_type(kind: pa.DataType) -> str:
    """Return the name of pandas' type of whole numbers or truth values of which some are missing; "" of
    others.
    """
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return "boolean"
    if not pa.types.is_integer(kind):
        return ""
    return "UInt64" if kind == pa.uint64() else "Int64"  # 2⁶³ and more is no Int64


def pandas_note(schema: pa.Schema, with_missing: Iterable[str]) -> dict[bytes, bytes]:
    """Return metadata of a table by which `pandas.read_parquet` reads whole numbers and truth values, some of
    them missing, as `Results.table` does; it makes floats and objects of them otherwise.

    Args:
        schema: of the table.
        with_missing: columns that hold a null.
    """
    columns = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": str(schema.field(name).type),
            "numpy_type": nullable_type(schema.field(name).type),
            "metadata": None,
        }
        for name in with_missing
        if nullable_type(schema.field(name).type)
    ]
    return {b"pandas": json.dumps({**_NO_INDEX, "columns": columns}).encode()} if columns else {}
