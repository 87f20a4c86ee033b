# SPDX-License-Identifier: MIT
"""Fisher information by block and kind of parameters."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from attnscope.plots.axes import layers_below
from attnscope.plots.figure import Drawn, NotDrawable, Options, Tables, captioned, compared_with, stored
from attnscope.plots.lines import draw_curve
from attnscope.plots.selection import estimate, in_series, last_step
from attnscope.plots.style import PALETTE, axes_or_new, legend_row, panels, style
from attnscope.studies.attention_sinks.figures.declared import figure

GROUPS = ("attention", "mlp", "norm", "embedding")
GROUP_NAMES = {"mlp": "MLP"}


@style()
def fisher_profile(fisher: pd.DataFrame, *, column: str = "trace", ax: Axes | None = None) -> Axes:
    """The trace of the Fisher information over depth: a line per group of blocks, a level outside."""
    ax = axes_or_new(ax)
    groups = [name for name in GROUPS if (fisher["group"] == name).any()]
    for place, name in enumerate(groups):
        rows = fisher[fisher["group"] == name]
        color = PALETTE[place]
        inside = rows[rows["layer"] >= 0]
        if len(inside):
            means = estimate(inside, column, ["layer"]).sort_values("layer")
            if means["mean"].notna().any():
                draw_curve(ax, means["layer"], means, GROUP_NAMES.get(name, name), color, marker=True)
        outside = rows[rows["layer"] < 0]
        if len(outside) and not len(inside):
            value = float(estimate(outside, column, ["group"])["mean"].iloc[0])
            if np.isfinite(value):
                ax.axhline(
                    value, color=color, linestyle=(0, (5, 2)), linewidth=1.0,
                    label=GROUP_NAMES.get(name, name), gid=f"outside:{name}",
                )  # fmt: skip
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    wide = high > 300 * low
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6))
    ax.yaxis.set_major_formatter(lambda value, _: power(value))
    ax.yaxis.set_minor_formatter(NullFormatter())
    layers_below(ax)
    ax.set_ylabel("trace")
    return ax


def power(value: float) -> str:
    """A tick of a logarithmic axis: plain where that is short, a power of ten elsewhere.

    >>> power(0.5), power(200.0), power(2e-6), power(1e7)
    ('0.5', '200', '2e−6', '1e7')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}".replace("-", "−")


@figure("fisher")
def fisher(results: Tables, options: Options) -> Drawn:
    """Fisher information by block and kind of parameters: as published, exact, and per parameter."""
    table = stored(results, "fisher", "protocol").rename(columns={"group": "part"})
    table = last_step(in_series(table, results)).rename(columns={"group": "input", "part": "group"})
    wanted = [
        ("exact", "trace", "labels as written"),
        ("exact", "trace_sampled", "labels drawn"),
        ("exact", "trace_per_parameter", "per parameter"),
        ("ruscio2025", "trace", "as published"),
    ]
    shown = [
        (protocol, column, title) for protocol, column, title in wanted
        if column in table and table[table["protocol"] == protocol][column].gt(0).any()
    ]  # fmt: skip
    if not shown:
        raise NotDrawable("the fisher table has no value above 0")
    names = list(dict.fromkeys(table["series"]))[:3]
    figure_, axes = panels(len(names), len(shown), height=1.85 * len(names) + 0.35, width=options.width)
    for number, (axes_row, name) in enumerate(zip(axes, names, strict=True)):
        own = table[table["series"] == name]
        for ax, (protocol, column, title) in zip(axes_row, shown, strict=True):
            fisher_profile(own[own["protocol"] == protocol], column=column, ax=ax)
            ax.set_title("" if number else title)
            ax.set_ylabel("")
            if number < len(names) - 1:
                ax.set_xlabel("")
            if not ax.get_lines():
                ax.set_axis_off()
        axes_row[0].set_ylabel(f"{name}\ntrace of Fisher" if len(names) > 1 else "trace of Fisher")
    if not any(ax.axison for ax in figure_.axes):
        raise NotDrawable("the fisher table has no value of a group that is drawn")
    legend_row(figure_)
    ids = [str(line.get_gid()) for ax in figure_.axes for line in ax.get_lines()]
    return captioned(
        figure_,
        "Trace by block on a logarithmic scale, mean over texts.",
        "Dashed levels: what lies outside the blocks."
        if any(one.startswith("outside:") for one in ids)
        else "",
        compared_with(figure_),
    )
