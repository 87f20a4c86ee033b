# SPDX-License-Identifier: MIT
"""Tables made from the stored ones when every sentence is measured: verdicts, tests, emergence, nulls."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.engine.stage_run import StageRun
from attnscope.inference.emergence import emergence_of
from attnscope.inference.frames import classify_frames
from attnscope.metrics.measure import measure_quantities
from attnscope.metrics.quantity import Quantity
from attnscope.studies.attention_sinks.columns import levels
from attnscope.studies.attention_sinks.comparisons import (
    checkpoints,
    layer_tests,
    measured,
    null_tests,
    numbers_of,
    removal_tests,
)
from attnscope.studies.nulls import by_length, uniform_attention

#: What `head` says of the mean over single heads, and of the head mean's own map.
ALL_HEADS, HEAD_MEAN = -2, -1
#: Metrics whose emergence is told of every single head.
OF_EVERY_HEAD = ("sink_share", "sink_boost", "top_mass", "entropy", "alignment_value")


TABLES = (
    *("frames", "frame_evidence", "specialization", "layer_tests", "removal_tests", "null_tests"),
    *("graph_depth", "emergence"),
)


def write_baselines(
    run: StageRun, chosen: Mapping[str, Sequence[Quantity]], thresholds: Sequence[float | str]
) -> None:
    """Writes every number of uniform attention of the lengths in `samples`, and the means of controls.

    Args:
        run: of the unit.
        chosen: quantities by protocol.
        thresholds: of the graphs.
    """
    samples = run.read("samples")
    whose: dict[str, Any] = {"scope": "any", "model": "", "revision": "", "step": -1, "count": 1}
    seen = samples[["n_tokens", "causal"]].dropna().drop_duplicates()
    for n, causal in sorted((int(n), bool(causal)) for n, causal in seen.itertuples(index=False)):
        maps = uniform_attention(n, causal=causal)[None, None]
        kind = "uniform_causal" if causal else "uniform_full"
        for protocol, quantities in chosen.items():
            with warnings.catch_warnings():
                # what has no value on uniform attention is null in the table, which says enough
                warnings.simplefilter("ignore", RuntimeWarning)
                found = measure_quantities({"attention": maps}, quantities)
            for one, values in found.values.items():
                numbers = np.where(found.defined[one].numpy(), values.double().numpy(), np.nan).ravel()
                at = levels(thresholds, n) if one.axes else np.full(1, math.nan)
                keys: dict[str, Any] = {"n_tokens": n, "metric": one.name, "kind": kind, "threshold": at}
                run.write("baselines", **keys, protocol=protocol, **whose, value=numbers)
    controls = run.stored.variants()
    if len(controls):
        rows: dict[Any, Any] = by_length(controls, samples).to_dict("series")
        run.write("baselines", **rows)


def write_summaries(run: StageRun, metrics: Sequence[str], seed: int) -> None:
    """Writes the tables that are made of the others.

    Args:
        run: of the unit.
        metrics: that were asked for; tables of everything are made where none is named.
        seed: of the bootstrap.
    """
    results, whole = run.stored, not metrics
    there = set(results.tables())
    evidence: list[dict[str, Any]] = []
    made: dict[str, list[dict[str, Any]]] = {}
    if "heads" in there and (whole or "classify_frames" in metrics):
        made["frames"] = frames(results, seed, evidence)
        made["frame_evidence"] = evidence
        made["specialization"] = specialization(results)
    if whole:
        made["layer_tests"] = layer_tests(results)
        made["emergence"] = emergence(results, seed)
        made["null_tests"] = null_tests(results)
    if "layers" in there:
        made["removal_tests"] = removal_tests(results)
    if whole and "head_mean_graphs" in there:
        made["graph_depth"] = graph_depth(results)
    for name, rows in made.items():
        if rows:
            columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
            run.write(name, **columns)


def frames(results: Results, seed: int, evidence: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `frames`, and of `frame_evidence` into `evidence`.

    Args:
        results: the run.
        seed: of the bootstrap.
        evidence: gets the rows that the verdicts rest on.
    """
    verdicts: list[dict[str, Any]] = []
    samples = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group", "tokens", "n_tokens", "causal"])
    heads = results.table("heads", [*HEAD_KEYS, "sink_position"])
    for keys, own in checkpoints(heads):
        here = samples[(samples[list(keys)] == list(keys.values())).all(axis=1)].set_index("sample")
        groups = sorted(here["group"].unique())
        for group in ["all", *(groups if len(groups) > 1 else [])]:
            chosen = here if group == "all" else here[here["group"] == group]
            for protocol, rows in own.groupby("protocol", sort=True):
                wide = rows[rows["sample"].isin(chosen.index)].pivot(
                    index="sample", columns=["layer", "head"], values="sink_position"
                )
                wide = wide.sort_index(axis=0).sort_index(axis=1)
                layers = wide.columns.get_level_values("layer").nunique()
                positions = wide.fillna(-1).to_numpy(np.int64).reshape(len(wide), layers, -1)
                if (positions < 0).all():
                    continue
                sentences = chosen.loc[wide.index]
                tokens = [list(one) for one in sentences["tokens"]]
                found = classify_frames(
                    torch.tensor(positions),
                    lengths=sentences["n_tokens"].tolist(),
                    causal=bool(sentences["causal"].all()),
                    tokens=tokens,
                    seed=seed,
                )
                flat = [
                    (int(at), tokens[sample][at])
                    for sample, each in enumerate(positions.reshape(len(wide), -1).tolist())
                    for at in each
                    if at >= 0
                ]
                place, place_share = _modal([one for one, _ in flat])
                token, token_share = _modal([one for _, one in flat])
                own_keys = {**keys, "group": group, "protocol": protocol}
                verdicts.append(
                    {
                        **own_keys,
                        "frame": found.frame,
                        "token_frame": found.token_frame or "",
                        "margin": found.margin,
                        "probability": found.probability,
                        "samples": len(wide),
                        "causal": bool(sentences["causal"].all()),
                        "modal_position": place,
                        "modal_token": token,
                        "modal_position_share": place_share,
                        "modal_token_share": token_share,
                    }
                )
                evidence += [
                    own_keys | {str(name): value for name, value in row.items()}
                    for row in found.evidence.to_dict("records")
                ]
    return verdicts


