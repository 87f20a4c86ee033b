# SPDX-License-Identifier: MIT
"""Measures of the paper's claims: of each pair, of several pairs, and of the base.

Every function returns an estimate; the verdict is that of `attnscope.study_api.claims`. Ratios to a change
without preferred directions are decided on with an interval of both errors, of the texts and of the change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.pretraining_writes.arm_claims import ARM_CLAIMS, Arms, arm_runs
from attnscope.studies.pretraining_writes.evidence import Mean, Pair, interval_over, pairs_of
from attnscope.studies.pretraining_writes.fractions import FLOOR, spread_over
from attnscope.studies.pretraining_writes.options import MATCHED
from attnscope.study_api.claims import ClaimSet, Estimate, Region, Untestable, above, between
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.study_api.stage_run import StageRun

READ, WRITE = ("q", "k"), ("o", "down")
READING, WRITING = (READ, "in", "inputs"), (WRITE, "out", "prediction")
#: Controls of the read side, by variant: they must not reach the interval.
NULLS = {
    "other_layer": "inputs of another layer",
    "random_weights": "models with random weights",
    "weights": "the base's own matrices",
}
#: Keys of the rows that are of the whole run.
KEYS_OF_RUN = {"model": "all pairs", "revision": "", "step": -1, "reference": ""}

PAIR_CLAIMS, SERIES_CLAIMS, PAIRS_CLAIMS, BASE_CLAIMS = ClaimSet(), ClaimSet(), ClaimSet(), ClaimSet()
Measured = Estimate | Untestable


class Series(NamedTuple):
    """The pairs of one model in the order of their steps."""

    pairs: list[Pair]


def write(run: StageRun, options: WeightsOptions) -> None:
    """Write the table `claims`: of every pair, series and base, and of the run as a whole."""
    tables = {name: run.read(name) for name in run.stored.tables()}
    if "fractions" not in tables:
        return
    pairs = pairs_of(tables)
    models: dict[str, list[Pair]] = {}
    for pair in pairs:
        models.setdefault(str(pair.keys["model"]), []).append(pair)
    for series in models.values():
        series.sort(key=lambda pair: int(pair.keys["step"]))
        for pair in series:
            PAIR_CLAIMS.write(run, {"": pair}, options, **pair.keys)
            if pair is series[-1] and len(series) > 1:
                SERIES_CLAIMS.write(run, {"": Series(series)}, options, **pair.keys)
    if max(map(len, models.values())) < 2:
        SERIES_CLAIMS.write(run, {"": Series(pairs[:1])}, options, **KEYS_OF_RUN)
    _write_bases(run, tables.get("rank_one", pd.DataFrame()), options)
    several = [
        series[-1]
        for model, series in models.items()
        if model not in options.arms and series[-1].noise < FLOOR
    ]
    if len(several) > 2:
        PAIRS_CLAIMS.write(run, {"": several}, options, **KEYS_OF_RUN)
    keys = (
        {**KEYS_OF_RUN, "model": "all arms", "reference": pairs[0].keys["reference"]}
        if options.arms
        else KEYS_OF_RUN
    )
    ARM_CLAIMS.write(run, {"": Arms(arm_runs(pairs, options))}, options, **keys)
    if any(arm.endswith(MATCHED) for arm in options.arms.values()):
        matched = {"": Arms(arm_runs(pairs, options, matched=True))}
        ARM_CLAIMS.write(run, matched, options, **{**keys, "model": "all arms at equal ‖ΔW‖"})


def _write_bases(run: StageRun, rank_one: pd.DataFrame, options: WeightsOptions) -> None:
    """Write what is claimed of the bases, once for each."""
    if rank_one.empty:
        BASE_CLAIMS.write(run, {"": rank_one}, options, **KEYS_OF_RUN)
        return
    for key, rows in rank_one.groupby([*CHECKPOINT_KEYS], sort=False, dropna=False):
        values = ["" if value is None or value != value else value for value in key]
        keys = dict(zip(CHECKPOINT_KEYS, values, strict=True))
        BASE_CLAIMS.write(run, {"": rows}, options, **keys, reference="")


def _rounding_reason(pair: Pair) -> str:
    """Return why a pair of which rounding is half of the change takes part in no claim."""
    if pair.noise < FLOOR:
        return ""
    return (
        f"below the rounding floor: {100 * pair.unchanged:.0f} % of entries unchanged, step ratio "
        f"{pair.step_ratio:.2g}: fractions of this pair are of what survived rounding"
    )


PairMeasure = Callable[[Pair, "WeightsOptions"], Measured]


def claim(code: str, sentence: str, statistic: str) -> Callable[[PairMeasure], PairMeasure]:
    """Declare a claim on a pair that is untestable below the rounding floor."""

    def declare(measure: PairMeasure) -> PairMeasure:
        @PAIR_CLAIMS.claim(code, sentence, statistic)
        def measure_above_floor(pair: Pair, options: WeightsOptions) -> Measured:
            reason = _rounding_reason(pair)
            return Untestable(reason) if reason else measure(pair, options)

        return measure

    return declare


def _ratio(mean: Mean, region: Region, choices: int = 1, **fields: Any) -> Estimate:
    """Return the estimate of a mean in ratios to isotropic."""
    low, high = mean.interval(choices)
    return Estimate(2.0**mean.value, 2.0**low, 2.0**high, region, **fields)


@claim(
    "C1",
    "q, k change along what they read",
    "q, k on their own inputs over isotropic, 2^mean log2 over matrices; interval: texts and random "
    "subspaces; p: random subspaces",
)
def read_side(pair: Pair, options: WeightsOptions) -> Measured:
    """Measure the concentration of q, k on their own inputs against every stronger null."""
    mean = pair.mean(*READING)
    if mean is None:
        return Untestable("no q or k with inputs of its own")
    if math.isnan(mean.low):
        return Untestable("one group of texts: no interval", _ratio(mean, above(options.band[1])))
    low, _ = mean.interval()
    nulls = _nulls_of_reading([pair])
    return _ratio(
        mean,
        above(options.band[1]),
        p_value=mean.exceedance(),
        objection=_reached(nulls, low),
        words=", ".join(f"{words} {2**value:.2f}" for words, value in nulls.items()),
    )


def _nulls_of_reading(pairs: list[Pair]) -> dict[str, float]:
    """Return each stronger null of the read side in octaves, mean over the pairs that have it."""
    nulls: dict[str, float] = {}
    for name, words in NULLS.items():
        values = [null.value for pair in pairs if (null := pair.mean(*READING, name)) is not None]
        if values:
            nulls[words] = float(np.mean(values))
    return nulls


def _reached(nulls: Mapping[str, float], low: float) -> str:
    """Return the nulls that reach an interval whose lower end is given, all in octaves; "" for none."""
    reached = [f"{words} give {2**value:.2f}" for words, value in nulls.items() if value >= low]
    return f"{', '.join(reached)}: as much as the interval allows" if reached else ""


@claim(
    "C1b",
    "q, k change along what they read more than o, down along what those read",
    "D1: q, k less o, down, each on its own inputs (octaves); interval: texts and random subspaces; p: "
    "random subspaces",
)
def pathway_contrast(pair: Pair, options: WeightsOptions) -> Measured:
    """Measure the contrast of the pathways; without concentration in either it has no content."""
    mean = pair.contrast(READ, WRITE, "in", "inputs")
    if mean is None:
        return Untestable("one of the pathways has no inputs of its own")
    low, high = mean.interval()
    parts = {roles: pair.mean(roles, "in", "inputs") for roles in (READ, WRITE)}
    values = "; ".join(
        f"{', '.join(roles)} {part.words()} times isotropic"
        for roles, part in parts.items()
        if part is not None
    )
    concentrated = any(part is not None and part.is_concentrated for part in parts.values())
    estimate = Estimate(
        mean.value,
        low,
        high,
        above(0.0),
        p_value=mean.exceedance(),
        premise="" if concentrated else "neither pathway is concentrated",
        words=values,
    )
    if math.isnan(mean.low):
        return Untestable("one group of texts: no interval", estimate)
    return estimate


@claim(
    "C2",
    "o, down change evenly on the prediction subspace",
    "o, down on the prediction subspace over isotropic, 2^mean log2 over matrices; interval: random "
    "subspaces",
)
def write_side(pair: Pair, options: WeightsOptions) -> Measured:
    """Measure how near to isotropic the change of the write side is."""
    mean = pair.mean(*WRITING)
    if mean is None:
        return Untestable("the model has no prediction subspace")
    share = pair.logit_isotropic(WRITE)
    return _ratio(
        mean, between(*options.band), words=f"independent logit errors would give the last layer {share:.2f}"
    )


@claim(
    "C3",
    "changes inherit the concentration of inputs and gradients",
    "correlation over matrices of predicted and observed log2 fractions, inputs",
)
def inherited(pair: Pair, options: WeightsOptions) -> Measured:
    """Return the correlation, which is no test: whitened training is."""
    reason = "the test is training with whitened gradients: python -m attnscope.demo.tuning"
    rows = where(pair.mechanism, side="in")
    rows = rows[(rows["predicted"] > 0) & (rows["observed"] > 0)]
    if len(rows) < 3:
        return Untestable(f"fewer than three matrices; {reason}")
    value = float(np.corrcoef(np.log2(rows["predicted"]), np.log2(rows["observed"]))[0, 1])
    return Untestable(reason, Estimate(value))


@BASE_CLAIMS.claim(
    "C6",
    "changes of rank one along prediction directions move predictions more",
    "KL of prediction directions over that of their complement, down of the last layer of "
    "options.rank_one.layers (2^mean log2 over texts)",
)
def rank_one_moves(rows: pd.DataFrame, options: WeightsOptions) -> Measured:
    """Return the ratio of divergences, which of the model's last block follows from the unembedding alone."""
    if rows.empty:
        return Untestable("no changes of rank one in this run")
    layer = rows["layer"].max()
    rows = where(rows, role="down", layer=layer)
    kl = rows.groupby(["sample", "direction"])["kl"].mean().unstack()
    if not {"prediction", "complement"} <= set(kl.columns):
        return Untestable(f"down of layer {layer}: no directions of predictions and others")
    moved = kl[(kl["prediction"] > 0) & (kl["complement"] > 0)]
    if len(moved) < 2:
        return Untestable(f"down of layer {layer}: predictions of fewer than two texts moved")
    ratio = np.log2((moved["prediction"] / moved["complement"]).to_numpy(dtype=float))
    low, high = spread_over(ratio.tolist())
    means = rows.groupby("direction")[["kl", "predicted_kl"]].mean()
    # there is a closed form where nothing but the head reads what the matrix writes
    closed = bool(means["predicted_kl"].notna().any())
    words = "; ".join(
        f"{name} {row['kl']:.2g}" + (f" (closed form {row['predicted_kl']:.2g})" if closed else "")
        for name, row in means.iterrows()
    )
    estimate = Estimate(2 ** float(ratio.mean()), 2**low, 2**high, above(1.0))
    reason = (
        "true by construction, of any base: the unembedding amplifies its own main directions, which no "
        "training of o or down is needed for"
        if closed
        else "more than the unembedding reads this change, and no closed form tells what it alone would give"
    )
    return Untestable(f"down of layer {layer}: {reason}; {words}", estimate)


