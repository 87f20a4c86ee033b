# SPDX-License-Identifier: MIT
"""Tables of runs that an older attnscope stored, brought to the present schema while they are read.

Schema 1 kept head means as rows of head −1, controls as rows of a table `nulls`, and said "no value" by −1,
"" and False. In schema 2 head means are tables of their own, controls stand in `NAME_variants`, and what has
no value is null. A stored table can so become several: `names_in` says which without reading their rows.
The first tables `baselines` of either schema say what uniform attention is among in the name of its kind; of
schema 2 a few columns had the name of another quantity, and some said "no value" by "" or −1. Sinks of
the exact protocol were those of the frequency rule, and those of the test stood in columns of their own.

Example:
    >>> import pyarrow as pa
    >>> from attnscope.engine.migration import migrated
    >>> old = pa.table({"sample": [0, 0], "layer": [0, 0], "head": [-1, 0], "sink_count": [-1, 2]})
    >>> {name: table.to_pydict() for name, table in migrated("heads", old, 1).items()}["head_means"]
    {'sample': [0], 'layer': [0], 'sink_count': [None]}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.engine.schema import (
    CHECKPOINT_KEYS,
    HEAD_KEYS,
    SCHEMA_VERSION,
    VARIANT_KEYS,
    head_means_of,
    keys_in,
    stamped,
    table_metadata,
    variants_of,
    without_empty,
)
from attnscope.errors import ResultsError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Keys of the tables of schema 1, whose first files do not say them.
_KEYS_1 = {
    "samples": (*CHECKPOINT_KEYS, "sample"),
    "heads": HEAD_KEYS,
    "graphs": (*HEAD_KEYS, "threshold"),
    "layers": (*CHECKPOINT_KEYS, "sample", "layer", "protocol"),
    "bars": (*HEAD_KEYS, "dimension", "birth", "death"),
    "examples": HEAD_KEYS,
    "frames": (*CHECKPOINT_KEYS, "group", "protocol"),
    "frame_evidence": (*CHECKPOINT_KEYS, "group", "protocol", "kind", "third"),
    "specialization": (*CHECKPOINT_KEYS, "layer", "head", "protocol"),
    "layer_tests": (*CHECKPOINT_KEYS, "metric", "layer", "other_layer", "protocol"),
    "removal_tests": (*CHECKPOINT_KEYS, "layer", "percentile", "protocol"),
    "null_tests": (*CHECKPOINT_KEYS, "kind", "metric", "scope", "protocol"),
    "graph_depth": (*CHECKPOINT_KEYS, "protocol", "threshold"),
    "fisher": (*CHECKPOINT_KEYS, "sample", "layer", "group", "protocol"),
    "ablation": (*CHECKPOINT_KEYS, "sample", "keys"),
    "emergence": ("model", "group", "layer", "head", "protocol", "metric"),
    "spectra": (*CHECKPOINT_KEYS, "sample", "layer", "protocol", "frequency"),
    "signals": HEAD_KEYS,
    "scale_sensitivity": (*HEAD_KEYS, "fraction"),
    "harmonics": (*CHECKPOINT_KEYS, "layer", "input", "pair", "protocol"),
    "uncertainty": (*CHECKPOINT_KEYS, "sample", "protocol"),
    "phases": (*CHECKPOINT_KEYS, "metric"),
    "baselines": ("n_tokens", "metric", "kind", "support", "threshold"),
}
#: Whose kind said what uniform attention is among, and the other controls by their names.
_UNIFORM_1 = "uniform_"
_NULL_KEYS_1 = ("sample", "kind", "protocol", "scope", "metric", "threshold", "value")
#: Numbers of a thresholded graph that schema 1 called as those of the map, and what they are called.
_OF_GRAPHS = {"fiedler_value": "graph_fiedler_value", "laplacian_gap": "graph_laplacian_gap"}
#: Columns that had the name of another quantity, by table, and their names.
_RENAMED = {table: {"entropy": "prediction_entropy"} for table in ("words", "versions", "lens")}
#: Columns of schema 2 that said "none" by "", where they are no keys, and positions that said it by −1.
_ONCE_EMPTY = (
    *("answer", "correction", "fold", "held_out_mode", "mode", "note", "pair", "reason", "statistic"),
    *("token_frame", "word"),
)
_ONCE_NEGATIVE = ("partner", "start", "stop")
#: Tables of schema 1 in which −1, "" and False were never written for want of a value.
_WHOLE_1 = ("samples", "baselines")


def migrated(name: str, table: pa.Table, version: int) -> dict[str, pa.Table]:
    """The tables that a stored one is in the present schema, by name."""
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"table {name!r} has schema version {version}; this attnscope reads up to {SCHEMA_VERSION}: "
            "install a newer attnscope"
        )
    tables = {name: _with_supports(table) if _lacks_supports(name, table.schema) else table}
    if _has_renamed(name, table.schema):
        tables = {name: _with_names(table, _RENAMED[name])}
    if _has_two_rules(table.schema):
        tables = {name: _with_sinks_by_test(table)}
    for step in range(version, SCHEMA_VERSION):
        if step not in MIGRATIONS:
            raise ResultsError(
                f"table {name!r} has schema version {version}; no migration from version {step}"
            )
        tables = {
            new: made for old, one in tables.items() for new, made in MIGRATIONS[step](old, one).items()
        }
    return tables


def names_in(file: Path) -> list[str]:
    """Names of the tables that a stored file holds in the present schema.

    Args:
        file: Parquet; of one that cannot be read, the name alone.
    """
    about = file.stat()
    return list(_names_in(file, about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=1024)
def _names_in(file: Path, changed: int, size: int) -> tuple[str, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = file.stem
    try:
        schema = pq.read_schema(file)
        if version_of(schema) != 1:
            return (name,)
        if set(_NULL_KEYS_1) <= set(schema.names):
            columns = pq.read_table(file, columns=["scope", "threshold"]).to_pandas()
            return tuple(sorted({variants_of(one) for one in _measured_by(columns)}))
        if _of_maps(schema.names):
            heads = pq.read_table(file, columns=["head"])["head"]
            return (name, head_means_of(name)) if _holds(heads, -1) else (name,)
    except (pa.ArrowException, OSError, ResultsError):
        pass
    return (name,)


def is_present(name: str, schema: pa.Schema) -> bool:
    """Whether a stored table is as one that is written today."""
    current = version_of(schema) == SCHEMA_VERSION
    older = _lacks_supports(name, schema) or _has_renamed(name, schema) or _has_two_rules(schema)
    return current and not older


def without_placeholders(table: pa.Table) -> pa.Table:
    """Rows of the present schema with null where the first files of it have "" or −1 for want of a value.

    What was of all layers from 1 on had layer −1, and has the first of them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = keys_in(table.schema)
    for place, field in enumerate(table.schema):
        column, kind = table.column(place), (field.metadata or {}).get(b"kind", b"")
        if field.name in keys:
            continue
        if kind == b"text" and field.name in _ONCE_EMPTY:
            table = table.set_column(place, field, without_empty(column))
        elif kind == b"position" and field.name in _ONCE_NEGATIVE:
            none = pc.less(column, 0)
            table = table.set_column(place, field, pc.if_else(none, pa.scalar(None, field.type), column))
    if {"scope", "layer"} <= set(keys):
        layer = pc.if_else(
            pc.equal(table["scope"], "from_1"), pc.max_element_wise(table["layer"], 1), table["layer"]
        )
        table = table.set_column(table.column_names.index("layer"), table.schema.field("layer"), layer)
    return table


