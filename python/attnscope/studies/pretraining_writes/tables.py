# SPDX-License-Identifier: MIT
"""The tables of the study."""

from __future__ import annotations

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.claims import CLAIM_COLUMNS
from attnscope.study_api.tables import Column, Table

PAIR = (*CHECKPOINT_KEYS, "reference")
MATRIX = ("layer", "role", "expert")
_KEY_MEANINGS = {
    "layer": "−1: the embedding or the unembedding, which are in no layer.",
    "expert": "−1: a matrix that every token passes.",
}


def _text(name: str, meaning: str) -> Column:
    return Column(name, "string", "text", meaning=meaning)


DELTAS = Table(
    "deltas",
    (*PAIR, *MATRIX),
    (
        Column("rows", kind="count", label="rows"),
        Column("columns", kind="count", label="columns"),
        _text("before_dtype", "As the base's file stores the matrix."),
        _text("after_dtype", "As the tuned file stores it."),
        Column("delta_energy", label="energy of ΔW", symbol="‖ΔW‖²", low=0.0),
        Column("relative_norm", kind="ratio", label="size of the change", symbol="‖ΔW‖/‖W‖", low=0.0),
        Column("unchanged_share", label="unchanged entries", low=0.0, high=1.0),
        Column("step_ratio", kind="ratio", label="change / rounding step", low=0.0),
        Column("noise_share", kind="ratio", label="rounding noise in ΔW", low=0.0),
        Column("decay_share", kind="ratio", label="ΔW along W"),
        Column("largest_change", label="largest change", low=0.0),
        Column("bias_change", label="size of the bias's change", symbol="‖Δb‖", low=0.0),
        Column("delta_participation_ratio", label="directions of ΔW", low=1.0),
        Column("delta_stable_rank", label="stable rank of ΔW", low=1.0),
        Column("exact_spectrum", kind="flag", meaning="Ratios come from a decomposition, not from probes."),
        Column("below_floor", kind="flag", meaning="Half of the change or more may be rounding."),
        _text("note", "What is unlike other matrices: untied, added rows, entries that are not finite."),
    ),
    about=_KEY_MEANINGS,
)
FRACTIONS = Table(
    "fractions",
    (*PAIR, *MATRIX, "side", "subspace", "k"),
    (
        Column("fraction", label="fraction in the subspace", symbol="f", low=0.0, high=1.0),
        Column("relative", kind="ratio", label="fraction / isotropic", symbol="r", low=0.0),
        Column("ceiling", label="largest possible fraction", low=0.0, high=1.0),
        Column("captured", kind="ratio", label="captured of the possible", high=1.0),
        Column("deviation", label="Haar deviation", low=0.0),
        Column("z", label="deviations from isotropic"),
        Column("p_value", label="p against random subspaces", low=0.0, high=1.0),
        Column("p_adjusted", label="p, Holm", low=0.0, high=1.0),
        _text("correction", "Over the matrices of one pair, side and subspace."),
        Column(
            "low", label="lower bound", meaning="Jackknife over groups of texts, of the relative fraction."
        ),
        Column("high", label="upper bound", meaning="Likewise."),
        Column("gap", label="gap behind the k-th direction", low=0.0, high=1.0),
        Column("unique", kind="flag", meaning="The k-th and the next direction differ in their gain."),
        Column("debiased", kind="ratio", label="fraction less rounding"),
        Column("share_of_energy", label="energy of the subspace itself", low=0.0, high=1.0),
        Column("tested", kind="flag", meaning="The k that claims are about."),
    ),
    variants="full",
    about=_KEY_MEANINGS,
)
EXPERT_MEANS = Table(
    "expert_means",
    (*PAIR, "layer", "role", "side", "subspace", "k"),
    (
        Column("experts", kind="count"),
        Column("fraction", label="fraction in the subspace", meaning="Over all experts: ΣE·f/ΣE.", low=0.0),
        Column("relative", kind="ratio", label="fraction / isotropic", low=0.0),
    ),
)
GAINS = Table(
    "gains",
    (*PAIR, *MATRIX, "side", "moment"),
    (
        Column("alignment_gain", kind="ratio", label="alignment gain", low=0.0),
        Column("deviation", low=0.0),
        Column("z"),
        Column("concentration", label="concentration", low=-1.0, high=1.0),
        Column("mean_share", label="change of the mean output", low=0.0, high=1.0),
    ),
    about=_KEY_MEANINGS,
)
MOMENTS = Table(
    "moments",
    (*CHECKPOINT_KEYS, "layer", "role", "side"),
    (
        Column("tokens", kind="count"),
        Column("trace", label="mean squared norm", low=0.0),
        Column("input_participation_ratio", label="directions of the inputs", low=1.0),
        Column(
            "largest_token_share",
            label="largest token's share",
            meaning="Of Σ‖x‖² over the tokens of all texts.",
            low=0.0,
            high=1.0,
        ),
        Column("mean_input_share", label="share of the mean input", low=0.0, high=1.0),
        Column("stability", label="overlap of halves of the texts", low=0.0, high=1.0),
        Column("prediction_overlap", label="overlap with the prediction subspace", low=0.0, high=1.0),
        Column("identity_error", label="gradient less Σ δ aᵀ", low=0.0),
    ),
)
MECHANISM = Table(
    "mechanism",
    (*PAIR, *MATRIX, "side"),
    (
        Column("predicted", kind="ratio", label="predicted / isotropic", low=0.0),
        Column("observed", kind="ratio", label="observed / isotropic", low=0.0),
        Column("coherence", label="observed − predicted (octaves)"),
    ),
    about=_KEY_MEANINGS,
)
LEFT_OUT = Table(
    "left_out",
    (*PAIR, *MATRIX, "side", "subspace", "group"),
    (Column("relative", kind="ratio", label="relative fraction without one group of texts", low=0.0),),
    about=_KEY_MEANINGS,
)
MEAN_DEVIATIONS = Table(
    "mean_deviations",
    (*PAIR, "side", "subspace", "roles"),
    (
        Column("matrices", kind="count", label="matrices"),
        Column(
            "deviation",
            label="Haar deviation of the mean",
            meaning="Of the mean relative fraction at the tested k, all subspaces turned together.",
            low=0.0,
        ),
    ),
)
RANK_ONE = Table(
    "rank_one",
    (*CHECKPOINT_KEYS, "sample", "layer", "role", "direction"),
    (
        Column("kl", label="KL of the predictions (nats)", low=0.0),
        Column("predicted_kl", label="KL, second order (nats)", low=0.0),
        Column("target_shift", label="log-probability of the next token (nats)"),
        Column("loss_change", label="change of the loss (nats)"),
        Column("attention_change", label="change of the layer's attention", low=0.0, high=1.0),
    ),
)
TOKENS = Table(
    "token_energies",
    (*CHECKPOINT_KEYS, "sample", "layer", "role", "side"),
    (
        Column("tokens", kind="count"),
        Column("energy", meaning="Of the tokens of a text that are summed: Σ‖x‖².", low=0.0),
        Column("largest_energy", meaning="The largest ‖x‖² among them.", low=0.0),
        Column("identity_error", low=0.0),
    ),
)
CLAIMS = Table("claims", (*PAIR, "protocol", "claim"), CLAIM_COLUMNS)
CHECKS = Table(
    "checks",
    (*CHECKPOINT_KEYS, "sample", "check"),
    (Column("value"), Column("tolerance"), Column("holds", kind="flag"), _text("reason", "In words.")),
)
TABLES = (
    DELTAS,
    FRACTIONS,
    EXPERT_MEANS,
    GAINS,
    MOMENTS,
    MECHANISM,
    LEFT_OUT,
    MEAN_DEVIATIONS,
    RANK_ONE,
    TOKENS,
    CLAIMS,
    CHECKS,
)
