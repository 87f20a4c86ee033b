# SPDX-License-Identifier: MIT
"""The run's numbers next to those that arXiv 2303.08288 prints or its authors' notebook stored."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attnscope.errors import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, Measured, comparison_row, pairs
from attnscope.results.results import Results
from attnscope.study_api.selection import where

#: What the published numbers may not be taken for.
STATEMENTS = (
    "The published likelihood is the probability of a token at its own, unmasked position: whether the model "
    "kept it, not whether it expected it.",
    "The published layer and mode are the largest of layers times modes, chosen and reported on the same "
    "texts; the exact column chooses on half of the texts and reports on the other.",
    "Attention inside a word falls with the length of the text by construction, and outer is a function of "
    "inner and the lengths: the correlation over texts is no evidence without length and number of pieces.",
    "Every word of one piece gets the same rank in a mode: the generator is seeded anew for each text.",
)


def compare(
    results: Results, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int
) -> Compared:
    """Compare the tables `best_layers` and `head_mean_associations` with the published numbers.

    Args:
        results: of a run; under `ruscio2023` for the column `measured`.
        chosen: the only published model to compare with; None takes all.
    """
    if "best_layers" not in results.tables():
        raise MissingError("compare: the run has no table 'best_layers'")
    best = last_step(results.table("best_layers"))
    layers = last_step(results.table("head_mean_associations"))
    statements = list(STATEMENTS)
    if not (best["protocol"] == "ruscio2023").any():
        statements.append(
            "The run did not follow ruscio2023: it has no numbers of the same kind to compare with these."
        )
    best_by_model = {model: rows.set_index("protocol") for model, rows in best.groupby("model", sort=False)}
    rows = [
        _row(model, best_by_model[model], where(layers, model=model), number)
        for model, number in pairs(best_by_model, numbers, chosen, statements)
    ]
    return Compared(pd.DataFrame(rows), statements)


def _row(model: str, best: pd.DataFrame, layers: pd.DataFrame, number: dict[str, Any]) -> dict[str, Any]:
    """Return one published number with the run's numbers under both protocols."""
    layer, texts = int(number["layer"]), 0
    measured, exact = Measured(), Measured()
    if number["quantity"] == "layer_rho":
        rows = where(layers, layer=layer, measure="inner", protocol="ruscio2023", design="between").dropna(
            subset="estimate"
        )
        if len(rows):
            row = rows.loc[rows["estimate"].idxmax()]
            measured, texts = _estimate(row), int(row["n"])
        within = where(layers, layer=layer, design="within", protocol="exact", predictor="log_likelihood")
        if len(within):
            exact = _estimate(within.iloc[0])
    else:
        if "ruscio2023" in best.index:
            row = best.loc["ruscio2023"]
            measured = Measured(_number(row, number["quantity"]))
            texts, layer = int(row["n"]), int(row["layer"])
        if number["quantity"] == "rho" and "exact" in best.index:
            exact = Measured(_number(best.loc["exact"], "held_out_rho"))
    meaning = _MEANINGS.get(number["quantity"], "")
    return comparison_row(
        model, number, measured=measured, exact=exact, sentences=texts, note=meaning, layer=layer
    )


#: Meanings of quantities whose names do not tell them.
_MEANINGS = {
    "rho": "correlation over texts of mean probability and inner attention; exact: within texts, held out",
    "layer_rho": "the same by layer, of its best mode; exact: within texts",
    "u_real": "Mann–Whitney U of rows outside the word, real words",
    "u_perturbed": "the same, replaced words",
    "difference_std": "spread of the differences of these rows",
    "map_mean": "mean of the map, 1/n",
}


def _number(row: pd.Series[Any], name: str) -> float:
    value = row.get(name)
    return float(value) if value is not None and not pd.isna(value) else math.nan


def _estimate(row: pd.Series[Any]) -> Measured:
    return Measured(*(float(row[name]) for name in ("estimate", "low", "high")))