def version_of(schema: pa.Schema) -> int:
    """The schema version in a table's metadata; tables without one are of the first."""
    text = (schema.metadata or {}).get(b"attnscope_schema", b"1")
    if not text.isdigit() or len(text) > 9:
        raise ResultsError(f"the schema version in a table's metadata is no number: {text!r:.80}")
    return int(text)


def _has_two_rules(schema: pa.Schema) -> bool:
    """Return True if sinks by the test stand in columns of their own."""
    return "sink_count_test" in schema.names or "sink_position_test" in schema.names


def _with_sinks_by_test(table: pa.Table) -> pa.Table:
    """Return the table with the exact protocol's sinks by the test, and their number by frequency apart.

    Rows of published protocols keep theirs. A token that is not that of the sink is none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    of_test = pc.equal(table["protocol"], "exact")
    old = {name: table[name] for name in ("sink_count", "sink_position") if name in table.column_names}
    for name, before in old.items():
        tested = f"{name}_test"
        if tested not in table.column_names:
            continue
        field = table.schema.field(name)
        now = pc.if_else(of_test, table[tested].cast(field.type), before)
        table = table.set_column(table.column_names.index(name), field, now).drop_columns([tested])
    if "sink_count" in old:
        field = table.schema.field("sink_count").with_name("sink_count_frequency")
        none = pa.scalar(None, field.type)
        table = table.append_column(field, pc.if_else(of_test, old["sink_count"], none))
    if {"sink_position", "sink_token"} <= set(table.column_names):
        field, none = table.schema.field("sink_token"), pa.scalar(None, table.schema.field("sink_token").type)
        there = pc.fill_null(pc.equal(table["sink_position"], old["sink_position"]), False)
        kept = pc.if_else(there, table["sink_token"], none)
        table = table.set_column(table.column_names.index("sink_token"), field, kept)
    return table


def _from_1(name: str, table: pa.Table) -> dict[str, pa.Table]:
    """Schema 1 to 2."""
    import pyarrow.compute as pc

    if set(_NULL_KEYS_1) <= set(table.column_names):
        return _variants(table)
    about = table_metadata(table.schema)
    named = about.get("keys", _KEYS_1.get(name, ()))
    keys = [key for key in named if key in table.column_names]
    if "threshold" in keys:
        table = _of_graphs(table)
    if name not in _WHOLE_1:
        table = _without_sentinels(table, keys)
    if not _of_maps(table.column_names) or not _holds(table["head"], -1):
        return {name: _with_keys(table, name, keys)}
    means = table.filter(pc.equal(table["head"], -1)).drop_columns(["head"])
    heads = table.filter(pc.greater_equal(table["head"], 0))
    whose = head_means_of(name)
    return {
        name: _with_keys(heads, name, keys),
        whose: _with_keys(means, whose, [key for key in keys if key != "head"]),
    }


def _lacks_supports(name: str, schema: pa.Schema) -> bool:
    return name == "baselines" and "kind" in schema.names and "support" not in schema.names


def _has_renamed(name: str, schema: pa.Schema) -> bool:
    return bool(set(_RENAMED.get(name, ())) & set(schema.names))


def _with_names(table: pa.Table, names: dict[str, str]) -> pa.Table:
    """Columns under their names, with all that they and the table say of themselves."""
    import pyarrow as pa

    fields = [one.with_name(names.get(one.name, one.name)) for one in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def _with_supports(table: pa.Table) -> pa.Table:
    """What uniform attention is among in a column of its own, beside the name of the control."""
    import pyarrow as pa

    kinds = [str(one) for one in table["kind"].to_pylist()]
    uniform = [one.startswith(_UNIFORM_1) for one in kinds]
    at = table.column_names.index("kind")
    names = ["uniform" if own else one for one, own in zip(kinds, uniform, strict=True)]
    supports = [one.removeprefix(_UNIFORM_1) if own else "" for one, own in zip(kinds, uniform, strict=True)]
    found = table.set_column(at, "kind", pa.array(names, pa.string()))
    found = found.add_column(at + 1, "support", pa.array(supports, pa.string()))
    own = dict(table.schema.metadata or {})
    if b"attnscope_table" in own:
        about = table_metadata(table.schema)
        keys = about.get("keys", ())
        about["keys"] = [new for key in keys for new in (("kind", "support") if key == "kind" else (key,))]
        own[b"attnscope_table"] = json.dumps(about).encode()
    return found.replace_schema_metadata(own)


def _of_graphs(table: pa.Table) -> pa.Table:
    """The numbers of thresholded graphs under their names: of columns, or of rows with a threshold."""
    import pyarrow.compute as pc

    if "metric" not in table.column_names:
        return table.rename_columns([_OF_GRAPHS.get(name, name) for name in table.column_names])
    metric, there = table["metric"], pc.is_finite(pc.fill_null(table["threshold"], float("nan")))
    for old, new in _OF_GRAPHS.items():
        metric = pc.if_else(pc.and_(there, pc.equal(metric, old)), new, metric)
    return table.set_column(table.column_names.index("metric"), "metric", metric)


def _of_maps(names: list[str]) -> bool:
    """Whether each row is of one map, so that head −1 is a head mean and not a summary."""
    return {"sample", "layer", "head"} <= set(names)


def _holds(column: Any, value: int) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(column, value)).as_py())


def _with_keys(table: pa.Table, name: str, keys: list[str]) -> pa.Table:
    """The table in the present schema, with the keys that its metadata name."""
    own = {key: text for key, text in (table.schema.metadata or {}).items() if key != b"attnscope_table"}
    return stamped(table.replace_schema_metadata(own), name, keys)


def _without_sentinels(table: pa.Table, keys: list[str]) -> pa.Table:
    """Null where schema 1 wrote −1, "", or False for a flag that a whole protocol does not have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if name in keys:
            continue
        kind, absent = column.type, None
        if pa.types.is_integer(kind):
            absent = pc.equal(column, -1)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            absent = pc.equal(column, "")
        elif pa.types.is_boolean(kind) and "protocol" in table.column_names:
            flags = pa.table({"flag": column, "protocol": table["protocol"]})
            each = flags.group_by("protocol").aggregate([("flag", "any")]).to_pylist()
            if any(one["flag_any"] for one in each):
                never = [one["protocol"] for one in each if not one["flag_any"]]
                absent = pc.is_in(table["protocol"], pa.array(never, table["protocol"].type))
        if absent is not None:
            table = table.set_column(
                place, table.schema.field(place), pc.if_else(absent, pa.scalar(None, kind), column)
            )
    return table


