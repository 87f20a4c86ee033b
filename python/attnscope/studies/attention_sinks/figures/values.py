# SPDX-License-Identifier: MIT
"""By layer: alignment with what attention moves, influence of the sinks, spectra against their null law."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnscope.metrics.quantity import quantity
from attnscope.plots.axes import drawn_range, series_colors
from attnscope.plots.figure import (
    Drawn,
    NotDrawable,
    Options,
    Tables,
    captioned,
    compared_with,
    optional,
    over_layers,
    with_values,
)
from attnscope.plots.lines import depth_profile
from attnscope.plots.selection import in_series, last_step, measured_heads
from attnscope.plots.style import MUTED, legend_row, panels
from attnscope.studies.attention_sinks.figures.declared import figure


def published_means(results: Tables) -> pd.DataFrame:
    """Head means under the published protocol with their series; no rows where there are none."""
    means = optional(results, "head_means")
    if means is None or "protocol" not in means:
        return pd.DataFrame(columns=["model", "step"])
    return in_series(means[means["protocol"] == "ruscio2025"], results)


@figure("heads")
def alignment(results: Tables, options: Options) -> Drawn:
    """Alignment over depth: value vectors, hidden states, without sinks, and as published."""
    heads = measured_heads(results)
    titles = {
        "alignment_value": "values",
        "alignment_value_without_sinks": "values, no sinks",
        "alignment_hidden": "states",
        "alignment_hidden_without_sinks": "states, no sinks",
    }
    there = with_values(last_step(heads), "heads", list(titles))
    over_layers(heads)
    colors = series_colors(list(heads["series"]))
    drawn = [(column, titles[column], heads) for column in there]
    published = published_means(results)
    if "alignment_hidden" in published and last_step(published)["alignment_hidden"].notna().any():
        drawn.append(("alignment_hidden", "as published", published))
    figure_, axes = panels(1, len(drawn), height=2.1, width=options.width, sharey=True)
    baselines = optional(results, "baselines")
    for ax, (column, title, rows) in zip(axes[0], drawn, strict=True):
        depth_profile(
            rows, column, ax=ax, colors=colors, baselines=None if title == "as published" else baselines
        )
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        ax.set_title(title)
        ax.set_ylabel("")
    axes[0][0].set_ylabel("correlation r")
    # each panel sets its own limits on the axis that they share
    ends = np.array([drawn_range(ax) for ax in axes[0]])
    room = 0.06 * float(np.nanmax(ends) - np.nanmin(ends)) or 0.1
    axes[0][0].set_ylim(float(np.nanmin(ends)) - room, float(np.nanmax(ends)) + room)
    legend_row(figure_, colors)
    spaces = [
        words
        for space, words in (
            ("value", "their own value vectors"),
            ("hidden", "the states that enter the layer"),
        )
        if any(name.startswith(f"alignment_{space}") for name in there)
    ]
    without = ", with and without the head's sink tokens" if any("without" in name for name in there) else ""
    return captioned(
        figure_,
        f"Alignment by layer: single heads with {' and with '.join(spaces)}{without}"
        + (", and as published (head mean, states, all ordered pairs)." if len(drawn) > len(there) else "."),
        compared_with(figure_),
    )


@figure("heads")
def spectra(results: Tables, options: Options) -> Drawn:
    """Spectra against their null law over depth: directions, distance, largest value over the law's edge."""
    heads = measured_heads(results)
    over_layers(heads)
    if {"mp_largest", "mp_edge"} <= set(heads):
        edge = heads["mp_edge"].where(heads["mp_edge"] > 0)
        heads = heads.assign(mp_over_edge=heads["mp_largest"] / edge)
    wanted = ("participation_ratio", "effective_rank", "mp_ks", "mp_over_edge", "mp_outlier_energy")
    there = with_values(last_step(heads), "heads", wanted)
    if len(there) < 2:
        raise NotDrawable(f"the heads table has fewer than two of {', '.join(wanted)}")
    labels = {column: quantity(column).label for column in there[:4]}
    if "mp_over_edge" in labels:
        labels["mp_over_edge"] = "largest / edge"
    colors = series_colors(list(heads["series"]))
    figure_, axes = panels(1, len(labels), height=2.1, width=options.width)
    for ax, (column, label) in zip(axes[0], labels.items(), strict=True):
        depth_profile(heads, column, ax=ax, colors=colors, baselines=optional(results, "baselines"))
        ax.set_title(label)
        ax.set_ylabel("")
        if column == "mp_over_edge":
            ax.axhline(1, color=MUTED, linewidth=0.6, zorder=1)
            ax.set_ylim(0, 1.06 * max(1.0, drawn_range(ax)[1]))
    legend_row(figure_, colors)
    beside = compared_with(figure_)
    return captioned(
        figure_,
        f"By layer, mean over heads: {', '.join(labels.values())}.",
        beside,
        "Shuffled rows keep each row's values and break their columns." if "shuffled" in beside else "",
    )


@figure("heads")
def reference(results: Tables, options: Options) -> Drawn:
    """Influence of the reference points over depth: share of the output, its direction, what they change."""
    heads = measured_heads(results)
    titles = {
        "reference_magnitude": r"size, $\|c_R\|/\|c\|$",
        "reference_directional": r"direction, $\cos(c_R, c)$",
        "reference_information": r"turn without, $1-\cos(c, c_N)$",
    }
    there = with_values(last_step(heads), "heads", list(titles))
    over_layers(heads)
    colors = series_colors(list(heads["series"]))
    published = published_means(results)
    rows = [heads]
    if set(there) <= set(published) and last_step(published)[there].notna().any(axis=None):
        rows.append(published)
    figure_, axes = panels(len(rows), len(there), height=1.75 * len(rows) + 0.4, width=options.width)
    for number, (axes_row, table) in enumerate(zip(axes, rows, strict=True)):
        for ax, column in zip(axes_row, there, strict=True):
            depth_profile(table, column, ax=ax, colors=colors)
            ax.set_title(titles[column] if not number else "")
            ax.set_ylabel("")
            if number < len(rows) - 1:
                ax.set_xlabel("")
        if len(rows) > 1:
            axes_row[0].set_ylabel("as published" if number else "exact, single heads")
    legend_row(figure_, colors)
    published_below = (
        " (top), and the published computation on the head mean and hidden states (bottom); its scales differ"
    )
    return captioned(
        figure_,
        "c is what a head writes, c_R the part that comes from reference points, c_N the rest.",
        f"By layer: single heads with their value vectors{published_below if len(rows) > 1 else ''}.",
        compared_with(figure_),
    )
