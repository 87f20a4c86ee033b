# SPDX-License-Identifier: MIT
"""What stored tables look like: key columns, the schema's version, and the way from older versions.

This module needs nothing but Python until a table is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1

CHECKPOINT_KEYS = ("model", "revision", "step")
HEAD_KEYS = (*CHECKPOINT_KEYS, "sample", "layer", "head", "protocol")

#: Key columns of every table of a run, in order; measured columns stand after them.
KEYS: dict[str, tuple[str, ...]] = {
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
    "nulls": (*CHECKPOINT_KEYS, "sample", "kind", "protocol", "scope", "metric", "threshold"),
    "baselines": ("n_tokens", "metric", "kind", "threshold"),
}

#: MIGRATIONS[v] takes a table of schema version v to version v + 1: (table name, Arrow table) -> Arrow table.
MIGRATIONS: dict[int, Callable[[str, pa.Table], pa.Table]] = {}


class ResultsError(ValueError):
    """Stored results cannot be read, or do not hold what was asked of them."""


class MissingError(KeyError):
    """No table, column or metric of this name; the message carries the nearest right one."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def stamped(table: pa.Table) -> pa.Table:
    """The table with the schema version and what it says of itself as its only metadata, byte for byte."""
    own = {key: text for key, text in (table.schema.metadata or {}).items() if key.startswith(b"attnscope_")}
    return table.replace_schema_metadata({**own, b"attnscope_schema": str(SCHEMA_VERSION).encode()})


def migrated(name: str, table: pa.Table, version: int) -> pa.Table:
    """Brings a table from its schema version to the present one, one step at a time.

    Args:
        name: the table's name.
        table: as it was stored.
        version: the schema version it was stored with.

    Raises:
        ResultsError: the version is newer than this package, or no path leads on from it.
    """
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"table {name!r} has schema version {version}; this attnscope reads up to {SCHEMA_VERSION}: "
            "install a newer attnscope"
        )
    for step in range(version, SCHEMA_VERSION):
        if step not in MIGRATIONS:
            raise ResultsError(
                f"table {name!r} has schema version {version}; no migration from version {step}"
            )
        table = MIGRATIONS[step](name, table)
    return table
