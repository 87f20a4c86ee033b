# SPDX-License-Identifier: MIT
"""The run's numbers next to those of arXiv 2603.13911, each with its control where there is one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from attnscope.errors import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, comparison_row, pairs, same_model
from attnscope.results.results import Results
from attnscope.study_api.selection import where

#: Their buckets, and the buckets that replace them here.
BUCKETS = {"factual": "factual", "impossible": "impossible", "hallucination": "unknown"}
STATEMENTS = (
    "Their buckets differ in template, length and words; the prompts of this run need not. F̂ of the paper is "
    "half of bᵀFb, and was computed in bfloat16, whose rounding is of its size.",
    "“hallucination” was never checked against an answer; it is compared with the bucket `unknown`.",
    "Each published number is followed by its control: of factual prompts, or on the same boundary.",
)


def compare(
    results: Results, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int
) -> Compared:
    """Compare each published number, its control and ours at the same depth.

    Args:
        chosen: the only published model to compare with; None takes all.
    """
    if "clouds" not in results.tables():
        raise MissingError("compare: the run has no table 'clouds'")
    statements = list(STATEMENTS)
    rows: list[dict[str, Any]] = []
    tables = {name: last_step(results.table(name)) for name in results.tables() if name in _NEEDED}
    for model, number in pairs(dict.fromkeys(tables["clouds"]["model"]), numbers, chosen, statements):
        tables_of_model = {name: where(table, model=model) for name, table in tables.items()}
        if isinstance(number["void"], str) and number["void"]:
            statements.append(f"{number['model']}, {number['quantity']}: void, {number['void']}.")
        rows.append(
            _row(model, number, numbers, tables_of_model, int(tables_of_model["clouds"]["layer"].max()))
        )
    return Compared(pd.DataFrame(rows), list(dict.fromkeys(statements)))


_NEEDED = ("clouds", "contrasts", "boundaries", "sensitivity", "readout", "interventions", "prompts")


def _row(
    model: str, number: dict[Any, Any], numbers: pd.DataFrame, tables: dict[str, pd.DataFrame], depth: int
) -> dict[str, Any]:
    is_same_model = same_model(str(number["model"]), model)
    deepest = int(where(numbers, model=number["model"])["layer"].max())
    layer = int(number["layer"])
    layer_of_run = layer if is_same_model or layer < 0 else round(layer / max(deepest + 1, 1) * depth)
    void = isinstance(number["void"], str) and bool(number["void"])
    bucket = BUCKETS.get(str(number["token"]).partition(",")[0], "")
    quantity = str(number["quantity"])
    theirs, exact = math.nan, math.nan
    if not void:
        theirs, exact = (
            (math.nan, _answered(quantity, bucket, tables))
            if layer < 0
            else _ours(quantity, bucket, layer_of_run, tables)
        )
    control = "" if pd.isna(number["control"]) else f"control {number['control']:g}"
    token = ", ".join(filter(None, (str(number["token"]), control, "void" if void else "")))
    row = comparison_row(
        model,
        number,
        measured=(theirs,),
        exact=(exact,),
        layer=layer_of_run,
        token=token,
        control=number["control"],
    )
    if void:
        value = number["value"]
        voided = {"published": math.nan, "published_low": value, "published_high": value}
        row |= voided | {"about": number["void"]}
    return row


def _ours(quantity: str, bucket: str, layer: int, tables: dict[str, pd.DataFrame]) -> tuple[float, float]:
    """Return a number by the published protocol, and by the exact one; NaN where the run has none."""
    if quantity in ("local_dimension", "effective_rank", "isotropy"):
        rows = tables["clouds"]
        rows = where(rows, null="", layer=layer, bucket=bucket, quantity=quantity)
        theirs = where(rows, protocol="ruscio2026")["value"]
        exact = where(rows, protocol="exact").sort_values("k", ascending=False)["value"]
        return _first(theirs), _first(exact)
    exact = math.nan
    if quantity in ("norm", "stability"):
        rows = _of(tables, "boundaries", layer, bucket)
        exact = _first(rows[quantity]) if len(rows) else math.nan
    elif quantity in SENSITIVITY:
        rows = _of(tables, "sensitivity", layer, bucket)
        rows = where(rows, direction="boundary") if len(rows) else rows
        if len(rows) and rows[SENSITIVITY[quantity]].notna().any():
            exact = float(rows[SENSITIVITY[quantity]].mean())
        exact = exact / 2 if quantity in ("directional_fisher", "one_sided_kl") else exact
    elif quantity == "top_norm":
        rows = _of(tables, "readout", layer, bucket)
        rows = where(rows, direction="boundary", k=100) if len(rows) else rows
        exact = float(np.sqrt(_first(rows["top_share"]))) if len(rows) else math.nan
    if quantity == "norm" or quantity == "stability":
        return exact, exact
    contrasts = _of(tables, "contrasts", layer, bucket)
    if quantity in THEIRS and len(contrasts):
        name, k = THEIRS[quantity]
        published = where(contrasts, protocol="ruscio2026", quantity=name, k=k)
        return _first(published["value"]), exact
    return math.nan, exact


#: What a number of theirs is called in `sensitivity`, and in `contrasts` under their protocol with its k.
SENSITIVITY = {
    "directional_fisher": "directional_fisher",
    "one_sided_kl": "directional_fisher",
    "amplification": "amplification",
    "refusal_alignment": "refusal_alignment",
    "state_norm": "state_norm",
}
THEIRS = {
    "directional_fisher": ("fisher", 0),
    "one_sided_kl": ("fisher_one_sided", 0),
    "amplification": ("jacobian", 0),
    "refusal_alignment": ("grad_blockage", 0),
    "top_norm": ("vocab_alignment", 100),
    "beta0": ("beta0", 0),
}
#: Numbers of whole runs: arm, column and strength of `interventions`.
ARMS = {
    "steering_changed": ("steering", "boundary", "changed", 2.0),
    "steering_loops": ("steering", "boundary", "loop", 2.0),
    "bypass_refusal": ("bypass", "probe", "refused", 20.0),
    "compression_loops": ("compression", "reference", "loop", 0.2),
}


def _answered(quantity: str, bucket: str, tables: dict[str, pd.DataFrame]) -> float:
    """Return a share of answers, mean over the layers that were changed; NaN where the run has none."""
    if quantity not in ARMS or "interventions" not in tables or "prompts" not in tables:
        return math.nan
    arm, control, column, strength = ARMS[quantity]
    rows = tables["interventions"]
    # theirs steers factual prompts alone, and changes the logits and states of uncertain ones alone
    bucket_asked = "factual" if arm == "steering" else bucket
    samples = where(tables["prompts"], bucket=bucket_asked)["sample"]
    rows = where(rows, arm=arm, control=control, strength=strength, contrast=bucket, sample=samples)
    return float(rows[column].astype(float).mean()) if len(rows) else math.nan


def _of(tables: dict[str, pd.DataFrame], table: str, layer: int, contrast: str) -> pd.DataFrame:
    """Return the rows of a table of one layer and contrast; none where the run has no such table."""
    rows = tables.get(table, pd.DataFrame())
    if len(rows):
        rows = where(rows, layer=layer, contrast=contrast)
    return rows


def _first(values: pd.Series[float]) -> float:
    return float(values.iloc[0]) if len(values) else math.nan
