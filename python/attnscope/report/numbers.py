# SPDX-License-Identifier: MIT
"""The report's tables: means at the last checkpoint with interval, uniform baseline and untrained value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnscope.figures.quantities import quantity
from attnscope.figures.registry import THRESHOLD
from attnscope.figures.selection import estimate, first_step, last_step, uniform_value


@dataclass(frozen=True)
class Row:
    """One metric of one series."""

    metric: str
    label: str
    meaning: str
    series: str
    mean: str
    interval: str
    samples: int
    missing: int
    uniform: str
    untrained: str
    strongest: str


def number_rows(heads: pd.DataFrame, baselines: pd.DataFrame | None, metrics: Sequence[str]) -> list[Row]:
    """One row per metric and series, averaged over heads at the last checkpoint.

    Args:
        heads: single heads with `series` (see `figures.registry.measured_heads`).
        baselines: the `baselines` table.
        metrics: columns; those that the table lacks are left out.

    Returns:
        Rows in the order of the metrics, then of the series.
    """
    final, before = last_step(heads), first_step(heads)
    rows = []
    for metric in metrics:
        if metric not in heads or final[metric].isna().all():
            continue
        threshold = THRESHOLD if metric.startswith("betti_") else None
        table = estimate(final, metric, ["series"]).set_index("series")
        start = None if before is None else estimate(before, metric, ["series"]).set_index("series")
        about = quantity(metric)
        label = about.label + (f" at {THRESHOLD:g}" if threshold else "")
        for series in dict.fromkeys(final["series"]):
            at, own = table.loc[series], final[final["series"] == series]
            per_head = own.groupby(["layer", "head"])[metric].mean()
            place = per_head.idxmax() if per_head.notna().any() else None
            rows.append(
                Row(
                    metric=metric,
                    label=label,
                    meaning=about.meaning,
                    series=str(series),
                    mean=number(at["mean"]),
                    interval=f"[{number(at['low'])}, {number(at['high'])}]" if at["samples"] > 1 else "",
                    samples=int(at["samples"]),
                    missing=int(at["missing"]),
                    uniform=number(uniform_value(own, baselines, metric, threshold)),
                    untrained=""
                    if start is None or series not in start.index
                    else number(start.loc[series, "mean"]),
                    strongest="" if place is None else f"{number(per_head[place])} (L{place[0]}H{place[1]})",
                )
            )
    return rows


def published_rows(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, str, str, str, int]]:
    """Means of every number that the published protocol stored, at the last checkpoint.

    Args:
        tables: by name; those with rows of protocol "ruscio2025" are read.

    Returns:
        Table, column, mean, interval and number of samples.
    """
    rows = []
    for name, table in tables.items():
        if "protocol" not in table or "sample" not in table:
            continue
        own = last_step(table[table["protocol"] == "ruscio2025"])
        keys = {"sample", "step", "layer", "head", "threshold", "n_tokens", "dimension"}
        for column in own.columns:
            if column in keys or not pd.api.types.is_numeric_dtype(own[column]) or own[column].isna().all():
                continue
            at = estimate(own.assign(all="all"), column, ["all"]).iloc[0]
            interval = f"[{number(at['low'])}, {number(at['high'])}]" if at["samples"] > 1 else ""
            rows.append((name, str(column), number(at["mean"]), interval, int(at["samples"])))
    return rows


def number(value: Any) -> str:
    """A number as a person writes it: three significant digits, an en dash for none.

    Args:
        value: anything float accepts.

    Returns:
        Text.

    >>> number(0.49123), number(1234.5), number(float("nan")), number(2e-5), number(0.0)
    ('0.491', '1,234', '–', '2.00e-05', '0')
    """
    value = float(value)
    if value != value:
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"
