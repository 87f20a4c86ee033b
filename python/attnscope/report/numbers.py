# SPDX-License-Identifier: MIT
"""The report's tables: means at the last checkpoint with interval, uniform baseline and untrained value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.inference import median_interval, per_sample
from attnscope.inference.intervals import FEWEST, SMALL
from attnscope.metrics.quantity import quantity
from attnscope.plots.selection import NULLS, estimate, first_step, last_step, null_value, uniform_value

#: A column, or a column of the graphs and their threshold.
Metric = str | tuple[str, float | None]


class Wanted(NamedTuple):
    """A quantity to be shown under both protocols.

    Attributes:
        table: where it stands.
        column: its name there.
        label: what the report calls it.
        other: its column under the other protocol, where that is another.
        threshold: of the graph, for the table `graphs`.
    """

    table: str
    column: str
    label: str
    other: str = ""
    threshold: float | None = None


class Row(NamedTuple):
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
    median: str = ""
    coverage: str = ""
    random_weights: str = ""
    row_permutation: str = ""


def quantities(metrics: Sequence[Metric]) -> list[tuple[str, float | None]]:
    """Columns, each with its threshold or None."""
    return [(one, None) if isinstance(one, str) else one for one in metrics]


def number_rows(heads: pd.DataFrame, baselines: pd.DataFrame | None, metrics: Sequence[Metric]) -> list[Row]:
    """One row per metric and series, averaged over heads at the last checkpoint."""
    final, before = last_step(heads), first_step(heads)
    rows = []
    for metric, threshold in quantities(metrics):
        if metric not in heads or final[metric].isna().all():
            continue
        table = estimate(final, metric, ["series"]).set_index("series")
        start = None if before is None else estimate(before, metric, ["series"]).set_index("series")
        about = quantity(metric)
        label = about.label + (f" at {threshold:g}" if threshold else "")
        for series in dict.fromkeys(final["series"]):
            at, own = table.loc[series], final[final["series"] == series]
            per_head = own.groupby(["layer", "head"])[metric].mean()
            place = per_head.idxmax() if per_head.notna().any() else None
            nulls = {kind: null_value(own, baselines, kind, metric, threshold) for kind in NULLS}
            median, coverage = _median(per_sample(own, metric))
            rows.append(
                Row(
                    metric=metric,
                    label=label,
                    meaning=about.meaning,
                    series=str(series),
                    mean=number(at["mean"]),
                    interval=interval_text(at["low"], at["high"]),
                    samples=int(at["samples"]),
                    missing=int(at["missing"]),
                    uniform=number(uniform_value(own, baselines, metric, threshold)),
                    untrained=""
                    if start is None or series not in start.index
                    else number(start.loc[series, "mean"]),
                    median=median,
                    coverage=coverage,
                    strongest="" if place is None else f"{number(per_head[place])} (L{place[0]}H{place[1]})",
                    **{kind: number(value) for kind, value in nulls.items() if value == value},
                )
            )
    return rows


def finite(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The frame with infinite values and undefined counts (−1) of a column left out of means."""
    values = frame[column]
    good = values >= 0 if values.dtype.kind == "i" else np.isfinite(values.astype(float))
    return frame.assign(**{column: values.astype(float).where(good)})


class Pair(NamedTuple):
    """One quantity of one series under both protocols, on the head mean."""

    label: str
    meaning: str
    series: str
    exact: str
    exact_interval: str
    published: str
    published_interval: str


def pair_rows(tables: Mapping[str, pd.DataFrame], wanted: Sequence[Wanted], protocol: str) -> list[Pair]:
    """Quantities under both protocols side by side, at the last checkpoint."""
    rows = []
    for name, column, label, other, threshold in wanted:
        table = tables.get(name)
        if table is None or table.empty or "protocol" not in table:
            continue
        own = last_step(table)
        if "head" in own:
            own = own[own["head"] == -1]
        if threshold is not None:
            own = own[np.isclose(own["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
        for series in dict.fromkeys(own["series"]):
            exact = _mean_of(own, series, "exact", column)
            published = _mean_of(own, series, protocol, other or column)
            if {exact[0], published[0]} != {"–"}:
                rows.append(Pair(label, quantity(column).meaning, str(series), *exact, *published))
    return rows


def _mean_of(own: pd.DataFrame, series: str, protocol: str, column: str) -> tuple[str, str]:
    """Mean and interval of a column under one protocol; a dash where there is none."""
    part = own[(own["series"] == series) & (own["protocol"] == protocol)]
    return mean_text(part, column) if column in part else ("–", "")


def mean_text(part: pd.DataFrame, column: str) -> tuple[str, str]:
    """Mean over samples and interval, infinite and undefined values left out; a dash for none."""
    part = finite(part, column).assign(all="all")
    if part[column].isna().all():
        return "–", ""
    at = estimate(part, column, ["all"]).iloc[0]
    return number(at["mean"]), interval_text(at["low"], at["high"])


def every_mean(tables: Mapping[str, pd.DataFrame], protocol: str) -> pd.DataFrame:
    """Means of every number that a protocol stored, at the last checkpoint, as text."""
    rows = []
    for name, table in tables.items():
        if "protocol" not in table or "sample" not in table:
            continue
        own = last_step(table[table["protocol"] == protocol])
        # what the authors compute, they compute on the head mean
        own = own[own["head"] == -1] if "head" in own and (own["head"] == -1).any() else own
        keys = {"sample", "step", "layer", "head", "threshold", "n_tokens", "dimension"}
        for column in own.select_dtypes("number"):
            if column not in keys and (mean := mean_text(own, column))[0] != "–":
                count = finite(own, column).dropna(subset=column)["sample"].nunique()
                rows.append((name, column, *mean, str(count)))
    return pd.DataFrame(rows, columns=["table", "quantity", "mean", "95 % interval", "n"])


def interval_text(low: Any, high: Any) -> str:
    """An interval as a person writes it; nothing where there is none.

    >>> interval_text(0.25, 1.5), interval_text(float("nan"), float("nan"))
    ('[0.250, 1.50]', '')
    """
    return f"[{number(low)}, {number(high)}]" if low == low and high == high else ""


def _median(values: pd.Series) -> tuple[str, str]:
    """The median of few texts with its interval, and how often such an interval holds it."""
    found = median_interval(values)
    if not FEWEST <= found.n < SMALL:
        return "", ""
    return f"{number(found.estimate)} {interval_text(found.low, found.high)}", f"{100 * found.coverage:.1f} %"


def number(value: Any) -> str:
    """A number as a person writes it: two or three significant digits, an en dash for none.

    >>> number(0.49123), number(1234.5), number(float("nan")), number(2e-5), number(0.0)
    ('0.491', '1,234', '–', '2.0e−5', '0')
    """
    value = float(value)
    if value != value:
        return "–"
    if value == 0:
        return "0"
    if value in (math.inf, -math.inf):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-3:
        digits, _, exponent = f"{value:.1e}".partition("e")
        return f"{digits}e{int(exponent)}".replace("-", "−")
    places = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{places}f}".replace("-", "−")
