# SPDX-License-Identifier: MIT
"""Tables computed from the stored ones when every sentence is measured: verdicts, tests, emergence, nulls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from attnscope.protocols import ruscio2025
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.statistics.frames import Frames, classify_frames
from attnscope.statistics.sink_heads import frames_of_sinks
from attnscope.studies.attention_sinks import comparisons
from attnscope.studies.attention_sinks.sink_heads import (
    HeadSinks,
    by_group,
    classify_heads,
    every_head,
    sink_heads,
)
from attnscope.study_api.stage_run import StageRun

#: The verdict if no head has a sink.
_NO_FRAME = Frames("none", None, math.nan, math.nan, pd.DataFrame())
#: Place and number of a head's sinks by the test.
_BY_TEST = ("sink_position", "sink_count")

TABLES = (
    *("sink_heads", "frames", "frame_evidence", "specialization"),
    *("layer_tests", "removal_tests", "null_tests", "graph_depth", "emergence"),
)


def write_summaries(run: StageRun, metrics: Sequence[str], seed: int) -> None:
    """Write the tables that are computed from the others; all of them if no metric is named."""
    results, is_complete = of_distinct_texts(run.stored), not metrics
    stored_tables = set(results.tables())
    evidence: list[dict[str, Any]] = []
    rows_by_table: dict[str, list[dict[str, Any]]] = {}
    if "heads" in stored_tables and (is_complete or "classify_frames" in metrics):
        verdicts = list(classify_heads(results))
        rows_by_table["sink_heads"] = sink_heads(verdicts)
        rows_by_table["frames"] = frames(results, verdicts, seed, evidence)
        rows_by_table["frame_evidence"] = evidence
        rows_by_table["specialization"] = specialization(results)
    if is_complete:
        rows_by_table["layer_tests"] = comparisons.layer_tests(results)
        rows_by_table["emergence"] = comparisons.emergence(results, seed)
        rows_by_table["null_tests"] = comparisons.null_tests(results)
    if "layers" in stored_tables:
        rows_by_table["removal_tests"] = comparisons.removal_tests(results)
    if is_complete and "head_mean_graphs" in stored_tables:
        rows_by_table["graph_depth"] = graph_depth(results)
    for name, rows in rows_by_table.items():
        if rows:
            run.write(name, **{key: [row[key] for row in rows] for key in rows[0]})


def frames(
    results: Results, judged: Sequence[HeadSinks], seed: int, evidence: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows of `frames`, of heads that have a sink and as published; rows of their evidence are
    appended to `evidence`.
    """
    verdicts: list[dict[str, Any]] = []

    def text_arguments(texts: pd.DataFrame) -> dict[str, Any]:
        """Return the texts' arguments of a classification."""
        tokens = [list(text) for text in texts["tokens"]]
        causal = bool(texts["causal"].all())
        return {"lengths": texts["n_tokens"].tolist(), "causal": causal, "tokens": tokens, "seed": seed}

    def add(
        keys: dict[str, Any],
        texts: pd.DataFrame,
        positions: np.ndarray[Any, Any],
        verdict: Frames,
        **counts: Any,
    ) -> None:
        """Append one verdict over texts, with the most frequent of its positions [texts, ...]."""
        tokens = texts["tokens"].tolist()
        flat = [(int(at), tokens[text][int(at)]) for (text, *_), at in np.ndenumerate(positions) if at >= 0]
        place, place_share = _modal([position for position, _ in flat])
        token, token_share = _modal([token_text for _, token_text in flat])
        row = {
            **{name: getattr(verdict, name) for name in ("frame", "token_frame", "margin")},
            **{"probability": verdict.probability, "chance": verdict.chance},
            **{"samples": len(texts), "causal": bool(texts["causal"].all())},
            **{"modal_position": place, "modal_position_share": place_share},
            **{"modal_token": token, "modal_token_share": token_share},
            **{"heads_with_sink": None, "heads_tested": None, "share_with_sink": math.nan},
        }
        records = verdict.evidence.to_dict("records")
        evidence.extend(keys | {str(name): value for name, value in record.items()} for record in records)
        verdicts.append({**keys, **row, **counts})

    for heads in judged:
        sinks = frames_of_sinks(
            heads.positions, heads.untested, pooled=heads.labels, **text_arguments(heads.texts)
        )
        keys = {**heads.keys, "group": heads.group, "protocol": "exact"}
        counts: dict[str, Any] = {} if sinks.tested.any() else {"frame": "untested"}
        counts |= {"heads_with_sink": int(sinks.heads.sum()), "heads_tested": int(sinks.tested.sum())}
        counts |= {"share_with_sink": sinks.share}
        add(keys, heads.texts, sinks.positions, sinks.frames or _NO_FRAME, **counts)
    for keys, group, texts, wide in by_group(results, "ruscio2025", ["sink_position"]):
        wide = every_head(wide, "sink_position")
        layers = wide.columns.get_level_values("layer").nunique()
        positions = wide.fillna(-1).to_numpy(np.int64).reshape(len(wide), layers, -1)
        if (positions >= 0).any():
            verdict = classify_frames(torch.tensor(positions, device="cpu"), **text_arguments(texts))
            add({**keys, "group": group, "protocol": "ruscio2025"}, texts, positions, verdict)
    return verdicts