@SERIES_CLAIMS.claim(
    "C7",
    "the write side leaves isotropy during training",
    "largest of o, down on the prediction subspace over the pairs of the series; interval: random subspaces, "
    "widened for the choice",
)
def leaves_isotropy(series: Series, options: WeightsOptions) -> Measured:
    """Measure the largest concentration of the write side in a series of checkpoints."""
    usable = [pair for pair in series.pairs if not _rounding_reason(pair)]
    if len(series.pairs) < 2:
        return Untestable("one pair; a trajectory needs a series of checkpoints")
    # by pair and not by step: branches have no step of their own
    means = [(pair, mean) for pair in usable if (mean := pair.mean(*WRITING)) is not None]
    if not means:
        return Untestable(_rounding_reason(series.pairs[-1]) or "the model has no prediction subspace")
    pair, mean = max(means, key=lambda measured: measured[1].value)
    step = int(pair.keys["step"])
    name = f"step {step}" if step >= 0 else f"revision {pair.keys['revision']}"
    return _ratio(mean, above(options.band[1]), len(means), words=f"{name} of {len(means)} pairs")


def _over_pairs(
    pairs: list[Pair], value: Callable[[Pair], Mean | None]
) -> tuple[float, float, float, int] | None:
    """Return the mean over pairs with its t interval in octaves, and how many pairs have a value."""
    means = [mean for pair in pairs if (mean := value(pair)) is not None]
    if len(means) < 3:
        return None
    values, unbiased = [mean.value for mean in means], [mean.value - mean.expected for mean in means]
    return (float(np.mean(values)), *interval_over(values, unbiased), len(values))


