# SPDX-License-Identifier: MIT
"""Heads and models without their sinks, and Fisher information by block and kind of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from attnscope.errors import NotDrawable
from attnscope.metrics.information.sink_sets import PERCENTILES
from attnscope.plots.axes import depth_axis, layers_below, series_colors
from attnscope.plots.figure import (
    Drawn,
    Options,
    Results,
    captioned,
    compared_with,
    require_table,
    with_values,
)
from attnscope.plots.lines import draw_curve
from attnscope.plots.panels import PanelGrid
from attnscope.plots.selection import estimate, last_step
from attnscope.plots.style import MUTED, PALETTE, legend_row, panels
from attnscope.results.summaries import in_series
from attnscope.studies.attention_sinks.figures.layers import PROTOCOL_NAMES
from attnscope.studies.attention_sinks.shuffled_removal import SHARE, SHUFFLED
from attnscope.study_api.selection import where

#: Percentile that makes a key a sink -> how much less heads differ without those.
REDUCTIONS = {at: f"kl_reduction_{at}" for at in PERCENTILES}


def kl_by_threshold(rows_of_protocol: pd.DataFrame, colors: Mapping[str, str], ax: Axes) -> None:
    """Draw the decrease of the heads' divergence without sinks, in one protocol, over the percentile that
    defines a sink.
    """
    measured = with_values(rows_of_protocol, "layers", list(REDUCTIONS.values()))
    percentiles = [at for at, column in REDUCTIONS.items() if column in measured]
    for name in dict.fromkeys(rows_of_protocol["series"]):
        rows = where(rows_of_protocol, series=name)
        means = pd.concat(estimate(rows, column, ["series"]) for column in measured)
        if means["mean"].notna().any():
            draw_curve(ax, percentiles, means, str(name), colors[name], marker=True)
    ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    ax.set(xticks=percentiles, xlim=(min(percentiles) - 2, max(percentiles) + 2))
    ax.set(xlabel="percentile of a sink", ylabel="reduction of KL (nats)")


def share_by_layer(rows_of_protocol: pd.DataFrame, colors: Mapping[str, str], ax: Axes) -> None:
    """Draw the share of the heads' divergence that keys from the 90th percentile on carry, over depth.

    Dotted: the same of the maps with shuffled rows, whose strongest keys are chosen in the same way.
    """
    place = depth_axis(ax, rows_of_protocol)
    for name, rows_of_series in rows_of_protocol.groupby("series", sort=False):
        rows = estimate(rows_of_series, SHARE[90], ["layer"]).sort_values("layer")
        x = place(str(name), rows["layer"])
        draw_curve(ax, x, rows, str(name), colors[str(name)], marker=len(rows) < 50)
        if SHUFFLED[90] in rows_of_series and rows_of_series[SHUFFLED[90]].notna().any():
            shuffled = rows_of_series.groupby("layer")[SHUFFLED[90]].mean().reindex(rows["layer"])
            ax.plot(x, shuffled, color=colors[str(name)], linestyle=":", gid=f"shuffled:{name}")
    ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    ax.set(ylabel="share of KL", title="share of KL, keys ≥ 90th percentile")


def sink_removal(results: Results, options: Options) -> Drawn:
    """Draw KL between heads without their sinks: over the sink percentile and over depth, both protocols.

    Over depth the exact protocol shows the share of the divergence, which is tested against shuffled rows.
    """
    layers = last_step(in_series(require_table(results, "layers", "protocol"), results))
    reductions = with_values(layers, "layers", list(REDUCTIONS.values()))
    of_kinds = {kind: where(layers, protocol=kind) for kind in PROTOCOL_NAMES}
    kinds = [
        kind
        for kind, rows_of_protocol in of_kinds.items()
        if rows_of_protocol[reductions].notna().any(axis=None)
    ]
    shares = [
        kind for kind in kinds if SHARE[90] in of_kinds[kind] and of_kinds[kind][SHARE[90]].notna().any()
    ]
    middle = REDUCTIONS[90]
    by_layer = [
        kind
        for kind in kinds
        if kind not in shares and middle in reductions and of_kinds[kind][middle].notna().any()
    ]
    colors = series_colors(list(layers["series"]))
    count = len(kinds) + len(by_layer) + len(shares)
    figure, (axes,) = panels(1, count, height=2.2, width=options.width)
    free = iter(axes)
    for protocol in kinds:
        over = next(free)
        kl_by_threshold(of_kinds[protocol], colors, over)
        # two protocols leave room for no more than their names
        title = PROTOCOL_NAMES[protocol] if len(kinds) > 1 else ""
        over.set_title(title or "ΔKL by percentile")
        if over is not axes[0]:
            over.sharey(axes[0])
            over.set_ylabel("")
        if protocol in shares:
            share_by_layer(of_kinds[protocol], colors, next(free))
        if protocol not in by_layer:
            continue
        depth = next(free)
        depth.sharey(axes[0])
        place = depth_axis(depth, layers)
        for name, rows_of_series in of_kinds[protocol].groupby("series", sort=False):
            rows = estimate(rows_of_series, middle, ["layer"]).sort_values("layer")
            x = place(str(name), rows["layer"])
            draw_curve(depth, x, rows, str(name), colors[str(name)], marker=len(rows) < 50)
        depth.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        depth.set_title(f"{title or 'ΔKL by layer'}, keys ≥ 90th percentile")
    legend_row(figure, colors)
    single_protocol = "By the published computation." if kinds == ["ruscio2025"] else ""
    return captioned(
        figure,
        "How much closer heads come to their mean when sink keys are removed and rows renormalised, over the "
        "percentile that makes a key a sink (mean over layers)"
        + (" and by layer at the 90th." if by_layer else "."),
        "Positive: heads differ less without sinks.",
        "Share of the heads' divergence that the keys from the 90th percentile on carry, by layer."
        if shares
        else "",
        "The published computation stands beside the exact one." if len(kinds) > 1 else single_protocol,
        compared_with(figure),
    )


#: Which keys were masked, and how they are called.
ABLATED = {
    "sinks": "sinks",
    "control_sinks": "random, as many",
    "first": "first key",
    "control_first": "one random",
}
#: What masking changes: how a panel calls it, and how a caption does.
CHANGES = {
    "output_kl": ("KL of the output (nats)", "divergence of the next-token distributions"),
    "loss_change": ("change of loss (nats)", "change of the loss"),
}
#: Inches that the name of a kind of keys takes next to others.
NAMED = 0.85


def ablation(results: Results, options: Options) -> Drawn:
    """Draw sink keys masked inside the model: divergence of its output and change of its loss."""
    table = last_step(in_series(require_table(results, "ablation", "keys"), results))
    shown = with_values(table, "ablation", list(CHANGES))
    names = list(dict.fromkeys(table["series"]))
    colors = series_colors(names)
    figure, (axes,) = panels(1, len(shown), height=2.3, width=min(options.width, 2.9 * len(shown) + 0.4))
    kinds = [kind for kind in ABLATED if (table["keys"] == kind).any()]
    for ax, column in zip(axes, shown, strict=True):
        for place, series in enumerate(names):
            means = estimate(where(table, series=series), column, ["keys"])
            means = means.set_index("keys").reindex(kinds)
            x = np.arange(len(kinds)) + 0.16 * (place - (len(names) - 1) / 2)
            mean, low, high = (means[name].to_numpy(float) for name in ("mean", "low", "high"))
            ax.errorbar(
                x,
                mean,
                yerr=[mean - low, high - mean],
                fmt="o",
                markersize=4,
                color=colors[series],
                elinewidth=1.2,
                capsize=2.5,
                label=str(series),
                gid=f"ablation:{series}",
            )
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        ax.set_xticks(range(len(kinds)), [ABLATED[kind] for kind in kinds])
        if figure.get_figwidth() / len(shown) / len(kinds) < NAMED:
            for name in ax.get_xticklabels():
                name.set(rotation=30, ha="right", rotation_mode="anchor")
        ax.set(xlim=(-0.5, len(kinds) - 0.5), xlabel="keys masked", title=CHANGES[column][0])
    legend_row(figure, colors)
    return captioned(
        figure,
        "Keys masked before the softmax in every layer and head of the model: "
        f"{' and '.join(CHANGES[column][1] for column in shown)}, mean over texts with 95 % intervals.",
        "Random: as many other visible keys near them, mean of five draws, where there are sinks."
        if any("control" in kind for kind in kinds)
        else "",
    )


#: Groups of parameters, and how they are called.
GROUPS = {"attention": "attention", "mlp": "MLP", "norm": "norm", "embedding": "embedding"}


def fisher_profile(fisher: pd.DataFrame, column: str, ax: Axes) -> None:
    """Draw the trace of the Fisher information over depth: a line per group of blocks, a level for what lies
    outside, such as the last norm.
    """
    groups = [name for name in GROUPS if (fisher["group"] == name).any()]
    for name, color in zip(groups, PALETTE, strict=False):
        rows = where(fisher, group=name)
        inside, outside = rows[rows["layer"] >= 0], rows[rows["layer"] < 0]
        means = estimate(inside, column, ["layer"]).sort_values("layer")
        if drawn := bool(means["mean"].notna().any()):
            draw_curve(ax, means["layer"], means, GROUPS[name], color, marker=True)
        value = float(estimate(outside, column, ["group"])["mean"].mean())
        if np.isfinite(value):
            ax.axhline(
                value,
                color=color,
                linestyle=(0, (5, 2)),
                linewidth=1.0,
                label="" if drawn else GROUPS[name],
                gid=f"outside:{name}",
            )
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    wide = high > 300 * low
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6))
    ax.yaxis.set_major_formatter(lambda value, _: power(value))
    ax.yaxis.set_minor_formatter(NullFormatter())
    layers_below(ax)


def power(value: float) -> str:
    """Return a tick of a logarithmic axis: plain where that is short, a power of ten elsewhere.

    >>> power(0.5), power(200.0), power(2e-6), power(1e7)
    ('0.5', '200', '2e−6', '1e7')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}".replace("-", "−")


