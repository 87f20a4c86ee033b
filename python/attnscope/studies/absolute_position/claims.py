# SPDX-License-Identifier: MIT
"""The paper's claims, each with what was measured of it and a verdict."""

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
from attnscope.inference import holm
from attnscope.studies.absolute_position.checks import learned_positions
from attnscope.studies.absolute_position.options import REPLACEMENTS

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun


def write(run: StageRun, options: Any) -> None:
    """The table `claims` of a checkpoint; that of encodings, C7, is one of all models together."""
    write_claims(run, _claims(run, options))


def _claims(run: StageRun, options: Any) -> Iterator[Claim]:
    position, removed = run.read("position"), _table(run, "removed")
    early = position[(position["arm"] == "base") & (position["queries"] == "early")]
    learned = learned_positions(run)
    yield _c1(run.read("checks"), learned)
    yield _c2(early, learned, options)
    yield _c3(early)
    yield _c4(run.read("trajectory"))
    yield _c5(removed)
    yield _c6(removed)
    yield _c8(run.read("trajectory"), _table(run, "fingerprints"))
    yield _p1(_table(run, "leakage_slopes"))
    yield _p2(_table(run, "leakage_tests"), options)
    yield _p3(_table(run, "position_shares"))
    yield _p4(_table(run, "softmax_statistics"))


def _table(run: StageRun, name: str) -> pd.DataFrame:
    return run.read(name) if name in run.stored.tables() else pd.DataFrame()


def _c1(checks: pd.DataFrame, learned: str) -> Claim:
    statistic = "largest change of a score when all positions move"
    row = checks[checks["check"] == "shift"]
    if learned or row.empty or row["value"].isna().all():
        reason = learned or next(iter(row["reason"].dropna()), "scores are out of reach")
        return Claim("C1", statistic, NOT_TESTABLE, reason)
    value, tolerance = float(row["value"].iloc[0]), float(row["tolerance"].iloc[0])
    verdict = SUPPORTED if value <= tolerance else CONTRADICTED
    return Claim("C1", statistic, verdict, "", value=value, null=tolerance)


def _c2(early: pd.DataFrame, learned: str, options: Any) -> Claim:
    statistic = "smallest p of moved attention in layer 0 (Holm over heads); value: mean cut by the mask"
    first = early[(early["layer"] == 0) & early["input"].isin(["windows", "shuffled"])]
    cut = float(first["mask_cut"].mean())
    if learned:
        return Claim("C2", statistic, NOT_TESTABLE, learned, value=cut)
    if first["moved_p_value"].isna().all():
        return Claim("C2", statistic, NOT_TESTABLE, "no map of layer 0 is finite", value=cut)
    p = float(np.nanmin(holm(first["moved_p_value"].dropna().to_numpy())))
    if p <= options.alpha:
        return Claim("C2", statistic, CONTRADICTED, "attention is moved where no position is", cut, p_value=p)
    return Claim("C2", statistic, SUPPORTED if cut > 0 else CONTRADICTED, "", cut, p_value=p)


def _c3(early: pd.DataFrame) -> Claim:
    statistic = "share of heads of layers from 1 whose residual lies above 0 (p adjusted <= .05)"
    later = early[(early["layer"] >= 1) & early["input"].isin(["windows", "shuffled"])]
    if later.empty:
        return Claim("C3", statistic, NOT_TESTABLE, "the model has one layer, or layers from 1 were left out")
    shares = (later["p_adjusted"] <= 0.05).groupby(later["input"]).mean()
    above = (later["residual_low"] > 0).groupby(later["input"]).any()
    value = float(shares.mean())
    if above.all() and bool((shares > 0).all()):
        words = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
        return Claim("C3", statistic, SUPPORTED, words, value)
    if not above.any():
        return Claim("C3", statistic, CONTRADICTED, "every interval covers 0 or lies below it", value)
    return Claim("C3", statistic, UNDECIDED, "above 0 on some inputs alone", value)


def _c4(trajectory: pd.DataFrame) -> Claim:
    statistic = "largest gap of position 0 to the first token alone"
    gap, tolerance = float(trajectory["gap"].max()), float(trajectory["tolerance"].max())
    return Claim("C4", statistic, SUPPORTED if gap <= tolerance else CONTRADICTED, "", gap, null=tolerance)


def _chosen(removed: pd.DataFrame) -> pd.DataFrame:
    if removed.empty:
        return removed
    return removed[
        (removed["scope"] == "from_1") & (removed["queries"] == "early") & (removed["measure"] == "uniform")
    ]


def _c5(removed: pd.DataFrame) -> Claim:
    statistic = (
        "energy removed by replacing the first embedding, mean over replacements; null: other positions"
    )
    rows = _chosen(removed)
    own = rows[rows["arm"].isin(REPLACEMENTS)] if len(rows) else rows
    if own.empty:
        return Claim("C5", statistic, NOT_TESTABLE, "no arm replaces the first embedding")
    if own["energy_removed"].isna().all():
        return Claim("C5", statistic, NOT_TESTABLE, "there is no residual that could be removed")
    arms = own.groupby("arm")[["energy_removed", "energy_removed_low", "energy_removed_high"]].mean()
    controls = rows[rows["kind"] == "control"]
    null = float(controls["energy_removed"].max()) if len(controls) else 0.0
    least, most = arms["energy_removed"].min(), arms["energy_removed"].max()
    reason = f"between {least:.2f} and {most:.2f} by what is put there; no published share names its vector"
    values: Any = (float(arms["energy_removed"].mean()), float(least), float(most), null)
    if (arms["energy_removed_low"] > max(null, 0.0)).all():
        return Claim("C5", statistic, SUPPORTED, reason, *values)
    if (arms["energy_removed_high"] < max(null, 0.0)).all() or most <= 0:
        return Claim("C5", statistic, CONTRADICTED, reason, *values)
    return Claim("C5", statistic, UNDECIDED, reason, *values)


