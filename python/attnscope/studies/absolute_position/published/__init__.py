# SPDX-License-Identifier: MIT
"""The run's numbers beside what arXiv 2606.06160 prints where it could be read, and its precursor's."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attnscope.engine.schema import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, same_model
from attnscope.published.comparison import Tables
from attnscope.studies.absolute_position.options import REPLACEMENTS

#: Stands wherever the precursor's q-values do.
Q_VALUES = (
    "The precursor's q-values cannot be q-values: they divide by the rank of the head in the list and not by "
    "that of its p-value. On uniform p-values that procedure declares heads in every run, so counts of its "
    "significant heads say nothing; beside them stand Benjamini and Hochberg's."
)

#: What stands beside the notebook's three probes.
PROBES = (
    "what MLPs read and write, mean, least and most over layers, because the three printed numbers name "
    "neither layer nor side; exact: the unbiased share of variance between positions"
)


def compare(results: Tables, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int) -> Compared:
    """The published share beside the energy removed by every replacement, since it does not name its own.

    The precursor's numbers stand beside the table `leakage_tests`, its counts of heads by its own q beside
    those of Benjamini and Hochberg.

    Args:
        results: with the table `removed`, or `leakage_tests`.
        numbers: as they were printed.
        chosen: the only published model to stand beside; None takes all.
        draws: not used.
        seed: not used.

    Raises:
        MissingError: a run without `removed`, of the precursor's without `leakage_tests`.
    """
    if "energy_removed" not in set(numbers["quantity"]):
        return _precursor(results, numbers, chosen)
    if "removed" not in results.tables():
        raise MissingError("compare: the run has no table 'removed'")
    removed = last_step(results.table("removed"))
    removed = removed[
        (removed["scope"] == "from_1") & (removed["queries"] == "early") & (removed["measure"] == "uniform")
    ]
    statements = [
        "The published share names neither its vector nor its statistic where they could be read: it "
        "stands beside "
        "each replacement, as energy, and none of them reproduces it.",
    ]
    rows: list[dict[str, Any]] = []
    for model, own in removed.groupby("model", sort=False):
        for number in numbers.to_dict("records"):
            if chosen is not None and number["model"] != chosen:
                continue
            same = same_model(str(number["model"]), str(model))
            if not same:
                statements.append(
                    f"{model} is not {number['model']}: the differences below are between models and say "
                    f"nothing "
                    "about whether the published number can be reproduced."
                )
            for arm in (*REPLACEMENTS, "no_bos"):
                found = own[own["arm"] == arm]
                if len(found):
                    rows.append(_row(str(model), arm, found, number, same=same))
    return Compared(pd.DataFrame(rows), list(dict.fromkeys(statements)))


def _row(model: str, arm: str, found: pd.DataFrame, number: dict[Any, Any], *, same: bool) -> dict[str, Any]:
    """The published number beside one arm, the mean over its draws."""
    means = found[["energy_removed", "energy_removed_low", "energy_removed_high"]].mean()
    value, low, high = (float(one) for one in means)
    return _common(model, number, same=same) | {
        "token": arm,
        "difference": value - number["value"],
        "exact": value,
        "exact_low": low,
        "exact_high": high,
        "about": "1 − the residual's energy with what is put at position 0, layers from 1, early queries",
    }


def _precursor(results: Tables, numbers: pd.DataFrame, chosen: str | None) -> Compared:
    """Its stored numbers beside those of the run's own tests."""
    if "leakage_tests" not in results.tables():
        raise MissingError("compare: the run has no table 'leakage_tests'; it is of options.leakage")
    tests = last_step(results.table("leakage_tests"))
    statements = [Q_VALUES]
    rows: list[dict[str, Any]] = []
    for model, own in tests.groupby("model", sort=False):
        for number in numbers.to_dict("records"):
            if chosen is not None and number["model"] != chosen:
                continue
            same = same_model(str(number["model"]), str(model))
            if not same:
                statements.append(f"{model} is not {number['model']}: differences are between models.")
            row = _common(str(model), number, same=same)
            for protocol, names in (
                ("ruscio2025once", ("measured", "low", "high")),
                ("exact", ("exact", "exact_low", "exact_high")),
            ):
                if number["quantity"] == "position_probe":
                    values = _probed(results, str(model), protocol)
                    row["about"] = PROBES
                else:
                    values = _tested(own[own["protocol"] == protocol], number)
                row |= dict(zip(names, values, strict=True))
            row["difference"] = row["measured"] - number["value"]
            rows.append(row)
    return Compared(pd.DataFrame(rows), list(dict.fromkeys(statements)))


def _tested(tests: pd.DataFrame, number: dict[Any, Any]) -> tuple[float, float, float]:
    """What one protocol's tests say of a published quantity; NaN where they say nothing."""
    nothing = (math.nan, math.nan, math.nan)
    if tests.empty:
        return nothing
    if number["quantity"] == "leakage_gap":
        head = int(number["token"].removeprefix("H"))
        found = tests[(tests["layer"] == number["layer"]) & (tests["head"] == head)]
        if found.empty:
            return nothing
        gap, low, high = (float(one) for one in found.iloc[0][["gap", "gap_low", "gap_high"]])
        return gap, low, high
    value = {
        "significant_heads": float((tests["p_adjusted"] <= 0.05).sum()),
        "smallest_p_value": float(tests["p_value"].min()),
        "smallest_q_value": float(tests["p_adjusted"].min()),
    }.get(number["quantity"], math.nan)
    return value, math.nan, math.nan


def _probed(results: Tables, model: str, protocol: str) -> tuple[float, float, float]:
    """Mean, least and most over layers of what the run's probe says of MLPs; NaN without one."""
    name, column = ("position_shares", "position_share") if protocol == "exact" else ("probes", "r2")
    if name not in results.tables():
        return math.nan, math.nan, math.nan
    table = last_step(results.table(name))
    table = table[(table["model"] == model) & table["site"].isin(["mlp_input", "mlp_output"])]
    if protocol == "exact":
        table = table[table["arm"] == ("no_bos" if (table["arm"] == "no_bos").any() else "base")]
    values = table[column].dropna()
    return (
        (float(values.mean()), float(values.min()), float(values.max())) if len(values) else (math.nan,) * 3
    )


def _common(model: str, number: dict[Any, Any], *, same: bool) -> dict[str, Any]:
    """A published number's part of its row, and nothing beside it."""
    return {
        "model": model,
        "published_model": number["model"],
        "same_model": same,
        "quantity": number["quantity"],
        "layer": int(number["layer"]),
        "published_layer": int(number["layer"]),
        "token": number["token"],
        "statistic": number["statistic"],
        "published": number["value"],
        "published_low": number["low"],
        "published_high": number["high"],
        "measured": math.nan,
        "low": math.nan,
        "high": math.nan,
        "sentences": 0,
        "difference": math.nan,
        "exact": math.nan,
        "exact_low": math.nan,
        "exact_high": math.nan,
        "printed": number["printed"],
        "about": number["quantity"],
        "origin": number["origin"],
    }
