# SPDX-License-Identifier: MIT
"""Tables that sections of the report compute from stored ones: reference frames, emergence, Fisher traces."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from attnscope.metrics.discovery import quantity
from attnscope.plots.maps import printable
from attnscope.plots.selection import estimate, last_step
from attnscope.report.report_tables import (
    Cells,
    count_cells,
    frame_of,
    interval_cells,
    number_cells,
    row_cells,
    text_cells,
)
from attnscope.studies.attention_sinks.tables import Emergence, Frame
from attnscope.study_api.number_text import number, p_text
from attnscope.study_api.rows import first_as, rows_as
from attnscope.study_api.selection import where, without

#: What the table of emergence shows; the stored one has every column of `heads`.
EMERGING = (
    "sink_share",
    "sink_rate",
    "entropy_normalized",
    "fiedler_value",
    "fiedler_value_normalized",
    "participation_ratio",
    "mp_ks",
    "total_persistence_1",
    "alignment_value",
    "alignment_hidden",
    "head_divergence",
)
#: Protocols as the table of frames calls them.
_PROTOCOLS = {"ruscio2025": "as published"}


def frames(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """Return the verdict on each model's frame and its heads' consistency; None where frames were not
    classified.
    """
    needed = {"model", "step", "group", "protocol", "frame", "token_frame", "probability", "modal_position"}
    if "frames" not in tables or tables["frames"].empty or not needed <= set(tables["frames"]):
        return None
    special = last_step(tables["specialization"]) if "specialization" in tables else None
    rows = last_step(tables["frames"])
    names = {
        "model": text_cells("model"),
        "input": text_cells("group"),
        "protocol": lambda rows: [_PROTOCOLS.get(name, "exact") for name in rows["protocol"]],
        "frame by position": text_cells("frame"),
        "frame by token": text_cells("token_frame", missing=""),
    }
    cells = {
        "probability": _percent_cells("probability"),
        "by chance": _chance_cells,
        "heads with a sink": row_cells(Frame, _heads_with_sink),
        "most frequent position": row_cells(Frame, _modal_position),
        "most frequent token": row_cells(Frame, _modal_token),
        "consistent heads": _consistent_heads(special),
    }
    return frame_of(rows, names, cells)


def _chance_cells(rows: pd.DataFrame) -> list[str]:
    """Return how often unrelated heads have the same frame; dashes in runs that did not ask."""
    values = rows["chance"] if "chance" in rows else [math.nan] * len(rows)
    return ["–" if pd.isna(value) else f"{value:.1%}" for value in values]


def _heads_with_sink(row: Frame) -> str:
    """Return the number of the tested heads that have a sink, as text; nothing if every head counts."""
    if math.isnan(row.heads_tested):
        return ""
    if not row.heads_tested:
        return "none tested"
    return f"{row.heads_with_sink:.0f} of {row.heads_tested:.0f} ({_percent(row.share_with_sink)})"


def _modal_position(row: Frame) -> str:
    """Return the most frequent position of a sink with its share; nothing where there is none."""
    if math.isnan(row.modal_position):
        return ""
    return f"{row.modal_position:.0f} ({_percent(row.modal_position_share)})"


def _modal_token(row: Frame) -> str:
    """Return the most frequent token of a sink with its share; nothing where there is none."""
    if math.isnan(row.modal_position):
        return ""
    return f"“{printable(row.modal_token)}” ({_percent(row.modal_token_share)})"


def _consistent_heads(special: pd.DataFrame | None) -> Cells:
    """Return cells of the heads that keep one sink over all texts, of all heads of the model."""

    def fill(rows: pd.DataFrame) -> list[str]:
        return [_of_model(*keys) for keys in zip(rows["model"], rows["group"], rows["protocol"], strict=True)]

    def _of_model(model: str, group: str, protocol: str) -> str:
        if special is None or group != "all":
            return ""
        heads = where(special, model=model, protocol=protocol)
        flags = heads[heads["head"] >= 0]["specialised"].astype(float)
        return f"{int(flags.sum())} of {len(flags)}" if len(flags) else ""

    return fill


def emergence(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """Return the step at which each quantity changes from one level to another, and the head that changes
    most.

    None when the run is no checkpoint series.
    """
    if "emergence" not in tables or tables["emergence"].empty:
        return None
    table = tables["emergence"]
    table = table.assign(group="") if "group" not in table else table
    # the curves of input sets may differ: the pooled step describes neither
    apart = without(table, group="all") if table["group"].nunique() > 2 else table
    rows: list[pd.DataFrame] = []
    for model, group in apart[["model", "group"]].drop_duplicates().itertuples(index=False):
        for metric in EMERGING:
            of_metric = where(table, model=model, metric=metric)
            of_group = where(of_metric, group=group, scope=["heads", "layers"])
            exact, published = (where(of_group, protocol=name) for name in ("exact", "ruscio2025"))
            words = {"most": _head_that_changes_most(of_metric), "published": _published_change(published)}
            rows += [exact[:1].assign(**words)] if len(exact) else []
    if not rows:
        return None
    names = {
        "model": text_cells("model"),
        "input": text_cells("group", missing=""),
        "quantity": lambda rows: [quantity(metric).label for metric in rows["metric"]],
    }
    cells = {
        "first step": number_cells("start"),
        "last step": number_cells("end"),
        "verdict": row_cells(Emergence, _verdict),
        "p (Holm)": row_cells(Emergence, lambda row: p_text(row.p_holm)),
        "last − first": number_cells("difference"),
        "95 % interval": interval_cells(missing=""),
        "half-way": count_cells("half_way"),
        "head that changes most, of all": text_cells("most", missing=""),
        "published change": text_cells("published", missing=""),
    }
    frame = frame_of(pd.concat(rows), names, cells)
    empty = [name for name in ("input", "published change") if not frame[name].any()]
    return frame.drop(columns=empty)


def _verdict(row: Emergence) -> str:
    """Return the verdict, with the step where there is one."""
    return f"step at {row.step:,.0f}" if row.verdict == "step" else row.verdict


def _head_that_changes_most(rows: pd.DataFrame) -> str:
    """Return the head whose quantity changes most, with its first and its last value; "" without any."""
    heads = where(rows, scope="head", protocol="exact")
    change = (heads["end"] - heads["start"]).abs().to_numpy(float)
    if np.isnan(change).all():
        return ""
    head = rows_as(Emergence, heads)[int(np.nanargmax(change))]
    return f"L{head.layer:.0f}H{head.head:.0f} {number(head.start)} → {number(head.end)}"


def _published_change(rows: pd.DataFrame) -> str:
    """Return the published change with the steps that it compares; "" where it was not computed."""
    if rows.empty or not np.isfinite(rows["change"].iloc[0]):
        return ""
    row = first_as(Emergence, rows)
    return f"{number(row.change)} (step {row.change_last_step:.0f} − {row.change_first_step:.0f})"


def fisher(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """Return the trace of each group of parameters, summed over blocks, mean over sentences, None without
    any.
    """
    if "fisher" not in tables or tables["fisher"].empty:
        return None
    # One sum per sentence: sentences are the unit of replication.
    keys = ["model", "sample", "group", "protocol"]
    measured = ["parameters", "trace", "trace_sampled"]
    sums_of_texts = (
        last_step(tables["fisher"]).groupby(keys, sort=False)[measured].sum(min_count=1).reset_index()
    )
    groups = ["model", "group"]
    sizes = sums_of_texts.groupby(groups, sort=False)["parameters"].max().reset_index()
    exact, published = (where(sums_of_texts, protocol=protocol) for protocol in ("exact", "ruscio2025"))
    rows = sizes
    for means in (
        _means(exact, "trace", groups),
        _means(exact, "trace_sampled", groups).add_prefix("sampled_"),
        _means(published, "trace", groups).add_prefix("published_"),
    ):
        rows = rows.join(means, on=groups)
    rows = rows.assign(per_parameter=rows["mean"] / rows["parameters"])
    names = {
        "model": text_cells("model"),
        "parameters of": text_cells("group"),
        "how many": count_cells("parameters"),
    }
    cells = {
        "trace, labels as written": number_cells("mean"),
        "95 % interval": interval_cells(missing=""),
        "per parameter": number_cells("per_parameter"),
        "labels drawn from the model": number_cells("sampled_mean"),
        "as published": number_cells("published_mean"),
    }
    return frame_of(rows, names, cells)


def _means(rows: pd.DataFrame, column: str, groups: list[str]) -> pd.DataFrame:
    """Return the mean of a column over texts with its interval, by group; infinite values are left out."""
    finite = rows[np.isfinite(rows[column].astype(float))]
    return estimate(finite, column, groups).set_index(groups)[["mean", "low", "high"]]


def _percent_cells(column: str) -> Cells:
    """Return cells of shares in per cent."""
    return lambda rows: [_percent(value) for value in rows[column]]


def _percent(value: float) -> str:
    """Return a share in whole per cent, a dash for a missing one."""
    return "–" if pd.isna(value) else f"{value:.0%}"
