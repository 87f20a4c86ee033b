# SPDX-License-Identifier: MIT
"""The paper's claims, each with what was measured of it beside its control, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from attnscope.engine.claims import (
    CONTRADICTED,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    Claim,
    adjusted,
    write_claims,
)
from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.inference import bootstrap
from attnscope.studies.hallucination_geometry import training
from attnscope.studies.hallucination_geometry.bypass import bypass
from attnscope.studies.hallucination_geometry.contrasts import buckets
from attnscope.studies.hallucination_geometry.evidence import ALPHA, Evidence, missing, only, smallest

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

#: An area from which length or words alone make a claim of their own.
CONFOUNDED = 0.6
#: Claims with a p that are not of the primary list.
SECONDARY = ("C7",)


def write(run: StageRun, options: HallucinationOptions) -> None:
    """The table `claims` of every checkpoint."""
    stored = run.stored
    names = [name for name in stored.tables() if name not in ("states", "samples")]
    tables = {name: stored.table(name) for name in names}
    if "prompts" not in tables:
        return
    training.write(run, tables)
    reference, others = buckets(options)
    for key, prompts in tables["prompts"].groupby([*CHECKPOINT_KEYS], sort=False, dropna=False):
        keys = dict(zip(CHECKPOINT_KEYS, key, strict=True))
        own = {name: only(table, keys) for name, table in tables.items() if not name.endswith("_variants")}
        own["prompts"] = _with_outcomes(prompts, own) if options.bucket_by == "outcome" else prompts
        controls = {
            name.removesuffix("_variants"): only(table, {"model": keys["model"]})
            for name, table in tables.items() if name.endswith("_variants")
        }  # fmt: skip
        every = [Evidence(other, reference, own, controls, options) for other in others]
        write_claims(run, judged(every), [f"{one} {other}" for one in SECONDARY for other in others], **keys)


def _with_outcomes(prompts: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Prompts in the buckets that their answers put them into."""
    right = tables["answers"].set_index("sample")["correct"].reindex(prompts["sample"])
    return prompts.assign(bucket=np.where(right.fillna(False).astype(bool).to_numpy(), "right", "wrong"))


def judged(every: list[Evidence]) -> list[Claim]:
    """The claims of all contrasts of a checkpoint, decided by what is left of their p over the whole list."""
    made = [list(claims(one)) for one in every]
    levels = iter(adjusted([claim for own in made for claim in own], SECONDARY)[0].tolist())
    found = []
    for evidence, own in zip(every, made, strict=True):
        known = replace(evidence, adjusted={claim.claim: next(levels) for claim in own})
        found += [replace(one, claim=f"{one.claim} {evidence.contrast}") for one in claims(known)]
    return found


def claims(evidence: Evidence) -> Iterator[Claim]:
    """Every claim of one contrast; all untestable where the prompts alone tell the buckets apart."""
    why = confounded(evidence)
    made = [_c1(evidence), _ratio(evidence), _rank(evidence), _pieces(evidence), _falls(evidence),
            _gain(evidence), _gradients(evidence), _stable(evidence),
            bypass(evidence), _expressed(evidence)]  # fmt: skip
    for one in made:
        yield replace(one, verdict=NOT_TESTABLE, reason=why) if why else one
    yield Claim("C8", "entropy of the boundary's readout", NOT_TESTABLE,
                "a vector of length 1 reads out as nothing whatever it is")  # fmt: skip
    yield Claim("C12", "attractor of cross-entropy", NOT_TESTABLE, "a hypothesis about training")


def confounded(evidence: Evidence) -> str:
    """Why nothing can follow from these prompts; "" where something can."""
    if why := beforehand(evidence.rows("detection"), evidence.contrast, evidence.reference):
        return why
    tested = evidence.rows("contrasts", quantity="auc_direction")
    if len(tested) and tested["p_value"].isna().all() and (tested["labellings"] < 20).all():
        return "the buckets are confounded with their templates"
    return ""