def _modal(values: Sequence[Any]) -> tuple[Any, float]:
    if not values:
        return None, math.nan
    value, count = Counter(values).most_common(1)[0]
    return value, count / len(values)


def specialization(results: Results) -> list[dict[str, Any]]:
    """Return rows of `specialization`: does a head keep to one sink, by the test and by position?

    They are of the texts that could be tested; as published by token string, of any head's strongest key.
    """
    heads = results.table("heads", [*HEAD_KEYS, *_BY_TEST, "sink_token"])
    has_sink = np.where(
        heads["protocol"] == "exact", heads[_BY_TEST[1]].notna(), heads["sink_position"].notna()
    )
    heads = heads[has_sink]
    rows = []
    keys = [*CHECKPOINT_KEYS, "layer", "head", "protocol"]
    for values, rows_of_head in heads.groupby(keys, sort=False):
        named = dict(zip(keys, values, strict=True))
        places = (
            rows_of_head["sink_token" if named["protocol"] == "ruscio2025" else _BY_TEST[0]].dropna().tolist()
        )
        if places:
            # a text without a sink agrees with no other
            nowhere = [f"none in {text}" for text in range(len(rows_of_head) - len(places))]
            specialisation = ruscio2025.head_specialization([*places, *nowhere])
            rows.append({**named, **specialisation._asdict(), "modal": str(specialisation.modal)})
    return rows


#: What `graph_depth` calls the fields of `ruscio2025.MiddlePeak`.
_PEAK = ("early", "middle", "late", "middle_peak", "peak_factor")


def graph_depth(results: Results) -> list[dict[str, Any]]:
    """Return rows of `graph_depth`: λ2 of the head mean by thirds of the layers, and what it goes along
    with.
    """
    partners = ["gini", "hub_share", "centralization", "degree_variance"]
    keys = [*CHECKPOINT_KEYS, "protocol", "layer", "threshold"]
    numbers = ["fiedler_value", "density", *partners]
    frame = results.table("head_mean_graphs", [*keys, "graph_fiedler_value", *numbers[1:]])
    frame = frame.rename(columns={"graph_fiedler_value": "fiedler_value"})
    depth_rows = []
    for checkpoint, rows_of_checkpoint in comparisons.checkpoints(frame):
        for (protocol, threshold), rows in rows_of_checkpoint.groupby(["protocol", "threshold"], sort=True):
            means = rows.groupby("layer", sort=True)[numbers].mean()
            columns: dict[Any, list[float]] = means.to_dict("list")
            correlations = ruscio2025.fiedler_correlations(columns)
            depth_rows.append(
                {
                    **checkpoint,
                    "protocol": protocol,
                    "threshold": float(str(threshold)),
                    **dict(zip(_PEAK, ruscio2025.middle_peak(columns["fiedler_value"]), strict=True)),
                    **{f"correlation_{name}": correlations[name] for name in partners},
                    "layers": len(means),
                    "reported_layers": len(ruscio2025.reported_layers(columns["density"])),
                }
            )
    return depth_rows
