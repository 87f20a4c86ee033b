# SPDX-License-Identifier: MIT
"""The cells of the report's tables: means at the last checkpoint with interval and baselines; claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.engine.reading import NULLS, null_value, uniform_value
from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.inference import median_interval, per_sample
from attnscope.inference.intervals import FEWEST
from attnscope.metrics.quantity import quantity
from attnscope.plots.selection import estimate, first_step, last_step

if TYPE_CHECKING:
    from attnscope.report.section import Page

#: Rows of the table of claims from which it is folded.
LONGEST = 40
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
    """Cells by name for each metric and series, averaged over heads at the last checkpoint."""
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
    """Quantities of the head mean under both protocols side by side, at the last checkpoint."""
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
    """Mean over samples and interval, infinite and undefined values left out; a dash for none."""
    if column in part:
        part = part[np.isfinite(part[column].astype(float))]
    if column not in part or part.empty:
        return "–", ""
    at = estimate(part.assign(all="all"), column, ["all"]).iloc[0]
    return number(at["mean"]), interval_text(at["low"], at["high"])


def all_means(tables: Mapping[str, pd.DataFrame], protocol: str) -> pd.DataFrame:
    """Return means of all numbers that a protocol stored, at the last checkpoint, as text."""
    rows = []
    for name, table in tables.items():
        if "protocol" not in table or "sample" not in table:
            continue
        final = last_step(table[table["protocol"] == protocol])
        keys = {"sample", "step", "layer", "head", "threshold", "n_tokens", "dimension"}
        for column in final.select_dtypes("number"):
            if column in keys or quantity(column).kind == "position":
                continue
            if (mean := mean_text(final, column))[0] != "–":
                count = final["sample"][np.isfinite(final[column].astype(float))].nunique()
                rows.append((name, column, *mean, str(count)))
    return pd.DataFrame(rows, columns=["table", "quantity", "mean", "95 % interval", "n"])


def interval_text(low: Any, high: Any) -> str:
    """Return an interval as a person writes it; an empty text without one.

    >>> interval_text(0.25, 1.5), interval_text(float("nan"), float("nan"))
    ('[0.250, 1.50]', '')
    """
    return "" if pd.isna(low) or pd.isna(high) else f"[{number(low)}, {number(high)}]"


def _median(values: pd.Series) -> tuple[str, str]:
    """Return the median of few texts with its interval, and the coverage of such an interval."""
    median = median_interval(values)
    if not FEWEST <= median.n < FEW:
        return "", ""
    return (
        f"{number(median.estimate)} {interval_text(median.low, median.high)}",
        f"{100 * median.coverage:.1f} %",
    )


def number(value: Any) -> str:
    """Return a number as a person writes it: two or three significant digits, an en dash for none.

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


def claims_frame(page: Page, table: pd.DataFrame, sentences: Mapping[str, str]) -> None:
    """Write the table of claims; models and steps are named if there are several.

    Words are in the leading columns, which wrap, so that the table fits a narrow page. With several models a
    row that is the same for all of them is given once, what is computed is said once a claim, and a long
    table is folded behind a count of verdicts.
    """
    several = table.groupby([*CHECKPOINT_KEYS], dropna=False).ngroups > 1
    if several:
        order = {code: place for place, code in enumerate(dict.fromkeys(table["claim"]))}
        table = table.sort_values("claim", key=lambda codes: codes.map(order), kind="stable")
    columns: dict[str, Any] = {"model": _models(table)} if several else {}
    columns |= {
        "claim": [f"{code}: {sentences[code]}" if code in sentences else code for code in table["claim"]],
        "verdict": list(table["verdict"]),
        "what was measured": list(table["statistic"].fillna("")),
        "why": list(table["reason"].fillna("")),
    }
    values = zip(table["value"], table["low"], table["high"], strict=True)
    columns |= {
        "value [95 %]": [f"{number(value)} {interval_text(*ends)}".rstrip() for value, *ends in values],
        "range": _ranges(table, "range_low", "range_high"),
        "border or null": [number(value) for value in table["null"]],
        "control, range": _ranges(table, "control_low", "control_high"),
        "adjusted p": [number(value) for value in table["p_adjusted"]],
    }
    for column, source in (
        ("range", "range_low"),
        ("control, range", "control_low"),
        ("adjusted p", "p_adjusted"),
    ):
        if source not in table or table[source].isna().all():
            del columns[column]
    frame = pd.DataFrame(columns)
    if several:
        frame = once_for_all(frame)
        repeated = frame["claim"] == frame["claim"].shift()
        frame["what was measured"] = frame["what was measured"].mask(repeated, "")
        if len(frame) > LONGEST:
            page.frame("verdicts", "Number of models and steps by verdict.", verdict_counts(table, sentences))
    words = [
        "; ".join(filter(None, cells)) for cells in zip(frame["what was measured"], frame["why"], strict=True)
    ]
    place = frame.columns.get_loc("what was measured")
    frame = frame.drop(columns=["what was measured", "why"])
    frame.insert(place, "what was measured; why", words)
    page.frame("claims", "Claims and verdicts.", frame, names=place + 1, folded=len(frame) > LONGEST)


def once_for_all(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their models, each row that is the same for every model once.

    Args:
        frame: with the column `model` first.

    >>> once_for_all(pd.DataFrame({"model": ["a", "b", "a", "b"], "x": [1, 1, 2, 3]})).values.tolist()
    [['all 2', 1], ['a', 2], ['b', 3]]
    """
    others = [name for name in frame if name != "model"]
    models = frame["model"].nunique()
    shared = frame.groupby(others, dropna=False)["model"].transform("nunique") == models
    frame = frame.assign(model=frame["model"].mask(shared, f"all {models}"))
    return frame.drop_duplicates().reset_index(drop=True)


def verdict_counts(table: pd.DataFrame, sentences: Mapping[str, str]) -> pd.DataFrame:
    """Return how many models and steps have each verdict, one row a claim."""
    counts = table.groupby(["claim", "verdict"], sort=False).size().unstack(fill_value=0)
    named = {"claim": [f"{code}: {sentences[code]}" if code in sentences else code for code in counts.index]}
    return pd.DataFrame(named | {str(name): [str(count) for count in counts[name]] for name in counts})


def _ranges(table: pd.DataFrame, low: str, high: str) -> list[str]:
    """Return smallest and largest value of each row as "0.2 to 0.4", or "" where there is none."""
    if low not in table:
        return [""] * len(table)
    ends = zip(table[low], table[high], strict=True)
    return ["" if pd.isna(first) else f"{number(first)} to {number(last)}" for first, last in ends]


def interval(low: float, high: float) -> str:
    """Return an interval's ends in brackets, or a dash where there is none."""
    return interval_text(low, high) or "–"


def _models(table: pd.DataFrame) -> list[str]:
    names = (table["model"] + " " + table["revision"].fillna("")).str.strip()
    steps = table["step"].astype(int)
    return [f"{name}, step {step}" if step >= 0 else name for name, step in zip(names, steps, strict=True)]
