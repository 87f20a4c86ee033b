# SPDX-License-Identifier: MIT
"""Figures that any study can declare for its quantities.

    FIGURES["depth"] = depth((("fiedler_value", None), ("betti_0", 0.02)))

A study without figures of its own has `figures_of_any_run()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.figure as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from attnscope.errors import NotDrawable
from attnscope.metrics.spectra.null_law import undefined_because
from attnscope.plots.axes import axis_label, series_colors
from attnscope.plots.figure import (
    Drawn,
    Figure,
    Options,
    Results,
    captioned,
    compared_with,
    optional,
    over_layers,
    over_steps,
    require_table,
    show_placeholder,
    with_values,
)
from attnscope.plots.lines import depth_profile, emergence_curve, threshold_curve
from attnscope.plots.maps import (
    add_colorbar,
    attention_map,
    betti_curve,
    layer_head_map,
    layer_head_table,
    persistence_diagram,
    spectrum_against_null,
)
from attnscope.plots.selection import (
    Quantities,
    averaged_columns,
    graph_rows,
    last_step,
    measured_heads,
    series_noun,
)
from attnscope.plots.style import INK, NARROWEST, legend_row, panels
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import uniform_value


def figures_of_any_run() -> dict[str, Figure]:
    """Return figures of a study that declares none: every measured column over training, depth and heads."""
    return {
        "metric_maps": metric_maps(),
        "emergence": emergence(),
        "depth": depth(),
        "thresholds": thresholds(),
        "examples": examples(),
    }


def drawable_quantities(heads: pd.DataFrame, quantities: Quantities | None) -> list[tuple[str, float | None]]:
    """Return the quantities that the table holds with at least one value."""
    requested = [(name, None) for name in averaged_columns(heads)] if quantities is None else quantities
    present = with_values(heads, "heads", [name for name, _ in requested])
    return [(name, at) for name, at in requested if name in present]


def metric_maps(quantities: Quantities | None = None) -> Figure:
    """Return quantities per layer and head at the last checkpoint, one column per input set."""

    def draw(results: Results, options: Options) -> Drawn:
        heads = last_step(measured_heads(results, quantities or ()))
        metrics = drawable_quantities(heads, quantities)
        baselines = optional(results, "baselines")
        names = list(dict.fromkeys(heads["series"]))
        size = heads["layer"].nunique(), heads["head"].nunique()
        blocks, cell = _places(len(metrics), len(names), *size, options.width)
        rows = -(-len(metrics) // blocks)
        figure, axes = panels(
            rows, blocks * len(names), height=rows * (cell * size[0] + 0.62), width=options.width
        )
        for at, (metric, threshold) in enumerate(metrics):
            first = at % blocks * len(names)
            axes_row = axes[at // blocks][first : first + len(names)]
            tables = [layer_head_table(heads[heads["series"] == name], metric).to_numpy() for name in names]
            low, high = -highest([-table for table in tables]), highest(tables)
            uniform = uniform_value(heads, baselines, metric, threshold)
            # a baseline far from all that was measured would leave one colour for everything
            near = np.isfinite(uniform) and low - (high - low) <= uniform <= high + (high - low)
            if near:
                low, high = min(low, uniform), max(high, uniform)
            room = 0.0 if high > low else max(0.05 * abs(low), 1e-6)
            norm = Normalize(low - room, high + room)
            for ax, name in zip(axes_row, names, strict=True):
                rows_of_series = heads[heads["series"] == name]
                layer_head_map(
                    rows_of_series,
                    metric,
                    ax=ax,
                    norm=norm,
                    colorbar=False,
                    numbers=cell >= LEGIBLE and size[0] * size[1] <= 48,
                )
                ax.set_aspect("equal")
                title = axis_label(metric, threshold) if ax is axes_row[0] else ""
                if np.isfinite(uniform) and not near and ax is axes_row[-1]:
                    title += f"{chr(10) if title else ''}uniform {uniform:.2g}"
                ax.set_title(f"{title}\n{name}" if len(names) > 1 else title)
                ax.set_ylabel("layer" if first == 0 and ax is axes_row[0] else "")
                ax.set_xlabel("head" if at + blocks >= len(metrics) else "")
            shared_colorbar(figure, axes_row, norm, "", uniform)
        for ax in axes[-1][(len(metrics) - 1) % blocks * len(names) + len(names) :]:
            ax.set_axis_off()
        columns_are = f", one column per {series_noun(heads)}" if len(names) > 1 else ""
        return captioned(figure, f"Mean over texts per layer and head{columns_are}.", marked(figure, heads))

    return Figure(draw, ("heads",), "Every quantity per layer and head at the last checkpoint.")


#: Inches: a cell that holds its number.
LEGIBLE = 0.21
#: Inches: most that a figure of maps is high.
_PAGE = 9.0


def _places(metrics: int, series: int, layers: int, heads: int, width: float) -> tuple[int, float]:
    """Return the number of quantities side by side, and the side of a square cell in inches.

    >>> _places(20, 1, 12, 12, 7.0)
    (4, 0.095)
    """
    widest = max(1, min(4, int(width / NARROWEST)) // series)
    legible_blocks = int(0.65 * width / (heads * LEGIBLE * series)) if layers * heads <= 48 else widest
    blocks = min(metrics, max(1, min(widest, legible_blocks)))
    cell = min(0.65 * width / (blocks * series * heads), 0.35)
    rows = -(-metrics // blocks)
    return blocks, round(min(cell, max(0.02, (_PAGE / rows - 0.62) / layers)), 3)


def emergence(quantities: Quantities | None = None) -> Figure:
    """Return quantities over training, mean over heads with its interval over samples, one line per input
    set.
    """

    def draw(results: Results, options: Options) -> Drawn:
        heads, unknown = over_steps(measured_heads(results, quantities or ()))
        figure = metric_grid(
            heads,
            drawable_quantities(heads, quantities),
            emergence_curve,
            optional(results, "baselines"),
            width=options.width,
        )
        words = "Each quantity over training, mean over heads, which hides single strong ones."
        return captioned(figure, words, compared_with(figure), left_out=unknown)

    return Figure(draw, ("heads",), "Every quantity over training.")


def depth(
    quantities: Quantities | None = None,
    *,
    columns: int = 4,
    width: float = np.inf,
    sentences: Mapping[str, str] | None = None,
) -> Figure:
    """Return quantities over depth at the last checkpoint, mean over heads with its interval over samples.

    `sentences` are the caption's sentences by quantity; those of drawn quantities are used.
    """
    of_all = "every quantity" if sentences is None else " and ".join(sentences.values())

    def draw(results: Results, options: Options) -> Drawn:
        heads = measured_heads(results, quantities or ())
        metrics = drawable_quantities(last_step(heads), quantities)
        over_layers(heads)
        figure = metric_grid(
            heads,
            metrics,
            depth_profile,
            optional(results, "baselines"),
            columns=columns,
            width=min(width, options.width),
        )
        words = "By layer at the last checkpoint, mean over heads."
        if sentences:
            words = f"By layer: {' and '.join(sentences[name] for name, _ in metrics if name in sentences)}."
        return captioned(figure, words, compared_with(figure))

    return Figure(draw, ("heads",), f"By layer at the last checkpoint: {of_all}.")


def thresholds(
    columns: Sequence[str] | None = None,
    *,
    logarithmic: Sequence[str] = (),
    sentences: Mapping[str, str] | None = None,
) -> Figure:
    """Return columns of `graphs`, or all, over the threshold at the last checkpoint.

    `logarithmic` are those that the complete graph lifts far above all else.
    """

    def curve(table: pd.DataFrame, metric: str, *, threshold: None, **rest: Any) -> Axes:
        return threshold_curve(table, metric, logarithmic=metric in logarithmic, **rest)

    def draw(results: Results, options: Options) -> Drawn:
        graphs = last_step(graph_rows(results))
        present = with_values(graphs, "graphs", averaged_columns(graphs) if columns is None else columns)
        figure = metric_grid(
            graphs,
            [(name, None) for name in present],
            curve,
            optional(results, "baselines"),
            columns=3,
            width=options.width,
        )
        return captioned(
            figure,
            "The graph over its threshold at the last checkpoint: mean over layers and heads.",
            compared_with(figure),
            *((sentences or {}).get(name, "") for name in present),
        )

    return Figure(draw, ("graphs",), "The attention graph over its threshold at the last checkpoint.")


#: Keys of a stored map, and the columns of a bar.
MAP_KEYS = [*CHECKPOINT_KEYS, "sample", "layer", "head"]
BARS = ("dimension", "birth", "death")


def examples(rank: Callable[[Any], float] | None = None, *, most: int = 4) -> Figure:
    """Draw stored attention maps next to their spectrum, persistence diagram and Betti curve.

    If there are more than `most` maps, the highest and the lowest by `rank` of the matrix are drawn, or the
    first.
    """

    def draw(results: Results, options: Options) -> Drawn:
        stored_maps = last_step(require_table(results, "examples", "n_tokens", "attention"))
        table = _few(stored_maps.dropna(subset=["n_tokens", "attention"]), rank, most)
        samples, stored_bars, heads = (optional(results, name) for name in ("samples", "bars", "heads"))
        bars = pd.DataFrame()
        if stored_bars is not None and set(BARS) <= set(stored_bars):
            bars = stored_bars.dropna(subset=list(BARS)).merge(table[MAP_KEYS], on=MAP_KEYS)
        drawn = 4 if len(bars) else 2
        figure, axes = panels(len(table), drawn, height=1.85 * len(table), width=options.width)
        for axes_row, (_, row) in zip(axes, table.iterrows(), strict=True):
            matrix = matrix_of(row)
            attention_map(matrix, ax=axes_row[0], colorbar=False)
            text = _looked_up(samples, row, [*CHECKPOINT_KEYS, "sample"], "group", f"sample {row['sample']}")
            axes_row[0].set_ylabel(f"L{row['layer']}H{row['head']}, {text}\nquery", linespacing=1.5)
            seen = _looked_up(heads, row, MAP_KEYS, "support", "causal")
            if seen in ("causal", "full"):
                spectrum_against_null(matrix, ax=axes_row[1])
            else:
                show_placeholder(axes_row[1], f"no law of random entries\nwhere queries see a {seen}")
            if len(bars):
                bars_of_map = bars[(bars[MAP_KEYS] == row[MAP_KEYS]).all(axis=1)]
                persistence_diagram(bars_of_map, ax=axes_row[2])
                betti_curve(bars_of_map, ax=axes_row[3])
        left_over = len(stored_maps) - len(table)
        return captioned(
            figure,
            "Each row a head: attention on a logarithmic scale, white under 0.001; its spectrum over the law "
            "of random entries"
            + ("; births and deaths; Betti numbers while the threshold falls." if drawn == 4 else "."),
            left_out=(f"{left_over} stored maps",) if left_over else (),
        )

    return Figure(draw, ("examples",), "Stored attention maps, their spectra and their topology.")


def _looked_up(table: pd.DataFrame | None, row: Any, keys: list[str], column: str, default: str) -> str:
    """Return the value of a table's column for a stored map, or a default without one."""
    if table is None or not {*keys, column} <= set(table):
        return default
    values = table[(table[keys] == row[keys]).all(axis=1)][column].dropna()
    return str(values.iloc[0]) if len(values) else default


