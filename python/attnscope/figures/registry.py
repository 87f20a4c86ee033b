# SPDX-License-Identifier: MIT
"""Every figure of the study by name, each drawn from stored tables alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.figures.lines import (
    axis_label,
    depth_profile,
    emergence_curve,
    head_emergence,
    series_colors,
    threshold_curve,
)
from attnscope.figures.maps import attention_map, layer_head_map, layer_head_table, plain_colorbar
from attnscope.figures.selection import (
    CHECKPOINT,
    NULLS,
    estimate,
    heads_only,
    last_step,
    uniform_value,
    with_groups,
)
from attnscope.figures.spectra import has_spectrum, spectrum_against_null
from attnscope.figures.style import WIDTH, legend_row, panels, styled
from attnscope.figures.topology import betti_curve, persistence_diagram

THRESHOLD = 0.02
#: Integer columns of `heads` that are no measurement.
COUNTED = ("sample", "layer", "head", "n_tokens", "sink_position")
"""The threshold at which Betti numbers are shown where a figure has room for one."""

#: Metrics of the map, emergence and depth figures; those with a threshold come from `graphs`.
METRICS: tuple[tuple[str, float | None], ...] = (
    ("sink_share", None),
    ("entropy_normalized", None),
    ("fiedler_value", None),
    ("fiedler_value_normalized", None),
    ("participation_ratio", None),
    ("mp_ks", None),
    ("betti_0", THRESHOLD),
    ("betti_1", THRESHOLD),
)


class Tables(Protocol):
    """What a figure needs of `Results`."""

    def tables(self) -> list[str]:
        """Names of the stored tables."""

    def table(self, name: str) -> Any:
        """One table."""


class NotDrawable(LookupError):
    """The stored tables lack what a figure shows; the message says what."""


FIGURES: dict[str, Callable[[Tables], Figure]] = {}
"""Figures by name."""


Draw = Callable[[Tables], Figure]


def entered_in(figures: dict[str, Draw]) -> Callable[[Draw], Draw]:
    """A decorator that enters a function into a study's figures under its own name.

    Args:
        figures: of the study. What is entered goes from results to a figure and raises `NotDrawable` when a
            table or column is missing.

    Returns:
        The decorator; it gives back the function in the style.
    """

    def enter(draw: Draw) -> Draw:
        inside = styled(draw)
        figures[draw.__name__] = inside
        return inside

    return enter


figure = entered_in(FIGURES)


def stored(results: Tables, name: str) -> pd.DataFrame:
    """A table that must be there and have rows.

    Args:
        results: the stored tables.
        name: of the table.

    Returns:
        The table.

    Raises:
        NotDrawable: when it is missing or empty.
    """
    table: pd.DataFrame = results.table(name) if name in results.tables() else pd.DataFrame()
    if table.empty:
        raise NotDrawable(f"the run has no table {name!r}")
    return table


def optional(results: Tables, name: str) -> pd.DataFrame | None:
    """A table, or None when the run lacks it.

    Args:
        results: the stored tables.
        name: of the table.

    Returns:
        The table or None.
    """
    return results.table(name) if name in results.tables() else None


def measured_heads(results: Tables) -> pd.DataFrame:
    """Single heads under the exact protocol with their series, and Betti numbers at `THRESHOLD` beside them.

    Args:
        results: the stored tables.

    Returns:
        The `heads` table with `group`, `series` and, where `graphs` is stored, `betti_0` and `betti_1`.

    Raises:
        NotDrawable: when there is no `heads` table.
    """
    heads: pd.DataFrame = with_groups(heads_only(stored(results, "heads")), optional(results, "samples"))
    # a count of −1 stands for "undefined" and must not enter a mean
    counts = [name for name in heads.select_dtypes("integer") if name not in (*CHECKPOINT, *COUNTED)]
    heads = heads.assign(**{name: heads[name].where(heads[name] >= 0) for name in counts})
    graphs = optional(results, "graphs")
    if graphs is None or graphs.empty:
        return heads
    there = graphs["threshold"].astype(float)
    at = graphs[np.isclose(there, THRESHOLD, rtol=1e-6, atol=0)]
    keys = [*CHECKPOINT, "sample", "layer", "head", "protocol"]
    betti = [name for name in ("betti_0", "betti_1") if name in at]
    if betti and not at.empty:
        heads = heads.merge(at[keys + betti], on=keys, how="left")
    return heads


def drawable(heads: pd.DataFrame) -> list[tuple[str, float | None]]:
    """Those of `METRICS` that the table holds with at least one value.

    Args:
        heads: from `measured_heads`.

    Returns:
        Metric and threshold.

    Raises:
        NotDrawable: when there is none.
    """
    found = [(name, at) for name, at in METRICS if name in heads and heads[name].notna().any()]
    if not found:
        raise NotDrawable(f"the heads table has none of {', '.join(name for name, _ in METRICS)}")
    return found


def sinks(results: Tables) -> pd.DataFrame:
    """`measured_heads`, with `sink_share` in it.

    Args:
        results: the stored tables.

    Returns:
        The table.

    Raises:
        NotDrawable: when `sink_share` was not measured.
    """
    heads = measured_heads(results)
    if "sink_share" not in heads or heads["sink_share"].isna().all():
        raise NotDrawable("the heads table has no sink_share")
    return heads


def is_series(heads: pd.DataFrame) -> bool:
    """Whether a model was measured at more than one step.

    Args:
        heads: a table with `model` and `step`.

    Returns:
        True for checkpoint series.
    """
    return bool((heads.groupby("model")["step"].nunique() > 1).any())


@figure
def sink_emergence(results: Tables) -> Figure:
    """Attention to the first key over training, one line per head, one panel per input set."""
    heads = sinks(results)
    if not is_series(heads):
        raise NotDrawable("the run has one checkpoint; emergence needs several")
    baselines = optional(results, "baselines")
    names = list(dict.fromkeys(heads["series"]))
    figure_, axes = panels(1, len(names), height=2.5)
    means = estimate(heads, "sink_share", ["series", "layer", "head", "step"])
    strongest = means.groupby(["series", "layer", "head"])["mean"].transform("max") == means["mean"].max()
    top = float(np.nanmax([means["mean"].max(), means.loc[strongest, "high"].max()]))
    for ax, name in zip(axes[0], names, strict=True):
        rows = heads[heads["series"] == name]
        limits = (-0.02 * top, min(1.15 * top, 1.02))
        head_emergence(rows, "sink_share", baselines=baselines, ax=ax, limits=limits)
        ax.set_title(name)
        ax.label_outer()
    layers = sorted(heads["layer"].unique())
    lines = {line.get_label(): line for line in axes[0][0].get_lines()}
    shown = [layers[0], layers[len(layers) // 2], layers[-1]] if len(layers) > 4 else layers
    first_head = int(heads["head"].min())
    handles = [lines[f"L{layer}H{first_head}"] for layer in dict.fromkeys(shown)]
    labels = [f"layer {layer}" for layer in dict.fromkeys(shown)]
    levels = [name for name in ("uniform attention", *NULLS.values()) if name in lines]
    handles += [lines[name] for name in levels]
    labels += levels
    legend = figure_.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))
    for line, label in zip(legend.get_lines(), labels, strict=True):
        if label not in levels:
            line.set(alpha=1.0, linewidth=1.6)
    return figure_


@figure
def sink_maps(results: Tables) -> Figure:
    """Attention to the first key per layer and head from the first checkpoint to the last, by input set."""
    heads = sinks(results)
    names = list(dict.fromkeys(heads["series"]))
    steps = sorted(heads["step"].unique())
    if len(steps) > 5:
        wanted = [step for step in steps if step >= steps[-1] / 30] or steps[-5:]
        steps = [steps[0], *wanted[-4:]] if steps[0] not in wanted[-4:] else wanted[-5:]
    tables = [
        [heads[(heads["series"] == name) & (heads["step"] == step)] for step in steps] for name in names
    ]
    top = max(
        (
            float(np.nanmax(layer_head_table(rows, "sink_share")))
            for row in tables
            for rows in row
            if len(rows)
        ),
        default=1.0,
    )
    layers, width = heads["layer"].nunique(), heads["head"].nunique()
    cell = min(0.82 * WIDTH / len(steps) / width, 0.35)
    figure_, axes = panels(
        len(names), len(steps), height=len(names) * (cell * layers + 0.3) + 0.35,
        width=min(WIDTH, len(steps) * width * cell / 0.82 + 0.5),
    )  # fmt: skip
    norm = Normalize(0, max(top, 1e-6))
    for axes_row, row, name in zip(axes, tables, names, strict=True):
        for ax, rows, step in zip(axes_row, row, steps, strict=True):
            if rows.empty:
                ax.set_axis_off()
                continue
            layer_head_map(rows, "sink_share", ax=ax, norm=norm, colorbar=False)
            if axes_row is axes[0] and step >= 0:
                ax.set_title(f"step {step}")
            ax.label_outer()
        axes_row[0].set_ylabel(f"{name}\nlayer", linespacing=1.5)
    _shared_colorbar(figure_, axes, norm, axis_label("sink_share"), _uniform(results, heads, "sink_share"))
    return figure_


@figure
def metric_maps(results: Tables) -> Figure:
    """Every metric per layer and head at the last checkpoint, one column per input set."""
    heads = last_step(measured_heads(results))
    metrics = drawable(heads)
    names = list(dict.fromkeys(heads["series"]))
    layers = heads["layer"].nunique()
    each = float(np.clip(0.2 * layers, 0.62, 1.7)) + 0.33
    figure_, axes = panels(len(metrics), len(names), height=each * len(metrics) + 0.3)
    for row, (axes_row, (metric, threshold)) in enumerate(zip(axes, metrics, strict=True)):
        tables = [layer_head_table(heads[heads["series"] == name], metric).to_numpy() for name in names]
        low, high = (float(bound([bound(table) for table in tables])) for bound in (np.nanmin, np.nanmax))
        uniform = _uniform(results, heads, metric, threshold)
        # a baseline far from all that was measured would leave one colour for everything
        near = np.isfinite(uniform) and low - (high - low) <= uniform <= high + (high - low)
        if near:
            low, high = min(low, uniform), max(high, uniform)
        norm = Normalize(low, high if high > low else low + 1e-6)
        for ax, name in zip(axes_row, names, strict=True):
            layer_head_map(heads[heads["series"] == name], metric, ax=ax, norm=norm, colorbar=False)
            ax.set_aspect("auto")
            ax.label_outer()
            title = axis_label(metric, threshold)
            if np.isfinite(uniform) and not near:
                title += f" (uniform {uniform:.2g})"
            ax.set_title(f"{title}: {name}" if row == 0 or len(names) > 1 else title)
        _shared_colorbar(figure_, [axes_row], norm, "", uniform)
    return figure_


@figure
def emergence(results: Tables) -> Figure:
    """Every metric over training, mean over heads with its interval over samples, one line per input set."""
    heads = measured_heads(results)
    if not is_series(heads):
        raise NotDrawable("the run has one checkpoint; emergence needs several")
    return metric_grid(
        heads, drawable(heads), emergence_curve, optional(results, "baselines"), untrained="before training"
    )


@figure
def depth(results: Tables) -> Figure:
    """Every metric over depth at the last checkpoint, mean over heads with its interval over samples."""
    heads = measured_heads(results)
    if heads["layer"].nunique() < 2:
        raise NotDrawable("the run has one layer; a profile over depth needs several")
    untrained = "before training" if is_series(heads) else None
    return metric_grid(
        heads, drawable(heads), depth_profile, optional(results, "baselines"), untrained=untrained
    )


@figure
def divergence(results: Tables) -> Figure:
    """Over depth: how heads differ from their mean, and how entropy goes with what the block changes."""
    heads = measured_heads(results)
    wanted = ("head_divergence", "entropy_magnitude_correlation")
    metrics: list[tuple[str, float | None]] = [
        (name, None) for name in wanted if name in heads and heads[name].notna().any()
    ]
    if not metrics:
        raise NotDrawable(f"the heads table has none of {', '.join(wanted)}")
    untrained = "before training" if is_series(heads) else None
    baselines = optional(results, "baselines")
    return metric_grid(heads, metrics, depth_profile, baselines, columns=2, untrained=untrained, width=4.8)


@figure
def thresholds(results: Tables) -> Figure:
    """The attention graph over its threshold at the last checkpoint: density, λ2, components, loops, hubs."""
    graphs = with_groups(heads_only(stored(results, "graphs")), optional(results, "samples"))
    graphs = last_step(graphs)
    wanted = ("density", "fiedler_value", "betti_0", "betti_1", "hub_share", "gini")
    metrics: list[tuple[str, float | None]] = [
        (name, None) for name in wanted if name in graphs and graphs[name].notna().any()
    ]
    if not metrics:
        raise NotDrawable(f"the graphs table has none of {', '.join(wanted)}")
    return metric_grid(graphs, metrics, threshold_curve, optional(results, "baselines"), columns=3)


@figure
def examples(results: Tables) -> Figure:
    """Stored attention maps beside their spectrum, persistence diagram and Betti curve."""
    table = _few(last_step(stored(results, "examples")))
    if table.empty:
        raise NotDrawable("no stored map has a spectrum: too few tokens, or uniform attention")
    samples, bars = optional(results, "samples"), optional(results, "bars")
    keys = [*CHECKPOINT, "sample", "layer", "head"]
    drawn = 4 if bars is not None and not bars.empty else 2
    figure_, axes = panels(len(table), drawn, height=1.85 * len(table))
    for axes_row, (_, row) in zip(axes, table.iterrows(), strict=True):
        n = int(row["n_tokens"])
        matrix = np.asarray(row["attention"], dtype=float).reshape(n, n)
        attention_map(matrix, ax=axes_row[0], colorbar=False)
        title = f"L{row['layer']}H{row['head']}, sample {row['sample']}"
        if samples is not None and "group" in samples:
            group = samples[(samples[[*CHECKPOINT, "sample"]] == row[[*CHECKPOINT, "sample"]]).all(axis=1)]
            title = f"L{row['layer']}H{row['head']}, {group['group'].iloc[0]}" if len(group) else title
        axes_row[0].set_ylabel(f"{title}\nquery", linespacing=1.5)
        spectrum_against_null(matrix, ax=axes_row[1])
        if bars is not None and drawn == 4:
            own = bars[(bars[keys] == row[keys]).all(axis=1)]
            persistence_diagram(own, ax=axes_row[2])
            betti_curve(own, ax=axes_row[3])
    return figure_


def _few(table: pd.DataFrame, most: int = 4) -> pd.DataFrame:
    """Of many maps the one that rests most on its first key and the one that does least."""
    maps = [
        np.asarray(row["attention"], dtype=float).reshape(int(row["n_tokens"]), -1)
        for _, row in table.iterrows()
    ]
    drawable = [place for place, matrix in enumerate(maps) if has_spectrum(matrix)]
    if len(drawable) > most:
        first = [maps[place][:, 0].mean() for place in drawable]
        drawable = [drawable[int(np.argmax(first))], drawable[int(np.argmin(first))]]
    few: pd.DataFrame = table.iloc[drawable]
    return few


@figure
def persistence(results: Tables) -> Figure:
    """Persistence diagrams and Betti curves of the heads that rest most and least on the first key."""
    bars, heads = stored(results, "bars"), last_step(sinks(results))
    keys = [*CHECKPOINT, "sample", "layer", "head"]
    bars = bars[bars["protocol"] == "exact"] if "protocol" in bars else bars
    there = heads.merge(bars[keys].drop_duplicates(), on=keys)
    if there.empty:
        raise NotDrawable("no bars of single heads at the last checkpoint were stored")
    there = there[there["sample"] == there["sample"].min()]
    there = there[there["model"] == there["model"].iloc[0]]
    chosen = [there.loc[there["sink_share"].idxmax()], there.loc[there["sink_share"].idxmin()]]
    figure_, axes = panels(2, 2, height=4.3, width=5.4)
    for axes_row, row in zip(axes, chosen, strict=True):
        own = bars[(bars[keys] == row[keys]).all(axis=1)]
        persistence_diagram(own, ax=axes_row[0])
        betti_curve(own, ax=axes_row[1])
        name = f"L{row['layer']}H{row['head']}, first key {row['sink_share']:.2f}"
        axes_row[0].set_ylabel(f"{name}\ndeath", linespacing=1.5)
    return figure_


def _uniform(results: Tables, heads: pd.DataFrame, metric: str, threshold: float | None = None) -> float:
    return uniform_value(heads, optional(results, "baselines"), metric, threshold)


def metric_grid(
    table: pd.DataFrame,
    metrics: list[tuple[str, float | None]],
    draw: Callable[..., Axes],
    baselines: pd.DataFrame | None,
    *,
    columns: int = 4,
    untrained: str | None = None,
    width: float = WIDTH,
) -> Figure:
    """One panel per metric under one legend.

    Args:
        table: rows with `series`.
        metrics: columns, and the threshold of the graph or None.
        draw: a function of `lines`, of the table and the metric.
        baselines: the `baselines` table.
        columns: most panels side by side.
        untrained: what the dotted lines are called; None where there are none.
        width: of the figure, inches.

    Returns:
        The figure.
    """
    columns = min(columns, len(metrics))
    rows = -(-len(metrics) // columns)
    figure_, axes = panels(rows, columns, height=1.75 * rows + 0.3, width=width)
    colors = series_colors(list(table["series"]))
    flat = [ax for row in axes for ax in row]
    for ax, (metric, threshold) in zip(flat, metrics, strict=False):
        options = {} if threshold is None else {"threshold": threshold}
        draw(table, metric, ax=ax, baselines=baselines, colors=colors, **options)
        ax.set_title(ax.get_ylabel())
        ax.set_ylabel("")
    for ax in flat[len(metrics) :]:
        ax.set_axis_off()
    for ax in flat[: max(0, len(metrics) - columns)]:
        ax.set_xlabel("")
    legend_row(figure_, flat[: len(metrics)], colors, untrained=untrained)
    return figure_


def _shared_colorbar(
    figure_: Figure, axes: list[list[Axes]], norm: Normalize, label: str, uniform: float
) -> None:
    """One colour scale for several maps, with uniform attention marked on it."""
    mesh = next(ax.collections[0] for row in axes for ax in row if ax.collections)
    bar = figure_.colorbar(mesh, ax=[ax for row in axes for ax in row], pad=0.015, aspect=14, fraction=0.06)
    plain_colorbar(bar)
    bar.locator = MaxNLocator(4)
    bar.update_ticks()
    bar.set_label(label)
    if np.isfinite(uniform) and float(norm.vmin or 0.0) <= uniform <= float(norm.vmax or 0.0):
        bar.ax.axhline(uniform, color="white", linewidth=2.2)
        bar.ax.axhline(uniform, color="black", linewidth=0.9, gid="uniform")
