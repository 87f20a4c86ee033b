# SPDX-License-Identifier: MIT
"""The paper's claims: what is measured of each, its control, and the border that it must pass.

Every function returns an estimate of a single contrast. The verdict is that of `attnscope.study_api.claims`,
over the claims of all contrasts of a checkpoint together. Claims about answers are in `answer_claims`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.statistics import bootstrap
from attnscope.studies.hallucination_geometry import training
from attnscope.studies.hallucination_geometry.answer_claims import (
    bypass_separates,
    compression_refuses,
    steering_changes,
)
from attnscope.studies.hallucination_geometry.contrasts import buckets, of_both_outcomes, with_outcomes
from attnscope.studies.hallucination_geometry.evidence import (
    NOT_MEASURED,
    Evidence,
    exceedance,
    in_blocks,
    smallest,
    widen,
)
from attnscope.studies.hallucination_geometry.tables import ContrastTest
from attnscope.study_api.claims import ClaimSet, Control, Estimate, Untestable, above, below
from attnscope.study_api.number_text import estimate_text, rounded, two_places
from attnscope.study_api.rows import first_as, rows_as
from attnscope.study_api.selection import matching, where

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

#: An area from which length or words alone make a claim of their own.
CONFOUNDED = 0.6
CLAIMS = ClaimSet()
RANDOM = "models with random weights"
SWITCH = "options.nulls: [random_weights]"

Measured = Estimate | Untestable
Measure = Callable[[Evidence, "HallucinationOptions"], Measured]


def write(run: StageRun, options: HallucinationOptions) -> None:
    """Write the table `claims` of every checkpoint."""
    stored = run.stored
    names = [name for name in stored.tables() if name not in ("states", "samples")]
    tables = {name: stored.table(name) for name in names}
    if "prompts" not in tables:
        return
    training.write(run, tables)
    reference, others = buckets(options)
    for key, prompts in tables["prompts"].groupby([*CHECKPOINT_KEYS], sort=False, dropna=False):
        keys = dict(zip(CHECKPOINT_KEYS, key, strict=True))
        rows = {
            name: matching(table, keys) for name, table in tables.items() if not name.endswith("_variants")
        }
        if options.bucket_by == "outcome":
            judged = with_outcomes(prompts, rows["answers"]).dropna(subset=["bucket"])
            prompts = of_both_outcomes(judged)
        rows["prompts"] = prompts
        controls = {
            name.removesuffix("_variants"): matching(table, {"model": keys["model"]})
            for name, table in tables.items()
            if name.endswith("_variants")
        }
        evidence = {other: Evidence(other, reference, rows, controls, options) for other in others}
        CLAIMS.write(run, evidence, options, **keys)


def confound_reason(evidence: Evidence) -> str:
    """Return why nothing can follow from these prompts, "" where something can."""
    rows = evidence.rows("detection")
    if reason := prompt_confound(rows, evidence.contrast, evidence.reference):
        return reason
    tested = evidence.rows("contrasts", quantity="auc_direction")
    if len(tested) and tested["p_value"].isna().all() and (tested["labellings"] < 20).all():
        return "the buckets are confounded with their templates"
    return ""


def prompt_confound(rows: pd.DataFrame, contrast: str, reference: str) -> str:
    """Return how well length and words alone tell two buckets apart, where that rules every claim out."""
    for score, feature in (("auc_length", "length"), ("auc_words", "a count of words")):
        scores = where(rows, score=score) if len(rows) else rows
        if scores.empty:
            continue
        value = float(scores["auc"].iloc[0])
        value = max(value, 1 - value) if score == "auc_length" else value
        if value >= CONFOUNDED:
            return (
                f"{feature} alone tells {contrast} from {reference} with AUC {value:.2f}: no claim about "
                "uncertainty can be made from these prompts"
            )
    return ""


def claim(
    code: str, sentence: str, statistic: str, *, family: str = "primary"
) -> Callable[[Measure], Measure]:
    """Declare a claim that is untestable where the prompts alone tell the buckets apart."""

    def declare(measure: Measure) -> Measure:
        @CLAIMS.claim(code, sentence, statistic, family=family)
        def measure_unconfounded(evidence: Evidence, options: HallucinationOptions) -> Measured:
            reason = confound_reason(evidence)
            answer = measure(evidence, options)
            if not reason:
                return answer
            return Untestable(reason, answer if isinstance(answer, Estimate) else answer.estimate)

        return measure

    return declare


def _random_weights(evidence: Evidence, values: list[float], measured: float = math.nan) -> Control:
    """Return the random-weight control of a statistic."""
    return Control(RANDOM, values, measured, SWITCH)


@claim(
    "C1",
    "states tell the buckets apart beyond what words, length and surprise tell",
    "largest excess over layers of the probe's held-out AUC over the best of words, length, surprisal and "
    "embeddings; interval over templates, for the choice of the layer; p: exchanged labels, largest over "
    "layers of the AUC along the difference of means; control: the AUC itself",
)
def states_tell(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the largest excess of detection; the states that enter the first block are all alike.

    p is of the area, which words may give as well: that the excess is the largest of many layers is the
    interval's matter.
    """
    rows = evidence.rows("detection", score="auc_excess")
    rows = rows[rows["auc"].notna() & (rows["layer"] >= 0)] if len(rows) else rows
    test = smallest(in_blocks(evidence.rows("contrasts", quantity="auc_direction")))
    if rows.empty or test is None:
        return Untestable("one template, or states that are not finite")
    top = rows.iloc[int(rows["auc"].argmax())]
    layer = int(top["layer"])
    low, high = widen(top["auc"], top["low"], top["high"], len(rows), evidence.templates)
    areas = in_blocks(evidence.rows("detection", score="auc")).set_index("layer")["auc"]
    control = _random_weights(
        evidence, evidence.largest_of_seeds("detection", "auc", score="auc"), float(areas.max())
    )
    return Estimate(
        float(top["auc"]),
        low,
        min(high, 1.0),
        above(0.0),
        p_value=float(test["p_adjusted"]),
        controls=[control],
        words=f"layer {layer}, AUC {areas[layer]:.2f}",
    )


