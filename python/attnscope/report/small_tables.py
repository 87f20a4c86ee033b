# SPDX-License-Identifier: MIT
"""Tables that sections of the report make for themselves: Fisher traces, frames, when things emerge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnscope.figures.quantities import quantity
from attnscope.figures.selection import estimate, last_step
from attnscope.report.numbers import number

#: What the table of emergence shows; the stored one has every column of `heads`.
EMERGING = (
    "sink_share", "sink_rate", "entropy_normalized", "fiedler_value", "fiedler_value_normalized",
    "participation_ratio", "mp_ks", "total_persistence_1", "alignment_value", "alignment_hidden",
    "head_divergence",
)  # fmt: skip


@dataclass(frozen=True)
class SmallTable:
    """A heading row, whether each column holds numbers, and cells of text."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


def frames(tables: Mapping[str, pd.DataFrame]) -> SmallTable | None:
    """The verdict on each model's frame, by position and by token, and its heads' consistency.

    Args:
        tables: by name.

    Returns:
        The table; None when frames were not classified.
    """
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
            (
                str(row["model"]),
                str(row["group"]),
                "as published" if row["protocol"] == "ruscio2025" else "exact",
                str(row["frame"]),
                _percent(row["probability"]),
                f"{row['modal_position']} ({_percent(row['modal_position_share'])})",
                str(row["token_frame"]),
                f"“{row['modal_token']}” ({_percent(row['modal_token_share'])})",
                consistent,
            )
        )
    return SmallTable(
        (
            "model", "input", "protocol", "frame by position", "probability", "commonest position",
            "frame by token", "commonest token", "consistent heads",
        ),
        (False, False, False, False, True, True, False, False, True),
        tuple(rows),
    )  # fmt: skip


def emergence(tables: Mapping[str, pd.DataFrame]) -> SmallTable | None:
    """When each quantity has covered half of its way, and the head that changes most.

    Args:
        tables: by name.

    Returns:
        The table; None when the run is no checkpoint series.
    """
    if "emergence" not in tables or tables["emergence"].empty:
        return None
    table = tables["emergence"]
    rows = []
    for model in dict.fromkeys(table["model"]):
        for metric in EMERGING:
            own = table[(table["model"] == model) & (table["metric"] == metric)]
            whole = own[(own["layer"] == -1) & (own["head"] == -2)]
            exact = whole[whole["protocol"] == "exact"]
            if exact.empty:
                continue
            row = exact.iloc[0]
            single = own[(own["head"] >= 0) & (own["protocol"] == "exact")]
            change = (single["end"] - single["start"]).abs()
            most = "" if change.isna().all() or single.empty else _head(single.loc[change.idxmax()])
            published = whole[whole["protocol"] == "ruscio2025"]
            told = ""
            if len(published) and np.isfinite(published["change"].iloc[0]):
                last = published.iloc[0]
                told = (
                    f"{number(last['change'])} (step {int(last['change_last_step'])} − "
                    f"{int(last['change_first_step'])})"
                )
            rows.append(
                (
                    str(model), quantity(metric).label, number(row["start"]), number(row["end"]),
                    _step(row["step"]), _steps(row["low"], row["high"]), most, told,
                )
            )  # fmt: skip
    if not rows:
        return None
    columns = (
        "model", "quantity", "first step", "last step", "half-way", "95 % interval",
        "head that changes most", "published change",
    )  # fmt: skip
    numeric = (False, False, True, True, True, True, False, True)
    # without the published protocol its column has nothing to say
    shown = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    return SmallTable(columns[:shown], numeric[:shown], tuple(row[:shown] for row in rows))


def fisher(tables: Mapping[str, pd.DataFrame]) -> SmallTable | None:
    """The trace of each group of parameters, summed over blocks, mean over sentences.

    Args:
        tables: by name.

    Returns:
        The table; None when no gradients were taken.
    """
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
        trace, interval = _mean(exact, "trace")
        per_parameter = number(exact["trace"].mean() / size) if len(exact) and size else "–"
        rows.append(
            (
                str(model), str(group), f"{int(size):,}", trace, interval, per_parameter,
                _mean(exact, "trace_sampled")[0], _mean(published, "trace")[0],
            )
        )  # fmt: skip
    return SmallTable(
        (
            "model", "parameters of", "how many", "trace, labels as written", "95 % interval",
            "per parameter", "labels drawn", "as published",
        ),
        (False, False, True, True, True, True, True, True),
        tuple(rows),
    )  # fmt: skip


def _mean(own: pd.DataFrame, column: str) -> tuple[str, str]:
    if own.empty or own[column].isna().all():
        return "–", ""
    at = estimate(own.assign(all="all"), column, ["all"]).iloc[0]
    return number(at["mean"]), f"[{number(at['low'])}, {number(at['high'])}]" if at["samples"] > 1 else ""


def _head(row: pd.Series) -> str:
    return f"L{int(row['layer'])}H{int(row['head'])} {number(row['start'])} → {number(row['end'])}"


def _step(value: float) -> str:
    return "never" if value < 0 else f"{int(value):,}"


def _steps(low: float, high: float) -> str:
    if low < 0 and high < 0:
        return "–"
    return _step(low) if low == high else f"{_step(low)} to {_step(high)}"


def _percent(value: float) -> str:
    return "–" if value != value else f"{value:.0%}"


SMALL_TABLES: dict[str, Callable[[Mapping[str, pd.DataFrame]], SmallTable | None]] = {
    "fisher": fisher,
    "frames": frames,
    "emergence": emergence,
}
"""By the name that a section asks for."""
