# SPDX-License-Identifier: MIT
"""Figures by layer: alignment, the influence of sinks, spectra, and each published computation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.errors import NotDrawable
from attnscope.metrics.discovery import quantity
from attnscope.plots.axes import depth_axis, drawn_range, series_colors
from attnscope.plots.figure import (
    Drawn,
    Options,
    Results,
    captioned,
    compared_with,
    optional,
    over_layers,
    require_table,
    with_values,
)
from attnscope.plots.lines import depth_profile, draw_curve
from attnscope.plots.selection import estimate, last_step, measured_heads
from attnscope.plots.style import MUTED, PALETTE, legend_row, panels
from attnscope.results.summaries import defined, in_series
from attnscope.study_api.selection import where

#: Labels of the protocols in figures that show both.
PROTOCOL_NAMES = {"exact": "exact", "ruscio2025": "as published"}


def published_means(results: Results) -> pd.DataFrame:
    """Return head means under the published protocol with their series; no rows where there are none."""
    means = optional(results, "head_means")
    if means is None or "protocol" not in means:
        return pd.DataFrame(columns=["model", "step"])
    return in_series(where(means, protocol="ruscio2025"), results)


def _profiles(
    figure: Figure,
    drawn: Sequence[tuple[str, str, pd.DataFrame]],
    heads: pd.DataFrame,
    baselines: pd.DataFrame | None = None,
) -> None:
    """Draw in each panel the profile over depth of a column, under its title, of its rows; one legend for
    all.

    Baselines are those of `heads`.
    """
    colors = series_colors(list(heads["series"]))
    for ax, (column, title, rows) in zip(figure.axes, drawn, strict=True):
        depth_profile(rows, column, ax=ax, colors=colors, baselines=baselines if rows is heads else None)
        ax.set(title=title, ylabel="")
    legend_row(figure, colors)


#: Columns of alignment, and the titles of their panels.
ALIGNMENTS = {
    "alignment_value": "values",
    "alignment_value_without_sinks": "values, no sinks",
    "alignment_hidden": "states",
    "alignment_hidden_without_sinks": "states, no sinks",
}


def alignment(results: Results, options: Options) -> Drawn:
    """Draw alignment over depth: value vectors, hidden states, without sinks, and as published."""
    heads = measured_heads(results)
    present = with_values(last_step(heads), "heads", list(ALIGNMENTS))
    over_layers(heads)
    drawn = [(column, ALIGNMENTS[column], heads) for column in present]
    published = published_means(results)
    if "alignment_hidden" in published and last_step(published)["alignment_hidden"].notna().any():
        drawn.append(("alignment_hidden", "as published", published))
    figure, (axes,) = panels(1, len(drawn), height=2.1, width=options.width, sharey=True)
    _profiles(figure, drawn, heads, optional(results, "baselines"))
    for ax in axes:
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    axes[0].set_ylabel("correlation r")
    # each panel sets its own limits on the axis that they share
    ends = np.array([drawn_range(ax) for ax in axes])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    room = 0.06 * (high - low) or 0.1
    axes[0].set_ylim(low - room, high + room)
    spaces = {
        "alignment_value": "their own value vectors",
        "alignment_hidden": "the states that enter the layer",
    }
    words = [words for start, words in spaces.items() if any(name.startswith(start) for name in present)]
    without = (
        ", with and without the head's sink tokens" if any("without" in name for name in present) else ""
    )
    as_published = (
        ", and as published (head mean, states, all ordered pairs)" if len(drawn) > len(present) else ""
    )
    return captioned(
        figure,
        f"Alignment by layer: single heads with {' and with '.join(words)}{without}{as_published}.",
        compared_with(figure),
    )


def spectra(results: Results, options: Options) -> Drawn:
    """Draw spectra against their null law over depth: directions, distance, largest value over the law's
    edge.
    """
    heads = measured_heads(results)
    over_layers(heads)
    if {"mp_largest", "mp_edge"} <= set(heads):
        edge = heads["mp_edge"].where(heads["mp_edge"] > 0)
        heads = heads.assign(mp_over_edge=heads["mp_largest"] / edge)
    candidates = ("participation_ratio", "effective_rank", "mp_ks", "mp_over_edge", "mp_outlier_energy")
    present = with_values(last_step(heads), "heads", candidates)[:4]
    if len(present) < 2:
        raise NotDrawable(f"the heads table has fewer than two of {', '.join(candidates)}")
    labels = {
        column: "largest / edge" if column == "mp_over_edge" else quantity(column).label for column in present
    }
    figure, (axes,) = panels(1, len(present), height=2.1, width=options.width)
    drawn = [(column, title, heads) for column, title in labels.items()]
    _profiles(figure, drawn, heads, optional(results, "baselines"))
    if "mp_over_edge" in present:
        ax = axes[present.index("mp_over_edge")]
        ax.axhline(1, color=MUTED, linewidth=0.6, zorder=1)
        ax.set_ylim(0, 1.06 * max(1.0, drawn_range(ax)[1]))
    comparison = compared_with(figure)
    return captioned(
        figure,
        f"By layer, mean over heads: {', '.join(labels.values())}.",
        comparison,
        "Shuffled rows keep each row's values and break their columns." if "shuffled" in comparison else "",
    )


def reference(results: Results, options: Options) -> Drawn:
    """Draw influence of the reference points over depth: share of the output, its direction, what they
    change.
    """
    heads = measured_heads(results)
    titles = {
        "reference_magnitude": r"size, $\|c_R\|/\|c\|$",
        "reference_directional": r"direction, $\cos(c_R, c)$",
        "reference_information": r"turn without, $1-\cos(c, c_N)$",
    }
    present = with_values(last_step(heads), "heads", list(titles))
    over_layers(heads)
    published = published_means(results)
    has_published = set(present) <= set(published) and last_step(published)[present].notna().any(axis=None)
    drawn = [(column, titles[column], heads) for column in present]
    drawn += [(column, "", published) for column in present] if has_published else []
    rows = len(drawn) // len(present)
    figure, axes = panels(rows, len(present), height=1.75 * rows + 0.4, width=options.width)
    _profiles(figure, drawn, heads)
    words = "single heads with their value vectors."
    if has_published:
        for ax in axes[0]:
            ax.set_xlabel("")
        axes[0][0].set_ylabel("exact, single heads")
        axes[1][0].set_ylabel("as published")
        words = (
            "single heads with their value vectors (top), and the published computation on the head mean and "
            "hidden states (bottom); its scales differ."
        )
    parts = "c is what a head writes, c_R the part that comes from reference points, c_N the rest."
    return captioned(figure, f"{parts} By layer: {words}", compared_with(figure))


#: Quantities whose published computation differs from what its name promises, by the title of their panel.
PAIRS = {
    r"H0 bars ($\beta_0$)": "bar_count_0",
    r"H1 bars ($\beta_1$)": "bar_count_1",
    "mean H0 bar": "mean_persistence_0",
    "first / second value": "spectral_ratio",
    "participation ratio": "participation_ratio",
    "alignment with states": "alignment_hidden",
    "entropy (nats)": "entropy",
    "reference, direction": "reference_directional",
}


def protocol_profile(head_means: pd.DataFrame, column: str, ax: Axes) -> None:
    """Draw a column of one series' head means over depth, a line per protocol with 95 % intervals over
    samples.
    """
    series, place = str(head_means["series"].iloc[0]), depth_axis(ax, head_means)
    for (protocol, name), color in zip(PROTOCOL_NAMES.items(), PALETTE, strict=False):
        rows = where(head_means, protocol=protocol)
        rows = rows.assign(value=np.where(np.isfinite(rows[column].astype(float)), rows[column], np.nan))
        if rows["value"].notna().any():
            means = estimate(rows, "value", ["layer"]).sort_values("layer")
            draw_curve(ax, place(series, means["layer"]), means, name, color, marker=True)


def protocols(results: Results, options: Options) -> Drawn:
    """Draw each published quantity over depth with the exact one, on the head mean, one row per model."""
    heads = require_table(results, "head_means", "protocol")
    if set(heads["protocol"]) < {"exact", "ruscio2025"}:
        raise NotDrawable("the run has one protocol; a comparison needs exact and ruscio2025")
    heads = defined(last_step(in_series(heads, results)))
    names = list(dict.fromkeys(heads["series"]))[:3]
    heads = where(heads, series=names)
    rows_by_protocol = [where(heads, protocol=protocol) for protocol in PROTOCOL_NAMES]
    pairs = [
        (title, column)
        for title, column in PAIRS.items()
        if column in heads and all(rows[column].notna().any() for rows in rows_by_protocol)
    ]
    if not pairs:
        raise NotDrawable("no quantity was measured under both protocols")
    columns = 4
    rows_per_series = -(-len(pairs) // columns)
    rows = rows_per_series * len(names)
    figure, axes = panels(rows, columns, height=1.6 * rows + 0.35, width=options.width)
    for number, series in enumerate(names):
        flat = [ax for row in axes[number * rows_per_series : (number + 1) * rows_per_series] for ax in row]
        rows_of_series = where(heads, series=series)
        for ax, (title, column) in zip(flat, pairs, strict=False):
            protocol_profile(rows_of_series, column, ax)
            ax.set_title(title)
            _readable(ax, column, rows_of_series)
        for ax in flat[len(pairs) :]:
            ax.set_axis_off()
        for ax in flat[: max(0, len(pairs) - columns)]:
            ax.set_xlabel("")
        if len(names) > 1:
            flat[0].set_ylabel(series)
    legend_row(figure)
    bound = any(line.get_gid() == "bound" for ax in figure.axes for line in ax.get_lines())
    return captioned(
        figure,
        "Each published quantity over depth beside the exact one, both on the head mean of the same maps.",
        "Dotted: min(n, 30), the published β₀ of every causal model whose tokens all give themselves some "
        "attention."
        if bound
        else "",
        compared_with(figure),
    )


def _readable(ax: Axes, column: str, rows_of_series: pd.DataFrame) -> None:
    """Keep a meaningful zero in sight, count in whole numbers, and draw the bound as a dotted line."""
    bottom, top = drawn_range(ax)
    if not np.isfinite(top):
        ax.set_axis_off()
        return
    if column.startswith("bar_count"):
        ax.set_ylim(-0.04 * max(top, 1), 1.12 * max(top, 1))
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    elif bottom >= 0:
        ax.set_ylim(0, 1.1 * top if top > 0 else 1)
    else:
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    causal = "causal" not in rows_of_series or bool(rows_of_series["causal"].isin([True]).all())
    if column == "bar_count_0" and causal and "n_tokens" in rows_of_series:
        # the β0 that the published computation gives for causal maps
        bound = rows_of_series.drop_duplicates("sample")["n_tokens"].astype(float).clip(upper=30).mean()
        ax.axhline(
            bound,
            color=MUTED,
            linestyle=(0, (1, 1.5)),
            linewidth=1.0,
            zorder=1.5,
            label="min(n, 30)",
            gid="bound",
        )
