# SPDX-License-Identifier: MIT
"""The paper's claims, each with what was measured of it, what no effect would give, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.engine.claims import (
    CONTRADICTED,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    Claim,
    write_claims,
)
from attnscope.report.numbers import number

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions

#: Fields of a claim that a row of `shifts` gives.
CLAIMED = {"value": "difference", "low": "low", "high": "high", "p_value": "p_adjusted"}
#: What each claim says.
SENTENCES = {
    "C1": "attention of a word to itself follows its likelihood",
    "C2": "an unexpected word attends less to itself",
    "C3": "the more so in higher layers",
    "C4": "it is the expectation that counts, not which token stands there",
    "C5": "attention of the word to the rest changes",
}


def write(run: StageRun, options: LikelihoodOptions) -> None:
    """The table `claims` of a checkpoint."""
    if "shifts" not in run.stored.tables():
        return
    associations, shifts = run.read("head_mean_associations"), run.read("shifts")
    overall = run.read("overall")
    for protocol, own in associations.groupby("protocol", sort=False):
        if protocol != "exact":
            continue
        whole = overall[overall["protocol"] == protocol].set_index("statistic")
        moved = shifts[shifts["protocol"] == protocol]
        write_claims(run, _claims(own, moved, whole, options), protocol=protocol)


def _claims(
    associations: pd.DataFrame, shifts: pd.DataFrame, overall: pd.DataFrame, options: LikelihoodOptions
) -> Iterator[Claim]:
    yield _c1(associations, options)
    yield _c2(shifts, overall, options)
    yield _c3(overall)
    yield _c4(associations, overall, options)
    yield _c5(shifts, options)


def layers_of(rows: pd.DataFrame) -> str:
    """Numbers of the layers, in words.

    >>> layers_of(pd.DataFrame({"layer": [2, 0, 2]})), layers_of(pd.DataFrame({"layer": []}))
    ('layers 0, 2', 'no layer')
    """
    found = sorted({int(one) for one in rows["layer"]})
    return f"layer{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}" if found else "no layer"


def _signs(rows: pd.DataFrame, column: str, options: LikelihoodOptions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows beyond chance, those above 0 and those below."""
    certain = rows[rows["p_adjusted"] <= options.alpha]
    return certain[certain[column] > 0], certain[certain[column] < 0]


def _c1(associations: pd.DataFrame, options: LikelihoodOptions) -> Claim:
    statistic = (
        "correlation of likelihood and share within texts, of the layer with the largest |z|; null: ends of "
        "the band of permuted versions in that layer; interval without allowance for the choice of layer"
    )
    rows = associations[
        (associations["design"] == "within") & (associations["predictor"] == "log_likelihood")
    ]
    if rows["z"].isna().all():
        return Claim("C1", statistic, NOT_TESTABLE, "no text has three versions whose attention differs")
    best = rows.loc[rows["z"].abs().idxmax()]
    values: dict[str, Any] = {
        "value": float(best["estimate"]), "low": float(best["low"]), "high": float(best["high"]),
        "null": 1.96 * abs(float(best["estimate"] / best["z"])) if best["z"] else 0.0,
        "p_value": float(best["p_adjusted"]),
    }  # fmt: skip
    above, below = _signs(rows, "estimate", options)
    slope = f"{number(best['slope'])} share per nat in layer {int(best['layer'])}"
    if above.empty and below.empty:
        reason = (
            f"no layer's attention to itself follows likelihood beyond chance (largest |z| "
            f"{abs(best['z']):.1f}, family-wise p {number(best['p_adjusted'])}); {slope}"
        )
        return Claim("C1", statistic, CONTRADICTED, reason, **values)
    reason = f"above 0 in {layers_of(above)}, below 0 in {layers_of(below)}; {slope}"
    return Claim("C1", statistic, _mixed(above, below), reason, **values)


def _mixed(wanted: pd.DataFrame, against: pd.DataFrame) -> str:
    """Supported where all that is certain goes one way, contradicted where it goes the other."""
    if wanted.empty:
        return CONTRADICTED
    return SUPPORTED if against.empty else UNDECIDED


def _overall(overall: pd.DataFrame, name: str) -> dict[str, float]:
    """Value, interval and p of a number of all layers; nothing where there is none."""
    if name not in overall.index:
        return {}
    row = overall.loc[name]
    return {
        "value": float(row["estimate"]), "low": float(row["low"]), "high": float(row["high"]),
        "p_value": float(row["p_value"]),
    }  # fmt: skip


