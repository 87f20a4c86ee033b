# SPDX-License-Identifier: MIT
"""Whether a quantity changes from one level to another during training, and what it is before and after.

Quantities of all layers together are tested, as one family of the run. Single layers and heads are described
by their first and last value: a test of each would leave no power for any.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.inference.emergence import Curve, emergence_splits
from attnscope.studies.attention_sinks.comparisons import measured, tested_numbers

#: Metrics that are described for every single head.
OF_EVERY_HEAD = ("sink_share", "sink_boost", "top_mass", "entropy", "alignment_value")
#: Scopes of all layers together: the mean over single heads, and quantities of layers.
WHOLE = ("heads", "layers")


def emergence(results: Results, seed: int) -> list[dict[str, Any]]:
    """Rows of `emergence`, for models with two checkpoints or more of known step."""
    samples = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group"])
    counted = samples[samples["step"] >= 0].groupby("model")["step"].nunique()
    series = sorted(counted[counted >= 2].index)
    rows: list[dict[str, Any]] = []
    curves: list[Curve] = []
    there = [name for name in ("heads", "head_means", "layers") if name in results.tables()]
    for name in there if series else ():
        scope = {"heads": "heads", "head_means": "head_mean", "layers": "layers"}[name]
        frame = measured(results, name)
        frame = frame[frame["model"].isin(series) & (frame["step"] >= 0)]
        frame = frame.merge(samples, on=[*CHECKPOINT_KEYS, "sample"], how="left", validate="many_to_one")
        others = tested_numbers(results, "heads") if name == "layers" and "heads" in there else []
        metrics = [one for one in tested_numbers(results, name) if one not in others]
        of_each = [
            (
                {"model": str(model), "protocol": str(protocol)},
                own,
                _parts(own, scope, metrics, str(protocol)),
            )
            for (model, protocol), own in frame.groupby(["model", "protocol"], sort=True)
        ]
        for metric in metrics:
            for keys, own, parts in of_each:
                if own[metric].notna().any():
                    for part, means, where in parts:
                        if metric in means:
                            published = _published(part, metric, keys["protocol"])
                            rows.append({**keys, "metric": metric, **where, **published})
                            each = means[metric].unstack("sample")
                            curves.append((each.index.to_numpy(np.int64), each.to_numpy(np.float64)))
    family = _family(rows)
    found = emergence_splits([curve for curve, one in zip(curves, family, strict=True) if one], seed=seed)
    judged = iter(found)
    for row, curve, one in zip(rows, curves, family, strict=True):
        # what is no member of the family is described: one order, whose p-value says nothing
        own = next(judged) if one else emergence_splits([curve], draws=1, seed=seed)[0]
        row |= own if one else {**own, "verdict": None, "step": None, "p_value": math.nan, "p_holm": math.nan}
    return rows


def _family(rows: list[dict[str, Any]]) -> list[bool]:
    """Which rows are tested: exact quantities of whole models, by group of texts where there are several."""
    several = {row["model"] for row in rows if row["group"] != "all"}
    return [
        row["protocol"] == "exact"
        and row["scope"] in WHOLE
        and (row["group"] != "all" or row["model"] not in several)
        for row in rows
    ]


def _parts(
    own: pd.DataFrame, scope: str, metrics: list[str], protocol: str
) -> list[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """Of all layers, each group, each layer and each head: rows, means by step and sample, and keys."""
    whole: dict[str, Any] = {"group": "all", "scope": scope, "place": "", "layer": None, "head": None}
    found = [(own, metrics, whole)]
    groups = sorted(own["group"].unique())
    if len(groups) > 1:
        found += [(own[own["group"] == one], metrics, {**whole, "group": one}) for one in groups]
    of_layer = {"heads": "layer", "head_mean": "layer_head_mean", "layers": "layer"}[scope]
    for layer, part in own.groupby("layer", sort=True):
        number = int(str(layer))
        where = {**whole, "scope": of_layer, "place": f"L{number}", "layer": number}
        found.append((part, metrics, where))
    single = [one for one in metrics if one in OF_EVERY_HEAD]
    if scope == "heads" and protocol == "exact" and single:
        for keys, part in own.groupby(["layer", "head"], sort=True):
            at = dict(zip(("layer", "head"), (int(str(one)) for one in keys), strict=True))
            place = "L{layer}H{head}".format(**at)
            found.append((part, single, {**whole, "scope": "head", "place": place, **at}))
    each = ["step", "sample"]
    return [(part, part.groupby(each, sort=True)[names].mean(), where) for part, names, where in found]


def _published(part: pd.DataFrame, metric: str, protocol: str) -> dict[str, Any]:
    """The change as published, which takes the steps in the order of their names."""
    from attnscope.protocols.ruscio2025 import emergence_change

    if protocol != "ruscio2025":
        return {"change": math.nan, "change_first_step": None, "change_last_step": None}
    change, first, last, _ = emergence_change(part, metric)
    return {"change": change, "change_first_step": first, "change_last_step": last}