def matrix_of(row: Any) -> Any:
    """Return the attention matrix of a row of the table `examples`, [n, n]."""
    entries = np.asarray(row["attention"], dtype=float)
    return entries.reshape(math.isqrt(len(entries)), -1)


def _few(table: pd.DataFrame, rank: Callable[[Any], float] | None, most: int) -> pd.DataFrame:
    """Return the maps that have a spectrum; of many the highest and the lowest by `rank`."""
    table = table[
        [not undefined_because(torch.tensor(matrix_of(row), device="cpu")) for _, row in table.iterrows()]
    ]
    if table.empty:
        raise NotDrawable(
            "no stored map has a spectrum: too few tokens, uniform attention, or missing values"
        )
    if rank is None or len(table) <= most:
        return table[:most]
    ranks = [rank(matrix_of(row)) for _, row in table.iterrows()]
    return table.iloc[[int(np.argmax(ranks)), int(np.argmin(ranks))]]


def highest(tables: Sequence[Any]) -> float:
    """Return the largest finite value of some arrays; NaN when they hold none."""
    values = np.concatenate([np.ravel(table) for table in tables])
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else np.nan


def metric_grid(
    table: pd.DataFrame,
    metrics: Quantities,
    draw: Callable[..., Axes],
    baselines: pd.DataFrame | None,
    *,
    width: float,
    columns: int = 4,
) -> mpl.Figure:
    """Return one panel per quantity under one legend."""
    columns = min(columns, max(1, int(width / NARROWEST)))
    figure, (axes,) = panels(1, len(metrics), most=columns, height=1.75, above=0.3, width=width)
    colors = series_colors(list(table["series"]))
    for ax, (metric, threshold) in zip(axes, metrics, strict=True):
        draw(table, metric, ax=ax, baselines=baselines, colors=colors, threshold=threshold)
        ax.set_title(ax.get_ylabel())
        ax.set_ylabel("")
    for ax in axes[:-columns]:
        ax.set_xlabel("")
    legend_row(figure, colors)
    return figure