def _c2(shifts: pd.DataFrame, overall: pd.DataFrame, options: LikelihoodOptions) -> Claim:
    statistic = "share of less likely words − that of real ones, mean over layers and modes"
    rows = shifts[(shifts["measure"] == "share") & (shifts["mode"] != "swap")]
    rows = rows[rows["log_likelihood_difference"] < 0]
    values = _overall(overall, "shift_of_share")
    if rows.empty or not values:
        return Claim("C2", statistic, NOT_TESTABLE, "no mode is less likely than the real words")
    above, below = _signs(rows, "difference", options)
    reason = f"lowered in {layers_of(below)}, raised in {layers_of(above)} (any mode, Holm)"
    return Claim("C2", statistic, _mixed(below, above), reason, null=0.0, **values)


def _c3(overall: pd.DataFrame) -> Claim:
    statistic = "correlation within texts, mean of the last third of the layers − that of the first third"
    values = _overall(overall, "depth")
    if not values or not np.isfinite(values["value"]):
        return Claim("C3", statistic, NOT_TESTABLE, "depth has thirds from three layers on")
    if not np.isfinite(values["low"]):
        return Claim("C3", statistic, NOT_TESTABLE, "fewer than five texts: no interval", null=0.0, **values)
    if values["low"] > 0:
        return Claim("C3", statistic, SUPPORTED, "", null=0.0, **values)
    reason = "the interval lies below 0" if values["high"] < 0 else "the interval holds 0"
    return Claim("C3", statistic, CONTRADICTED, reason, null=0.0, **values)


def _c4(associations: pd.DataFrame, overall: pd.DataFrame, options: LikelihoodOptions) -> Claim:
    statistic = "swap: share at home − in the other text, mean over layers"
    values = _overall(overall, "swap")
    if not values or not np.isfinite(values["value"]):
        return Claim("C4", statistic, NOT_TESTABLE, "no two texts can exchange their words")
    nats = float(overall["estimate"]["swap_nats"])
    pairs = int(overall["n"]["swap"])
    if not np.isfinite(values["low"]):
        reason = f"{pairs} pairs of texts: no interval"
        return Claim("C4", statistic, NOT_TESTABLE, reason, null=0.0, **values)
    value, low, high, cost = (number(one) for one in (values["value"], values["low"], values["high"], nats))
    about = f"{value} [{low}, {high}] at {cost} nats"
    if nats < options.least_nats:
        reason = (
            f"an exchanged word costs {cost} nats, below {options.least_nats:g}: to this model the text says "
            f"little of its word ({pairs} pairs)"
        )
        values = values | {"p_value": float("nan")}
        return Claim("C4", statistic, NOT_TESTABLE, reason, null=0.0, **values)
    rows = associations[(associations["design"] == "swap") & (associations["measure"] == "share")]
    above, below = _signs(rows, "estimate", options)
    where = f"{pairs} pairs; above 0 in {layers_of(above)}, below 0 in {layers_of(below)} (Holm)"
    if values["low"] > 0:
        return Claim("C4", statistic, SUPPORTED, f"swap: {about}; {where}", null=0.0, **values)
    tail = "against expectation" if values["high"] < 0 else "no effect of expectation"
    return Claim("C4", statistic, CONTRADICTED, f"swap: {about}: {tail}; {where}", null=0.0, **values)


def _c5(shifts: pd.DataFrame, options: LikelihoodOptions) -> Claim:
    statistic = (
        "change of attention to special tokens or to the rest, of the layer, mode and target with the "
        "smallest p (Holm over layers and modes); interval without allowance for that choice"
    )
    rows = shifts[shifts["measure"].isin(["special", "context"]) & (shifts["mode"] != "swap")]
    rows = rows[rows["log_likelihood_difference"] < 0].dropna(subset="p_adjusted")
    if rows.empty:
        return Claim("C5", statistic, NOT_TESTABLE, "no mode is less likely than the real words")
    best = rows.sort_values("p_value", kind="stable").iloc[0]
    words = [f"{best['mode']}, layer {int(best['layer'])}, {best['measure']}"]
    for measure, label in (("special", "special tokens"), ("context", "the rest")):
        more, less = _signs(rows[rows["measure"] == measure], "difference", options)
        words.append(f"to {label}: more in {layers_of(more)}, less in {layers_of(less)}")
    values = {name: float(best[key]) for name, key in CLAIMED.items()}
    verdict = SUPPORTED if values["p_value"] <= options.alpha else CONTRADICTED
    return Claim("C5", statistic, verdict, "; ".join(words), null=0.0, **values)
