# SPDX-License-Identifier: MIT
"""The study's tables, what their columns mean, and the rows that sentences are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.results.schema import CHECKPOINT_KEYS, STATES
from attnscope.studies.checks import CHECKS
from attnscope.study_api.claims import CLAIM_COLUMNS
from attnscope.study_api.tables import Column, Table, columns

#: Sums of states and directions over texts.
SUMS = (
    "states",
    "directions",
    "direction_groups",
    "first_key",
    "first_key_centre",
    "uniform_cut",
    "mlp_states",
    "contractions",
    "anchor_reads",
)

_RESIDUAL = "Unbiased variance over the body keys of what mean scores owe to neither offset nor row, nats²."
_OF_MAPS = "null of a model that hands out its maps alone."
_OF_ALL_LAYERS = "Null where kinds of layers have their own, which rope_type says."
_FROM_1 = "Of the scope from_1, which is all layers from 1 on together, the first of them."
_MOVED = "Unbiased squared distance of body attention to the mask's, summed over keys."


def _interval(name: str, label: str, meaning: str, **bounds: float) -> tuple[Column, ...]:
    """Return the columns of a value with its 95 % interval."""
    return (
        Column(name, label=label, meaning=meaning, **bounds),  # type: ignore[arg-type]
        Column(f"{name}_low", label=f"{label}, lower end"),
        Column(f"{name}_high", label=f"{label}, upper end"),
    )


ESTIMATES = (
    Column(
        "mask_cut", label="cut by the mask (nats)", meaning="−log of the attention the mask leaves.", low=0
    ),
    Column("mask_share", label="share cut by the mask", low=0, high=1),
    *_interval("residual", "residual (nats²)", _RESIDUAL),
    Column("plain", label="plain residual (nats²)", meaning="The same, not corrected for noise.", low=0),
    Column("p_value", kind="ratio", meaning="Sign flips of groups against a residual of 0."),
    Column("p_adjusted", kind="ratio", meaning="Benjamini–Hochberg over layers and heads."),
    Column("correction", dtype="string", kind="text"),
    Column("reliability", kind="ratio", meaning="Cosine of the odd and the even groups' residuals."),
    *_interval("felt", "felt residual (nats²)", "The residual weighted by the mask's attention."),
    Column("sink_advantage", label="advantage of key 0 (nats)"),
    *_interval("moved_l2", "moved attention, squared", _MOVED),
    *columns("ratio", "moved_p_value", "moved_p_adjusted"),
    Column("moved_tv", label="moved attention", meaning="Total variation to the mask's attention.", low=0),
    Column("moved_floor", label="its floor", meaning="The same of means with flipped signs.", low=0),
    Column("lse_gap", label="log Z less the mask's (nats)", meaning=f"Of scores; {_OF_MAPS}"),
    *_interval("leakage_share", "leakage share", "The residual over the variance of scores along keys."),
    Column("residual_simple", meaning="Root mean square over all keys, profile over all queries."),
    Column("mask_simple", meaning="log Z of the mean profile less its mean."),
)

_REMOVED = tuple(
    column
    for name, label in (
        ("energy", "energy removed"),
        ("size", "size removed"),
        ("pattern", "pattern removed"),
    )
    for column in _interval(f"{name}_removed", label, "")
)

_UNIFORM_CUT = Column(
    "uniform_cut", low=0, meaning="The mask's cut of equal scores among visible keys, a learned sink as one."
)

OFFSETS = (
    Column("profile", label="profile (nats)"),
    Column("log_attention", label="variance of log attention", low=0),
    Column("score", low=0, meaning=f"Variance of the mean score over queries; {_OF_MAPS}"),
    Column("log_z", low=0, meaning=f"Variance of log Z over queries; {_OF_MAPS}"),
    Column("covariance", meaning=f"−2 of their covariance; {_OF_MAPS}"),
    Column("mask", low=0, label="mask (nats²)", meaning="Variance of the mask's log Z."),
    *columns("value", "mask_low", "mask_high"),
    Column("residual", label="residual (nats²)", meaning="Unbiased variance of the residual bracket."),
    *columns("value", "residual_low", "residual_high"),
    Column("cross", label="−2 covariance (nats²)"),
    *columns("value", "cross_low", "cross_high"),
)

TABLES = (
    CHECKS,
    Table("position", (*CHECKPOINT_KEYS, "arm", "input", "layer", "head", "queries", "protocol"), ESTIMATES),
    Table("layer_means", (*CHECKPOINT_KEYS, "arm", "input", "layer", "queries"), ESTIMATES),
    *(
        Table(name, (*CHECKPOINT_KEYS, "arm", "input", "layer", *heads, "offset"), OFFSETS)
        for name, heads in (("offsets", ("head",)), ("offset_means", ()))
    ),
    Table(
        "residual_maps",
        (*CHECKPOINT_KEYS, "layer", "head", "query", "key"),
        (Column("mean", label="residual (nats)"), Column("profile", label="profile (nats)")),
    ),
    Table(
        "removed",
        (*CHECKPOINT_KEYS, "arm", "draw", "scope", "layer", "queries", "measure"),
        (Column("kind", "string", "text"), *_REMOVED),
        about={
            "layer": _FROM_1,
            "draw": "Of vectors or sets of heads; of unread and hidden, 0: the readers, −1: all heads.",
        },
        version=2,
    ),
    Table(
        "removed_arms",
        (*CHECKPOINT_KEYS, "arm"),
        (
            Column("kind", "string", "text", meaning="Of the arm; all, difference: of several arms."),
            Column("count", kind="count", meaning="Draws of the arm, or arms."),
            *_REMOVED,
            *(
                Column(f"{name}_{end}", meaning="Over draws or arms.")
                for name in ("energy", "size", "pattern")
                for end in ("least", "most")
            ),
        ),
    ),
    Table("ordinary_tokens", (*CHECKPOINT_KEYS, "draw"), (Column("token", kind="position"),)),
    Table(
        "dynamics",
        (*CHECKPOINT_KEYS, "layer"),
        (
            Column("distance", label="distance between tokens", low=0, meaning="Relative; geometric mean."),
            Column(
                "relative_step", label="step of the block", low=0, meaning="‖h' − h‖/‖h‖ of the first token."
            ),
            Column("gain", label="gain of small disturbances", low=0, meaning="Relative to the norms."),
            Column("tokens", kind="count"),
        ),
        about=STATES,
    ),
    Table(
        "placements",
        (*CHECKPOINT_KEYS, "placement", "sample"),
        (
            Column("first", kind="ratio", label="attention to position 0", low=0, high=1),
            Column("middle", kind="ratio", label="attention to the middle position", low=0, high=1),
            Column("loss", label="loss behind the middle (nats)", low=0),
            Column("norm_first", label="norm of position 0", low=0),
            Column("norm_others", label="median norm of other positions", low=0),
        ),
    ),
    Table(
        "overall",
        (*CHECKPOINT_KEYS, "statistic"),
        (
            *columns("value", "estimate", "low", "high"),
            Column("p_value", kind="ratio", low=0, high=1),
            *columns("value", "least", "most"),
            Column("n", kind="count", meaning="Groups of texts, layers or tokens."),
        ),
    ),
    Table(
        "trajectories",
        (*CHECKPOINT_KEYS, "arm", "sample", "layer"),
        (
            *(
                Column(name)
                for name in ("norm", "cosine", "gap", "across", "largest", "other_05", "other_50", "other_95")
            ),
            Column("texts", kind="count", meaning="Of the batch that begins with the sample."),
        ),
        about=STATES,
    ),
    Table(
        "trajectory",
        (*CHECKPOINT_KEYS, "arm", "layer"),
        (
            Column("norm", label="norm of position 0", low=0),
            *columns("value", "other_05", "other_50", "other_95", low=0),
            Column("cosine", label="cosine to the next layer", low=-1, high=1),
            Column("largest", label="share of the largest coordinate", low=0, high=1),
            Column("gap", label="gap to the first token alone", low=0),
            Column("tolerance", low=0),
            Column(
                "across",
                label="distance between texts",
                meaning="The largest of two texts that were read together.",
                low=0,
            ),
        ),
        about=STATES,
    ),
    Table(
        "reads",
        (*CHECKPOINT_KEYS, "arm", "sample", "layer", "head"),
        (
            Column("a0", kind="ratio", label="attention to key 0", low=0, high=1),
            Column("uniform", kind="ratio", label="uniform attention to key 0", low=0, high=1),
            Column("fingerprint_share", kind="ratio", low=0),
            Column("fingerprint_projection", kind="ratio"),
            Column("value_ratio", kind="ratio", low=0),
            Column("same_token_gap", label="distance at one first token", low=0),
        ),
    ),
    Table(
        "fingerprints",
        (*CHECKPOINT_KEYS, "arm", "layer", "head"),
        (
            *_interval(
                "a0",
                "attention to key 0",
                "Mean over texts and over the queries behind the first that see it; interval over texts.",
                low=0,
            ),
            Column("uniform", kind="ratio", label="uniform attention to key 0", low=0, high=1),
            Column("fingerprint_cosine", label="cosine of fingerprints over texts", high=1),
            Column("fingerprint_share", kind="ratio", low=0),
            Column("fingerprint_projection", kind="ratio"),
            Column("value_ratio", kind="ratio", low=0),
            Column("same_token_gap", label="distance at one first token", low=0),
            Column(
                "clock", label="clock", meaning="Share of the variance of A_i0 between positions.", high=1
            ),
            Column("clock_mask", label="clock of the mask alone", high=1),
            Column(
                "readers",
                "list<float64>",
                "text",
                meaning="The thresholds that the head exceeds, its interval above uniform attention.",
            ),
        ),
    ),
    Table(
        "position_shares",
        (*CHECKPOINT_KEYS, "arm", "layer", "site"),
        (Column("position_share", label="share between positions", high=1), Column("texts", kind="count")),
    ),
    Table(
        "clocks",
        (*CHECKPOINT_KEYS, "arm", "layer", "head", "query"),
        (Column("a0", low=0, high=1), Column("a0_mask", low=0, high=1)),
    ),
    Table(
        "leakage",
        (*CHECKPOINT_KEYS, "input", "sample", "layer", "head", "protocol"),
        (
            Column("r2_relative", kind="ratio", low=0, high=1, meaning="Of the offset."),
            Column("r2_full", kind="ratio", low=0, high=1, meaning="Of the offset and the position."),
            Column("leakage", kind="ratio", low=0, high=1, meaning="Their difference, of one text."),
        ),
        version=2,
    ),
    Table(
        "leakage_tests",
        (*CHECKPOINT_KEYS, "layer", "head", "protocol"),
        (
            *_interval("gap", "leakage above that of turned texts", ""),
            *columns("ratio", "p_value", "p_adjusted"),
            Column("correction", "string", "text"),
        ),
        version=2,
    ),
    Table(
        "bands",
        (*CHECKPOINT_KEYS, "layer", "head", "band", "protocol"),
        (
            Column("layout", "string", "text", meaning="Which dimensions are paired."),
            Column("share", label="share of the scores' variance", high=1),
            Column("norm_share", kind="ratio", label="share of norms", low=0, high=1),
            Column("kl", label="KL without the band (nats)", low=0),
            Column("tv", label="total variation without the band", low=0, high=1),
        ),
    ),
    Table(
        "leakage_lengths",
        (*CHECKPOINT_KEYS, "layer", "tokens"),
        (Column("texts", kind="count"), *_interval("leakage_share", "leakage share", "Mean over heads.")),
    ),
    Table(
        "leakage_slopes",
        (*CHECKPOINT_KEYS, "layer"),
        _interval("slope", "slope of log leakage share on log length", ""),
    ),
    Table(
        "probes",
        (*CHECKPOINT_KEYS, "layer", "site", "protocol"),
        (
            Column("r2", kind="ratio", low=0, high=1, meaning="In sample, mean over texts."),
            Column("null", kind="ratio", meaning="What white noise gives."),
        ),
    ),
    Table(
        "softmax_statistics",
        (*CHECKPOINT_KEYS, "layer", "head", "temperature", "protocol"),
        (
            Column("softmax_entropy", label="entropy (nats)", low=0, meaning="Rows from 5 on."),
            Column("top_1", kind="ratio", label="largest probability", low=0, high=1),
            Column("top_5", kind="ratio", label="sum of the five largest", low=0, high=1),
            Column("margin", kind="ratio", label="largest less the second", low=0, high=1),
        ),
    ),
    Table(
        "encodings",
        CHECKPOINT_KEYS,
        (
            *columns("text", "encoding", "rope_type"),
            Column("rope_theta", kind="value", meaning=_OF_ALL_LAYERS),
            Column("rope_factor", kind="value", meaning=_OF_ALL_LAYERS),
            Column("rotary_dimensions", kind="count"),
            Column("windows", "string", "text", meaning="What queries see, each kind of layer once."),
            Column("sets_bos", kind="flag"),
            *(Column(name, kind="count") for name in ("layers", "heads", "width")),
        ),
        version=2,
    ),
    Table(
        "depth_slopes",
        ("model", "measure"),
        (
            Column("encoding", "string", "text"),
            Column("slope", meaning="Of the mean over heads on depth, the first layer 0 and the last 1."),
        ),
    ),
    Table(
        "emergence",
        ("model", "metric", "scope", "layer"),
        (
            Column("verdict", "string", "text"),
            Column("step", kind="count", meaning="First checkpoint of the new level, null without a step."),
            Column("p_value", kind="ratio", meaning="Of the best split, over orders of the checkpoints."),
            Column("p_holm", kind="ratio", meaning="Corrected over the rows of the run."),
            Column("start", meaning="At the first checkpoint, mean over heads."),
            Column("end", meaning="At the last."),
            Column("half_way", kind="count", meaning="First checkpoint past half of the way between them."),
        ),
        about={"layer": _FROM_1},
        version=2,
    ),
    Table(
        "sums",
        (*CHECKPOINT_KEYS, "arm", "input", "group", "layer", "head"),
        (
            Column("tokens", kind="count", meaning="Of a text."),
            Column("groups", kind="count", meaning="That texts are put into."),
            Column("texts", kind="count", meaning="Of the group."),
            *(
                Column(name, "list<float64>", "text", meaning="Sum over texts.")
                for name in PositionProfile.SUMS
            ),
        ),
    ),
    Table("controls", ("model", "control", "draw", "layer", "queries"), (*ESTIMATES, _UNIFORM_CUT)),
    Table(
        "control_residuals",
        ("model", "control", "layer"),
        (
            Column("drawings", kind="count"),
            *_interval(
                "residual_shared",
                "residual that drawings share (nats²)",
                "Mean product of the early queries' residuals of different drawings.",
            ),
        ),
    ),
    Table(
        "control_overall",
        ("model", "control", "draw", "statistic"),
        (Column("estimate", meaning="Of one initialisation."),),
    ),
    Table("claims", (*CHECKPOINT_KEYS, "protocol", "claim"), CLAIM_COLUMNS),
)


@dataclass(frozen=True)
class RemovedArm:
    """A row of `removed_arms`: what an arm removes of the residual, its draws taken together."""

    arm: str
    kind: str
    count: int
    energy_removed: float
    energy_removed_low: float
    energy_removed_high: float
    pattern_removed: float
    pattern_removed_low: float
    pattern_removed_high: float
    energy_least: float = math.nan
    energy_most: float = math.nan
    model: str = ""


@dataclass(frozen=True)
class Fingerprint:
    """A row of `fingerprints`: how a head reads position 0."""

    layer: int
    head: int
    a0: float
    uniform: float
    a0_low: float = math.nan
    clock: float = math.nan
    clock_mask: float = math.nan


@dataclass(frozen=True)
class ResidualOfHead:
    """A row of `position`: the residual of a head."""

    residual: float
    residual_low: float
    residual_high: float
    plain: float