def _dimension(evidence: Evidence, options: HallucinationOptions, layer: int | None) -> Estimate | None:
    """Return the log ratio of dimensions with an interval that holds those of every k.

    Args:
        evidence: of a contrast.
        options: of the study.
        layer: None takes the layer of the largest ratio, and widens the interval for the choice.
    """
    rows = in_blocks(evidence.rows("contrasts", quantity="log_dimension_ratio"))
    tested = matching(rows, {"k": options.primary_k}).dropna(subset=["value"]) if len(rows) else rows
    if tested.empty:
        return None
    choices = 1
    if layer is None:
        layer, choices = int(tested.iloc[int(tested["value"].argmax())]["layer"]), len(tested)
    rows_of_layer = where(rows, layer=layer).dropna(subset=["value"])
    ends = [
        widen(row.value, row.low, row.high, choices, evidence.templates)
        for row in rows_as(ContrastTest, rows_of_layer)
    ]
    row = first_as(ContrastTest, where(tested, layer=layer))
    largest = evidence.largest_of_seeds(
        "contrasts", "value", quantity="log_dimension_ratio", k=options.primary_k
    )
    changes = rows_of_layer["value"].gt(0).nunique() > 1
    return Estimate(
        row.value,
        min(low for low, _ in ends),
        max(high for _, high in ends),
        p_value=row.p_adjusted,
        controls=[_random_weights(evidence, largest)],
        objection="the sign changes with the number of neighbours" if changes else "",
        words=f"layer {layer}, ratio {math.exp(row.value):.2f} at k = {options.primary_k}",
    )