FEW_PAIRS = "fewer than three pairs have it"
DEPENDENT = "pairs of one base are no independent ones"


def _pairs_ratio(
    pairs: list[Pair], roles: tuple[tuple[str, ...], str, str], region: Region
) -> Estimate | Untestable:
    """Return the mean ratio to isotropic over pairs."""
    over_pairs = _over_pairs(pairs, lambda pair: pair.mean(*roles))
    if over_pairs is None:
        return Untestable(FEW_PAIRS)
    value, low, high, count = over_pairs
    inside = sum(
        region.contains(2**mean.value, 2**mean.value)
        for pair in pairs
        if (mean := pair.mean(*roles)) is not None
    )
    words = f"{inside} of {count} pairs {region.describe()}; {DEPENDENT}"
    return Estimate(2.0**value, 2.0**low, 2.0**high, region, words=words)


@PAIRS_CLAIMS.claim(
    "C1",
    "q, k change along what they read",
    "q, k on their own inputs over isotropic, 2^mean log2 over pairs; t interval over pairs",
)
def read_side_over_pairs(pairs: list[Pair], options: WeightsOptions) -> Measured:
    """Measure the read side against its stronger nulls; the pair is the unit, of a series its last
    checkpoint.
    """
    estimate = _pairs_ratio(pairs, READING, above(options.band[1]))
    if isinstance(estimate, Untestable):
        return estimate
    return replace(estimate, objection=_reached(_nulls_of_reading(pairs), math.log2(estimate.low)))


