# SPDX-License-Identifier: MIT
"""The tables of the study on attention sinks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attnscope.metrics.quantity import Quantity
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.studies.attention_sinks.layer_rows import METRICS, select_quantities, table_of
from attnscope.studies.attention_sinks.shuffled_removal import SHARE, SHUFFLED
from attnscope.studies.nulls import BASELINES
from attnscope.studies.supports import SUPPORT
from attnscope.study_api.tables import Column, Table, columns

#: Columns that need more than their names.
_DESCRIBED = {
    column.name: column
    for column in (
        Column("samples", kind="count", label="texts"),
        Column("n_tokens", kind="count", label="tokens"),
        Column("p_value", label="p", meaning="Two-sided p-value."),
        *columns("text", "modal", "modal_token", "pooled_label", "sink_token", "top", empty=True),
        Column(
            "p_holm",
            label="p (Holm)",
            meaning="Corrected by Holm's method over the table's exact rows of a checkpoint.",
        ),
        Column(
            "p_bh",
            label="p (Benjamini-Hochberg)",
            meaning="Corrected by Benjamini and Hochberg's method over those rows.",
        ),
    )
}
_TESTS = "value p_value p_holm p_bh"


def _columns(*kinds: str) -> tuple[Column, ...]:
    """Return columns by their kind, such as "count texts above"."""
    all_columns = [columns(kind, name)[0] for kind, *names in map(str.split, kinds) for name in names]
    return tuple(_DESCRIBED.get(column.name, column) for column in all_columns)


def _table(name: str, keys: str, *kinds: str, **notes: str) -> Table:
    """Return a table whose keys are those of a checkpoint and further ones."""
    return Table(name, (*CHECKPOINT_KEYS, *keys.split()), _columns(*kinds), about=notes)


def _quantities(table: str) -> tuple[Quantity, ...]:
    """Return the quantities of a table in all protocols, each name once."""
    selected = [quantity for protocol in METRICS for quantity in select_quantities(protocol, (), (0.1,))]
    # a flag that was read as a number is averaged over heads
    by_name = {
        quantity.name: replace(quantity, kind="value") if quantity.name == "sink_rate" else quantity
        for quantity in reversed(selected)
        if table_of(quantity) == table
    }
    return tuple(reversed(by_name.values()))


_OF_HEADS = (
    Table(
        "heads",
        HEAD_KEYS,
        (
            *_columns("count n_tokens", "text sink_token"),
            SUPPORT,
            *_columns("text mp_law"),
            *_quantities("heads"),
        ),
    ),
    Table("graphs", (*HEAD_KEYS, "threshold"), (SUPPORT, *_quantities("graphs"))),
    Table("bars", (*HEAD_KEYS, "dimension", "birth", "death")),
)

TABLES = (
    *(variant for table in _OF_HEADS for variant in (table, table.head_means())),
    Table(
        "layers",
        (*CHECKPOINT_KEYS, "sample", "layer", "protocol"),
        (
            *_columns("count n_tokens"),
            *_quantities("layers"),
            *columns("value", *SHARE.values(), *SHUFFLED.values()),
        ),
    ),
    Table(
        "examples", HEAD_KEYS, (*_columns("count n_tokens"), Column("attention", "list<float64>", "values"))
    ),
    Table(
        "position_profiles",
        (*HEAD_KEYS, "position"),
        (
            Column("last_position", kind="count", meaning="Last position of the bin; the first is 1."),
            *columns("value", "sink_share", "entropy", "incoming_attention"),
        ),
    ),
    _table(
        *("fisher", "sample layer group protocol", "count parameters"),
        "value trace trace_per_parameter trace_sampled",
        layer="−1: parameters that are in no layer.",
    ),
    _table(
        *("ablation", "sample keys", "count n_tokens key_count"),
        "value output_kl loss_before loss_after loss_change",
    ),
    BASELINES,
    _table(
        *("sink_sums", "group layer head label_kind label first_sample", "count texts above"),
        *("value mass expected variance largest uniform", "count queries"),
    ),
    _table(
        *("sink_heads", "group layer head", "flag has_sink", "count texts_tested texts_with_sink"),
        *("text pooled_by pooled_label", "value pooled_mean pooled_uniform pooled_excess"),
    ),
    _table(
        *("frames", "group protocol", "count heads_with_sink heads_tested", "value share_with_sink"),
        *("text frame token_frame", "value margin probability chance", "count samples", "flag causal"),
        *("position modal_position", "text modal_token", "value modal_position_share modal_token_share"),
    ),
    _table(
        *("frame_evidence", "group protocol kind third", "count sinks", "text top"),
        "value top_1 top_2 top_3 entropy first_anchor last_anchor",
    ),
    _table(
        *("specialization", "layer head protocol", "value consistency", "text modal", "count samples"),
        "flag specialised specialised_half",
    ),
    _table("layer_tests", "metric layer other_layer protocol", "value difference", _TESTS, "count samples"),
    _table(
        *("removal_tests", "layer percentile protocol"),
        *("value kl_reduction kl_share kl_share_shuffled difference low high", _TESTS, "count samples"),
    ),
    _table(
        *("null_tests", "kind metric scope protocol"),
        *("value difference low high", _TESTS, "count samples controls", "text unit"),
    ),
    _table(
        *("graph_depth", "protocol threshold", "value early middle late", "flag middle_peak"),
        "value peak_factor correlation_gini correlation_hub_share correlation_centralization",
        *("value correlation_degree_variance", "count layers reported_layers"),
    ),
    Table(
        "emergence",
        ("model", "group", "scope", "place", "protocol", "metric"),
        (
            *_columns("position layer head", "text verdict"),
            Column("step", kind="count", meaning="First checkpoint of the new level, null without a step."),
            Column("p_value", label="p", meaning="Of the best split, over orders of the checkpoints."),
            Column("p_holm", label="p (Holm)", meaning="Corrected over the tested quantities of the run."),
            *_columns("value difference low high start end"),
            Column(
                "half_way",
                kind="count",
                meaning="First checkpoint past half of the way from start to end; noise has one too.",
            ),
            *_columns("value change", "count change_first_step change_last_step"),
        ),
        version=2,
    ),
)
#: Tables of the maps, which controls have too, and those of controls.
MEASURED = ("heads", "graphs", "layers", "head_means", "head_mean_graphs")
CONTROLS = ("heads_variants", "graphs_variants", "layers_variants")
#: Tables of measuring without maps.
PROFILES = ("position_profiles",)


@dataclass(frozen=True)
class Frame:
    """A row of `frames`: the reference frame of a model's heads.

    Attributes:
        frame: its name, "none" where there is none.
        probability: share of resampled texts with the same frame.
        chance: how often heads that have nothing to do with each other have the same frame.
        heads_tested: of which a key could be tested for being a sink.
        heads_with_sink: of these.
        share_with_sink: their share.
        modal_position: most frequent position of a sink.
        modal_position_share: of the sinks.
        modal_token: most frequent token of a sink.
        modal_token_share: of the sinks.
    """

    frame: str
    probability: float
    chance: float = math.nan
    heads_tested: float = math.nan
    heads_with_sink: float = math.nan
    share_with_sink: float = math.nan
    modal_position: float = math.nan
    modal_position_share: float = math.nan
    modal_token: str = ""
    modal_token_share: float = math.nan


@dataclass(frozen=True)
class Emergence:
    """A row of `emergence`: how a quantity changes over training, and whether it does so in a step."""

    start: float
    end: float
    verdict: str
    step: float
    p_holm: float
    difference: float
    low: float
    high: float
    half_way: float
    layer: float = math.nan
    head: float = math.nan
    change: float = math.nan
    change_first_step: float = math.nan
    change_last_step: float = math.nan