def beforehand(rows: pd.DataFrame, contrast: str, reference: str) -> str:
    """What length and words alone make of two buckets, where that rules every claim out."""
    for score, what in (("auc_length", "length"), ("auc_words", "a count of words")):
        own = rows[rows["score"] == score] if len(rows) else rows
        if own.empty:
            continue
        value = float(own["auc"].iloc[0])
        value = max(value, 1 - value) if score == "auc_length" else value
        if value >= CONFOUNDED:
            return (
                f"{what} alone tells {contrast} from {reference} with AUC {value:.2f}: no claim about "
                "uncertainty can be made from these prompts"
            )
    return ""


def _c1(evidence: Evidence) -> Claim:
    statistic = "largest excess of held-out AUC over words, length, surprisal and embeddings"
    rows = evidence.rows("detection", score="auc_excess")
    rows = rows.dropna(subset=["auc"]) if len(rows) else rows
    test = smallest(evidence.rows("contrasts", quantity="auc_direction"))
    if rows.empty or test is None:
        return missing("C1", statistic, "one template, or states that are not finite")
    top = rows.iloc[int(rows["auc"].argmax())]
    layer = int(top["layer"])
    mean, upper = evidence.random("detection", "auc", layer=layer, score="auc")
    whole = float(evidence.rows("detection", score="auc", layer=layer)["auc"].iloc[0])
    numbers = {"value": float(top["auc"]), "low": float(top["low"]), "high": float(top["high"]),
               "null": 0.0, "p_value": float(test["p_adjusted"])}  # fmt: skip
    where = f"layer {layer}, AUC {whole:.2f}"
    if numbers["value"] <= 0:
        return Claim(
            "C1", statistic, CONTRADICTED, f"{where}: no layer knows more than its baselines", **numbers
        )
    if np.isfinite(upper) and whole <= upper:
        reason = f"{where}; models with random weights reach {upper:.2f} (mean {mean:.2f})"
        return Claim("C1", statistic, CONTRADICTED, reason, **numbers)
    if evidence.level("C1", numbers["p_value"]) <= ALPHA and numbers["low"] > 0:
        return Claim("C1", statistic, SUPPORTED, where, **numbers)
    reason = f"{where}: its interval holds 0, or exchanged labels give as much"
    return Claim("C1", statistic, UNDECIDED, reason, **numbers)


def _ratio(evidence: Evidence) -> Claim:
    k = evidence.options.primary_k
    statistic = f"log ratio of local dimensions at k = {k}, layer of the smallest p"
    rows = evidence.rows("contrasts", quantity="log_dimension_ratio")
    best = smallest(only(rows, {"k": k}))
    if best is None:
        return missing("C2", statistic)
    layer = int(best["layer"])
    signs = np.sign(rows[rows["layer"] == layer]["value"].dropna())
    mean, upper = evidence.random("contrasts", "value", layer=layer, quantity="log_dimension_ratio", k=k)
    numbers = {"value": float(best["value"]), "low": float(best["low"]), "high": float(best["high"]),
               "null": 0.0, "p_value": float(best["p_adjusted"])}  # fmt: skip
    where = f"layer {layer}, ratio {np.exp(numbers['value']):.2f}"
    if evidence.level("C2", numbers["p_value"]) > ALPHA:
        if numbers["high"] < np.log(2):
            return Claim("C2", statistic, CONTRADICTED, f"{where}: not twice as large", **numbers)
        return Claim("C2", statistic, UNDECIDED, f"{where}: exchanged labels give as much", **numbers)
    if numbers["value"] < 0 or signs.nunique() > 1:
        return Claim(
            "C2", statistic, CONTRADICTED, f"{where}: the sign is the other, or changes with k", **numbers
        )
    if np.isfinite(upper) and numbers["value"] <= upper:
        return Claim(
            "C2", statistic, CONTRADICTED, f"{where}: random weights give {np.exp(mean):.2f}", **numbers
        )
    return Claim("C2", statistic, SUPPORTED, where, **numbers)


