# SPDX-License-Identifier: MIT
"""The cells of the report's tables: means at the last checkpoint with interval and baselines; claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.metrics.discovery import quantity
from attnscope.plots.selection import estimate, first_step, last_step
from attnscope.results.schema import VARIANT_KEYS
from attnscope.results.summaries import NULLS, null_value, uniform_value
from attnscope.statistics import median_interval, per_sample
from attnscope.statistics.intervals import FEWEST
from attnscope.study_api.number_text import estimate_text, interval_text, number

#: A column, or a column of the graphs and their threshold.
Metric = str | tuple[str, float | None]

#: Below so many texts the median stands next to the mean.
FEW = 30


class ProtocolComparison(NamedTuple):
    """A column of a table to be shown under both protocols, and its label in the report."""

    table: str
    column: str
    label: str
    other: str = ""  # its column under the other protocol, where that is another
    threshold: float | None = None  # of the graph, for the table `graphs`


def number_rows(
    heads: pd.DataFrame, baselines: pd.DataFrame | None, metrics: Sequence[Metric]
) -> list[dict[str, Any]]:
    """Return cells by name for each metric and series, averaged over heads at the last checkpoint."""
    final, before = last_step(heads), first_step(heads)
    rows = []
    for metric, threshold in [(entry, None) if isinstance(entry, str) else entry for entry in metrics]:
        if metric not in heads or final[metric].isna().all():
            continue
        table = estimate(final, metric, ["series"]).set_index("series")
        start = estimate(before, metric, ["series"]).set_index("series")["mean"]
        declared = quantity(metric)
        label = declared.label + (f" at {threshold:g}" if threshold else "")
        for series in dict.fromkeys(final["series"]):
            at, rows_of_series = table.loc[series], final[final["series"] == series]
            per_head = rows_of_series.groupby(["layer", "head"])[metric].mean()
            place = per_head.idxmax() if per_head.notna().any() else None
            row = {
                "label": label,
                "meaning": declared.meaning,
                "series": str(series),
                "mean": number(at["mean"]),
                "interval": interval_text(at["low"], at["high"]),
                "uniform": number(uniform_value(rows_of_series, baselines, metric, threshold)),
                "untrained": number(start[series]) if series in start else "",
                "strongest": "" if place is None else f"{number(per_head[place])} (L{place[0]}H{place[1]})",
                "samples": str(int(at["samples"])),
                "missing": str(int(at["missing"])),
            }
            for kind in NULLS:
                value = null_value(rows_of_series, baselines, kind, metric, threshold)
                row[kind] = number(value) if value == value else ""
            row["median"], row["coverage"] = _median(per_sample(rows_of_series, metric))
            rows.append(row)
    return rows


def pair_rows(
    tables: Mapping[str, pd.DataFrame], comparisons: Sequence[ProtocolComparison], protocol: str
) -> list[dict[str, str]]:
    """Return quantities of the head mean under both protocols side by side, at the last checkpoint."""
    names = ("label", "meaning", "series", "exact", "exact_interval", "published", "published_interval")
    rows = []
    for name, column, label, other, threshold in comparisons:
        if "protocol" not in tables.get(name, ()):
            continue
        final = last_step(tables[name])
        if threshold is not None:
            final = final[np.isclose(final["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
        for series in dict.fromkeys(final["series"]):
            rows_of_series = final[final["series"] == series]
            exact = mean_text(rows_of_series[rows_of_series["protocol"] == "exact"], column)
            published = mean_text(rows_of_series[rows_of_series["protocol"] == protocol], other or column)
            if {exact[0], published[0]} != {"–"}:
                cells = (label, quantity(column).meaning, str(series), *exact, *published)
                rows.append(dict(zip(names, cells, strict=True)))
    return rows


def mean_text(part: pd.DataFrame, column: str) -> tuple[str, str]:
    """Return the mean over samples and interval, infinite and undefined values left out; a dash for none."""
    if column in part:
        part = part[np.isfinite(part[column].astype(float))]
    if column not in part or part.empty:
        return "–", ""
    at = estimate(part.assign(all="all"), column, ["all"]).iloc[0]
    return number(at["mean"]), interval_text(at["low"], at["high"])


def all_means(tables: Mapping[str, pd.DataFrame], protocol: str) -> pd.DataFrame:
    """Return means of all numbers that a protocol stored, at the last checkpoint, as text.

    Controls are none of them.
    """
    rows = []
    for name, table in tables.items():
        if "protocol" not in table or "sample" not in table or set(VARIANT_KEYS) <= set(table):
            continue
        final = last_step(table[table["protocol"] == protocol])
        keys = {"sample", "step", "layer", "head", "threshold", "n_tokens", "dimension"}
        for column in final.select_dtypes("number"):
            if column in keys or quantity(column).kind == "position":
                continue
            if (mean := mean_text(final, column))[0] != "–":
                # a text of two models is one of each, as in the mean and its interval
                measured = final[np.isfinite(final[column].astype(float))]
                texts = measured.drop_duplicates([key for key in ("model", "sample") if key in measured])
                rows.append((name, column, *mean, str(len(texts))))
    return pd.DataFrame(rows, columns=["table", "quantity", "mean", "95 % interval", "n"])


def _median(values: pd.Series) -> tuple[str, str]:
    """Return the median of few texts with its interval, and the coverage of such an interval."""
    median = median_interval(values)
    if not FEWEST <= median.n < FEW:
        return "", ""
    return (
        estimate_text(median.estimate, median.low, median.high),
        f"{100 * median.coverage:.1f} %",
    )