@PAIRS_CLAIMS.claim(
    "C1b",
    "q, k change along what they read more than o, down along what those read",
    "D1 (octaves), mean over pairs; t interval over pairs",
)
def contrast_over_pairs(pairs: list[Pair], options: WeightsOptions) -> Measured:
    """Measure the contrast of the pathways over pairs."""
    over_pairs = _over_pairs(pairs, lambda pair: pair.contrast(READ, WRITE, "in", "inputs"))
    if over_pairs is None:
        return Untestable(FEW_PAIRS)
    value, low, high, count = over_pairs
    sides = [
        _over_pairs(pairs, lambda pair: pair.mean(READ, "in", "inputs")),
        _over_pairs(pairs, lambda pair: pair.mean(WRITE, "in", "inputs")),
    ]
    concentrated = any(side is not None and side[1] > 0 for side in sides)
    premise = "" if concentrated else "neither pathway is concentrated over the pairs"
    return Estimate(value, low, high, above(0.0), premise=premise, words=f"{count} pairs; {DEPENDENT}")


@PAIRS_CLAIMS.claim(
    "C2",
    "o, down change evenly on the prediction subspace",
    "o, down on the prediction subspace over isotropic, 2^mean log2 over pairs; t interval over pairs",
)
def write_side_over_pairs(pairs: list[Pair], options: WeightsOptions) -> Measured:
    """Measure the write side over pairs."""
    return _pairs_ratio(pairs, WRITING, between(*options.band))


def sentences() -> Mapping[str, str]:
    """Return code -> sentence of all claims of the study."""
    return {
        code: sentence
        for claims in (PAIR_CLAIMS, ARM_CLAIMS, BASE_CLAIMS, SERIES_CLAIMS)
        for code, sentence in claims.sentences.items()
    }
