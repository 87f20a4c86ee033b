# SPDX-License-Identifier: MIT
"""Curves with intervals: emergence over training, profiles over depth, dependence on a threshold.

A line is a mean over texts with its interval, one for each model, layer or threshold; values that cannot be
drawn are left out and named in the caption. Steps are drawn on a logarithmic axis that holds step 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.arguments.scalars import flag
from attnscope.errors import NotDrawable
from attnscope.metrics.discovery import quantity
from attnscope.plots.axes import (
    axis_label,
    colors_by_layer,
    depth_axis,
    drawn_range,
    label_some,
    series_colors,
    step_axis,
)
from attnscope.plots.references import draw_references
from attnscope.plots.selection import averaged, estimate, first_step, last_step, rows_of
from attnscope.plots.style import (
    DASHES,
    PALETTE,
    UNIFORM,
    UNTRAINED,
    axes_or_new,
    line_keywords,
    style,
)
from attnscope.results.summaries import uniform_value

#: A baseline so many times the highest measured value asks for a logarithmic axis.
FAR = 8
_UNTRAINED = UNTRAINED | {"alpha": 0.7}


@style()
def emergence_curve(
    heads: Any,
    metric: str,
    *,
    baselines: pd.DataFrame | None = None,
    by: str = "series",
    ax: Axes | None = None,
    colors: Mapping[str, str] | None = None,
    threshold: float | None = None,
    **line: Any,
) -> Axes:
    """Return a metric over training, one line per series, with its 95 % interval over samples.

    Steps are on a logarithmic axis that begins with 0; rows of unknown step (−1) are left out. The dashed
    line is uniform attention of the same lengths, the dotted one each series' own value before training;
    where the run measured them, the models with random weights and the maps with shuffled rows are drawn too.
    References that differ between the series have a line in the colour of each.

    Args:
        heads: results; rows of single heads with `step`; or numbers [step, layer, sample, head].
        metric: the column; of numbers, their name.
        baselines: the `baselines` table.
        by: the column that makes the lines.
        ax: axes to draw on; None makes them.
        colors: by value of `by`.
        threshold: of the graph, for a metric that has one; names the axis and picks the baseline.
        line: of matplotlib's lines, such as color, label, linestyle.

    Returns:
        The axes. Each series is a line whose label is its name and whose data are steps and means.

    Raises:
        NotDrawable: no row has a known step.
    """
    line = line_keywords("emergence_curve", line)
    heads = rows_of("emergence_curve", heads, metric, threshold=threshold)
    averaged("emergence_curve", heads, metric)
    heads = _of_known_step("emergence_curve", heads)
    ax = axes_or_new(ax)
    table = estimate(heads, metric, [by, "step"])
    colors = colors or series_colors(list(heads[by]))
    for name in dict.fromkeys(heads[by]):
        rows = table[table[by] == name]
        draw_curve(ax, rows["step"], rows, str(name), colors[name], marker=len(rows) < 40, line=line)
        if (rows["step"] == 0).any() and len(rows) > 1:
            value = float(rows.loc[rows["step"] == 0, "mean"].iloc[0])
            ax.axhline(value, gid=f"untrained:{name}", **_UNTRAINED | {"color": colors[name]})
    step_axis(ax, heads["step"])
    how: dict[str, Any] = {"threshold": threshold, "along_steps": True, "by": by, "colors": colors}
    draw_references(ax, heads, baselines, metric, **how)
    return _named_and_limited(ax, metric, threshold)


@style()
def head_emergence(
    heads: Any,
    metric: str,
    *,
    baselines: pd.DataFrame | None = None,
    ax: Axes | None = None,
    named: int = 3,
    colors: Mapping[Any, str] | None = None,
    limits: tuple[float, float] | None = None,
    **line: Any,
) -> Axes:
    """Return a metric over training, one line per head: colours tell layers apart, the strongest heads are
    named.

    Intervals hold at once for all heads and steps. Rows of unknown step (−1) are left out.

    Args:
        heads: results or rows of single heads of one series, or numbers [step, layer, sample, head].
        metric: the column; of numbers, their name.
        baselines: the `baselines` table.
        ax: axes to draw on; None makes them.
        named: how many of the highest heads at the last step are drawn bold with an interval; those clearly
            above uniform attention carry their name.
        colors: by layer; None: from light to dark for the layers that there are.
        limits: of the vertical axis; None follows the data.
        line: of matplotlib's lines, such as color, alpha, linestyle, for every head.

    Returns:
        The axes. Each head is a line labelled `L1H2` (layer and head, counted from 0).

    Raises:
        NotDrawable: no row has a known step.
    """
    line = line_keywords("head_emergence", line)
    heads = rows_of("head_emergence", heads, metric)
    averaged("head_emergence", heads, metric)
    heads = _of_known_step("head_emergence", heads)
    ax = axes_or_new(ax)
    # the highest of many heads are chosen by what is drawn, which their intervals allow for
    table = estimate(heads, metric, ["layer", "head", "step"], together=True)
    final = table[table["step"] == table["step"].max()].sort_values("mean", ascending=False)
    top = list(zip(final["layer"], final["head"], strict=True))[:named]
    colors = colors_by_layer(table["layer"]) if colors is None else colors
    for (layer, head), rows in table.groupby(["layer", "head"]):
        strong = (layer, head) in top
        draw_curve(
            ax,
            rows["step"],
            rows,
            f"L{layer}H{head}",
            colors[layer],
            interval=strong,
            width=1.6 if strong else 0.8,
            alpha=1.0 if strong else 0.55,
            dash="-",
            line=line,
        )
    step_axis(ax, heads["step"])
    draw_references(ax, heads, baselines, metric, along_steps=True)
    _named_and_limited(ax, metric)
    if limits is not None:
        ax.set_ylim(*limits)
    low, high = ax.get_ylim()
    uniform = uniform_value(heads, baselines, metric)
    floor = (uniform if np.isfinite(uniform) else low) + 0.1 * (high - low)
    below = np.inf
    # names are right of their lines' ends, and spread where the ends are close
    for row in final[:named].sort_values(["mean", "layer", "head"], ascending=False).itertuples():
        if row.mean > floor and low <= row.mean <= high:
            below = min(row.mean, below - 0.075 * (high - low))
            ax.annotate(
                f"L{row.layer}H{row.head}",
                (row.step, below),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=colors[row.layer],
                fontsize=7,
                fontweight="bold",
                annotation_clip=False,
            )
    return ax


@style()
def depth_profile(
    heads: Any,
    metric: str,
    *,
    baselines: pd.DataFrame | None = None,
    ax: Axes | None = None,
    colors: Mapping[str, str] | None = None,
    threshold: float | None = None,
    **line: Any,
) -> Axes:
    """Return a metric over depth at the last checkpoint, one line per series, with its 95 % interval over
    samples.

    The dashed line is uniform attention, dotted lines are the untrained model (step 0), if the run has one.
    References that differ between the series have a line in the colour of each.
    Models of different depth share an axis from first to last layer.

    Args:
        heads: results; rows of single heads; or numbers [layer, head] or [layer, sample, head].
        metric: the column; of numbers, their name.
        baselines: the `baselines` table.
        ax: axes to draw on; None makes them.
        colors: by series.
        threshold: of the graph, for a metric that has one; names the axis and picks the baseline.
        line: of matplotlib's lines, such as color, label, linestyle.

    Returns:
        The axes. Each series is a line whose label is its name and whose data are layers (of models of
        different depth: layer over the last layer) and means.
    """
    line = line_keywords("depth_profile", line)
    heads = rows_of("depth_profile", heads, metric, threshold=threshold)
    averaged("depth_profile", heads, metric)
    ax = axes_or_new(ax)
    colors = colors or series_colors(list(heads["series"]))
    place = depth_axis(ax, heads)
    final = last_step(heads)
    table = estimate(final, metric, ["series", "layer"])
    start = estimate(first_step(heads), metric, ["series", "layer"])
    for name in dict.fromkeys(final["series"]):
        rows = table[table["series"] == name]
        x = place(name, rows["layer"])
        draw_curve(ax, x, rows, str(name), colors[name], marker=len(rows) < 50, line=line)
        rows = start[start["series"] == name]
        if len(rows):
            how = _UNTRAINED | {"color": colors[name]}
            ax.plot(place(name, rows["layer"]), rows["mean"], gid=f"untrained:{name}", **how)
    draw_references(ax, final, baselines, metric, threshold=threshold, colors=colors)
    return _named_and_limited(ax, metric, threshold)


@style()
def threshold_curve(
    graphs: Any,
    metric: str,
    *,
    baselines: pd.DataFrame | None = None,
    ax: Axes | None = None,
    colors: Mapping[str, str] | None = None,
    logarithmic: bool = False,
    **line: Any,
) -> Axes:
    """Return a statistic of the thresholded graph over the threshold, one line per series, with its 95 %
    interval.

    Args:
        graphs: results, or rows of single heads with `threshold`.
        metric: the column.
        baselines: the `baselines` table; the dashed line is uniform attention at each threshold.
        ax: axes to draw on; None makes them.
        colors: by series.
        logarithmic: for a statistic that the complete graph of uniform attention lifts far above all else.
        line: of matplotlib's lines, such as color, label, linestyle.

    Returns:
        The axes. Each series is a line whose label is its name and whose data are thresholds and means.
    """
    logarithmic = flag("threshold_curve", "logarithmic", logarithmic)
    line = line_keywords("threshold_curve", line)
    graphs = last_step(rows_of("threshold_curve", graphs, metric, "graphs"))
    averaged("threshold_curve", graphs, metric)
    ax = axes_or_new(ax)
    colors = colors or series_colors(list(graphs["series"]))
    table = estimate(graphs, metric, ["series", "threshold"])
    for name in dict.fromkeys(graphs["series"]):
        rows = table[table["series"] == name]
        draw_curve(ax, rows["threshold"], rows, str(name), colors[name], marker=True, line=line)
    groups = graphs.groupby("threshold")
    uniform = pd.Series({at: uniform_value(rows, baselines, metric, at) for at, rows in groups})
    if uniform.notna().any():
        ax.plot(uniform, label="uniform attention", gid="uniform", **UNIFORM)
    ax.set(xscale="log", xlabel="threshold on attention", ylabel=quantity(metric).axis)
    label_some(ax, list(uniform.index), "{:g}".format)
    _limits(ax, metric)
    top = ax.get_ylim()[1]
    if logarithmic and top > 10:
        ax.set_yscale("symlog", linthresh=1.0)
        ax.set_yticks([0, 1, 10, 100, 1000, 10_000], ["0", "1", "10", "100", "1000", "10k"])
        ax.set_ylim(-0.08, 1.2 * top)
    return ax


def draw_curve(
    ax: Axes,
    x: Any,
    rows: pd.DataFrame,
    label: str,
    color: str,
    *,
    marker: bool = False,
    interval: bool = True,
    width: float = 1.4,
    alpha: float = 1.0,
    dash: str = "",
    line: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Draw the means of `selection.estimate` over x as a line and their interval as a band.

    Words of `line` override those of the style.
    """
    x = np.asarray(x, dtype=float)
    dash = dash or (DASHES[PALETTE.index(color)] if color in PALETTE else "-")
    how: dict[str, Any] = {"label": label, "color": color, "linestyle": dash, "linewidth": width}
    how |= {"alpha": alpha, "marker": "o" if marker else None, "markersize": 2.6, "zorder": 3}
    how |= line
    (drawn,) = ax.plot(x, rows["mean"], **how)
    color = str(drawn.get_color())
    low, high = rows["low"].to_numpy(float), rows["high"].to_numpy(float)
    if interval and np.isfinite(low).any():
        ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0, zorder=2, gid=f"interval:{label}")


