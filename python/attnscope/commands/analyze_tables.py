# SPDX-License-Identifier: MIT
"""Where the quantities of `analyze` stand: per map, per layer, per threshold, per query, key or rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.engine.forward import Batch
from attnscope.engine.recipe import UnitRows, bar_columns
from attnscope.metrics.measure import Measured
from attnscope.metrics.plan import THRESHOLDS
from attnscope.metrics.quantity import Quantity


class Column(NamedTuple):
    """A quantity, and what its numbers are called here."""

    name: str
    quantity: Quantity


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
    names: Sequence[int],
    rows: UnitRows,
) -> None:
    """Puts what was measured of the maps of a layer into tables."""
    count, heads = len(batch.samples), len(names)
    lengths = np.repeat(batch.lengths, heads)
    keys = {
        "sample": np.repeat(batch.samples, heads),
        "layer": np.full(count * heads, number),
        "head": np.tile(names, count),
        "protocol": np.full(count * heads, "exact", dtype=object),
    }
    for name, barcodes in measured.results.items():
        assert name == "persistence"
        rows.add("bars", bar_columns(barcodes, keys))
    parts: dict[str, _Parts] = {"heads": {}, "layers": {}, "graphs": {}, "vectors": {}}
    for name, one in columns:
        if one not in measured.values:
            continue
        values = filled(measured.values[one], measured.defined[one])
        if one.kind == "position" and name.endswith("_position") and not one.axes:
            texts = _tokens_at(values, batch.tokens)
            parts["heads"][name.removesuffix("position") + "token"] = ([0], texts)
        flat = values.flatten(0, 0 if one.scope == "layer" else 1).numpy()
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
        levels, whole = _side_by_side(graphs)
        each = [
            [float(one.partition("/")[0]) / length if isinstance(one, str) else float(one) for one in levels]
            for length in lengths
        ]
        spread = {key: np.repeat(own, len(levels)) for key, own in keys.items()}
        rows.add("graphs", {**spread, "threshold": np.concatenate(each), **whole})
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


def filled(values: Tensor, defined: Tensor) -> Tensor:
    """Numbers as `Rows` takes them: −1 for a count or position, False for a flag that is not defined."""
    if values.dtype.is_floating_point:
        return values
    return values & defined if values.dtype == torch.bool else torch.where(defined, values, -1)


def _tokens_at(positions: Tensor, tokens: Sequence[Sequence[str]]) -> np.ndarray[Any, Any]:
    """The token at each position of [batch, maps], "" where there is none, [batch * maps, 1]."""
    texts = [
        own[at] if at >= 0 else "" for own, row in zip(tokens, positions.tolist(), strict=True) for at in row
    ]
    return np.array(texts, dtype=object)[:, None]


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


def _side_by_side(parts: _Parts) -> tuple[list[Any], dict[str, np.ndarray[Any, Any]]]:
    """All that stands along the last axes, and the columns over it, flat; what a column lacks is absent."""
    places = list(dict.fromkeys(at for own, _ in parts.values() for at in own))
    columns = {}
    for column, (own, values) in parts.items():
        whole = absent(values, len(values) * len(places)).reshape(len(values), len(places))
        whole[:, [places.index(at) for at in own]] = values
        columns[column] = whole.ravel()
    return places, columns


def absent(like: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """What stands where a column has no value: NaN, −1 or False by its kind."""
    nothing: Any = {"f": np.nan, "i": -1, "b": False}[like.dtype.kind]
    return np.full(count, nothing, dtype=like.dtype)
