# SPDX-License-Identifier: MIT
"""The run's numbers next to those that arXiv 2606.06160 prints where it could be read, and its
precursor's.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attnscope.errors import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, Measured, comparison_row, pairs
from attnscope.results.results import Results
from attnscope.studies.absolute_position.options import REPLACEMENTS, PositionOptions
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.selection import where

#: Note wherever the precursor's q-values are shown.
Q_VALUES = (
    "The precursor's q-values cannot be q-values: they divide by the rank of the head in the list and not by "
    "that of its p-value. On uniform p-values that procedure declares heads in every run, so counts of its "
    "significant heads say nothing; Benjamini and Hochberg's are next to them."
)

#: Note on the notebook's three probes.
PROBES = (
    "what MLPs read and write, mean, least and most over layers, because the three printed numbers name "
    "neither layer nor side; exact: the unbiased share of variance between positions"
)


def compare(
    results: Results, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int
) -> Compared:
    """Compare the published share, which names no vector, with the energy that every replacement removes.

    The precursor's numbers are compared with the table `leakage_tests`, its counts of heads
    by its own q with those of Benjamini and Hochberg.

    Args:
        chosen: the only published model to compare with; None takes all.
    """
    if "energy_removed" not in set(numbers["quantity"]):
        return _precursor(results, numbers, chosen)
    if "removed_arms" not in results.tables():
        raise MissingError("compare: the run has no table 'removed_arms'")
    removed = last_step(results.table("removed_arms"))
    statements = [
        "The published share names neither its vector nor its statistic where they could be read: it is "
        "compared with each replacement, as energy, and none of them reproduces it.",
    ]
    rows: list[dict[str, Any]] = []
    for model, number in pairs(dict.fromkeys(removed["model"]), numbers, chosen, statements):
        rows_of_model = where(removed, model=model)
        for arm in (*REPLACEMENTS, "no_bos"):
            rows_of_arm = where(rows_of_model, arm=arm)
            if len(rows_of_arm):
                rows.append(_row(model, arm, rows_of_arm, number))
    return Compared(pd.DataFrame(rows), statements)


def _row(model: str, arm: str, rows: pd.DataFrame, number: dict[str, Any]) -> dict[str, Any]:
    """Return the published number with that of one arm: the mean over its draws, with the mean's interval."""
    columns = ["energy_removed", "energy_removed_low", "energy_removed_high"]
    exact = Measured(*map(float, rows.iloc[0][columns]))
    return comparison_row(
        model,
        number,
        exact=exact,
        note="1 − the residual's energy with what is put at position 0, layers from 1, early queries",
        token=arm,
        difference=exact.value - number["value"],
    )


def _precursor(results: Results, numbers: pd.DataFrame, chosen: str | None) -> Compared:
    """Compare the precursor's stored numbers with those of the run's tests."""
    if "leakage_tests" not in results.tables():
        raise MissingError("compare: the run has no table 'leakage_tests'; it is of options.leakage")
    tests = last_step(results.table("leakage_tests"))
    statements = [Q_VALUES]
    alpha = stored_options(results, PositionOptions).alpha
    rows: list[dict[str, Any]] = []
    for model, number in pairs(dict.fromkeys(tests["model"]), numbers, chosen, statements):
        if number["quantity"] == "position_probe":
            measured, exact = (_probed(results, model, protocol) for protocol in ("ruscio2025once", "exact"))
            rows.append(comparison_row(model, number, measured=measured, exact=exact, note=PROBES))
            continue
        tests_of_model = where(tests, model=model)
        measured = _tested(where(tests_of_model, protocol="ruscio2025once"), number, alpha)
        exact = _tested(where(tests_of_model, protocol="exact"), number, alpha)
        rows.append(comparison_row(model, number, measured=measured, exact=exact))
    return Compared(pd.DataFrame(rows), statements)


def _tested(tests: pd.DataFrame, number: dict[Any, Any], alpha: float) -> Measured:
    """Return a published quantity by one protocol's tests; NaN where they do not have it."""
    if tests.empty:
        return Measured()
    if number["quantity"] == "leakage_gap":
        head = int(number["token"].removeprefix("H"))
        rows = where(tests, layer=number["layer"], head=head)
        if rows.empty:
            return Measured()
        return Measured(*(float(value) for value in rows.iloc[0][["gap", "gap_low", "gap_high"]]))
    value = {
        "significant_heads": float((tests["p_adjusted"] <= alpha).sum()),
        "smallest_p_value": float(tests["p_value"].min()),
        "smallest_q_value": float(tests["p_adjusted"].min()),
    }.get(number["quantity"], math.nan)
    return Measured(value)


def _probed(results: Results, model: str, protocol: str) -> Measured:
    """Return mean, least and most over layers of the run's probe of MLPs; NaN without one."""
    name, column = ("position_shares", "position_share") if protocol == "exact" else ("probes", "r2")
    if name not in results.tables():
        return Measured()
    table = where(last_step(results.table(name)), model=model, site=["mlp_input", "mlp_output"])
    if protocol == "exact":
        table = where(table, arm="no_bos" if (table["arm"] == "no_bos").any() else "base")
    values = table[column].dropna()
    return Measured(*map(float, (values.mean(), values.min(), values.max()))) if len(values) else Measured()