def _named_and_limited(ax: Axes, metric: str, threshold: float | None = None) -> Axes:
    """Return axes with the label of a metric, and limits that fit all that is drawn."""
    ax.set_ylabel(axis_label(metric, threshold))
    _limits(ax, metric)
    return ax


def _of_known_step(function: str, rows: pd.DataFrame) -> pd.DataFrame:
    of_known_step = rows[rows["step"] >= 0]
    if of_known_step.empty:
        raise NotDrawable(f"{function}: none of {len(rows)} rows has a known training step, all steps are -1")
    return of_known_step


def _limits(ax: Axes, metric: str) -> None:
    """Keep the axis inside the quantity's range, a share's zero in sight, and intervals whole.

    With a baseline that is many times the measured values the axis is logarithmic: on a linear one all that
    was measured would be a line at 0.
    """
    declared = quantity(metric)
    bottom, top = drawn_range(ax)
    if not np.isfinite(top):
        return
    measured = [np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines() if not line.get_gid()]
    reached = np.nanmax(np.concatenate(measured)) if measured else np.nan
    if bottom > 0 and top > FAR * reached:
        ax.set_yscale("log")
        ax.set_ylim(bottom / 1.5, 1.5 * top)
        return
    if ax.get_yscale() == "log":  # chosen for earlier content of the same panel
        ax.set_yscale("linear")
    room = 0.06 * (top - bottom) or 0.05 * abs(top) or 0.05
    low, high = bottom - room, top + room
    # bounds that depend on the number of tokens differ between the maps of one figure
    least, most = (None if callable(bound) else bound for bound in (declared.low, declared.high))
    if least == 0:
        low, high = (-0.02 * top, top + 0.06 * top) if top > 0 else (-0.05, 0.05)
    elif least is not None:
        low = max(low, least)
    if most is not None and high > most:
        high = most + 0.02 * (most - low)
    if high > low:
        ax.set_ylim(low, high)
