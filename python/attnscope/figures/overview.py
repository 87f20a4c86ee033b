# SPDX-License-Identifier: MIT
"""Figures of every metric of the sink study: by layer and head, over training, depth and threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
from attnscope.figures.maps import layer_head_map, layer_head_table, plain_colorbar
from attnscope.figures.registry import (
    Tables,
    defined,
    drawable,
    figure,
    is_series,
    measured_heads,
    optional,
    over_layers,
    over_steps,
    sinks,
    stored,
    with_values,
)
from attnscope.figures.selection import (
    NULLS,
    estimate,
    heads_only,
    last_step,
    series_are,
    uniform_value,
    with_groups,
)
from attnscope.figures.style import WIDTH, captioned, compared_with, legend_row, panels


@figure
def sink_emergence(results: Tables) -> Figure:
    """Attention to the first key over training, one line per head, one panel per input set."""
    heads = over_steps(sinks(results))
    with_values(heads, "heads", ["sink_share"])
    baselines = optional(results, "baselines")
    names = list(dict.fromkeys(heads["series"]))
    figure_, axes = panels(1, len(names), height=2.5)
    means = estimate(heads, "sink_share", ["series", "layer", "head", "step"])
    strongest = means.groupby(["series", "layer", "head"])["mean"].transform("max") == means["mean"].max()
    top = float(np.nanmax([means["mean"].max(), means.loc[strongest, "high"].max()]))
    top = top if top > 0 else 1.0
    for ax, name in zip(axes[0], names, strict=True):
        rows = heads[heads["series"] == name]
        limits = (-0.02 * top, min(1.15 * top, 1.02))
        head_emergence(rows, "sink_share", baselines=baselines, ax=ax, limits=limits)
        ax.set_title(name)
        ax.label_outer()
    layers = sorted(heads["layer"].unique())
    lines = {str(line.get_label()): line for ax in axes[0] for line in ax.get_lines()}
    shown = [layers[0], layers[len(layers) // 2], layers[-1]] if len(layers) > 4 else layers
    first = {
        layer: next(line for name, line in lines.items() if name.startswith(f"L{layer}H"))
        for layer in dict.fromkeys(shown)
    }
    handles = list(first.values())
    labels = [f"layer {layer}" for layer in first]
    levels = [name for name in ("uniform attention", *NULLS.values()) if name in lines]
    handles += [lines[name] for name in levels]
    labels += levels
    legend = figure_.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))
    for line, label in zip(legend.get_lines(), labels, strict=True):
        if label not in levels:
            line.set(alpha=1.0, linewidth=1.6)
    return captioned(
        figure_,
        "Attention to the first key over training, one line per head, coloured by layer; the strongest heads "
        "are bold.",
        compared_with(figure_),
    )


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
    means = [layer_head_table(rows, "sink_share").to_numpy() for row in tables for rows in row if len(rows)]
    top = highest(means)
    layers, width = heads["layer"].nunique(), heads["head"].nunique()
    cell = min(0.82 * WIDTH / len(steps) / width, 0.35)
    figure_, axes = panels(
        len(names), len(steps), height=len(names) * (cell * layers + 0.3) + 0.35,
        width=float(np.clip(len(steps) * width * cell / 0.82 + 0.5, 2.6, WIDTH)),
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
    rows_are = f", one row per {series_are(heads)}" if len(names) > 1 else ""
    columns_are = ", one column per checkpoint" if len(steps) > 1 else ""
    return captioned(
        figure_, f"Attention to the first key per layer and head{rows_are}{columns_are}.", _marked(figure_)
    )


def highest(tables: Sequence[Any]) -> float:
    """The largest value of some arrays; NaN when they hold none.

    Args:
        tables: arrays with NaN for what is missing.

    Returns:
        The value.
    """
    values = np.concatenate([np.ravel(table) for table in tables])
    return (
        float(np.max(values[np.isfinite(values)], initial=-np.inf)) if np.isfinite(values).any() else np.nan
    )


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
        low, high = -highest([-table for table in tables]), highest(tables)
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
    columns_are = f", one column per {series_are(heads)}" if len(names) > 1 else ""
    return captioned(figure_, f"Mean over samples per layer and head{columns_are}.", _marked(figure_))


@figure
def emergence(results: Tables) -> Figure:
    """Every metric over training, mean over heads with its interval over samples, one line per input set."""
    heads = over_steps(measured_heads(results))
    figure_ = metric_grid(
        heads, drawable(heads), emergence_curve, optional(results, "baselines"), untrained="before training"
    )
    return captioned(
        figure_,
        "Each quantity over training, mean over heads, which hides single strong ones.",
        compared_with(figure_),
    )


@figure
def depth(results: Tables) -> Figure:
    """Every metric over depth at the last checkpoint, mean over heads with its interval over samples."""
    heads = measured_heads(results)
    metrics = drawable(last_step(heads))
    over_layers(heads)
    untrained = "before training" if is_series(heads) else None
    figure_ = metric_grid(heads, metrics, depth_profile, optional(results, "baselines"), untrained=untrained)
    return captioned(figure_, "By layer at the last checkpoint, mean over heads.", compared_with(figure_))


@figure
def divergence(results: Tables) -> Figure:
    """Over depth: how heads differ from their mean, and how entropy goes with what the block changes."""
    heads = measured_heads(results)
    says = {
        "head_divergence": "how much heads differ from their mean",
        "entropy_magnitude_correlation": (
            "the correlation over tokens of entropy with how far the block moves the token"
        ),
    }
    there = with_values(last_step(heads), "heads", list(says))
    over_layers(heads)
    untrained = "before training" if is_series(heads) else None
    figure_ = metric_grid(
        heads, [(name, None) for name in there], depth_profile, optional(results, "baselines"), columns=2,
        untrained=untrained, width=4.8,
    )  # fmt: skip
    words = " and ".join(says[name] for name in there)
    return captioned(figure_, f"By layer: {words}.", compared_with(figure_))


@figure
def thresholds(results: Tables) -> Figure:
    """The attention graph over its threshold at the last checkpoint: density, λ2, components, loops, hubs."""
    graphs = with_groups(heads_only(stored(results, "graphs")), optional(results, "samples"))
    graphs = defined(last_step(graphs))
    wanted = ("density", "fiedler_value", "betti_0", "betti_1", "hub_share", "gini")
    there = with_values(graphs, "graphs", wanted)
    figure_ = metric_grid(
        graphs, [(name, None) for name in there], threshold_curve, optional(results, "baselines"), columns=3
    )
    return captioned(
        figure_,
        "The graph over its threshold at the last checkpoint: mean over layers and heads.",
        compared_with(figure_),
        "λ₂ here belongs to the unweighted thresholded graph and reaches n for the complete one."
        if "fiedler_value" in there
        else "",
    )


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
    mesh: Any = next(ax.collections[0] for row in axes for ax in row if ax.collections)
    bar = figure_.colorbar(mesh, ax=[ax for row in axes for ax in row], pad=0.015, aspect=14, fraction=0.06)
    plain_colorbar(bar)
    bar.locator = MaxNLocator(4)
    bar.update_ticks()
    bar.set_label(label)
    if np.isfinite(uniform) and float(norm.vmin or 0.0) <= uniform <= float(norm.vmax or 0.0):
        bar.ax.axhline(uniform, color="white", linewidth=2.2)
        bar.ax.axhline(uniform, color="black", linewidth=0.9, gid="uniform")


def _marked(figure_: Figure) -> str:
    """The mark on a colour scale in words; empty where there is none."""
    marked = any(line.get_gid() == "uniform" for ax in figure_.axes for line in ax.get_lines())
    return "The mark on a colour scale is uniform attention." if marked else ""
