# SPDX-License-Identifier: MIT
"""Which heads have a sink: sums over texts on the way, and the verdict on every head at the end.

A short text says too little by itself. So the sums that the test rests on are stored for every unit of texts
by what keys have in common (place from the start, place from the end, token) and judged together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnscope.engine.forward import Batch
from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.engine.stage_run import StageRun
from attnscope.inference.sink_heads import heads_with_sinks
from attnscope.metrics.information.sink_test import LABELS, TIMES_UNIFORM, pooled_sinks, sink_test
from attnscope.studies.attention_sinks.columns import States
from attnscope.studies.attention_sinks.comparisons import checkpoints

#: Longer texts are judged by themselves alone: their sums would outgrow the other tables.
POOLED_BELOW = 256
_SUMS = ("mass", "expected", "variance", "uniform", "queries")


class SinkSums:
    """The sums of one unit of texts."""

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self._parts: list[pd.DataFrame] = []
        self._texts: dict[int, tuple[str, list[str]]] = {}

    def add(self, states: States, number: int, batch: Batch) -> None:
        """Take one layer of a batch."""
        short = [place for place, n in enumerate(batch.lengths) if n < POOLED_BELOW]
        if not short:
            return
        maps, lengths = states.heads, states.lengths
        support = states.support
        if len(short) < len(batch.lengths):
            maps, lengths = maps[short], lengths[short]
            support = support[short] if getattr(support, "ndim", 0) == 4 else support
        found = sink_test(maps, support=support, lengths=lengths[:, None])
        samples = [batch.samples[place] for place in short]
        self._texts |= {
            batch.samples[place]: (batch.groups[place], list(batch.tokens[place])) for place in short
        }
        # of every key by itself: what is added over texts is added in the order of the texts below
        text, head, key = (part.numpy() for part in found.eligible.nonzero().unbind(-1))
        sums = {name: getattr(found, name).numpy()[text, head, key] for name in (*_SUMS, "largest")}
        about = {"layer": number, "head": np.asarray(states.names)[head], "sample": np.asarray(samples)[text]}
        self._parts.append(pd.DataFrame({**about, "key": key, **sums}))

    def write(self) -> None:
        """Write the rows of the unit to `sink_sums`."""
        every = pd.concat(self._parts) if self._parts else pd.DataFrame()
        if every.empty:
            return
        every = every.sort_values(["layer", "head", "sample", "key"], kind="stable")
        sizes = {sample: len(tokens) for sample, (_, tokens) in self._texts.items()}
        groups = {sample: group for sample, (group, _) in self._texts.items()}
        pairs = list(zip(every["sample"], every["key"], strict=True))
        labels = {
            "start": every["key"].astype(str),
            "end": (every["key"] - every["sample"].map(sizes)).astype(str),
            "token": [self._texts[sample][1][key] for sample, key in pairs],
        }
        every["group"] = every["sample"].map(groups)
        for kind, label in labels.items():
            own = every.assign(label=np.asarray(label, dtype=object))
            keys = ["group", "layer", "head", "label"]
            # a token's occurrences in one text are one
            added = _added(own, [*keys, "sample"])
            added["texts"] = 1
            added["above"] = (added["mass"] > TIMES_UNIFORM * added["uniform"]).astype(np.int64)
            rows = _added(added, keys)
            columns: dict[str, Any] = {str(name): rows[name] for name in rows}
            self.run.write("sink_sums", label_kind=kind, first_sample=min(self._texts), **columns)


def _added(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    how = {name: "sum" for name in (*_SUMS, "texts", "above") if name in rows} | {"largest": "max"}
    return rows.groupby([*keys], as_index=False, sort=True).agg(how)


@dataclass(frozen=True)
class HeadSinks:
    """What the test says of the heads of a checkpoint in the texts of a group.

    Attributes:
        group: of texts, "all" of all of them.
        texts: rows of `samples`.
        positions: int64 [texts, layers, heads], -1 without a sink.
        untested: bool, likewise.
        pooled: (place of the layer, place of the head) -> row of the strongest common sink.
    """

    keys: Mapping[str, Any]
    group: str
    layers: list[int]
    heads: list[int]
    texts: pd.DataFrame
    positions: np.ndarray[Any, Any]
    untested: np.ndarray[Any, Any]
    pooled: Mapping[tuple[int, int], Mapping[Hashable, Any]]

    @property
    def labels(self) -> dict[tuple[int, int], int | None]:
        """The place of each pooled sink, None of one that is pooled by token."""
        return {
            at: None if row["label_kind"] == "token" else int(row["label"]) for at, row in self.pooled.items()
        }


def by_group(
    results: Results, protocol: str, numbers: Sequence[str]
) -> Iterator[tuple[dict[str, Any], str, pd.DataFrame, pd.DataFrame]]:
    """Keys of every checkpoint, "all" texts and each group where there are several, and what belongs to them.

    That are their rows of `samples`, and their numbers, a column for each number, layer and head.
    """
    samples = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group", "tokens", "n_tokens", "causal"])
    every = results.table("heads", [*HEAD_KEYS, *numbers])
    for keys, own in checkpoints(every[every["protocol"] == protocol]):
        here = samples[(samples[list(keys)] == list(keys.values())).all(axis=1)].set_index("sample")
        groups = sorted(here["group"].unique())
        for group in ["all", *(groups if len(groups) > 1 else [])]:
            texts = here if group == "all" else here[here["group"] == group]
            rows = own[own["sample"].isin(texts.index)]
            wide = rows.pivot(index="sample", columns=["layer", "head"], values=list(numbers))
            wide = wide.sort_index(axis=0).sort_index(axis=1)
            yield keys, group, texts.loc[wide.index], wide


def judged(results: Results) -> Iterator[HeadSinks]:
    """Yield the heads of every checkpoint, in all texts and in each group where there are several."""
    there = "sink_sums" in results.tables()
    sums = results.table("sink_sums") if there else pd.DataFrame(columns=[*CHECKPOINT_KEYS, "group"])
    numbers = ["sink_position", "sink_count"]
    for keys, group, texts, wide in by_group(results, "exact", numbers):
        ours = sums[(sums[list(keys)] == list(keys.values())).all(axis=1)] if len(sums) else sums
        ours = ours if group == "all" else ours[ours["group"] == group]
        places, counts = (wide[name] for name in numbers)
        layers, heads = (sorted(places.columns.unique(level=name)) for name in ("layer", "head"))
        shape = (len(wide), len(layers), len(heads))
        short = int((texts["n_tokens"] < POOLED_BELOW).sum())
        yield HeadSinks(
            keys,
            group,
            layers,
            heads,
            texts,
            places.fillna(-1).to_numpy(np.int64).reshape(shape),
            counts.isna().to_numpy().reshape(shape),
            _strongest(ours, short, layers, heads),
        )


def _strongest(
    sums: pd.DataFrame, texts: int, layers: Sequence[int], heads: Sequence[int]
) -> dict[tuple[int, int], Mapping[Hashable, Any]]:
    """Of every head the sink that texts have in common: the strongest by place, or else by token."""
    found: dict[tuple[int, int], Mapping[Hashable, Any]] = {}
    for kind in LABELS if texts and len(sums) else ():
        own = sums[sums["label_kind"] == kind]
        found_there = pooled_sinks(own, texts=texts, by=["layer", "head"]) if len(own) else pd.DataFrame()
        if found_there.empty:
            continue
        best = found_there[found_there["sink"]].sort_values("mean", ascending=False, kind="stable")
        for row in best.drop_duplicates(["layer", "head"]).to_dict("records"):
            at = layers.index(row["layer"]), heads.index(row["head"])
            found.setdefault(at, {**row, "label_kind": kind})
    return found


def sink_heads(judged: Sequence[HeadSinks]) -> list[dict[str, Any]]:
    """Rows of `sink_heads`: whether each head has a sink, and the one that texts have in common."""
    made: list[dict[str, Any]] = []
    for one in judged:
        have, could = heads_with_sinks(one.positions, one.untested, one.labels)
        for (at_layer, at_head), has in np.ndenumerate(have):
            own, row = one.positions[:, at_layer, at_head], one.pooled.get((at_layer, at_head), {})
            made.append(
                {
                    **one.keys,
                    "group": one.group,
                    "layer": one.layers[at_layer],
                    "head": one.heads[at_head],
                    "has_sink": bool(has) if could[at_layer, at_head] else None,
                    "texts_tested": int((~one.untested[:, at_layer, at_head]).sum()),
                    "texts_with_sink": int((own >= 0).sum()),
                    "pooled_by": row.get("label_kind"),
                    "pooled_label": row.get("label"),
                    **{f"pooled_{name}": row.get(name) for name in ("mean", "uniform", "excess")},
                }
            )
    return made
