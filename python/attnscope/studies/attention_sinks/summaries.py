# SPDX-License-Identifier: MIT
"""Tables made from the stored ones when every sentence is measured: verdicts, tests, emergence, nulls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.inference.emergence import emergence_of
from attnscope.inference.frames import classify_frames
from attnscope.studies.attention_sinks.comparisons import (
    checkpoints,
    layer_tests,
    measured,
    null_tests,
    numbers_of,
    removal_tests,
)
from attnscope.studies.nulls import by_length

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from attnscope.engine.config import Study

#: Marks the mean over single heads where `head` is a key; −1 is the head mean's own map.
ALL_HEADS = -2
#: Metrics whose emergence is told of every single head.
OF_EVERY_HEAD = ("sink_share", "sink_boost", "top_mass", "entropy", "alignment_value")


def made_from(results: Results, study: Study) -> dict[str, pa.Table]:
    """The summaries of a finished run.

    Args:
        results: its tables.
        study: whether everything was measured, and the seed.
    """
    import pyarrow as pa

    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    whole = not study.metrics
    there = set(results.tables())
    positions = "heads" in there and "sink_position" in results.schema("heads").names
    if positions and (whole or "classify_frames" in study.metrics):
        verdicts: list[dict[str, Any]] = []
        evidence: list[dict[str, Any]] = []
        makers["frames"] = lambda: frames(results, study.seed, verdicts, evidence)
        makers["frame_evidence"] = lambda: evidence
        makers["specialization"] = lambda: specialization(results)
    if whole and "heads" in there:
        makers["layer_tests"] = lambda: layer_tests(results)
        makers["emergence"] = lambda: emergence(results, study.seed)
    if "layers" in there and "kl_reduction_90" in results.schema("layers").names:
        makers["removal_tests"] = lambda: removal_tests(results)
    if whole and "nulls" in there:
        makers["null_tests"] = lambda: null_tests(results)
    if whole and "graphs" in there:
        makers["graph_depth"] = lambda: graph_depth(results)
    made = {}
    for name, make in makers.items():
        rows = make()
        if rows:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            made[name] = pa.table({key: pa.array(values) for key, values in columns.items()})
    if "nulls" in there and "baselines" in there:
        empirical = by_length(results.table("nulls"), results.table("samples"))
        stored = results.arrow("baselines")
        rows_of = pa.Table.from_pandas(empirical, preserve_index=False, schema=stored.schema)
        made["baselines"] = pa.concat_tables(
            [stored, rows_of.replace_schema_metadata(stored.schema.metadata)]
        )
    return made


def frames(
    results: Results, seed: int, verdicts: list[dict[str, Any]], evidence: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of `frames`, and of `frame_evidence` into `evidence`.

    Args:
        results: the run.
        seed: of the bootstrap.
        verdicts: gets the rows, and is returned.
        evidence: gets the rows that the verdicts rest on.
    """
    samples = results.table("samples", ["model", "revision", "step", "sample", "group", "tokens", "n_tokens"])
    causal = results.table("samples", ["causal"])["causal"]
    samples = samples.assign(causal=causal)
    heads = results.table("heads", [*HEAD_KEYS, "sink_position"])
    heads = heads[heads["head"] >= 0]
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
                positions = wide.to_numpy(np.int64).reshape(len(wide), layers, -1)
                if (positions < 0).all():
                    continue
                sentences = chosen.loc[wide.index]
                tokens = [list(one) for one in sentences["tokens"]]
                found = classify_frames(
                    positions_tensor(positions),
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


def positions_tensor(positions: npt.NDArray[np.int64]) -> Any:
    """As `classify_frames` takes them."""
    import torch

    return torch.tensor(positions)


def _modal(values: Sequence[Any]) -> tuple[Any, float]:
    from collections import Counter

    value, count = Counter(values).most_common(1)[0]
    return value, count / len(values)


def specialization(results: Results) -> list[dict[str, Any]]:
    """Rows of `specialization`: does a head keep to one sink, by position or by token string?

    Args:
        results: the run.
    """
    from attnscope.protocols.ruscio2025 import head_specialization

    heads = results.table("heads", [*HEAD_KEYS, "sink_position", "sink_token"])
    heads = heads[(heads["head"] >= 0) & (heads["sink_position"] >= 0)]
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
    keys = [*CHECKPOINT_KEYS, "protocol", "layer", "head", "threshold"]
    frame = results.table("graphs", [*keys, "fiedler_value", "density", *partners])
    frame = frame[frame["head"] == -1]
    made = []
    for named, own in checkpoints(frame):
        for (protocol, threshold), rows in own.groupby(["protocol", "threshold"], sort=True):
            means = rows.groupby("layer", sort=True)[["fiedler_value", "density", *partners]].mean()
            columns = {name: means[name].tolist() for name in ("fiedler_value", *partners)}
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
            frame = frame[frame["model"].isin(series) & (frame["step"] >= 0)]
            if "head" not in frame:
                frame = frame.assign(head=ALL_HEADS)
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
    scopes = {ALL_HEADS: rows[single | (rows["head"] == ALL_HEADS)], -1: rows[rows["head"] == -1]}
    for head, part in scopes.items():
        if not part[metric].notna().any():
            continue
        for group in ["all", *(kinds if len(kinds) > 1 else [])]:
            add(part if group == "all" else part[part["group"] == group], group, -1, head)
        add(part, "all", None, head)
    if protocol == "exact" and metric in OF_EVERY_HEAD:
        add(rows[single], "all", None, None)
    return made