def shared_colorbar(
    figure: mpl.Figure, axes: list[Axes], norm: Normalize, label: str, uniform: float
) -> None:
    """Draw one colour scale for several maps, with uniform attention marked on it."""
    mesh = next(ax.collections[0] for ax in axes if ax.collections)
    ticks = MaxNLocator(4)
    bar = add_colorbar(figure, mesh, axes, pad=0.015, aspect=14, fraction=0.06, label=label, ticks=ticks)
    if np.isfinite(uniform) and float(norm.vmin or 0.0) <= uniform <= float(norm.vmax or 0.0):
        bar.ax.plot(
            [0],
            [uniform],
            marker=">",
            markersize=5,
            color=INK,
            markeredgecolor="white",
            markeredgewidth=0.6,
            transform=bar.ax.get_yaxis_transform(),
            clip_on=False,
            gid="uniform",
            zorder=10,
        )


def marked(figure: mpl.Figure, heads: pd.DataFrame) -> str:
    """Return the mark on a colour scale in words, with what its mean is over; empty without one."""
    if not any(line.get_gid() == "uniform" for ax in figure.axes for line in ax.get_lines()):
        return ""
    series = series_noun(heads).split(", ") if heads["series"].nunique() > 1 else []
    *means, last = "layers", *(f"{name}s" for name in series)
    over = f"{', '.join(means)} and {last}" if means else last
    return f"The mark on a colour scale is uniform attention, mean over {over}."
