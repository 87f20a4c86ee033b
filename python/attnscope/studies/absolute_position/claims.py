# SPDX-License-Identifier: MIT
"""The claims of the paper (C) and of its precursor (P), and the measurement of each.

The verdict is made by `attnscope.study_api.claims`. Identities of any causal model (C1, C4, half of C8) hold
for untrained models too, as their reason states. An effect that a model with random weights also shows is no
evidence: C3, C5, C9, C10, C11 and P3 are held against such models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.statistics import holm
from attnscope.studies.absolute_position.arms import FIXED
from attnscope.studies.absolute_position.checks import absolute_positions
from attnscope.studies.absolute_position.removals import ALL_REPLACEMENTS
from attnscope.studies.absolute_position.tables import RemovedArm
from attnscope.studies.overall import Statistic, statistic_of
from attnscope.study_api.claims import ClaimSet, Control, Estimate, Untestable, above, below
from attnscope.study_api.number_text import estimate_text, number
from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import matching, where

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

CLAIMS = ClaimSet()
#: How models with random weights are called in reasons, and how they are switched on.
UNTRAINED, HINT = "models with random weights", "--set options.nulls=[random_weights]"
#: Cosine from which fingerprints count as one vector.
CONSTANT = 1 - 1e-5
#: Largest distance of two first states, as a share of their norm, at which texts begin with one token.
_ONE_TOKEN = 0.01


@dataclass(frozen=True)
class Evidence:
    """The tables of one checkpoint.

    Attributes:
        tables: by name; a table that the run does not have is empty.
        learned: reason why positions are absolute in this model, "" where they are not.
        controls: statistic -> values of the models with random weights.
    """

    tables: Mapping[str, pd.DataFrame]
    learned: str = ""
    controls: Mapping[str, list[float]] | None = None

    def table(self, name: str) -> pd.DataFrame:
        """Return a table; an empty one where the run has none."""
        return self.tables.get(name, pd.DataFrame())

    def rows(self, name: str, **values: Any) -> pd.DataFrame:
        """Return the rows of a table with these values; none where the run has no such table."""
        table = self.table(name)
        return where(table, **values) if len(table) else table

    def overall(self, statistic: str) -> Statistic | None:
        """Return a statistic of all layers, None where it was not measured."""
        return statistic_of(self.table("overall"), statistic)

    def control(self, statistic: str, measured: float = math.nan) -> Control:
        """Return the models with random weights as a control."""
        return Control(UNTRAINED, (self.controls or {}).get(statistic, []), measured, HINT)


def write(run: StageRun, options: Any) -> None:
    """Write the table `claims` of every checkpoint; C7, of encodings, is of all models together."""
    stored = {name: run.read(name) for name in run.stored.tables()}
    if "position" not in stored:
        return  # no model went beyond its checks
    for keys, _ in stored["position"].groupby([*CHECKPOINT_KEYS], dropna=False, sort=False):
        checkpoint = dict(zip(CHECKPOINT_KEYS, keys, strict=True))
        evidence = evidence_of(stored, checkpoint)
        # a checkpoint that a check of the instrument has ended keeps the rows from before the check
        if evidence.rows("checks", holds=False).empty:
            CLAIMS.write(run, {"": evidence}, options, **checkpoint)


def evidence_of(stored: Mapping[str, pd.DataFrame], checkpoint: Mapping[str, Any]) -> Evidence:
    """Return the rows of one checkpoint in every table, and the controls of its model."""
    tables = {name: matching(table, checkpoint) for name, table in stored.items()}
    controls: dict[str, list[float]] = {}
    if "control_overall" in tables:
        for statistic, rows in tables["control_overall"].groupby("statistic", sort=False):
            controls[str(statistic)] = [float(value) for value in rows["estimate"]]
    checks = tables.get("checks", pd.DataFrame())
    return Evidence(tables, absolute_positions(checks) if len(checks) else "", controls)


@CLAIMS.claim(
    "C1",
    "a rotary score depends on positions through their offset alone",
    "largest change of a score when all positions move",
)
def offsets_alone(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure how far scores move with all positions."""
    row = evidence.rows("checks", check="shift")
    if evidence.learned or row.empty or row["value"].isna().all():
        reasons = row["reason"].dropna().tolist() if len(row) else []
        return Untestable(evidence.learned or next(iter(reasons), "scores are out of reach"))
    value, tolerance = float(row["value"].iloc[0]), float(row["tolerance"].iloc[0])
    words = "an identity of the encoding, which training cannot change"
    return Estimate.exact(value, below(tolerance), words=words)