def fisher(results: Results, options: Options) -> Drawn:
    """Draw Fisher information by block and kind of parameters: as published, exact, and per parameter."""
    table = require_table(results, "fisher", "protocol").rename(columns={"group": "part"})
    table = last_step(in_series(table, results)).rename(columns={"group": "input", "part": "group"})
    shown = [
        (protocol, column, title)
        for protocol, column, title in (
            ("exact", "trace", "labels as written"),
            ("exact", "trace_sampled", "labels drawn"),
            ("exact", "trace_per_parameter", "per parameter"),
            ("ruscio2025", "trace", "as published"),
        )
        if column in table and where(table, protocol=protocol)[column].gt(0).any()
    ]
    if not shown:
        raise NotDrawable("the fisher table has no value above 0")
    grid = PanelGrid.by(table, "series", shown, options, height=1.85, above=0.35, most=3)
    for ax, (protocol, column, _), rows_of_series in grid.panels(table):
        fisher_profile(where(rows_of_series, protocol=protocol), column, ax)
        if not ax.get_lines():
            ax.set_axis_off()
    for ax, (_, _, title) in zip(grid.axes[0], shown, strict=True):
        ax.set_title(title)
    for row_of_axes in grid.axes[:-1]:
        for ax in row_of_axes:
            ax.set_xlabel("")
    for name, (first, *_), _ in grid.rows(table):
        first.set_ylabel(f"{name}\ntrace of Fisher" if len(grid.names) > 1 else "trace of Fisher")
    figure = grid.figure
    if not any(ax.axison for ax in figure.axes):
        raise NotDrawable("the fisher table has no value of a group that is drawn")
    legend_row(figure)
    outside = any(str(line.get_gid()).startswith("outside:") for ax in figure.axes for line in ax.get_lines())
    return grid.captioned(
        "Trace by block on a logarithmic scale, mean over texts.",
        "Dashed levels: what lies outside the blocks." if outside else "",
        compared_with(figure),
    )