def _rank(evidence: Evidence) -> Claim:
    statistic = "largest ratio of effective ranks at equal n"
    table = evidence.tables.get("clouds", pd.DataFrame())
    if table.empty:
        return missing("C3", statistic)
    own = table[(table["quantity"] == "effective_rank") & (table["protocol"] == "exact")]
    own = own[own["null"] == ""]
    wide = own.pivot_table(index="layer", columns="bucket", values="value")
    wide = wide[wide.index >= 0]
    ratios = (wide[evidence.contrast] / wide[evidence.reference]).dropna()
    if ratios.empty:
        return missing("C3", statistic)
    value = float(ratios.max())
    verdict = CONTRADICTED if value < 1.5 else UNDECIDED
    return Claim("C3", statistic, verdict, f"layer {int(ratios.idxmax())}; n alone gives 1.9 in the paper",
                 value=value, null=1.0)  # fmt: skip


def _pieces(evidence: Evidence) -> Claim:
    statistic = "difference of fragmentation, layer of the smallest p"
    best = smallest(evidence.rows("contrasts", quantity="fragmentation_gap"))
    if best is None:
        return missing("C4", statistic)
    numbers = {"value": float(best["value"]), "low": float(best["low"]), "high": float(best["high"]),
               "null": 0.0, "p_value": float(best["p_adjusted"])}  # fmt: skip
    where = f"layer {int(best['layer'])}"
    if evidence.level("C4", numbers["p_value"]) > ALPHA:
        return Claim("C4", statistic, CONTRADICTED, f"{where}: exchanged labels give as much", **numbers)
    mean, upper = evidence.random(
        "contrasts", "value", layer=int(best["layer"]), quantity="fragmentation_gap"
    )
    if np.isfinite(upper) and 0 < numbers["value"] <= upper:
        return Claim("C4", statistic, CONTRADICTED, f"{where}: random weights give {mean:.2f}", **numbers)
    verdict = SUPPORTED if numbers["value"] > 0 else CONTRADICTED
    return Claim("C4", statistic, verdict, where, **numbers)


def _falls(evidence: Evidence) -> Claim:
    """Relative sensitivity from the first to the last layer, and whether the reference's falls as much.

    Its p is of the boundary among directions of the covariance.
    """
    statistic = "log ratio of ‖h‖²·bᵀFb, last over first layer, mean over prompts"
    rows = evidence.rows("sensitivity", direction="boundary")
    rows = rows[rows["relative_fisher"] > 0] if len(rows) else rows
    if rows.empty or rows["layer"].nunique() < 2:
        return missing("C5", statistic)
    wide = np.log(rows.pivot_table(index="sample", columns="layer", values="relative_fisher")).dropna()
    change = wide[wide.columns.max()] - wide[wide.columns.min()]
    prompts = evidence.tables["prompts"].set_index("sample").reindex(change.index)
    intervals = {
        bucket: bootstrap(change[mine].to_numpy(dtype=float), clusters=prompts["template"][mine].to_numpy())
        for bucket, mine in (
            (one, prompts["bucket"] == one) for one in (evidence.contrast, evidence.reference)
        )
    }
    (value, low, high, _), other = intervals[evidence.contrast], intervals[evidence.reference]
    test = smallest(evidence.rows("contrasts", quantity="log_fisher_ratio"))
    numbers = {"value": value, "low": low, "high": high, "null": 0.0,
               "p_value": np.nan if test is None else float(test["p_adjusted"])}  # fmt: skip
    if np.isnan(low):
        return Claim(
            "C5", statistic, NOT_TESTABLE, "prompts of fewer than 5 templates have no interval", **numbers
        )
    if low > 0:
        return Claim("C5", statistic, CONTRADICTED, "in natural units it rises with depth", **numbers)
    if high < 0:
        gap, reach = value - other.estimate, np.hypot(high - value, other.high - other.estimate)
        if gap + reach < 0:
            return Claim(
                "C5", statistic, SUPPORTED, f"{evidence.reference} falls less, by {-gap:.2f}", **numbers
            )
        return Claim("C5", statistic, CONTRADICTED, f"{evidence.reference} falls as much", **numbers)
    return Claim("C5", statistic, UNDECIDED, "its interval holds 0", **numbers)