def _c6(removed: pd.DataFrame) -> Claim:
    statistic = "energy removed when the readers of position 0 do not read it; null: median of as many others"
    rows = _chosen(removed)
    rows = rows[rows["arm"] == "unread"] if len(rows) else rows
    readers = rows[rows["draw"] == 0] if len(rows) else rows
    if readers.empty:
        return Claim("C6", statistic, NOT_TESTABLE, "no head outside the last layer reads position 0")
    one = readers.iloc[0]
    value, low, high = (float(one[f"energy_removed{end}"]) for end in ("", "_low", "_high"))
    others = rows[rows["draw"] > 0]["energy_removed"].dropna().to_numpy()
    if not np.isfinite(value) or not len(others):
        return Claim("C6", statistic, NOT_TESTABLE, "no residual to remove, or no other heads", value)
    p = (1 + int((others >= value).sum())) / (1 + len(others))
    null = float(np.median(others))
    if low > 0 and p <= 0.1:
        return Claim("C6", statistic, SUPPORTED, "", value, low, high, null, p)
    if value <= null:
        return Claim("C6", statistic, CONTRADICTED, "other heads remove as much", value, low, high, null, p)
    return Claim("C6", statistic, UNDECIDED, "", value, low, high, null, p)


def _c8(trajectory: pd.DataFrame, fingerprints: pd.DataFrame) -> Claim:
    statistic = "smallest cosine of a head's fingerprints over texts"
    if fingerprints.empty:
        return Claim("C8", statistic, NOT_TESTABLE, "what heads write is out of reach")
    base = trajectory[trajectory["arm"] == "base"]
    if float(base["across"].max()) > 0.01:
        return Claim("C8", statistic, NOT_TESTABLE, "texts begin with different tokens: there is no BOS")
    cosine = fingerprints[fingerprints["arm"] == "base"]["fingerprint_cosine"]
    value = float(cosine.min())
    without = fingerprints[fingerprints["arm"] == "no_bos"]["fingerprint_cosine"]
    null = float(without.mean()) if len(without) else np.nan
    return Claim("C8", statistic, SUPPORTED if value >= 1 - 1e-5 else CONTRADICTED, "", value, null=null)


def _p1(slopes: pd.DataFrame) -> Claim:
    statistic = "slope of log leakage share on log length; mean, lowest and highest end over layers; null: 0"
    known = slopes.dropna(subset=["slope_low", "slope_high"]) if len(slopes) else slopes
    if known.empty:
        return Claim(
            "P1", statistic, NOT_TESTABLE, "texts of one length, or no share above 0; options.lengths"
        )
    low, high = float(known["slope_low"].min()), float(known["slope_high"].max())
    falls, rises = known["slope_high"] < 0, known["slope_low"] >= 0
    verdict = SUPPORTED if falls.all() else CONTRADICTED if rises.any() else UNDECIDED
    reason = f"falls in {int(falls.sum())} of {len(known)} layers"
    return Claim("P1", statistic, verdict, reason, float(known["slope"].mean()), low, high, 0.0)


def _p2(tests: pd.DataFrame, options: Any) -> Claim:
    statistic = "share of heads whose leakage lies above that of turned texts (Benjamini–Hochberg)"
    tests = tests[tests["protocol"] == "exact"] if len(tests) else tests
    value = float((tests["p_adjusted"] <= options.alpha).mean()) if len(tests) else np.nan
    reason = (
        "two models of one family are compared; the published 57x counts heads by what are no q-values, and "
        "heads of one model are this share"
    )
    return Claim("P2", statistic, NOT_TESTABLE, reason, value)


def _p3(shares: pd.DataFrame) -> Claim:
    statistic = (
        "share of variance between positions, output of an MLP over its input; mean, least and most of layers"
    )
    found = shares[shares["arm"] == "base"] if len(shares) else shares
    if found.empty or not {"mlp_input", "mlp_output"} <= set(found["site"]):
        return Claim("P3", statistic, NOT_TESTABLE, "the inputs and outputs of MLPs are out of reach")
    grid = found.pivot_table(index="layer", columns="site", values="position_share")
    grid = grid[(grid["mlp_input"] > 0) & (grid.index >= 1)]
    if grid.empty:
        return Claim("P3", statistic, NOT_TESTABLE, "no input of an MLP has a share of position above 0")
    ratio = grid["mlp_output"] / grid["mlp_input"]
    verdict = SUPPORTED if (ratio < 1).all() else CONTRADICTED if (ratio > 1).all() else UNDECIDED
    reason = f"less than in the input in {int((ratio < 1).sum())} of {len(ratio)} layers from 1; no interval"
    return Claim(
        "P3", statistic, verdict, reason, float(ratio.mean()), float(ratio.min()), float(ratio.max()), 1.0
    )


def _p4(softmax: pd.DataFrame) -> Claim:
    statistic = "largest change of entropy from a layer to the next, nats, mean over heads at temperature 1"
    reason = "what counts as a transition could not be read; the table softmax_statistics has the entropies"
    own = softmax[softmax["temperature"] == 1.0] if len(softmax) else softmax
    means = own.groupby("layer")["softmax_entropy"].mean() if len(own) else pd.Series(dtype=float)
    value = float(means.diff().abs().max()) if len(means) > 1 else np.nan
    return Claim("P4", statistic, NOT_TESTABLE, reason, value)
