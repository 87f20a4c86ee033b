# SPDX-License-Identifier: MIT
"""The study's tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.results.schema import CHECKPOINT_KEYS, STATES
from attnscope.studies.checks import CHECKS
from attnscope.study_api.claims import CLAIM_COLUMNS
from attnscope.study_api.tables import Column, Table, columns

C = CHECKPOINT_KEYS
_DRAWN = {"draw": "Which of several random ones; −1: nothing is drawn."}
_RATES = tuple(Column(name, kind="ratio", low=0.0, high=1.0) for name in ("p_value", "p_adjusted"))
#: What the ends of a null's draws are, as in `evidence.null_ends`.
NULL_ENDS = (
    "A further draw lies between the ends in 95 of 100 cases; of m draws below 39 they are the smallest and "
    "the largest, and hold (m − 1)/(m + 1) of further ones (20 draws: .90)."
)

TABLES = (
    CHECKS,
    Table(
        "prompts",
        (*C, "sample"),
        (
            *columns("text", "bucket", "template", "pair", "fold", "answer", "question"),
            Column("tokens", kind="count", label="tokens of the prompt"),
            Column(
                "surprisal",
                label="surprisal (nats per token)",
                meaning="Mean over the tokens of the question, without those of the prompt around it.",
                low=0.0,
            ),
        ),
        version=2,
    ),
    Table("states", (*C, "sample", "layer"), (Column("state", "list<float>"),), about=STATES),
    Table(
        "clouds",
        (*C, "layer", "bucket", "null", "quantity", "k", "protocol"),
        (
            Column("value", meaning="Of null clouds their mean."),
            Column("low", meaning=f"Delete-a-template interval; of null clouds: {NULL_ENDS}"),
            Column("high"),
            *columns("count", "n", "duplicates", "tied"),
        ),
        variants="full",
        about=STATES,
    ),
    Table(
        "contrasts",
        (*C, "layer", "contrast", "quantity", "k", "protocol"),
        (
            *columns("value", "value", "low", "high", "null_mean"),
            Column("null_low", meaning=NULL_ENDS),
            Column("null_high"),
            *_RATES,
            Column("correction", "string", "text"),
            Column("n_pairs", kind="count"),
            Column("labellings", meaning="How many there are of the same kind."),
        ),
        variants="full",
        about=STATES,
    ),
    Table(
        "detection",
        (*C, "layer", "contrast", "score"),
        (
            Column("auc", label="area under the curve", low=-1.0, high=1.0),
            *columns("value", "low", "high"),
            Column("n", kind="count"),
        ),
        variants="full",
        about=STATES,
    ),
    Table(
        "betti",
        (*C, "layer", "bucket", "null", "draw", "scale_number"),
        (
            Column("scale"),
            *columns("count", "beta0", "beta1", "clusters", "singletons"),
            Column("largest"),
            Column("n", kind="count"),
        ),
        variants="full",
        about={**STATES, **_DRAWN},
    ),
    Table(
        "boundaries",
        (*C, "layer", "contrast"),
        (
            Column("norm"),
            Column("relative_norm", label="‖v‖ / mean ‖h‖"),
            Column("distance2", label="squared distance of the means, unbiased"),
            Column("stability", label="cosine with the layer before", low=-1.0, high=1.0),
            *columns("value", "stability_low", "stability_high"),
            Column("stability_null", meaning="Mean over exchanged labels."),
            Column("stability_null_high", meaning="Largest over exchanged labels."),
            Column("reliability", label="cosine between halves of the templates", low=-1.0, high=1.0),
            Column("reliability_null"),
        ),
        variants="full",
        about=STATES,
    ),
    Table(
        "sensitivity",
        (*C, "sample", "layer", "contrast", "direction", "draw"),
        (
            Column("state_norm"),
            Column("directional_fisher", label="bᵀFb (nats)", low=0.0),
            Column("relative_fisher", label="‖h‖²·bᵀFb", low=0.0),
            Column("transport_fisher", label="‖v‖²·bᵀFb", low=0.0),
            Column("transport_kl", label="½[KL + KL] of the whole difference (nats)", low=0.0),
            Column("curvature"),
            Column("entropy_slope", label="slope of the entropy along v"),
            Column("refusal_slope", label="slope of the logit of refusal along v"),
            *columns("value", "refusal_alignment", "loss_alignment", low=-1.0, high=1.0),
            Column("amplification", label="‖J b‖ of the next block", low=0.0),
            Column("compute_dtype", "string", "text", meaning="In which derivatives were taken."),
        ),
        about=_DRAWN,
    ),
    Table(
        "readout",
        (*C, "layer", "contrast", "direction", "k"),
        (
            Column("readout_gain", label="bᵀGb / (tr G/D)", low=0.0),
            *columns("ratio", "top_share", "bottom_share", "chance", low=0.0, high=1.0),
            *_RATES,
            Column("correction", "string", "text"),
            *columns("value", "low", "high"),
        ),
    ),
    Table(
        "lens",
        (*C, "sample", "layer"),
        (
            Column("prediction_entropy", label="entropy of the prediction (nats)", low=0.0),
            Column("top", label="largest probability", kind="ratio", low=0.0, high=1.0),
            Column("log_p_answer"),
            Column("rank_answer", kind="count"),
        ),
        variants="full",
        about=STATES,
    ),
    Table(
        "answers",
        (*C, "sample"),
        (
            Column("text", "string", "text", empty=True),
            *columns("flag", "correct", "refused"),
        ),
    ),
    Table(
        "interventions",
        (*C, "sample", "layer", "contrast", "arm", "control", "draw", "strength"),
        (
            Column("forced", kind="flag", meaning="The first token is the refusal's, by force."),
            *columns("flag", "refused", "correct", "changed", "loop"),
            Column("kl", label="KL of the next token (nats)"),
            Column("text", "string", "text", empty=True),
        ),
        about=_DRAWN,
    ),
    Table(
        "emergence",
        ("model", "contrast", "quantity"),
        (
            Column("verdict", "string", "text"),
            Column("step", kind="count", meaning="First checkpoint of the new level, null without a step."),
            Column("p_value", label="p", meaning="Of the best split, over orders of the checkpoints."),
            Column("p_adjusted", label="p (Holm)", meaning="Over the quantities of the run."),
            *columns("value", "start", "end", "difference", "low", "high"),
            Column("half_way", kind="count", meaning="First checkpoint past half of the way; noise has one."),
        ),
    ),
    Table("claims", (*C, "protocol", "claim"), CLAIM_COLUMNS),
)


@dataclass(frozen=True)
class ContrastTest:
    """A row of `contrasts`: a quantity of a contrast in a layer, with its test."""

    layer: int
    value: float
    low: float = math.nan
    high: float = math.nan
    null_mean: float = math.nan
    null_low: float = math.nan
    null_high: float = math.nan
    p_value: float = math.nan
    p_adjusted: float = math.nan
    labellings: float = math.nan