def _modal(values: Sequence[Any]) -> tuple[Any, float]:
    value, count = Counter(values).most_common(1)[0]
    return value, count / len(values)


def specialization(results: Results) -> list[dict[str, Any]]:
    """Rows of `specialization`: does a head keep to one sink, by position or by token string?

    Args:
        results: the run.
    """
    from attnscope.protocols.ruscio2025 import head_specialization

    heads = results.table("heads", [*HEAD_KEYS, "sink_position", "sink_token"])
    heads = heads[heads["sink_position"].notna()]
    made = []
    for keys, own in heads.groupby([*CHECKPOINT_KEYS, "layer", "head", "protocol"], sort=False):
        named = dict(zip([*CHECKPOINT_KEYS, "layer", "head", "protocol"], keys, strict=True))
        which = "sink_token" if named["protocol"] == "ruscio2025" else "sink_position"
        found = head_specialization(own[which].tolist())
        made.append(
            {
                **named,
                "consistency": found.consistency,
                "modal": str(found.modal),
                "samples": found.samples,
                "specialised": found.specialised,
                "specialised_half": found.specialised_half,
            }
        )
    return made


def graph_depth(results: Results) -> list[dict[str, Any]]:
    """Rows of `graph_depth`: λ2 of the head mean by thirds of the layers, and what it goes along with.

    Args:
        results: the run.
    """
    from attnscope.protocols.ruscio2025 import fiedler_correlations, middle_peak, reported_layers

    partners = ["gini", "hub_share", "centralization", "degree_variance"]
    keys = [*CHECKPOINT_KEYS, "protocol", "layer", "threshold"]
    numbers = ["graph_fiedler_value", "density", *partners]
    frame = results.table("head_mean_graphs", [*keys, *numbers])
    made = []
    for named, own in checkpoints(frame):
        for (protocol, threshold), rows in own.groupby(["protocol", "threshold"], sort=True):
            means = rows.groupby("layer", sort=True)[numbers].mean()
            columns = {name: means[name].tolist() for name in partners}
            columns["fiedler_value"] = means["graph_fiedler_value"].tolist()
            peak = middle_peak(columns["fiedler_value"])
            told = fiedler_correlations(columns)
            made.append(
                {
                    **named,
                    "protocol": protocol,
                    "threshold": float(str(threshold)),
                    "early": peak.early,
                    "middle": peak.middle,
                    "late": peak.late,
                    "middle_peak": peak.peak,
                    "peak_factor": peak.factor,
                    **{f"correlation_{name}": told[name] for name in partners},
                    "layers": len(means),
                    "reported_layers": len(reported_layers(means["density"].tolist())),
                }
            )
    return made