def _measured_by(nulls: pd.DataFrame) -> pd.Series[Any]:
    """The table that each row of `nulls` was averaged of."""
    import numpy as np
    import pandas as pd

    whose = np.where(nulls["scope"] == "layers", "layers", "heads")
    return pd.Series(np.where(nulls["threshold"].notna(), "graphs", whose), nulls.index)


def _variants(table: pa.Table) -> dict[str, pa.Table]:
    """The tables of controls that the rows of `nulls` are: a column for each metric."""
    import pyarrow as pa

    frame = _of_graphs(table).to_pandas().rename(columns={"kind": "variant"}).assign(seed=0)
    frame["table"] = _measured_by(frame)
    made = {}
    for whose, part in frame.groupby("table", sort=True):
        own = [*CHECKPOINT_KEYS, "sample", "protocol", *(["threshold"] if whose == "graphs" else [])]
        keys = [key for key in (*own, *VARIANT_KEYS) if key in part]
        wide = part.pivot(index=keys, columns="metric", values="value").reset_index()
        wide.columns.name = None
        name = variants_of(str(whose))
        made[name] = stamped(pa.Table.from_pandas(wide, preserve_index=False), name, keys)
    return made


#: MIGRATIONS[v] takes a table of schema version v to those of version v + 1 that it is there, by name.
MIGRATIONS: dict[int, Callable[[str, pa.Table], dict[str, pa.Table]]] = {1: _from_1}
