# SPDX-License-Identifier: MIT
"""The heads that have a sink: sums over texts while units run, and the verdict on every head at the end.

A short text has too few keys for a test. So the sums of the test are stored for every unit of texts
by labels that keys share (place from the start, place from the end, token) and tested together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnscope.metrics.information.sink_test import (
    LABELS,
    TIMES_UNIFORM,
    SinkTest,
    pooled_sinks,
    sink_test,
)
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.statistics.sink_heads import heads_with_sinks
from attnscope.studies.attention_sinks.comparisons import checkpoints
from attnscope.studies.attention_sinks.layer_rows import States
from attnscope.studies.attention_sinks.lazy_rows import LazyStates
from attnscope.study_api.forward import Batch
from attnscope.study_api.selection import where
from attnscope.study_api.stage_run import StageRun

#: Longer texts are tested by themselves: their sums would outgrow the other tables.
POOLED_BELOW = 256
_SUMS = ("mass", "expected", "variance", "uniform", "queries")


class SinkSums:
    """The sums of one unit of texts."""

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self._parts: list[pd.DataFrame] = []
        self._texts: dict[int, tuple[str, list[str]]] = {}
        self._repeated = {text.sentence.sample for text in run.unit.inputs if text.is_repeated}

    def add(self, states: States | LazyStates, number: int, batch: Batch) -> None:
        """Take one layer of a batch."""
        short = [
            place
            for place, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True))
            if n < POOLED_BELOW and sample not in self._repeated
        ]
        if not short:
            return
        test = _test_of_texts(states, short, len(batch.lengths))
        samples = [batch.samples[place] for place in short]
        self._texts |= {
            batch.samples[place]: (batch.groups[place], list(batch.tokens[place])) for place in short
        }
        # sums of single keys; below they are added over texts in the order of the texts
        text, head, key = (part.numpy() for part in test.eligible.nonzero().unbind(-1))
        sums = {name: getattr(test, name).numpy()[text, head, key] for name in (*_SUMS, "largest")}
        keys_of_sums = {
            "layer": number,
            "head": np.asarray(states.names)[head],
            "sample": np.asarray(samples)[text],
        }
        self._parts.append(pd.DataFrame({**keys_of_sums, "key": key, **sums}))

    def write(self) -> None:
        """Write the rows of the unit to `sink_sums`."""
        sums_of_keys = pd.concat(self._parts) if self._parts else pd.DataFrame()
        if sums_of_keys.empty:
            return
        sums_of_keys = sums_of_keys.sort_values(["layer", "head", "sample", "key"], kind="stable")
        sizes = {sample: len(tokens) for sample, (_, tokens) in self._texts.items()}
        groups = {sample: group for sample, (group, _) in self._texts.items()}
        pairs = list(zip(sums_of_keys["sample"], sums_of_keys["key"], strict=True))
        labels = {
            "start": sums_of_keys["key"].astype(str),
            "end": (sums_of_keys["key"] - sums_of_keys["sample"].map(sizes)).astype(str),
            "token": [self._texts[sample][1][key] for sample, key in pairs],
        }
        sums_of_keys["group"] = sums_of_keys["sample"].map(groups)
        for kind, label in labels.items():
            labelled = sums_of_keys.assign(label=np.asarray(label, dtype=object))
            keys = ["group", "layer", "head", "label"]
            # a token's occurrences in one text are one
            added = _added(labelled, [*keys, "sample"])
            added["texts"] = 1
            added["above"] = (added["mass"] > TIMES_UNIFORM * added["uniform"]).astype(np.int64)
            rows = _added(added, keys)
            columns: dict[str, Any] = {str(name): rows[name] for name in rows}
            self.run.write("sink_sums", label_kind=kind, first_sample=min(self._texts), **columns)


def _test_of_texts(states: States | LazyStates, texts: Sequence[int], count: int) -> SinkTest:
    """Return the test of the heads of some of `count` texts."""
    if isinstance(states, LazyStates):
        attention: Any = states.attention
        return sink_test(attention if len(texts) == count else attention.select_texts(texts))
    maps, lengths, support = states.heads, states.lengths, states.support
    if len(texts) < count:
        maps, lengths = maps[texts], lengths[texts]
        support = support[texts] if getattr(support, "ndim", 0) == 4 else support
    return sink_test(maps, support=support, lengths=lengths[:, None])


def _added(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    how = {name: "sum" for name in (*_SUMS, "texts", "above") if name in rows} | {"largest": "max"}
    return rows.groupby([*keys], as_index=False, sort=True).agg(how)


@dataclass(frozen=True)
class HeadSinks:
    """The test's results for the heads of a checkpoint in the texts of a group.

    Attributes:
        group: of texts, "all" of all of them.
        texts: rows of `samples`.
        positions: int64 [texts, layers, heads], -1 without a sink.
        untested: bool, likewise.
        exists: bool [layers, heads], False for a head that its layer does not have.
        pooled: (place of the layer, place of the head) -> row of the strongest common sink.
    """

    keys: Mapping[str, Any]
    group: str
    layers: list[int]
    heads: list[int]
    texts: pd.DataFrame
    positions: np.ndarray[Any, Any]
    untested: np.ndarray[Any, Any]
    exists: np.ndarray[Any, Any]
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
    """Yield keys of every checkpoint, "all" texts and each group if there are several, and their rows.

    The rows are those of `samples`, and the numbers, a column for each number, layer and head.
    """
    samples = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group", "tokens", "n_tokens", "causal"])
    head_rows = results.table("heads", [*HEAD_KEYS, *numbers])
    for keys, rows_of_checkpoint in checkpoints(where(head_rows, protocol=protocol)):
        samples_of_checkpoint = where(samples, **keys).set_index("sample")
        groups = sorted(samples_of_checkpoint["group"].unique())
        for group in ["all", *(groups if len(groups) > 1 else [])]:
            texts = samples_of_checkpoint if group == "all" else where(samples_of_checkpoint, group=group)
            rows = where(rows_of_checkpoint, sample=texts.index)
            if rows.empty:  # every text of the group is one of an earlier group
                continue
            wide = rows.pivot(index="sample", columns=["layer", "head"], values=list(numbers))
            wide = wide.sort_index(axis=0).sort_index(axis=1)
            yield keys, group, texts.loc[wide.index], wide


def every_head(wide: pd.DataFrame, number: str) -> pd.DataFrame:
    """Return a number of `by_group` by layer and head, NaN for the heads that a layer does not have.

    A model may have fewer heads in some layers.
    """
    values = pd.DataFrame(wide[number])
    axes = [np.unique(values.columns.get_level_values(name)) for name in ("layer", "head")]
    columns = pd.MultiIndex.from_product(axes, names=["layer", "head"])
    of_all_heads: pd.DataFrame = values.reindex(columns=columns)
    return of_all_heads


def classify_heads(results: Results) -> Iterator[HeadSinks]:
    """Yield the heads of every checkpoint, in all texts and in each group where there are several."""
    has_sums = "sink_sums" in results.tables()
    sums = results.table("sink_sums") if has_sums else pd.DataFrame(columns=[*CHECKPOINT_KEYS, "group"])
    numbers = ["sink_position", "sink_count"]
    for keys, group, texts, wide in by_group(results, "exact", numbers):
        ours = where(sums, **keys) if len(sums) else sums
        ours = ours if group == "all" else where(ours, group=group)
        stored_heads = wide[numbers[0]].columns
        places, counts = (every_head(wide, name) for name in numbers)
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
            places.columns.isin(stored_heads).reshape(shape[1:]),
            _strongest_by_head(ours, short, layers, heads),
        )


def _strongest_by_head(
    sums: pd.DataFrame, texts: int, layers: Sequence[int], heads: Sequence[int]
) -> dict[tuple[int, int], Mapping[Hashable, Any]]:
    """Return each head's strongest sink common to the texts: by position, otherwise by token."""
    strongest: dict[tuple[int, int], Mapping[Hashable, Any]] = {}
    for kind in LABELS if texts and len(sums) else ():
        sums_of_kind = where(sums, label_kind=kind)
        tested = (
            pooled_sinks(sums_of_kind, texts=texts, by=["layer", "head"])
            if len(sums_of_kind)
            else pd.DataFrame()
        )
        if tested.empty:
            continue
        best = tested[tested["sink"]].sort_values("mean", ascending=False, kind="stable")
        for row in best.drop_duplicates(["layer", "head"]).to_dict("records"):
            at = layers.index(row["layer"]), heads.index(row["head"])
            strongest.setdefault(at, {**row, "label_kind": kind})
    return strongest


def sink_heads(judged: Sequence[HeadSinks]) -> list[dict[str, Any]]:
    """Return the rows of `sink_heads`: the verdict on each head, and the sink that its texts have in
    common.
    """
    rows: list[dict[str, Any]] = []
    for verdict in judged:
        have, could = heads_with_sinks(verdict.positions, verdict.untested, verdict.labels)
        for at_layer, at_head in np.argwhere(verdict.exists).tolist():
            has = have[at_layer, at_head]
            positions, row = (
                verdict.positions[:, at_layer, at_head],
                verdict.pooled.get((at_layer, at_head), {}),
            )
            rows.append(
                {
                    **verdict.keys,
                    "group": verdict.group,
                    "layer": verdict.layers[at_layer],
                    "head": verdict.heads[at_head],
                    "has_sink": bool(has) if could[at_layer, at_head] else None,
                    "texts_tested": int((~verdict.untested[:, at_layer, at_head]).sum()),
                    "texts_with_sink": int((positions >= 0).sum()),
                    "pooled_by": row.get("label_kind"),
                    "pooled_label": row.get("label"),
                    **{f"pooled_{name}": row.get(name) for name in ("mean", "uniform", "excess")},
                }
            )
    return rows
