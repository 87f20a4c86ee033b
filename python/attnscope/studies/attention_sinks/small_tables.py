# SPDX-License-Identifier: MIT
"""Tables that sections of the report make for themselves: Fisher traces, frames, when things emerge."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from attnscope.metrics.quantity import quantity
from attnscope.plots.maps import printable
from attnscope.plots.selection import last_step
from attnscope.report.numbers import interval_text, mean_text, number
from attnscope.studies.attention_sinks.questions import p_text

#: What the table of emergence shows; the stored one has every column of `heads`.
EMERGING = (
    "sink_share", "sink_rate", "entropy_normalized", "fiedler_value", "fiedler_value_normalized",
    "participation_ratio", "mp_ks", "total_persistence_1", "alignment_value", "alignment_hidden",
    "head_divergence",
)  # fmt: skip


def frames(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """The verdict on each model's frame and its heads' consistency; None where frames were not classified."""
    needed = {"model", "step", "group", "protocol", "frame", "token_frame", "probability", "modal_position"}
    if "frames" not in tables or tables["frames"].empty or not needed <= set(tables["frames"]):
        return None
    verdicts, special = last_step(tables["frames"]), tables.get("specialization")
    rows = []
    for row in verdicts.to_dict("records"):
        consistent = ""
        if special is not None and row["group"] == "all":
            own = last_step(special)
            own = own[
                (own["model"] == row["model"]) & (own["protocol"] == row["protocol"]) & (own["head"] >= 0)
            ]
            flags = own["specialised"].astype(float)
            consistent = f"{int(flags.sum())} of {len(flags)}" if len(flags) else ""
        rows.append(
            {
                "model": str(row["model"]),
                "input": str(row["group"]),
                "protocol": "as published" if row["protocol"] == "ruscio2025" else "exact",
                "frame by position": str(row["frame"]),
                "frame by token": "" if pd.isna(row["token_frame"]) else str(row["token_frame"]),
                "probability": _percent(row["probability"]),
                "heads with a sink": _heads_with_sink(row),
                "most frequent position": ""
                if pd.isna(row["modal_position"])
                else f"{row['modal_position']:.0f} ({_percent(row['modal_position_share'])})",
                "most frequent token": ""
                if pd.isna(row["modal_position"])
                else f"“{printable(row['modal_token'])}” ({_percent(row['modal_token_share'])})",
                "consistent heads": consistent,
            }
        )
    return pd.DataFrame(rows)


def _heads_with_sink(row: Mapping[Hashable, Any]) -> str:
    """How many of the tested heads have a sink; nothing where every head counts."""
    tested = row.get("heads_tested", float("nan"))
    if pd.isna(tested):
        return ""
    if not tested:
        return "none tested"
    return f"{int(row['heads_with_sink'])} of {int(tested)} ({_percent(row['share_with_sink'])})"


#: What is said of the table in its first version, whose step is not the one of the second.
UNTESTED = (
    "The steps that this run stored are half-way points of each course, which noise has too, and were not "
    "tested. Run the study again to have them tested."
)


def emergence(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """Whether and when each quantity changes from one level to another, and the head that changes most.

    None when the run is no checkpoint series; one sentence for a run whose steps were stored untested.
    """
    if "emergence" not in tables or tables["emergence"].empty:
        return None
    if "verdict" not in tables["emergence"]:
        return pd.DataFrame({"steps of this run": [UNTESTED]})
    table = tables["emergence"]
    rows = []
    table = table.assign(group="") if "group" not in table else table
    # the curves of input sets may differ: the pooled step stands for neither
    apart = table[table["group"] != "all"] if table["group"].nunique() > 2 else table
    for model, group in apart[["model", "group"]].drop_duplicates().itertuples(index=False):
        for metric in EMERGING:
            own = apart[(apart["model"] == model) & (apart["metric"] == metric) & (apart["group"] == group)]
            whole = own[own["scope"].isin(["heads", "layers"])]
            exact = whole[whole["protocol"] == "exact"]
            if exact.empty:
                continue
            row = exact.iloc[0]
            of_heads = table[(table["model"] == model) & (table["metric"] == metric)]
            single = of_heads[(of_heads["scope"] == "head") & (of_heads["protocol"] == "exact")]
            change = (single["end"] - single["start"]).abs().to_numpy(float)
            most = "" if np.isnan(change).all() else _head(single.iloc[int(np.nanargmax(change))])
            published = whole[whole["protocol"] == "ruscio2025"]
            change_printed = ""
            if len(published) and np.isfinite(published["change"].iloc[0]):
                last = published.iloc[0]
                change_printed = (
                    f"{number(last['change'])} (step {int(last['change_last_step'])} − "
                    f"{int(last['change_first_step'])})"
                )
            rows.append(
                {
                    "model": str(model),
                    "input": str(group),
                    "quantity": quantity(metric).label,
                    "first step": number(row["start"]),
                    "last step": number(row["end"]),
                    "verdict": f"step at {int(row['step']):,}"
                    if row["verdict"] == "step"
                    else row["verdict"],
                    "p (Holm)": p_text(row["p_holm"]),
                    "last − first": number(row["difference"]),
                    "95 % interval": interval_text(row["low"], row["high"]),
                    "half-way": "–" if pd.isna(row["half_way"]) else f"{int(row['half_way']):,}",
                    "head that changes most, of all": most,
                    "published change": change_printed,
                }
            )
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    empty = [name for name in ("input", "published change") if not frame[name].any()]
    return frame.drop(columns=empty)


def fisher(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """The trace of each group of parameters, summed over blocks, mean over sentences, None without any."""
    if "fisher" not in tables or tables["fisher"].empty:
        return None
    # One sum per sentence: sentences are the unit of replication.
    keys = ["model", "sample", "group", "protocol"]
    measured = ["parameters", "trace", "trace_sampled"]
    whole = last_step(tables["fisher"]).groupby(keys, sort=False)[measured].sum(min_count=1).reset_index()
    rows = []
    for model, group in whole[["model", "group"]].drop_duplicates().itertuples(index=False):
        own = whole[(whole["model"] == model) & (whole["group"] == group)]
        exact, published = own[own["protocol"] == "exact"], own[own["protocol"] == "ruscio2025"]
        size = own["parameters"].max()
        trace, interval = mean_text(exact, "trace")
        rows.append(
            {
                "model": str(model),
                "parameters of": str(group),
                "how many": f"{int(size):,}",
                "trace, labels as written": trace,
                "95 % interval": interval,
                "per parameter": number(exact["trace"].mean() / size) if len(exact) and size else "–",
                "labels drawn from the model": mean_text(exact, "trace_sampled")[0],
                "as published": mean_text(published, "trace")[0],
            }
        )
    return pd.DataFrame(rows)


def _head(row: pd.Series) -> str:
    return f"L{int(row['layer'])}H{int(row['head'])} {number(row['start'])} → {number(row['end'])}"


def _percent(value: float) -> str:
    return "–" if value != value else f"{value:.0%}"
