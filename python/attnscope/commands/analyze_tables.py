# SPDX-License-Identifier: MIT
"""Where the quantities of `analyze` stand: per map, per layer, per threshold, per query, key or rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from attnscope.engine.forward import Batch
from attnscope.engine.schema import HEAD_KEYS
from attnscope.engine.tables import Rows, Table
from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.measure import Measured
from attnscope.metrics.plan import THRESHOLDS, levels
from attnscope.metrics.quantity import Quantity

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = {
    "heads": HEAD_KEYS,
    "graphs": (*HEAD_KEYS, "threshold"),
    "vectors": (*HEAD_KEYS, "index"),
    "bars": (*HEAD_KEYS, "dimension", "birth", "death"),
    "layers": tuple(key for key in HEAD_KEYS if key != "head"),
}


class Column(NamedTuple):
    """A quantity, and what its numbers are called here."""

    name: str
    quantity: Quantity


class Tables:
    """Rows of the tables of one call under constant key columns; those of head means have their own."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self._rows: dict[str, Rows] = {}

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Adds rows; single values are repeated."""
        declared = Table(table, _KEYS[table], None)
        if table != "layers" and "head" not in columns:
            declared = declared.head_means()
        rows = self._rows.setdefault(declared.name, Rows(declared, "analyze", self._constants))
        rows.add(**columns)

    def finish(self) -> dict[str, pa.Table]:
        """Every table that has rows."""
        return {name: rows.arrow() for name, rows in self._rows.items()}


def table_of(one: Quantity) -> str:
    """The table with a row for every number of a quantity, "" where there is none."""
    if one.scope == "layer":
        return "" if one.axes else "layers"
    if one.scope != "map" or len(one.axes) > 1:
        return ""
    return {(): "heads", ("threshold",): "graphs"}.get(one.axes, "vectors")


def place(
    columns: Sequence[Column],
    measured: Measured,
    batch: Batch,
    number: int,
    names: Sequence[int] | None,
    rows: Tables,
) -> None:
    """Puts what was measured of the maps of a layer into tables; those of its head mean have no names."""
    count, heads = len(batch.samples), 1 if names is None else len(names)
    lengths = np.repeat(batch.lengths, heads)
    keys = {
        "sample": np.repeat(batch.samples, heads),
        "layer": np.full(count * heads, number),
        **({} if names is None else {"head": np.tile(names, count)}),
        "protocol": np.full(count * heads, "exact", dtype=object),
    }
    for name, barcodes in measured.results.items():
        assert name == "persistence"
        rows.add("bars", bar_columns(barcodes, keys))
    parts: dict[str, _Parts] = {"heads": {}, "layers": {}, "graphs": {}, "vectors": {}}
    for name, one in columns:
        if one not in measured.values:
            continue
        values = masked(measured.values[one], measured.defined[one])
        if one.kind == "position" and name.endswith("_position") and not one.axes:
            texts = np.array(batch.tokens_at(values), dtype=object)[:, None]
            parts["heads"][name.removesuffix("position") + "token"] = ([0], texts)
        flat = values.reshape(-1, *values.shape[1 if one.scope == "layer" else 2 :])
        at: list[Any] = [0]
        if one.axes == ("threshold",):
            at = _listed(one.options.get("thresholds", THRESHOLDS))
        elif one.axes:
            at = list(range(flat.shape[1]))
        parts[table_of(one)][name] = (at, flat.reshape(len(flat), -1))
    if parts["heads"]:
        rows.add("heads", {**keys, "n_tokens": lengths, **_flat(parts["heads"])})
    if parts["layers"]:
        own = {"sample": list(batch.samples), "layer": number, "protocol": "exact"}
        rows.add("layers", {**own, "n_tokens": list(batch.lengths), **_flat(parts["layers"])})
    if graphs := parts["graphs"]:
        thresholds, whole = _side_by_side(graphs)
        spread = {key: np.repeat(own, len(thresholds)) for key, own in keys.items()}
        each = np.concatenate([levels(thresholds, n) for n in lengths])
        rows.add("graphs", {**spread, "threshold": each, **whole})
    if vectors := parts["vectors"]:
        places, whole = _side_by_side(vectors)
        spread = {key: np.repeat(own, len(places)) for key, own in keys.items()}
        n = measured.size
        # entries behind a short sentence's end belong to nothing; other axes are as long as they are
        sizes = {flat.shape[1] for _, flat in vectors.values()}
        ends = np.maximum(lengths if n in sizes else 0, max(sizes - {n}, default=0))
        inside = (np.arange(len(places)) < np.broadcast_to(ends, lengths.shape)[:, None]).ravel()
        whole = {**spread, "index": np.tile(places, count * heads), **whole}
        rows.add("vectors", {key: own[inside] for key, own in whole.items()})


def masked(values: Tensor, defined: Tensor) -> np.ma.MaskedArray[Any, Any]:
    """Numbers as `Rows` takes them, masked where there is none."""
    return np.ma.MaskedArray(values.numpy(), ~defined.numpy())


def _listed(thresholds: Any) -> list[float | str]:
    if isinstance(thresholds, str):
        return [thresholds]
    if isinstance(thresholds, Tensor):
        return list(thresholds.flatten().tolist())
    return list(np.asarray(thresholds, dtype=object).ravel().tolist())


# By column: what stands along the last axis, and the values [maps, that many].
_Parts = dict[str, tuple[Sequence[Any], np.ndarray[Any, Any]]]


def _flat(parts: _Parts) -> dict[str, np.ndarray[Any, Any]]:
    return {name: flat.ravel() for name, (_, flat) in parts.items()}


def _side_by_side(parts: _Parts) -> tuple[list[Any], dict[str, Any]]:
    """All that stands along the last axes, and the columns over it, flat; what a column lacks is absent."""
    places = list(dict.fromkeys(at for own, _ in parts.values() for at in own))
    columns = {}
    for column, (own, values) in parts.items():
        nothing = np.zeros((len(values), len(places)), values.dtype)
        whole = np.ma.MaskedArray(nothing, mask=True)
        whole[:, [places.index(at) for at in own]] = values
        columns[column] = whole.ravel()
    return places, columns
