# SPDX-License-Identifier: MIT
"""The published computation beside the quantity it stands for, from the same maps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attnscope.metrics.quantity import quantity
from attnscope.plots.axes import depth_axis, drawn_range
from attnscope.plots.figure import Drawn, NotDrawable, Options, Tables, captioned, compared_with, stored
from attnscope.plots.lines import draw_curve
from attnscope.plots.selection import defined, estimate, in_series, last_step
from attnscope.plots.style import MUTED, axes_or_new, legend_row, panels, style
from attnscope.studies.attention_sinks.figures.declared import PROTOCOL_COLORS, PROTOCOL_NAMES, figure

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


@style()
def protocol_profile(
    table: pd.DataFrame, column: str, *, ax: Axes | None = None, series: str | None = None
) -> Axes:
    """A column of the head mean over depth, a line per protocol with 95 % intervals over samples."""
    ax = axes_or_new(ax)
    series = series if series is not None else str(table["series"].iloc[0])
    own = table[table["series"] == series]
    place = depth_axis(ax, own)
    for protocol, color in PROTOCOL_COLORS.items():
        rows = own[own["protocol"] == protocol]
        rows = rows.assign(value=np.where(np.isfinite(rows[column].astype(float)), rows[column], np.nan))
        if rows["value"].notna().any():
            means = estimate(rows, "value", ["layer"]).sort_values("layer")
            draw_curve(ax, place(series, means["layer"]), means, PROTOCOL_NAMES[protocol], color, marker=True)
    ax.set_ylabel(quantity(column).axis)
    return ax


@figure("head_means")
def protocols(results: Tables, options: Options) -> Drawn:
    """Each published quantity over depth beside the exact one, on the head mean, one row per model."""
    heads = stored(results, "head_means", "protocol")
    if set(heads["protocol"]) < {"exact", "ruscio2025"}:
        raise NotDrawable("the run has one protocol; a comparison needs exact and ruscio2025")
    heads = defined(last_step(in_series(heads, results)))
    names = list(dict.fromkeys(heads["series"]))[:3]
    heads = heads[heads["series"].isin(names)]
    both = [heads[heads["protocol"] == protocol] for protocol in ("exact", "ruscio2025")]
    there = [
        (title, column)
        for title, column in PAIRS.items()
        if column in heads and all(rows[column].notna().any() for rows in both)
    ]
    if not there:
        raise NotDrawable("no quantity was measured under both protocols")
    columns = 4
    each = -(-len(there) // columns)
    figure_, axes = panels(
        each * len(names), columns, height=1.6 * each * len(names) + 0.35, width=options.width
    )
    for number, series in enumerate(names):
        flat = [ax for row in axes[number * each : (number + 1) * each] for ax in row]
        own = heads[heads["series"] == series]
        for ax, (title, column) in zip(flat, there, strict=False):
            protocol_profile(own, column, ax=ax, series=series)
            ax.set_title(title)
            ax.set_ylabel("")
            _readable(ax, column, own)
        for ax in flat[len(there) :]:
            ax.set_axis_off()
        for ax in flat[: max(0, len(there) - columns)]:
            ax.set_xlabel("")
        if len(names) > 1:
            flat[0].set_ylabel(series)
    legend_row(figure_)
    bound = any(line.get_gid() == "bound" for ax in figure_.axes for line in ax.get_lines())
    return captioned(
        figure_,
        "Each published quantity over depth beside the exact one, both on the head mean of the same maps.",
        "Dotted: min(n, 30), the published β₀ of every causal model whose tokens all give themselves some "
        "attention."
        if bound
        else "",
        compared_with(figure_),
    )


def _readable(ax: Axes, column: str, own: pd.DataFrame) -> None:
    """Zero in sight where it means something, whole numbers for counts, the bound as a dotted line."""
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
    causal = "causal" not in own or bool(own["causal"].astype(bool).all())
    if column == "bar_count_0" and causal and "n_tokens" in own:
        # the β0 that the published computation gives for causal maps
        bound = own.drop_duplicates("sample")["n_tokens"].astype(float).clip(upper=30).mean()
        ax.axhline(
            bound, color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.0, zorder=1.5,
            label="min(n, 30)", gid="bound",
        )  # fmt: skip
