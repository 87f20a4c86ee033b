# SPDX-License-Identifier: MIT
"""The run's numbers beside those of arXiv 2603.13911, each with its own control where there is one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from attnscope.engine.schema import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, same_model
from attnscope.published.comparison import Tables

#: Their buckets, and what stands for them here.
BUCKETS = {"factual": "factual", "impossible": "impossible", "hallucination": "unknown"}
STATEMENTS = (
    "Their buckets differ in template, length and words; the prompts of this run need not. F̂ of the paper is "
    "half of bᵀFb, and was computed in bfloat16, whose rounding is of its size.",
    "“hallucination” was never checked against an answer; beside it stands the bucket `unknown`.",
    "Behind each published number stands its control: of factual prompts, or on the same boundary.",
)


def compare(results: Tables, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int) -> Compared:
    """Each published number, its control and ours at the same depth.

    Args:
        chosen: the only published model to stand beside; None takes all.
    """
    if "clouds" not in results.tables():
        raise MissingError("compare: the run has no table 'clouds'")
    statements = list(STATEMENTS)
    rows: list[dict[str, Any]] = []
    tables = {name: last_step(results.table(name)) for name in results.tables() if name in _NEEDED}
    for model in dict.fromkeys(tables["clouds"]["model"]):
        own = {name: table[table["model"] == model] for name, table in tables.items()}
        depth = int(own["clouds"]["layer"].max())
        for number in numbers.to_dict("records"):
            if chosen is not None and number["model"] != chosen:
                continue
            if isinstance(number["void"], str) and number["void"]:
                statements.append(f"{number['model']}, {number['quantity']}: void, {number['void']}.")
            rows.append(_row(str(model), number, numbers, own, depth))
    return Compared(pd.DataFrame(rows), list(dict.fromkeys(statements)))


_NEEDED = ("clouds", "boundaries", "sensitivity", "readout", "betti")


def _row(
    model: str, number: dict[Any, Any], numbers: pd.DataFrame, own: dict[str, pd.DataFrame], depth: int
) -> dict[str, Any]:
    same = same_model(str(number["model"]), model)
    deepest = int(numbers[numbers["model"] == number["model"]]["layer"].max())
    layer = int(number["layer"])
    here = layer if same or layer < 0 else round(layer / max(deepest + 1, 1) * depth)
    void = isinstance(number["void"], str) and bool(number["void"])
    bucket = BUCKETS.get(str(number["token"]).partition(",")[0], "")
    theirs, exact = (
        (math.nan, math.nan) if layer < 0 or void else _ours(str(number["quantity"]), bucket, here, own)
    )
    control = "" if pd.isna(number["control"]) else f"control {number['control']:g}"
    token = ", ".join(one for one in (str(number["token"]), control, "void" if void else "") if one)
    return {
        "model": model,
        "published_model": number["model"],
        "same_model": same,
        "quantity": number["quantity"],
        "layer": here,
        "published_layer": layer,
        "token": token,
        "statistic": number["statistic"],
        "published": math.nan if void else number["value"],
        "published_low": number["value"] if void else number["low"],
        "published_high": number["value"] if void else number["high"],
        "control": number["control"],
        "measured": theirs,
        "low": math.nan,
        "high": math.nan,
        "sentences": 0,
        "difference": theirs - number["value"] if not void else math.nan,
        "exact": exact,
        "exact_low": math.nan,
        "exact_high": math.nan,
        "printed": number["printed"],
        "about": number["void"] if void else number["quantity"],
        "origin": number["origin"],
    }


def _ours(quantity: str, bucket: str, layer: int, own: dict[str, pd.DataFrame]) -> tuple[float, float]:
    """A number by the published protocol, and by the exact one; NaN where the run has none."""
    nothing = (math.nan, math.nan)
    if quantity in ("local_dimension", "effective_rank", "isotropy"):
        rows = own["clouds"]
        rows = rows[(rows["layer"] == layer) & (rows["bucket"] == bucket) & (rows["quantity"] == quantity)]
        theirs = rows[rows["protocol"] == "ruscio2026"]["value"]
        exact = rows[rows["protocol"] == "exact"].sort_values("k")["value"]
        return _first(theirs), _first(exact.iloc[::-1])
    if quantity in ("norm", "stability") and "boundaries" in own:
        rows = own["boundaries"]
        value = _first(rows[(rows["layer"] == layer) & (rows["contrast"] == bucket)][quantity])
        return value, value
    if quantity in ("directional_fisher", "amplification", "refusal_alignment") and "sensitivity" in own:
        rows = own["sensitivity"]
        rows = rows[
            (rows["layer"] == layer) & (rows["contrast"] == bucket) & (rows["direction"] == "boundary")
        ]
        value = float(rows[quantity].mean()) if rows[quantity].notna().any() else math.nan
        return math.nan, value / 2 if quantity == "directional_fisher" else value
    if quantity == "top_norm" and "readout" in own:
        rows = own["readout"]
        rows = rows[
            (rows["layer"] == layer) & (rows["contrast"] == bucket) & (rows["direction"] == "boundary")
        ]
        return math.nan, float(np.sqrt(_first(rows[rows["k"] == 100]["top_share"])))
    return nothing


def _first(values: pd.Series[float]) -> float:
    return float(values.iloc[0]) if len(values) else math.nan