@CLAIMS.claim(
    "C2",
    "the causal mask alone moves attention where no position is in the states",
    "attention moved in layer 0 (root of the squared distance) over that moved by the mask; border: an "
    "option",
)
def mask_alone(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure what moves attention in layer 0 beyond the mask, as a share of what the mask moves."""
    if evidence.learned:
        return Untestable(evidence.learned)
    means, heads = (_early(evidence.table(name)) for name in ("layer_means", "position"))
    if means.empty or heads.empty:
        return Untestable("no attention was measured")
    means, heads = (where(table, layer=0, input=["windows", "shuffled"]) for table in (means, heads))
    means = means[np.isfinite(means["moved_l2"]) & (means["mask_share"] > 0)]
    if means.empty:
        return Untestable("layer 0 was left out, no map of it is finite, or its mask cuts nothing")
    value, low, high = (
        float((np.sqrt(means[f"moved_l2{end}"].clip(lower=0)) / means["mask_share"]).max())
        for end in ("", "_low", "_high")
    )
    p_values = heads["moved_p_value"].dropna()
    smallest = number(float(np.min(holm(p_values.to_numpy())))) if len(p_values) else "–"
    words = (
        f"the mask cuts {number(float(means['mask_cut'].mean()))} nats; smallest p of a head that moves "
        f"beyond "
        f"it in layer 0: {smallest} (Holm)"
    )
    words_of_verdicts = {
        "supported": "in layer 0 attention is not moved beyond the mask by more than the border",
        "contradicted": "attention is moved where no position is",
    }
    return Estimate(
        value, low, high, below(options.least_moved), words=words, words_of_verdict=words_of_verdicts
    )


@CLAIMS.claim(
    "C3",
    "the residual stream is the other source of position",
    "residual as a share of the variance of scores along keys, mean over heads of layers from 1, of the "
    "input "
    "(windows, shuffled) with the larger p",
)
def residual_is_there(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure the residual free of the scale of scores, where shuffled tokens leave no order of contents."""
    inputs = {
        name: share
        for name in ("windows", "shuffled")
        if (share := evidence.overall(f"leakage_share {name}")) is not None
    }
    if not inputs:
        return Untestable("the model has one layer, or layers from 1 were left out")
    weakest = max(inputs, key=lambda name: inputs[name].p_value)
    share = inputs[weakest]
    heads = _early(evidence.table("position"))
    heads = heads[heads["layer"] >= 1]
    shares = [
        f"{name} {_significant(where(heads, input=name), options.alpha):.0%}".replace("%", " %")
        for name in inputs
    ]
    return Estimate(
        share.estimate,
        share.low,
        share.high,
        region=above(0.0),
        p_value=share.p_value,
        draws=options.permutations,
        controls=[evidence.control("leakage_share windows", inputs.get("windows", share).estimate)],
        words=f"{weakest}; heads of layers from 1 with a residual of their own: {', '.join(shares)}",
    )


@CLAIMS.claim(
    "C4",
    "the state at position 0 follows from the first token alone",
    "largest gap of position 0 to the first token alone",
)
def closed_system(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure the gap of position 0 in a text to the first token read alone."""
    trajectory = evidence.table("trajectory")
    if trajectory.empty:
        return Untestable("the states of position 0 are out of reach")
    gap, tolerance = float(trajectory["gap"].max()), float(trajectory["tolerance"].max())
    return Estimate.exact(gap, below(tolerance), words="an identity of any causal model, trained or not")


@CLAIMS.claim(
    "C5",
    "the first token supplies the residual: replacing its embedding removes it",
    "share that replacements remove beyond 0 and beyond the same done to other positions: the smaller of "
    "energy and pattern, ends of the lower and of the upper interval",
)
def first_token_supplies(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure energy and original pattern that replacing the first embedding removes."""
    table = evidence.table("removed_arms")
    if table.empty or not (table["arm"] == ALL_REPLACEMENTS).any():
        return Untestable("no arm replaces the first embedding")
    rows = pd.concat([where(table, arm=ALL_REPLACEMENTS), where(table, kind="difference")])
    if rows["energy_removed"].isna().all():
        return Untestable("there is no residual that could be removed")
    margins = {
        name: [float(rows[f"{name}_removed{end}"].min()) for end in ("", "_low", "_high")]
        for name in ("energy", "pattern")
    }
    value = min(margin[0] for margin in margins.values())
    low, high = min(margin[1] for margin in margins.values()), max(margin[2] for margin in margins.values())
    fixed = where(table, arm=FIXED)["energy_removed"].dropna()
    controls = []
    if len(fixed):
        controls = [evidence.control("energy_removed", float(fixed.mean()))]
    return Estimate(
        value,
        low,
        high,
        region=above(0.0),
        controls=controls,
        words=replaced_words(table),
        words_of_verdict={
            "undecided": "no share without its vector is a property of the model",
            "contradicted": "what is put at position 0 makes the residual no smaller than at other "
            "positions, "
            "and leaves its pattern",
        },
    )


def replaced_words(table: pd.DataFrame) -> str:
    """Return what replacements and controls remove, in words, from rows of `removed_arms`."""
    together = first_as(RemovedArm, where(table, arm=ALL_REPLACEMENTS))
    energy = (together.energy_removed, together.energy_removed_low, together.energy_removed_high)
    pattern = (together.pattern_removed, together.pattern_removed_low, together.pattern_removed_high)
    words = [f"energy {estimate_text(*energy)}", f"pattern {estimate_text(*pattern)}"]
    controls = where(table, kind="control")
    if len(controls):
        words.append(f"the same at other positions: energy up to {number(controls['energy_removed'].max())}")
    return ", ".join(words)


@CLAIMS.claim(
    "C6",
    "heads that read position 0 pass it on",
    "energy removed when the readers of position 0 do not read it; p: rank among different sets of as many "
    "heads of the same layers",
    family="sets of heads",
)
def readers_pass_it_on(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure what the readers' reads carry, against sets of heads of their size."""
    rows = evidence.rows("removed", scope="from_1", queries="early", measure="uniform", arm="unread")
    readers = where(rows, draw=0) if len(rows) else rows
    if readers.empty:
        return Untestable("no head outside the last layer reads position 0")
    value, low, high = (float(readers[f"energy_removed{end}"].iloc[0]) for end in ("", "_low", "_high"))
    if not np.isfinite(value):
        return Untestable("there is no residual that could be removed")
    others = rows[rows["draw"] > 0]["energy_removed"].dropna().to_numpy()
    shown = Estimate(value, low, high)
    fewest = math.ceil(1 / options.alpha)
    if len(others) + 1 < fewest:
        reason = (
            f"{len(others)} different sets of as many heads of the same layers: with the readers' own, "
            f"{fewest} are needed for a p of {options.alpha:g} (options.matched)"
        )
        return Untestable(reason, shown)
    p_value = (1 + int((others >= value).sum())) / (1 + len(others))
    return Estimate(
        value,
        low,
        high,
        region=above(0.0),
        p_value=p_value,
        spread=(float(others.min()), float(others.max())),
        words=f"{len(others)} other sets remove {number(float(np.median(others)))} (median)",
    )


@CLAIMS.claim(
    "C8",
    "what a head takes from position 0 is one vector for every text, and varies without BOS",
    "cosine of fingerprints over texts: with BOS the smallest of a head, without BOS the mean",
)
def fingerprint_of_first_token(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure how alike fingerprints are with and without a BOS token."""
    base = evidence.rows("fingerprints", arm="base")
    path = evidence.rows("trajectory", arm="base")
    if base.empty or path.empty:
        return Untestable("what heads write is out of reach")
    if float(path["across"].max()) > _ONE_TOKEN:
        return Untestable("texts begin with different tokens: there is no BOS")
    smallest = float(base["fingerprint_cosine"].min())
    if smallest < CONSTANT:
        words = "with BOS, where it can only be constant"
        return Estimate.exact(smallest, above(CONSTANT), words=words)
    without = evidence.overall("fingerprint_without_bos")
    words = f"with BOS the smallest cosine is {smallest:.7g}, an identity of any causal model"
    if without is None:
        return Untestable(f"{words}; the arm no_bos was not measured", Estimate(smallest))
    return Estimate(without.estimate, without.low, without.high, region=below(CONSTANT), words=words)


@CLAIMS.claim(
    "C9",
    "the sink follows the beginning token, not the position",
    "BOS in the middle, an ordinary token at position 0: attention of the readers to the middle less that to "
    "position 0, queries behind both",
)
def sink_follows_token(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure which of token and position the sink keeps when they are taken apart."""
    beyond_front, moved = evidence.overall("follows_token"), evidence.overall("token_in_the_middle")
    if beyond_front is None or moved is None:
        if evidence.table("placements").empty:
            return Untestable("the tokenizer sets no BOS token, or the model's attention is out of reach")
        return Untestable(
            f"no head reads position 0 with more than {options.reader:g} and than uniform attention gives it"
        )
    first, second_of_two = evidence.overall("first_as_read"), evidence.overall("second_of_two")
    words = (
        f"as read, position 0 gets {number(first.estimate if first else math.nan)}; BOS in the middle "
        f"adds {estimate_text(moved.estimate, moved.low, moved.high)} there"
    )
    if second_of_two is not None:
        words += f"; of two, the second gets {number(second_of_two.estimate)} more than the first"
    # both must hold: more than position 0, and more than an ordinary token in the middle gets
    low, high = min(beyond_front.low, moved.low), min(beyond_front.high, moved.high)
    value = min(beyond_front.estimate, moved.estimate)
    words_of_verdicts = {"contradicted": "the sink stays where the text begins"}
    controls = [evidence.control("follows_token")]
    return Estimate(
        value,
        low,
        high,
        region=above(0.0),
        controls=controls,
        words=words,
        words_of_verdict=words_of_verdicts,
    )


@CLAIMS.claim(
    "C10",
    "the sink stabilises: without it the model predicts worse",
    "loss behind the middle with an ordinary token at position 0 less that with one in the middle, nats a "
    "token",
)
def sink_stabilises(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure what the removal of the beginning token costs beyond that of another token."""
    beyond_another = evidence.overall("loss_beyond")
    if beyond_another is None:
        return Untestable("the tokenizer sets no BOS token, or the model has no vocabulary head")
    without, other, norm = (
        evidence.overall(name) for name in ("loss_without", "loss_of_another", "norm_without")
    )
    words = [
        f"{label} {estimate_text(part.estimate, part.low, part.high)}"
        for label, part in (
            ("no BOS costs", without),
            ("another exchanged token costs", other),
            ("log norm of the last states changes by", norm),
        )
        if part is not None
    ]
    return Estimate(
        beyond_another.estimate,
        beyond_another.low,
        beyond_another.high,
        region=above(0.0),
        controls=[evidence.control("loss_beyond")],
        words=", ".join(words),
    )


@CLAIMS.claim(
    "C11",
    "the trajectory of position 0 contracts, whatever token is there",
    "change of the log relative distance between tokens read alone, mean a block",
)
def trajectory_contracts(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure how far the paths of different first tokens come together."""
    contraction = evidence.overall("contraction")
    if contraction is None:
        return Untestable("fewer than five different tokens, or the states of blocks are out of reach")
    table = evidence.table("dynamics")
    if table.empty:
        return Untestable("the states of blocks are out of reach")
    table = table.sort_values("layer")
    steps, gains = table["relative_step"].dropna(), table["gain"].dropna()
    words = [
        f"relative distance {number(table['distance'].iloc[0])} at the entry, "
        f"{number(table['distance'].min())} "
        f"at its smallest, {number(table['distance'].iloc[-1])} at the end"
    ]
    if len(steps):
        words.append(f"smallest step of a block {number(steps.min())}")
    if len(gains):
        words.append(f"gain of small disturbances {number(gains.min())} to {number(gains.max())} a block")
    return Estimate(
        contraction.estimate,
        contraction.low,
        contraction.high,
        region=below(0.0),
        controls=[evidence.control("contraction")],
        words="; ".join(words),
    )


@CLAIMS.claim(
    "P1",
    "leakage of position falls as a power of the length of texts",
    "slope of the log of the mean leakage share on log length",
)
def leakage_falls(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure how the share changes with length, all layers together."""
    slope = evidence.overall("leakage_slope")
    slopes = evidence.table("leakage_slopes")
    if slope is None or slopes.empty:
        return Untestable("texts of one length, or no share above 0; options.lengths")
    with_slope = slopes["slope"].dropna()
    falls, certain = int((slopes["slope_high"] < 0).sum()), int(slopes["slope_high"].notna().sum())
    words = f"falls in {falls} of {len(slopes)} layers"
    if uncertain := len(with_slope) - certain:
        words += f", of which {uncertain} {_have(uncertain)} a slope without an interval"
    if absent := len(slopes) - len(with_slope):
        words += f"; {absent} {_have(absent)} no share above 0 at every length"
    spread = (float(with_slope.min()), float(with_slope.max())) if len(with_slope) else (math.nan,) * 2
    return Estimate(
        slope.estimate,
        slope.low,
        slope.high,
        region=below(0.0),
        words=words,
        spread=(spread[0], spread[1]),
    )


@CLAIMS.claim(
    "P2",
    "a larger model has leakage in fewer heads",
    "share of heads with leakage above that of turned texts (Benjamini–Hochberg)",
)
def fewer_heads(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Return the share of one model, which cannot be compared with another."""
    tests = evidence.rows("leakage_tests", protocol="exact")
    value = _significant(tests, options.alpha) if len(tests) else math.nan
    reason = (
        "two models of one family are compared; the published 57x counts heads by what are no q-values, and "
        "heads of one model are this share"
    )
    return Untestable(reason, Estimate(value, region=above(math.nan)))


@CLAIMS.claim(
    "P3",
    "feed-forward layers filter position out",
    "share of variance between positions: mean of the outputs over that of the inputs, layers from 1",
)
def filtered_out(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Measure what feed-forward layers leave of the share between positions."""
    ratio = evidence.overall("mlp_ratio")
    if ratio is None:
        return Untestable("the inputs and outputs of MLPs are out of reach, or hold no share above 0")
    return Estimate(
        ratio.estimate,
        ratio.low,
        ratio.high,
        region=below(1.0),
        controls=[evidence.control("mlp_ratio")],
        spread=(ratio.least, ratio.most),
    )


@CLAIMS.claim(
    "P4",
    "entropy goes through transitions over depth",
    "largest change of entropy from a layer to the next, nats, mean over heads at temperature 1",
)
def entropy_transitions(evidence: Evidence, options: Any) -> Estimate | Untestable:
    """Return the largest change; which one counts as a transition is not said."""
    rows = evidence.rows("softmax_statistics", temperature=1.0)
    means = rows.groupby("layer")["softmax_entropy"].mean() if len(rows) else pd.Series(dtype=float)
    value = float(means.diff().abs().max()) if len(means) > 1 else math.nan
    reason = "what counts as a transition could not be read; the table softmax_statistics has the entropies"
    if (np.diff(means.index) > 1).any():
        reason += f"; of layers {', '.join(map(str, means.index))}, some of which are no neighbours"
    return Untestable(reason, Estimate(value, region=above(math.nan)))


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _early(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the base arm's early queries."""
    if table.empty:
        return table
    return where(table, arm="base", queries="early")


def _significant(tests: pd.DataFrame, alpha: float) -> float:
    """Return the share of tests that reject at a level; one that is not defined is no test."""
    p_values = tests["p_adjusted"].dropna()
    return float((p_values <= alpha).mean()) if len(p_values) else math.nan