def emergence(results: Results, seed: int) -> list[dict[str, Any]]:
    """Rows of `emergence`, for models with two checkpoints or more of known step.

    Args:
        results: the run.
        seed: of the bootstrap.
    """
    steps = results.table("samples", ["model", "step"]).drop_duplicates()
    counted = steps[steps["step"] >= 0].groupby("model")["step"].nunique()
    series = sorted(counted[counted >= 2].index)
    if not series:
        return []
    groups = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group"])
    made: list[dict[str, Any]] = []
    for name in [one for one in ("heads", "layers") if one in results.tables()]:
        for metric in numbers_of(results, name):
            if name == "layers" and metric in numbers_of(results, "heads"):
                continue
            frame = measured(results, name, metric)
            if name == "heads":
                mean = measured(results, "head_means", metric).assign(head=HEAD_MEAN)
                frame = pd.concat([frame, mean], ignore_index=True)
            else:
                frame = frame.assign(head=ALL_HEADS)
            frame = frame[frame["model"].isin(series) & (frame["step"] >= 0)]
            frame = frame.merge(groups, on=[*CHECKPOINT_KEYS, "sample"], how="left", validate="many_to_one")
            for (model, protocol), rows in frame.groupby(["model", "protocol"], sort=True):
                if rows[metric].notna().any():
                    made += _emergence_of(rows, metric, str(model), str(protocol), seed)
    return made


def _emergence_of(
    rows: pd.DataFrame, metric: str, model: str, protocol: str, seed: int
) -> list[dict[str, Any]]:
    from attnscope.protocols.ruscio2025 import emergence_change

    kinds = sorted(rows["group"].unique())
    made: list[dict[str, Any]] = []

    def add(part: pd.DataFrame, group: str, layer: int | None, head: int | None) -> None:
        """One row for every layer (head) that is not given, else one for all rows together."""
        apart = [key for key, value in (("layer", layer), ("head", head)) if value is None]
        for place, own in part.groupby(apart, sort=True) if apart else [((), part)]:
            each = own.groupby(["step", "sample"], sort=True)[metric].mean().unstack("sample")
            found = emergence_of(each.index.to_numpy(np.int64), each.to_numpy(np.float64), seed=seed)
            change, first, last = math.nan, -1, -1
            if protocol == "ruscio2025":
                change, first, last, _ = emergence_change(own, metric)
            at = {"layer": layer, "head": head} | dict(zip(apart, place, strict=True))
            made.append(
                {
                    "model": model,
                    "group": group,
                    **{key: int(str(value)) for key, value in at.items()},
                    "protocol": protocol,
                    "metric": metric,
                    **found,
                    "change": change,
                    "change_first_step": first,
                    "change_last_step": last,
                }
            )

    single = rows["head"] >= 0
    scopes = {
        ALL_HEADS: rows[single | (rows["head"] == ALL_HEADS)],
        HEAD_MEAN: rows[rows["head"] == HEAD_MEAN],
    }
    for head, part in scopes.items():
        if not part[metric].notna().any():
            continue
        for group in ["all", *(kinds if len(kinds) > 1 else [])]:
            add(part if group == "all" else part[part["group"] == group], group, -1, head)
        add(part, "all", None, head)
    if protocol == "exact" and metric in OF_EVERY_HEAD:
        add(rows[single], "all", None, None)
    return made