@claim(
    "C2",
    "states of the other bucket have two to three times the dimension",
    "log ratio of local dimensions, layer of the largest; interval over templates, for every k and for the "
    "choice of the layer; border: log 2",
)
def twice_the_dimension(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the largest ratio of dimensions against the border of 2."""
    estimate = _dimension(evidence, options, None)
    if estimate is None:
        return Untestable(NOT_MEASURED)
    if not estimate.has_interval:
        return Untestable("prompts of fewer than 5 templates have no interval", estimate)
    return Estimate(
        estimate.value,
        estimate.low,
        estimate.high,
        above(math.log(2)),
        controls=estimate.controls,
        objection=estimate.objection,
        words=estimate.words,
    )


@claim(
    "C2b",
    "states of the other bucket have a higher dimension",
    "log ratio of local dimensions, layer of the smallest p; interval over templates, for every k; p: "
    "exchanged labels, largest over layers",
)
def higher_dimension(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the ratio of dimensions of the layer that differs most."""
    rows = in_blocks(evidence.rows("contrasts", quantity="log_dimension_ratio"))
    best = smallest(matching(rows, {"k": options.primary_k}))
    if best is None:
        return Untestable(NOT_MEASURED)
    estimate = _dimension(evidence, options, int(best["layer"]))
    assert estimate is not None
    return _two_sided(estimate)


def _two_sided(estimate: Estimate) -> Estimate:
    """Return an estimate whose p speaks on either side."""
    from dataclasses import replace

    return replace(estimate, speaks="either")


@claim(
    "C3",
    "their spectrum is wider",
    "log ratio of effective ranks at equal n, layer of the largest; interval over templates, for the choice "
    "of the layer",
)
def wider_spectrum(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the largest ratio of effective ranks."""
    rows = in_blocks(evidence.rows("contrasts", quantity="log_rank_ratio"))
    rows = rows.dropna(subset=["value"]) if len(rows) else rows
    if rows.empty:
        return Untestable(NOT_MEASURED)
    row = rows.iloc[int(rows["value"].argmax())]
    low, high = widen(row["value"], row["low"], row["high"], len(rows), evidence.templates)
    estimate = Estimate(
        float(row["value"]),
        low,
        high,
        above(0.0),
        controls=[
            _random_weights(
                evidence, evidence.largest_of_seeds("contrasts", "value", quantity="log_rank_ratio")
            )
        ],
        words=f"layer {int(row['layer'])}, ratio {math.exp(row['value']):.2f}; n is equal here "
        f"({int(row['n_pairs'])})",
    )
    if not estimate.has_interval:
        return Untestable("prompts of fewer than 5 templates have no interval", estimate)
    return estimate


@claim(
    "C4",
    "they fall into more pieces",
    "difference of fragmentation, layer of the smallest p; p: exchanged labels, largest over layers",
)
def more_pieces(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the difference of fragmentation."""
    best = smallest(in_blocks(evidence.rows("contrasts", quantity="fragmentation_gap")))
    if best is None:
        return Untestable(NOT_MEASURED)
    largest = evidence.largest_of_seeds("contrasts", "value", quantity="fragmentation_gap")
    return Estimate(
        float(best["value"]),
        float(best["low"]),
        float(best["high"]),
        above(0.0),
        p_value=float(best["p_adjusted"]),
        speaks="either",
        controls=[_random_weights(evidence, largest)],
        words=f"layer {int(best['layer'])}",
    )


@claim(
    "C5",
    "sensitivity along the boundary collapses with depth",
    "log ratio of ‖h‖²·bᵀFb, last over first layer, or that less the reference's: the less certain part; "
    "interval over templates",
)
def sensitivity_falls(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the fall of relative sensitivity, and by how much it exceeds that of the reference.

    Both must be below 0: the part that is less certain decides.
    """
    rows = evidence.rows("sensitivity")
    if rows.empty or rows["layer"].nunique() < 2:
        return Untestable(NOT_MEASURED)
    prompts = evidence.tables["prompts"].set_index("sample")
    change = _log_change(where(rows, direction="boundary"))
    if change.empty:
        return Untestable("no sensitivity above 0")
    table = prompts.reindex(change.index)
    other = (table["bucket"] == evidence.contrast).to_numpy()
    values, templates = change.to_numpy(dtype=float), pd.factorize(table["template"])[0]
    fall = bootstrap(values[other], clusters=templates[other])

    def gap(places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        chosen = places.astype(int)
        labels, numbers = other[chosen], values[chosen]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (numbers * labels).sum(-1) / labels.sum(-1)
            rest = (numbers * ~labels).sum(-1) / (~labels).sum(-1)
        return np.asarray(mean - rest)

    beyond_reference = bootstrap(np.arange(len(values), dtype=float), gap, clusters=templates)
    parts = {"the fall itself": fall, f"less that of {evidence.reference}": beyond_reference}
    if any(math.isnan(part.low) for part in parts.values()):
        return Untestable("prompts of fewer than 5 templates have no interval")
    rising = [name for name, part in parts.items() if part.low > 0]
    name = rising[0] if rising else max(parts, key=lambda name: parts[name].high)
    draws = where(rows, direction="covariance")
    falls = [float(_log_change(draw).mean()) for _, draw in draws.groupby("draw")]
    words = "; ".join(
        f"{name} {estimate_text(part.estimate, part.low, part.high, two_places)}"
        for name, part in parts.items()
    )
    return Estimate(
        parts[name].estimate,
        parts[name].low,
        parts[name].high,
        below(0.0),
        controls=[Control("random directions of the covariance", falls, float(values.mean()))],
        words=words,
    )


def _log_change(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the log ratio of relative sensitivity, last over first layer, of every prompt."""
    rows = rows[rows["relative_fisher"] > 0]
    if rows.empty:
        return pd.Series(dtype=float)
    wide = np.log(rows.pivot_table(index="sample", columns="layer", values="relative_fisher")).dropna()
    return wide[wide.columns.max()] - wide[wide.columns.min()]


@claim(
    "C6",
    "the boundary is where the unembedding reads little",
    "log ratio of the boundary's readout gain over that of directions of the same covariance, layer of the "
    "smallest p; p: among these directions, largest over layers",
)
def read_little(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the readout gain of the boundary among directions of its covariance; 1 is isotropic."""
    rows = evidence.rows("readout", direction="boundary")
    test = smallest(in_blocks(evidence.rows("contrasts", quantity="log_gain_ratio")))
    if rows.empty or test is None:
        return Untestable(NOT_MEASURED)
    layer = int(test["layer"])
    gain = float(matching(rows, {"layer": layer})["readout_gain"].iloc[0])
    null = evidence.rows("readout", direction="covariance", layer=layer)
    ends = f"{null['low'].iloc[0]:.2g} to {null['high'].iloc[0]:.2g}" if len(null) else "not measured"
    return Estimate(
        float(test["value"]),
        region=below(0.0),
        p_value=float(test["p_adjusted"]),
        speaks="either",
        draws=int(test["labellings"]),
        objection=f"gain {gain:.2g} is not below 1, that of an isotropic direction" if gain >= 1 else "",
        words=f"layer {layer}, gain {gain:.2g}; directions of the same covariance {ends}",
    )


@claim(
    "C7",
    "gradients of refusal cannot align with the boundary",
    "size of the mean cosine of the refusal's gradient with the boundary at the last layer but one; p: among "
    "directions of the covariance",
    family="secondary",
)
def gradients_blocked(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the alignment of the refusal's gradient among directions of the covariance, on either side."""
    rows = evidence.rows("contrasts", quantity="refusal_alignment")
    rows = rows.dropna(subset=["p_value"]) if len(rows) else rows
    if rows.empty:
        return Untestable(evidence.check_reason("refusal_token") or NOT_MEASURED)
    layers = sorted(rows["layer"].unique())
    row = first_as(ContrastTest, where(rows, layer=layers[-2] if len(layers) > 1 else layers[-1]))
    ends = f"{rounded(row.null_low, '.3f')} to {rounded(row.null_high, '.3f')}"
    return Estimate(
        row.value,
        region=below(row.null_mean),
        p_value=row.p_value,
        speaks="either",
        draws=int(row.labellings) // 2,
        words=f"layer {row.layer}; directions of the covariance {ends}",
    )


@CLAIMS.claim("C8", "the boundary reads out as nothing", "entropy of the boundary's readout")
def readout_entropy(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Return why the claim has no content."""
    return Untestable("a vector of length 1 reads out as nothing whatever it is")


@claim(
    "C9",
    "neighbouring layers have the same boundary",
    "smallest cosine of boundaries of neighbouring layers; interval over templates, for the choice of the "
    "layer; border: .99, or the largest cosine of exchanged labels",
)
def same_boundary(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the smallest cosine of neighbouring boundaries."""
    rows = evidence.rows("boundaries")
    rows = rows.dropna(subset=["stability"]) if len(rows) else rows
    if rows.empty:
        return Untestable(NOT_MEASURED)
    row = rows.iloc[int(rows["stability"].argmin())]
    value = float(row["stability"])
    low, high = widen(value, row["stability_low"], row["stability_high"], len(rows), evidence.templates)
    exchanged = float(row["stability_null_high"])
    estimate = Estimate(
        value,
        low,
        min(high, 1.0),
        above(max(0.99, exchanged)),
        words=f"layer {int(row['layer'])}; exchanged labels: mean {two_places(row['stability_null'])}, "
        f"largest {two_places(exchanged)}",
    )
    if not estimate.has_interval:
        return Untestable("prompts of fewer than 5 templates have no interval", estimate)
    return estimate


claim(
    "C10",
    "wiring a detector to a refusal restores it",
    "Youden's J of forced refusals, the probe's less its best control's, layer of the largest; p: exchanged "
    "labels, largest over layers",
)(bypass_separates)


@CLAIMS.claim("C11", "the isotropy of states rises with uncertainty", "second over first eigenvalue")
def isotropy_rises(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Return why the claim is reported and not decided."""
    return Untestable(
        "the paper's own order of the buckets differs by model and layer, so that no claim is left; the "
        "numbers are in the table clouds"
    )


@CLAIMS.claim("C12", "training with cross-entropy has no attractor for abstention", "none")
def no_attractor(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Return why the claim cannot be tested on a trained model."""
    return Untestable("a hypothesis about training")


@claim(
    "C13",
    "the output answers to the difference more than to random directions of its length (expressed)",
    "log of the divergence when the difference is put there, over that of random directions, layer of the "
    "smallest p; p: isotropic directions and exchanged labels, the larger, Bonferroni over layers",
)
def expressed(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure how much more the output moves along the difference than along random directions.

    Two kinds of directions must agree: isotropic ones, and differences of exchanged labels.
    """
    best = smallest(in_blocks(evidence.rows("contrasts", quantity="log_transport_ratio")))
    if best is None:
        return Untestable(evidence.check_reason("sensitivity") or "options.sensitivity is off")
    return Estimate(
        float(best["value"]),
        region=above(0.0),
        p_value=float(best["p_adjusted"]),
        speaks="either",
        words=f"layer {int(best['layer'])}, × {math.exp(best['value']):.2g}",
    )


@claim(
    "C14",
    "the next block amplifies the difference",
    "log of ‖J b‖ of the next block, mean over prompts and layers, over that of differences of exchanged "
    "labels; p: t over these",
    family="secondary",
)
def amplified(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure the amplification of the boundary among that of exchanged labels."""
    rows = evidence.rows("sensitivity")
    rows = rows[rows["amplification"] > 0] if len(rows) and "amplification" in rows else rows[:0]
    if rows.empty:
        return Untestable(NOT_MEASURED)
    logs = np.log(rows["amplification"].astype(float))
    means = logs.groupby([rows["direction"], rows["draw"]]).mean()
    fewest = options.fewest_controls
    if "boundary" not in means or "labels" not in means or means["labels"].size < fewest:
        return Untestable(f"fewer than {fewest} differences of exchanged labels to compare with")
    value, null = float(means["boundary"].iloc[0]), means["labels"].to_numpy(dtype=float)
    isotropic = means["isotropic"].mean() if "isotropic" in means else math.nan
    return Estimate(
        value - float(null.mean()),
        region=above(0.0),
        p_value=exceedance(value, null),
        speaks="either",
        words=f"× {math.exp(value):.2f}; exchanged labels × {math.exp(null.mean()):.2f}, isotropic "
        f"directions × {math.exp(isotropic):.2f}",
    )


claim(
    "C15",
    "moving the state along the difference changes answers more than other moves of that length",
    "share of changed answers along the difference less that along random directions, mean over sizes and "
    "layers; interval over templates and directions",
    family="secondary",
)(steering_changes)

claim(
    "C16",
    "drawing states towards the reference's main directions makes the model refuse",
    "share of refusals of the other bucket less that under random subspaces of the same size, mean over "
    "strengths and layers; interval over templates and subspaces",
    family="secondary",
)(compression_refuses)


@claim(
    "C17",
    "the residual stream forces a commitment",
    "entropy of the readout on the other bucket, last layer less the layer half way (nats); interval over "
    "templates",
    family="secondary",
)
def commitment(evidence: Evidence, options: HallucinationOptions) -> Measured:
    """Measure how far the prediction sharpens in the second half of the layers."""
    change = _entropy_change(evidence.tables.get("lens", pd.DataFrame()))
    if change is None:
        return Untestable("options.lens is off, or the model has no readout")
    if change.empty:
        return Untestable("the model has a single layer")
    prompts = evidence.tables["prompts"].set_index("sample")
    means = {}
    for bucket in (evidence.contrast, evidence.reference):
        rows = change[(prompts["bucket"].reindex(change.index) == bucket).to_numpy()]
        means[bucket] = bootstrap(
            rows.to_numpy(dtype=float), clusters=prompts["template"].reindex(rows.index).to_numpy()
        )
    part = means[evidence.contrast]
    if math.isnan(part.low):
        return Untestable("prompts of fewer than 5 templates have no interval")
    return Estimate(
        part.estimate,
        part.low,
        part.high,
        below(0.0),
        controls=[_random_weights(evidence, _untrained_changes(evidence, prompts))],
        words=f"{evidence.reference}: {two_places(means[evidence.reference].estimate)}",
    )


def _entropy_change(rows: pd.DataFrame) -> pd.Series[float] | None:
    """Return the entropy of each prompt's prediction, last layer less the layer half way.

    None without rows; empty for a model of a single layer.
    """
    if rows.empty:
        return None
    wide = rows.pivot_table(index="sample", columns="layer", values="prediction_entropy").dropna()
    layers = sorted(layer for layer in wide.columns if layer >= 0)
    if len(layers) < 2:
        return pd.Series(dtype=float)
    return wide[layers[-1]] - wide[layers[(len(layers) - 1) // 2]]


def _untrained_changes(evidence: Evidence, prompts: pd.DataFrame) -> list[float]:
    """Return the mean change of entropy of each model with random weights, on the other bucket."""
    rows = evidence.controls.get("lens", pd.DataFrame())
    if rows.empty:
        return []
    rows = where(rows, sample=where(prompts, bucket=evidence.contrast).index)
    changes = [_entropy_change(draw) for _, draw in rows.groupby("seed")]
    return [float(change.mean()) for change in changes if change is not None and len(change)]
