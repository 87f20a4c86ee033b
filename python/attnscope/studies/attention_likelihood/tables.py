# SPDX-License-Identifier: MIT
"""The study's tables and what their columns mean.

Attention of single heads is in `spans`, that of each layer's mean over heads in `head_mean_spans`; their
associations likewise. Numbers over all layers are in the table `overall`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.checks import CHECKS
from attnscope.study_api.claims import CLAIM_COLUMNS
from attnscope.study_api.tables import Column, Table, columns

WORD = (
    Column("word", "string", "text", meaning="The real word."),
    Column("replacement", "string", "text", meaning="The text in its place.", empty=True),
    Column("replacement_ids", "list<int64>", "text", meaning="Its token ids."),
    Column("start", kind="position", label="first token of the word"),
    Column("stop", kind="position", label="behind its last token"),
    Column("pieces", kind="count", label="tokens of the word"),
    Column("n_tokens", kind="count", label="tokens of the text"),
    Column("log_likelihood", label="log-likelihood (nats)", symbol="L", high=0.0),
    Column("per_piece", label="log-likelihood per piece (nats)", high=0.0),
    Column("place", kind="ratio", label="place among the candidates", low=0.0, high=1.0),
)

OWN_PROBABILITY = (
    Column(
        "own_probability",
        kind="ratio",
        label="probability at its own position",
        meaning="Of an encoder that sees the word: geometric mean over pieces; under ruscio2023 the mean.",
        low=0.0,
        high=1.0,
    ),
    Column("own_std", meaning="Unbiased standard deviation over pieces, of ruscio2023.", low=0.0),
    Column("own_joint", kind="ratio", meaning="Product over pieces, of ruscio2023.", low=0.0, high=1.0),
)

_SCORED = (
    *WORD,
    *OWN_PROBABILITY,
    Column(
        "prediction_entropy", label="entropy of the prediction (nats)", meaning="Of the first piece.", low=0.0
    ),
    Column("two_sided", label="log-likelihood with the rest of the text (nats)", high=0.0),
)
VERSIONS = (
    *_SCORED,
    Column("token_log_likelihood", "list<float64>", "text", meaning="Of every token given those before it."),
)

WORDS = (
    *_SCORED,
    Column("same", kind="flag", meaning="The replacement is the real word."),
    Column("partner", kind="position", meaning="The text that it exchanges words with."),
)


def _share(name: str, label: str, meaning: str = "") -> Column:
    return Column(name, kind="ratio", label=label, meaning=meaning, low=0.0, high=1.0)


SPANS = Table(
    "spans",
    (*CHECKPOINT_KEYS, "sample", "mode", "layer", "head", "protocol"),
    (
        _share("span_share", "attention of the word to itself", "Mean over its rows."),
        _share("span_uniform", "uniform attention of the word to itself"),
        Column("span_boost", label="attention to itself / uniform", low=0.0),
        _share("span_diagonal", "attention of its tokens to themselves"),
        _share("span_special", "attention of the word to special tokens"),
        _share("span_context", "attention of the word to the rest"),
        _share("learned_sink_mass", "attention to learned sink", "Of the word; null in layers without one."),
        _share("span_received", "attention of other tokens to the word"),
        _share("span_received_uniform", "uniform attention of others to the word"),
        Column("map_mean", label="mean of the map", meaning="1/n for every map; of ruscio2023.", low=0.0),
        Column("inner", label="mean attention inside the word", meaning="Of ruscio2023.", low=0.0),
        Column("outer", label="mean attention outside", meaning="Of ruscio2023; a function of inner."),
        Column("mann_whitney_u", meaning="Rows outside the word, real against this; of ruscio2023."),
        Column("mann_whitney_u_replaced", meaning="The other U of the pair."),
        Column("mann_whitney_p", kind="ratio", meaning="Its p, two-sided.", low=0.0, high=1.0),
        Column("row_difference_std", meaning="Spread of the differences of these rows.", low=0.0),
    ),
    variants="full",
)

_TESTED = (
    *columns("ratio", "p_value", "p_adjusted"),
    Column("correction", "string", "text"),
)

ASSOCIATIONS = Table(
    "associations",
    (*CHECKPOINT_KEYS, "layer", "head", "protocol", "design", "mode", "predictor", "measure"),
    (
        Column("estimate", meaning="Spearman's correlation; of the design swap, a difference of shares."),
        *columns("value", "low", "high"),
        Column("slope", label="change per nat", meaning="Least squares, of values and not of ranks."),
        Column("z", meaning="Of the permutation distribution of the mean correlation within texts."),
        *_TESTED,
        Column("n", kind="count", label="texts, pairs of texts"),
    ),
)

OVERALL = Table(
    "overall",
    (*CHECKPOINT_KEYS, "protocol", "statistic"),
    (
        *columns("value", "estimate", "low", "high"),
        Column("p_value", kind="ratio"),
        Column("n", kind="count", label="texts, pairs of texts"),
    ),
)

SHIFTS = Table(
    "shifts",
    (*CHECKPOINT_KEYS, "layer", "protocol", "mode", "measure"),
    (
        Column("difference", label="replaced less real"),
        *columns("value", "low", "high"),
        *_TESTED,
        Column("real", meaning="Mean of the measure on the real word."),
        Column("log_likelihood_difference", label="change of log-likelihood (nats)"),
        Column("distinct", kind="count", meaning="Distinct first pieces among the replacements."),
        Column(
            "commonest", kind="ratio", meaning="Share of the most frequent first piece.", low=0.0, high=1.0
        ),
        Column("n", kind="count", label="texts"),
    ),
)

BEST = Table(
    "best_layers",
    (*CHECKPOINT_KEYS, "protocol"),
    (
        Column("layer", kind="position"),
        Column("mode", "string", "text"),
        Column("rho", label="correlation of the best layer", low=-1.0, high=1.0),
        Column("held_out_layer", kind="position", meaning="Chosen on texts of even number."),
        Column("held_out_mode", "string", "text"),
        Column("held_out_rho", meaning="Its correlation on texts of odd number.", low=-1.0, high=1.0),
        *(
            Column(f"{name}_{which}{end}")
            for name in ("likelihood", "inner", "outer")
            for which in ("real", "perturbed")
            for end in ("", "_std")
        ),
        *columns("value", "u_real", "u_perturbed"),
        Column("mann_whitney_p", kind="ratio", low=0.0, high=1.0),
        Column("difference_std", low=0.0),
        Column("map_mean", label="mean of the map, 1/n", low=0.0),
        Column("n", kind="count", label="texts"),
    ),
)

CONTROLS = Table(
    "controls",
    ("model", "control", "draw", "layer", "protocol", "design", "mode", "predictor", "measure"),
    (Column("estimate"), Column("slope"), Column("n", kind="count")),
)

CONTROL_OVERALL = Table(
    "control_overall",
    ("model", "control", "draw", "protocol", "statistic"),
    (Column("estimate", meaning="Over all layers, of one initialisation."),),
)

TABLES = (
    Table(
        "targets",
        (*CHECKPOINT_KEYS, "sample"),
        (
            Column("word", "string", "text"),
            *columns("position", "start", "stop"),
            Column("n_tokens", kind="count"),
            Column("reason", "string", "text", meaning="Why the text has no word."),
            Column("partner", kind="position", meaning="The text that it exchanges words with."),
            Column("swap_ids", "list<int64>", "text", meaning="Pieces of the partner's word."),
            Column("text_unit", kind="position", meaning="The first text with the same words."),
        ),
    ),
    Table("versions", (*CHECKPOINT_KEYS, "sample", "mode", "protocol"), VERSIONS),
    Table("words", (*CHECKPOINT_KEYS, "sample", "mode", "protocol"), WORDS),
    SPANS,
    SPANS.head_means(),
    ASSOCIATIONS,
    ASSOCIATIONS.head_means(),
    OVERALL,
    SHIFTS,
    BEST,
    CONTROLS,
    CONTROL_OVERALL,
    Table(
        "surveys",
        (*CHECKPOINT_KEYS, "sample", "layer"),
        (
            Column("correlation", low=-1.0, high=1.0),
            Column("partial", meaning="Given the position.", low=-1.0, high=1.0),
        ),
    ),
    Table("claims", (*CHECKPOINT_KEYS, "protocol", "claim"), CLAIM_COLUMNS),
    CHECKS,
)


@dataclass(frozen=True)
class Association:
    """A row of `head_mean_associations`: a correlation in a layer."""

    layer: int
    estimate: float
    slope: float
    z: float
    p_adjusted: float
