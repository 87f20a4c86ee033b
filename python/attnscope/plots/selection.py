# SPDX-License-Identifier: MIT
"""The rows, series and intervals that a figure draws, selected from stored tables.

A figure asks for a quantity and gets one model, protocol and group of rows, with the interval over texts;
an ambiguous request is an error that names the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from attnscope._nearest import nearest
from attnscope.errors import MissingError, NotDrawable
from attnscope.metrics.discovery import interval_of_mean, quantity
from attnscope.plots.drawable import drawable
from attnscope.plots.figure import Results, require_table
from attnscope.results.schema import HEAD_KEYS
from attnscope.results.summaries import (
    defined,
    in_series,
    measured_columns,
    optional,
    rows_of_protocol,
    with_groups,
)
from attnscope.statistics.mean_intervals import mean_intervals
from attnscope.study_api.selection import where

#: Samples below which no intervals are given that hold for many means at once.
FEWEST_TOGETHER = 10
#: Columns, each with the threshold of the graph that it is taken at, or None.
Quantities = Sequence[tuple[str, float | None]]


def series_noun(frame: pd.DataFrame) -> str:
    """Name the keys that distinguish the series of a table: "model", "input" or "model, input"."""
    models, inputs = (frame[key].nunique() > 1 for key in ("model", "group"))
    return "model, input" if models and inputs else "model" if models else "input"


def rows_of(
    function: str,
    source: Any,
    metric: str,
    table: Literal["heads", "graphs"] = "heads",
    threshold: float | None = None,
) -> pd.DataFrame:
    """Return rows of single heads with their series, from any source that a drawing function takes.

    A source is results; a table of them or of the user's, in which a missing axis has one place; or numbers
    [layer, head], [layer, sample, head] or [step, layer, sample, head] that are called `metric`. Errors begin
    with the name of the drawing function.

    Raises:
        NotDrawable: results without the table.
        MissingError: rows without the metric.
        ValueError: a metric without a mean, or an object of another kind.
    """
    if hasattr(source, "tables"):
        rows = _rows_of_results(function, source, metric, table, threshold)
    else:
        rows = source if isinstance(source, pd.DataFrame) else _numbers(function, source, metric)
        if "series" not in rows:
            places: dict[str, Any] = {"model": "", "revision": "", "step": -1}
            places |= {"sample": 0, "layer": 0, "head": 0}
            rows = rows.assign(**{name: place for name, place in places.items() if name not in rows})
            rows = with_groups(rows_of_protocol(rows), None)
    if metric not in rows:
        raise MissingError(f"{function}: no column {metric!r}{nearest(metric, map(str, rows.columns))}")
    return rows


def _rows_of_results(
    function: str, results: Any, metric: str, table: str, threshold: float | None
) -> pd.DataFrame:
    """Return the rows of single heads of results."""
    try:
        source = drawable(results)
        if table == "heads":
            return measured_heads(source, ((metric, threshold),))
        return graph_rows(source)
    except NotDrawable as error:
        raise NotDrawable(f"{function}: {error}") from None


def graph_rows(results: Results) -> pd.DataFrame:
    """Return the rows of the graphs of single heads, with their series."""
    return defined(in_series(rows_of_protocol(require_table(results, "graphs")), results))


def _numbers(function: str, source: Any, metric: str) -> pd.DataFrame:
    """Return a number per head as rows; steps, layers, samples and heads count from 0."""
    axes = {2: ("layer", "head"), 3: ("layer", "sample", "head"), 4: ("step", "layer", "sample", "head")}
    expected = "numbers [layer, head], [layer, sample, head] or [step, layer, sample, head]"
    try:
        values = np.asarray(source, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(
            f"{function}: expected results, a table or {expected}, got {type(source).__name__}"
        ) from None
    if values.ndim not in axes:
        raise ValueError(f"{function}: expected results, a table or {expected}, got shape {values.shape}")
    index = pd.MultiIndex.from_product([range(size) for size in values.shape], names=axes[values.ndim])
    return pd.DataFrame({metric: values.ravel()}, index=index).reset_index()


def measured_heads(results: Results, quantities: Quantities = ()) -> pd.DataFrame:
    """Return single exact heads with their series, and columns of the graphs that were asked for."""
    heads = defined(in_series(rows_of_protocol(require_table(results, "heads")), results))
    graphs = optional(results, "graphs")
    if graphs is None:
        return heads
    for threshold in sorted({at for _, at in quantities if at is not None}):
        columns = [name for name, at in quantities if at == threshold and name in graphs]
        rows = graphs[np.isclose(graphs["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
        if columns and not rows.empty:
            heads = heads.merge(defined(rows)[[*HEAD_KEYS, *columns]], on=[*HEAD_KEYS], how="left")
    return heads


def last_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Return each model's rows at its last checkpoint: that of the highest step.

    Where several revisions have that step, such as branches of which no step is known (−1), it is the last
    by name: they are different weights, whose mean is of no model.

    >>> table = pd.DataFrame({"model": "m", "revision": ["v2", "v1"], "step": -1, "share": [0.5, 0.1]})
    >>> last_step(table)["share"].tolist()
    [0.5]
    """
    last = frame.groupby("model")["step"].transform("max")
    rows = frame[frame["step"] == last]
    if (
        "revision" not in rows
        or not rows[["model", "revision"]].drop_duplicates()["model"].duplicated().any()
    ):
        return rows
    revisions = rows["revision"].fillna("").astype(str)
    return rows[revisions == revisions.groupby(rows["model"]).transform("max")]