def _gain(evidence: Evidence) -> Claim:
    statistic = "readout gain of the boundary, layer of the smallest p; 1 is isotropic"
    rows = evidence.rows("readout", direction="boundary")
    if rows.empty:
        return missing("C6", statistic)
    test = smallest(evidence.rows("contrasts", quantity="log_gain_ratio"))
    layer = int(rows["layer"].max() if test is None else test["layer"])
    value = float(only(rows, {"layer": layer})["readout_gain"].iloc[0])
    null = evidence.rows("readout", direction="covariance", layer=layer)["readout_gain"]
    found = {
        "value": value,
        "null": float(null.iloc[0]) if len(null) else 1.0,
        "p_value": np.nan if test is None else float(test["p_adjusted"]),
    }
    if value >= 1:
        reason = f"layer {layer}: read more than a random direction"
        return Claim("C6", statistic, CONTRADICTED, reason, **found)
    verdict = SUPPORTED if evidence.level("C6", found["p_value"]) <= ALPHA else UNDECIDED
    return Claim("C6", statistic, verdict, f"layer {layer}", **found)


def _gradients(evidence: Evidence) -> Claim:
    """Its p is of being aligned as little as the boundary is, among directions of the covariance."""
    statistic = "cosine of the refusal's gradient with the boundary at the last layer but one"
    rows = evidence.rows("sensitivity")
    rows = rows.dropna(subset=["refusal_alignment"]) if len(rows) else rows
    if rows.empty:
        return missing("C7", statistic, "no refusal token, or not measured")
    numbers = sorted(rows["layer"].unique())
    rows = rows[rows["layer"] == (numbers[-2] if len(numbers) > 1 else numbers[-1])]
    value = float(rows[rows["direction"] == "boundary"]["refusal_alignment"].mean())
    null = rows[rows["direction"] == "covariance"].groupby("draw")["refusal_alignment"].mean().abs()
    if null.empty:
        return missing("C7", statistic, "no random direction to compare with")
    found = {
        "value": value,
        "null": float(null.quantile(0.95)),
        "p_value": float(1 + (null <= abs(value)).sum()) / (1 + len(null)),
    }
    if abs(value) < float(null.quantile(0.05)):
        return Claim("C7", statistic, SUPPORTED, "less aligned than random directions are", **found)
    reason = "random directions align as little: nothing is blocked"
    if abs(value) > found["null"]:
        reason = "the gradient does align with it"
    return Claim("C7", statistic, CONTRADICTED, reason, **found)


def _stable(evidence: Evidence) -> Claim:
    statistic = "smallest cosine of boundaries of neighbouring layers"
    rows = (
        evidence.rows("boundaries").dropna(subset=["stability"]) if "boundaries" in evidence.tables else None
    )
    if rows is None or rows.empty:
        return missing("C9", statistic)
    row = rows.loc[rows["stability"].idxmin()]
    verdict = SUPPORTED if float(row["stability"]) >= 0.99 else CONTRADICTED
    return Claim("C9", statistic, verdict, f"layer {int(row['layer'])}; the null is of exchanged labels",
                 value=float(row["stability"]), null=float(row["stability_null"]))  # fmt: skip


def _expressed(evidence: Evidence) -> Claim:
    """Decided by its own p: a few random directions give none that a correction could leave small."""
    statistic = "log of the divergence when the difference is put there, over that of random directions"
    best = smallest(evidence.rows("contrasts", quantity="log_transport_ratio"))
    if best is None:
        return missing("C13", statistic)
    numbers = {"value": float(best["value"]), "null": 0.0, "p_value": float(best["p_adjusted"])}
    where = f"layer {int(best['layer'])}"
    if numbers["p_value"] > ALPHA:
        return Claim(
            "C13",
            statistic,
            UNDECIDED,
            f"{where}: random directions of its length move the output as much",
            **numbers,
        )
    verdict = SUPPORTED if numbers["value"] > 0 else CONTRADICTED
    return Claim("C13", statistic, verdict, where, **numbers)
