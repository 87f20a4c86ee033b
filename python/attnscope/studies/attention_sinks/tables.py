# SPDX-License-Identifier: MIT
"""The tables of the study on attention sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.engine.tables import Column, Table, columns
from attnscope.metrics.quantity import Quantity
from attnscope.studies.attention_sinks.columns import METRICS, table_of, taken
from attnscope.studies.attention_sinks.matched_keys import RANDOM
from attnscope.studies.supports import SUPPORT

_SAMPLE = (*CHECKPOINT_KEYS, "sample")
_LAYER = (*_SAMPLE, "layer", "protocol")
_TESTS = tuple(
    Column(name, label=label, meaning=meaning)
    for name, label, meaning in (
        ("p_value", "p", "Two-sided p-value."),
        ("p_holm", "p (Holm)", "Corrected by Holm's method over the table's exact rows of a checkpoint."),
        ("p_bh", "p (Benjamini-Hochberg)", "Corrected by Benjamini and Hochberg's method over those rows."),
    )
)
_INTERVAL = (Column("difference"), Column("low"), Column("high"))
_SAMPLES = Column("samples", kind="count", label="texts")
_TOKENS = Column("n_tokens", kind="count", label="tokens")


def _quantities(table: str) -> tuple[Quantity, ...]:
    """The quantities of a table in all protocols, each name once."""
    every: Sequence[Quantity] = [one for protocol in METRICS for one in taken(protocol, (), (0.1,))]
    # a flag that was read as a number is averaged over heads
    mine = {
        one.name: replace(one, kind="value") if one.name == "sink_rate" else one
        for one in reversed(every)
        if table_of(one) == table
    }
    return tuple(reversed(mine.values()))


_OF_HEADS = (
    Table(
        "heads",
        HEAD_KEYS,
        (_TOKENS, *columns("text", "sink_token"), SUPPORT, *columns("text", "mp_law"), *_quantities("heads")),
    ),
    Table("graphs", (*HEAD_KEYS, "threshold"), (SUPPORT, *_quantities("graphs"))),
    Table("bars", (*HEAD_KEYS, "dimension", "birth", "death")),
)

TABLES = (
    *(one for table in _OF_HEADS for one in (table, table.head_means())),
    Table("layers", _LAYER, (_TOKENS, *_quantities("layers"), *columns("value", *RANDOM.values()))),
    Table("examples", HEAD_KEYS, (_TOKENS, Column("attention", "list<float64>", "values"))),
    Table(
        "fisher",
        (*_SAMPLE, "layer", "group", "protocol"),
        (*columns("count", "parameters"), *columns("value", "trace", "trace_per_parameter", "trace_sampled")),
    ),
    Table(
        "ablation",
        (*_SAMPLE, "keys"),
        (
            _TOKENS,
            *columns("count", "key_count"),
            *columns("value", "output_kl", "loss_before", "loss_after", "loss_change"),
        ),
    ),
    Table(
        "baselines",
        ("n_tokens", "metric", "kind", "support", "threshold", "protocol", "scope", *CHECKPOINT_KEYS),
        (*columns("value", "value", "std"), *columns("count", "count")),
        version=2,
    ),
    Table(
        "sink_sums",
        (*CHECKPOINT_KEYS, "group", "layer", "head", "label_kind", "label", "first_sample"),
        (
            *columns("count", "texts", "above"),
            *columns("value", "mass", "expected", "variance", "largest", "uniform"),
            *columns("count", "queries"),
        ),
    ),
    Table(
        "sink_heads",
        (*CHECKPOINT_KEYS, "group", "layer", "head"),
        (
            *(*columns("flag", "has_sink"), *columns("count", "texts_tested", "texts_with_sink")),
            *(
                *columns("text", "pooled_by", "pooled_label"),
                *columns("value", "pooled_mean", "pooled_uniform", "pooled_excess"),
            ),
        ),
    ),
    Table(
        "frames",
        (*CHECKPOINT_KEYS, "group", "protocol"),
        (
            *(*columns("count", "heads_with_sink", "heads_tested"), *columns("value", "share_with_sink")),
            *columns("text", "frame", "token_frame"),
            *columns("value", "margin", "probability"),
            *(
                _SAMPLES,
                *columns("flag", "causal"),
                Column("modal_position", kind="position"),
                *columns("text", "modal_token"),
            ),
            *columns("value", "modal_position_share", "modal_token_share"),
        ),
    ),
    Table(
        "frame_evidence",
        (*CHECKPOINT_KEYS, "group", "protocol", "kind", "third"),
        (
            *columns("count", "sinks"),
            *columns("text", "top"),
            *columns("value", "top_1", "top_2", "top_3", "entropy", "first_anchor", "last_anchor"),
        ),
    ),
    Table(
        "specialization",
        (*CHECKPOINT_KEYS, "layer", "head", "protocol"),
        (
            *columns("value", "consistency"),
            *columns("text", "modal"),
            _SAMPLES,
            *columns("flag", "specialised", "specialised_half"),
        ),
    ),
    Table(
        "layer_tests",
        (*CHECKPOINT_KEYS, "metric", "layer", "other_layer", "protocol"),
        (Column("difference"), *_TESTS, _SAMPLES),
    ),
    Table(
        "removal_tests",
        (*CHECKPOINT_KEYS, "layer", "percentile", "protocol"),
        (*columns("value", "kl_reduction", "kl_random"), *_INTERVAL, *_TESTS, _SAMPLES),
    ),
    Table(
        "null_tests",
        (*CHECKPOINT_KEYS, "kind", "metric", "scope", "protocol"),
        (*_INTERVAL, *_TESTS, _SAMPLES, *columns("count", "controls"), *columns("text", "unit")),
    ),
    Table(
        "graph_depth",
        (*CHECKPOINT_KEYS, "protocol", "threshold"),
        (
            *columns("value", "early", "middle", "late"),
            *(*columns("flag", "middle_peak"), *columns("value", "peak_factor")),
            *columns("value", *(f"correlation_{one}" for one in ("gini", "hub_share", "centralization"))),
            *(
                *columns("value", "correlation_degree_variance"),
                *columns("count", "layers", "reported_layers"),
            ),
        ),
    ),
    Table(
        "emergence",
        ("model", "group", "scope", "place", "protocol", "metric"),
        (
            *(Column("layer", kind="position"), Column("head", kind="position"), *columns("text", "verdict")),
            Column("step", kind="count", meaning="First checkpoint of the new level, null without a step."),
            Column("p_value", label="p", meaning="Of the best split, over orders of the checkpoints."),
            Column("p_holm", label="p (Holm)", meaning="Corrected over the tested quantities of the run."),
            *(*_INTERVAL, *columns("value", "start", "end")),
            Column(
                "half_way",
                kind="count",
                meaning="First checkpoint past half of the way from start to end; noise has one too.",
            ),
            *(*columns("value", "change"), *columns("count", "change_first_step", "change_last_step")),
        ),
        version=2,
    ),
)
#: Tables of the maps, which controls have too, and those of controls.
MEASURED = ("heads", "graphs", "layers", "head_means", "head_mean_graphs")
CONTROLS = ("heads_variants", "graphs_variants", "layers_variants")
