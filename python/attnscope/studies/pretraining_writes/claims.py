# SPDX-License-Identifier: MIT
"""The paper's claims, each with what was measured of it and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
from attnscope.studies.pretraining_writes.arms import arm_claims
from attnscope.studies.pretraining_writes.evidence import Mean, Pair, pairs_of
from attnscope.studies.pretraining_writes.fractions import FLOOR, spread_over
from attnscope.studies.pretraining_writes.options import MATCHED

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.studies.pretraining_writes.options import WeightsOptions

READ, WRITE = ("q", "k"), ("o", "down")
#: What claims over several pairs are about, in octaves.
_OVER_PAIRS = {
    "C1": "q, k on their own inputs (octaves above isotropic), mean over pairs",
    "C1b": "D1 (octaves), mean over pairs",
    "C2": "o, down on the prediction subspace (octaves above isotropic), mean over pairs",
}
_READING, _WRITING = (READ, "in", "inputs"), (WRITE, "out", "prediction")
#: What counts as nearly isotropic.
BAND = (0.8, 1.25)
#: Deviations beyond which a mean is outside the 99.9 % band of random subspaces.
BEYOND = 3.29


def write(run: StageRun, options: WeightsOptions) -> None:
    """The table `claims`: of every pair, and of the run where models have arms."""
    tables = {name: run.read(name) for name in run.stored.tables()}
    if "fractions" not in tables:
        return
    pairs = pairs_of(tables)
    for pair in pairs:
        write_claims(run, _of_pair(pair, tables, pairs, options), **pair.keys)
    several = [pair for pair in pairs if pair.keys["model"] not in options.arms and pair.noise < FLOOR]
    if len({pair.keys["model"] for pair in several}) > 2:
        whole = {"model": "all pairs", "revision": "", "step": -1, "reference": ""}
        write_claims(run, _over_pairs(several), **whole)
    if options.arms:
        keys = {"model": "all arms", "revision": "", "step": -1, "reference": pairs[0].keys["reference"]}
        write_claims(run, arm_claims(pairs, options), **keys)
        if any(arm.endswith(MATCHED) for arm in options.arms.values()):
            claims = arm_claims(pairs, options, matched=True)
            write_claims(run, claims, **{**keys, "model": "all arms at equal ‖ΔW‖"})


def _over_pairs(pairs: list[Pair]) -> Iterator[Claim]:
    """C1, C1b and C2 over models: the pair is the unit, of a series its last checkpoint."""
    last = {pair.keys["model"]: pair for pair in sorted(pairs, key=lambda one: int(one.keys["step"]))}
    border = {"C1": 0.0, "C1b": 0.0, "C2": math.log2(BAND[1])}
    means: dict[str, list[Mean | None]] = {
        "C1": [pair.mean(*_READING) for pair in last.values()],
        "C1b": [pair.contrast(READ, WRITE, "in", "inputs") for pair in last.values()],
        "C2": [pair.mean(*_WRITING) for pair in last.values()],
    }
    for claim, statistic in _OVER_PAIRS.items():
        values = [mean.value for mean in means[claim] if mean is not None]
        if len(values) < 3:
            yield Claim(claim, statistic, NOT_TESTABLE, "fewer than three pairs have it")
            continue
        low, high = spread_over(values)
        edge = border[claim]
        above = sum(value > edge for value in values)
        verdict = SUPPORTED if low > edge else CONTRADICTED if high <= edge else UNDECIDED
        if claim == "C2":
            turned = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED}
            verdict = turned.get(verdict, verdict)
        words = f"{above} of {len(values)} pairs above {edge:.2g}; pairs of one base are no independent ones"
        yield Claim(claim, statistic, verdict, words, float(np.mean(values)), low, high, edge)


def _of_pair(
    pair: Pair, tables: dict[str, pd.DataFrame], pairs: list[Pair], options: WeightsOptions
) -> Iterator[Claim]:
    if pair.noise >= FLOOR:
        reason = (
            f"below the rounding floor: {100 * pair.unchanged:.0f} % of entries unchanged, step ratio "
            f"{pair.step_ratio:.2g}: fractions of this pair are of what survived rounding"
        )
        for claim in ("C1", "C1b", "C2", "C3", "C7"):
            yield Claim(claim, "", NOT_TESTABLE, reason)
    else:
        yield _c1(pair)
        yield _c1b(pair)
        yield _c2(pair)
        yield _c3(pair)
        yield _c7(pair, pairs)
    yield _c6(tables)
    if not options.arms:
        reason = (
            "needs training runs of several objectives from one start (options.arms): attnscope.demo.tuning"
        )
        for claim in ("C2b", "C4", "C5"):
            yield Claim(claim, "", NOT_TESTABLE, reason)


def _no_concentration(mean: Mean) -> str:
    """In words, where a mean lies in the band of random subspaces."""
    if abs(mean.value) > BEYOND * mean.deviation:
        return ""
    spread = 2.0 ** (1.96 * mean.deviation) - 1
    return f"{mean.words()}, isotropic is 1 ± {spread:.2f} (Haar): no concentration"


def _c1(pair: Pair) -> Claim:
    statistic = "q, k on their own inputs over isotropic, 2^mean log2 over matrices"
    mean = pair.mean(READ, "in", "inputs")
    if mean is None:
        return Claim("C1", statistic, NOT_TESTABLE, "no q or k with inputs of its own")
    nulls = {
        name: null.value
        for name in ("other_layer", "random_weights")
        if (null := pair.mean(READ, "in", "inputs", name)) is not None
    }
    border = max([BEYOND * mean.deviation, *nulls.values()])
    words = ", ".join(f"{name.replace('_', ' ')} {2**value:.2f}" for name, value in nulls.items())
    reason = _no_concentration(mean)
    verdict = CONTRADICTED if reason else _beyond(mean, border)
    own = (reason, words, "" if math.isfinite(mean.low) else "one group of texts: no interval")
    return mean.claim("C1", statistic, verdict, "; ".join(one for one in own if one), border)


def _beyond(mean: Mean, border: float) -> str:
    if mean.low > border:
        return SUPPORTED
    return CONTRADICTED if mean.high < border else UNDECIDED


def _c1b(pair: Pair) -> Claim:
    statistic = "D1: q, k less o, down, each on its own inputs (octaves)"
    mean = pair.contrast(READ, WRITE, "in", "inputs")
    if mean is None:
        return Claim("C1b", statistic, NOT_TESTABLE, "one of the pathways has no inputs of its own")
    parts = [pair.mean(roles, "in", "inputs") for roles in (READ, WRITE)]
    none = all(one is not None and one.within(BEYOND) for one in parts)
    verdict = SUPPORTED if mean.low > 0 else CONTRADICTED if mean.high <= 0 or none else UNDECIDED
    values = [
        f"{', '.join(roles)} {one.words()}"
        for roles, one in zip((READ, WRITE), parts, strict=True)
        if one is not None
    ]
    reason = f"{'; '.join(values)} times isotropic"
    if none:
        reason = f"no concentration in either pathway: {reason}"
    return mean.claim("C1b", statistic, verdict, reason, 0.0, octaves=True)


def _c2(pair: Pair) -> Claim:
    statistic = "o, down on the prediction subspace over isotropic, 2^mean log2 over matrices"
    mean = pair.mean(WRITE, "out", "prediction")
    if mean is None:
        return Claim("C2", statistic, NOT_TESTABLE, "the model has no prediction subspace")
    low, high = (math.log2(one) for one in BAND)
    spread = 1.96 * mean.deviation
    verdict = UNDECIDED
    if low <= mean.value - spread and mean.value + spread <= high:
        verdict = SUPPORTED
    elif mean.value - spread > high or mean.value + spread < low:
        verdict = CONTRADICTED
    share = pair.logit_isotropic(WRITE)
    words = [_no_concentration(mean), f"independent logit errors would give {share:.2f}", "interval: Haar"]
    mean = mean._replace(low=mean.value - spread, high=mean.value + spread)
    return mean.claim("C2", statistic, verdict, "; ".join(one for one in words if one), math.log2(BAND[1]))


def _c3(pair: Pair) -> Claim:
    statistic = "correlation over matrices of predicted and observed log2 fractions, inputs"
    rows = pair.mechanism[pair.mechanism["side"] == "in"]
    rows = rows[(rows["predicted"] > 0) & (rows["observed"] > 0)]
    if len(rows) < 3:
        return Claim("C3", statistic, NOT_TESTABLE, "fewer than three matrices")
    value = float(np.corrcoef(np.log2(rows["predicted"]), np.log2(rows["observed"]))[0, 1])
    read = pair.mean(READ, "in", "inputs")
    none = _no_concentration(read) if read is not None else ""
    reason = "the test is training with whitened gradients: python -m attnscope.demo.tuning"
    return Claim("C3", statistic, NOT_TESTABLE, f"{none}; {reason}" if none else reason, value)


def _c6(tables: dict[str, pd.DataFrame]) -> Claim:
    statistic = (
        "KL of prediction directions over that of their complement, last down (2^mean log2 over texts)"
    )
    rows = tables.get("rank_one", pd.DataFrame())
    if rows.empty:
        return Claim("C6", statistic, NOT_TESTABLE, "no changes of rank one in this run")
    rows = rows[(rows["role"] == "down") & (rows["layer"] == rows["layer"].max())]
    kl = rows.groupby(["sample", "direction"])["kl"].mean().unstack()
    if not {"prediction", "complement"} <= set(kl.columns) or len(kl) < 2:
        return Claim("C6", statistic, NOT_TESTABLE, "fewer than two texts")
    ratio = np.log2(kl["prediction"] / kl["complement"]).replace([np.inf, -np.inf], np.nan).dropna()
    from scipy import stats

    value = float(ratio.mean())
    half = float(stats.t.ppf(0.975, len(ratio) - 1) * ratio.std(ddof=1) / math.sqrt(len(ratio)))
    p_value = float(stats.ttest_1samp(ratio, 0.0).pvalue)
    predicted = rows.groupby("direction")[["kl", "predicted_kl"]].mean()
    words = "; ".join(
        f"{name} {row['kl']:.2g} (closed form {row['predicted_kl']:.2g})"
        for name, row in predicted.iterrows()
    )
    verdict = SUPPORTED if value - half > 0 else CONTRADICTED if value + half <= 0 else UNDECIDED
    return Claim(
        "C6", statistic, verdict, words, 2**value, 2 ** (value - half), 2 ** (value + half), 1.0, p_value
    )


def _c7(pair: Pair, pairs: list[Pair]) -> Claim:
    statistic = "largest of o, down on the prediction subspace over the pairs of the series"
    series = [one for one in pairs if one.keys["model"] == pair.keys["model"]]
    means = [mean for one in series if (mean := one.mean(WRITE, "out", "prediction")) is not None]
    if len(series) < 2 or not means:
        return Claim("C7", statistic, NOT_TESTABLE, "one pair; a trajectory needs a series of checkpoints")
    mean = max(means, key=lambda one: one.value)
    border = math.log2(BAND[1])
    verdict = SUPPORTED if mean.value > max(border, BEYOND * mean.deviation) else CONTRADICTED
    return Claim("C7", statistic, verdict, _no_concentration(mean), 2**mean.value, null=BAND[1])