def final(results: Results, name: str, *columns: str, **values: Any) -> pd.DataFrame:
    """Return a table's rows of certain values at each model's last checkpoint.

    Args:
        results: of a run, or tables in memory.
        name: of the table.
        columns: that must be there.
        values: column -> value, or a collection of values, as `where` takes them.

    Raises:
        NotDrawable: the run has no such table, no row of it, or lacks a column.

    >>> from attnscope.results.results import Results
    >>> shifts = pd.DataFrame({"model": "m", "step": [0, 9, 9], "mode": ["a", "a", "b"], "change": [1, 2, 3]})
    >>> final(Results({"shifts": shifts}), "shifts", "change", mode="a")["change"].tolist()
    [2]
    """
    return where(last_step(require_table(results, name, *columns, *values)), **values)


def first_model(results: Results, name: str, *columns: str) -> tuple[pd.DataFrame, str]:
    """Return a table's rows of the first model at its last checkpoint, and a sentence when there are more
    models.
    """
    table = last_step(require_table(results, name, *columns))
    first, *others = table["model"].unique()
    return table[table["model"] == first], f"{first}; the run holds {len(others)} more." if others else ""


def first_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of untrained models, step 0; none without a later one."""
    last = frame.groupby("model")["step"].transform("max")
    return frame[(frame["step"] == 0) & (last > 0)]


def averaged_columns(frame: pd.DataFrame) -> list[str]:
    """Return measured columns that have a mean, which positions have not."""
    return [name for name in measured_columns(frame) if quantity(name).kind != "position"]


def averaged(function: str, frame: pd.DataFrame, metric: str, *, several: bool = True) -> None:
    """Raise MissingError without a column, and ValueError where several positions would be averaged."""
    if metric not in frame:
        raise MissingError(f"{function}: no column {metric!r}{nearest(metric, map(str, frame.columns))}")
    if several and quantity(metric).kind == "position":
        raise ValueError(
            f"{function}: {metric} ({quantity(metric).label}) is a position, and a mean of positions is no "
            "position; a share (of the maps in which it is one key) or a count can be drawn"
        )


def estimate(frame: pd.DataFrame, metric: str, by: Sequence[str], *, together: bool = False) -> pd.DataFrame:
    """Return the mean and 95 % bootstrap interval of a column over samples, for every combination of some
    columns.

    The unit of replication is the sample: rows of one sample (its heads, its layers) are averaged first and
    samples are drawn with replacement, as `statistics.mean_intervals` does. Missing values are left out and
    counted. With `together` all intervals hold at once, as where the largest of the means is chosen; there
    are none below ten samples, whose spread is too uncertain for that. An interval ends where the values that
    the quantity can have do: a share of attention is not negative, and what lies outside covers nothing.

    Returns:
        One row per combination, sorted: the `by` columns, `mean`, `low`, `high` (NaN for fewer than five
        samples), `samples` (used) and `missing`.

    Raises:
        ValueError: the column holds positions, of which a mean is none.

    >>> table = pd.DataFrame({"sample": [0, 0, 1, 1], "layer": 0, "x": [1.0, 3.0, 4.0, 6.0]})
    >>> estimate(table, "x", ["layer"])[["mean", "low", "high", "samples"]].iloc[0].tolist()
    [3.5, nan, nan, 2.0]
    """
    averaged("estimate", frame, metric)
    if frame.empty:
        return pd.DataFrame(columns=[*by, "mean", "low", "high", "samples", "missing"])
    unit = [name for name in ("model", "sample") if name in frame and name not in by]
    numbers = frame.assign(**{metric: frame[metric].astype(float)})
    wide = numbers.groupby([*by, *unit], observed=True)[metric].mean().unstack(unit)
    rows = numbers.groupby([*by], observed=True)[metric]
    values = wide.to_numpy(dtype=float)
    result = wide.index.to_frame(index=False)
    result["mean"] = np.ma.masked_invalid(values).mean(axis=1).filled(np.nan)
    low, high = mean_intervals(values, together=together)
    result["low"], result["high"] = interval_of_mean(metric, numbers[metric], low, high)
    result["samples"] = np.isfinite(values).sum(axis=1)
    if together:
        result.loc[result["samples"] < FEWEST_TOGETHER, ["low", "high"]] = np.nan
    result["missing"] = (rows.size() - rows.count()).reindex(wide.index).to_numpy()
    return result
