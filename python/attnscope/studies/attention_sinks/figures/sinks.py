# SPDX-License-Identifier: MIT
"""Figures of attention to the first key, the topology of its extremes, and the sinks of the layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from attnscope.errors import NotDrawable
from attnscope.plots.axes import axis_label, colors_by_layer
from attnscope.plots.figure import (
    Drawn,
    Options,
    Results,
    captioned,
    compared_with,
    optional,
    over_steps,
    require_table,
    with_values,
)
from attnscope.plots.lines import head_emergence
from attnscope.plots.maps import betti_curve, layer_head_map, layer_head_table, persistence_diagram, printable
from attnscope.plots.panels import Panels
from attnscope.plots.selection import estimate, last_step, measured_heads, series_noun
from attnscope.plots.standard import BARS, LEGIBLE, MAP_KEYS, highest, marked, shared_colorbar
from attnscope.plots.style import DASHES, MUTED, PALETTE, legend_over, legend_row, panels
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import NULLS, uniform_value
from attnscope.studies.attention_sinks.figures.layers import PROTOCOL_NAMES
from attnscope.study_api.selection import where


def sinks(results: Results) -> pd.DataFrame:
    """Return `measured_heads`, with `sink_share` in it."""
    heads = measured_heads(results)
    with_values(heads, "heads", ["sink_share"])
    return heads


def sink_emergence(results: Results, options: Options) -> Drawn:
    """Draw attention to the first key over training, one line per head, one panel per input set."""
    heads, unknown = over_steps(sinks(results))
    with_values(heads, "heads", ["sink_share"])
    baselines = optional(results, "baselines")
    drawn = Panels.by(heads, "series", options, height=2.5, panel_width=options.width)
    means = estimate(heads, "sink_share", ["series", "layer", "head", "step"], together=True)
    strongest = means.groupby(["series", "layer", "head"])["mean"].transform("max") == means["mean"].max()
    top = float(np.nanmax([means["mean"].max(), means.loc[strongest, "high"].max()]))
    top = top if top > 0 else 1.0
    # one legend is of all panels, whose models may have more or fewer layers
    colors = colors_by_layer(heads["layer"])
    for name, (ax, rows) in zip(drawn.names, drawn.rows(heads), strict=True):
        limits = (-0.02 * top, min(1.15 * top, 1.02))
        head_emergence(rows, "sink_share", baselines=baselines, ax=ax, colors=colors, limits=limits)
        ax.set_title(name)
        ax.label_outer()
    layers = sorted(heads["layer"].unique())
    lines = {str(line.get_label()): line for ax in drawn.axes for line in ax.get_lines()}
    shown = [layers[0], layers[len(layers) // 2], layers[-1]] if len(layers) > 4 else layers
    named = {
        f"layer {layer}": next(line for name, line in lines.items() if name.startswith(f"L{layer}H"))
        for layer in shown
    }
    levels = {name: lines[name] for name in ("uniform attention", *NULLS.values()) if name in lines}
    legend = legend_over(drawn.figure, named | levels)
    for line in legend.get_lines()[: len(named)]:
        line.set(alpha=1.0, linewidth=1.6)
    # of few texts no intervals are given that hold for all heads at once
    has_intervals = any(
        str(band.get_gid()).startswith("interval:") for ax in drawn.axes for band in ax.collections
    )
    return captioned(
        drawn.figure,
        "Attention to the first key over training, one line per head, coloured by layer; the strongest heads "
        f"are bold{', with intervals that hold at once for all heads and steps' if has_intervals else ''}.",
        compared_with(drawn.figure),
        left_out=unknown,
    )


def _shown_steps(heads: pd.DataFrame) -> list[int]:
    """Return at most five known steps, the first and late ones; −1 where none is known."""
    steps = sorted(int(step) for step in heads["step"].unique() if step >= 0) or [-1]
    if len(steps) <= 5:
        return steps
    late_steps = [step for step in steps if step >= steps[-1] / 30] or steps[-5:]
    return [steps[0], *late_steps[-4:]] if steps[0] not in late_steps[-4:] else late_steps[-5:]


def sink_maps(results: Results, options: Options) -> Drawn:
    """Draw attention to the first key per layer and head from the first checkpoint to the last, by input
    set.
    """
    heads = sinks(results)
    names = list(dict.fromkeys(heads["series"]))
    steps = _shown_steps(heads)
    tables = [[where(heads, series=name, step=step) for step in steps] for name in names]
    for row, name in zip(tables, names, strict=True):
        if row[-1].empty:  # a model of no step is what training ends with
            row[-1] = last_step(where(heads, series=name))
    top = highest(
        [layer_head_table(rows, "sink_share").to_numpy() for row in tables for rows in row if len(rows)]
    )
    layers, width = heads["layer"].nunique(), heads["head"].nunique()
    cell = min(0.82 * options.width / len(steps) / width, 0.35)
    figure, axes = panels(
        len(names),
        len(steps),
        height=len(names) * (cell * layers + 0.3) + 0.35,
        width=float(np.clip(len(steps) * width * cell / 0.82 + 0.5, min(2.6, options.width), options.width)),
        narrowest=0.6,
    )
    norm, legible = Normalize(0, max(top, 1e-6)), cell >= LEGIBLE and layers * width <= 48
    for axes_row, row, name in zip(axes, tables, names, strict=True):
        first = next(place for place, rows in enumerate(row) if len(rows))
        for place, (ax, rows) in enumerate(zip(axes_row, row, strict=True)):
            if rows.empty:
                ax.set_axis_off()
                continue
            layer_head_map(rows, "sink_share", ax=ax, norm=norm, colorbar=False, numbers=legible)
            step = rows["step"].iloc[0]
            when = f"step {step}" if step >= 0 else ""
            series_label = name if len(names) > 1 and place == first else ""
            ax.set_title(", ".join(word for word in (series_label, when) if word))
            below = tables[names.index(name) + 1 :]
            if place > first:
                ax.tick_params(labelleft=False)
                ax.set_ylabel("")
            if any(len(rows_below[place]) for rows_below in below):
                ax.tick_params(labelbottom=False)
                ax.set_xlabel("")
    uniform = uniform_value(heads, optional(results, "baselines"), "sink_share")
    shared_colorbar(figure, figure.axes, norm, axis_label("sink_share"), uniform)
    rows_are = f", one row per {series_noun(heads)}" if len(names) > 1 else ""
    columns_are = ", one column per checkpoint" if len(steps) > 1 else ""
    return captioned(
        figure,
        f"Attention to the first key per layer and head{rows_are}{columns_are}.",
        marked(figure, heads),
    )


def persistence(results: Results, options: Options) -> Drawn:
    """Draw persistence diagrams and Betti curves of the heads that attend most and least to the first key.

    Both are heads of one sample: among the samples with the bars of two heads, the one with the strongest.
    """
    bars, heads, keys = require_table(results, "bars", *BARS), last_step(sinks(results)), MAP_KEYS
    bars = where(bars, protocol="exact") if "protocol" in bars else bars
    bars = bars[bars[["birth", "death"]].notna().all(axis=1)]
    with_bars = heads.merge(bars[keys].drop_duplicates(), on=keys).dropna(subset="sink_share")
    if with_bars.empty:
        raise NotDrawable("no bars of single heads at the last checkpoint were stored")
    text_keys = [*CHECKPOINT_KEYS, "sample"]
    with_bars = with_bars[with_bars.groupby(text_keys)["sink_share"].transform("size") > 1]
    if with_bars.empty:
        raise NotDrawable("no sample has the bars of two heads to hold against each other")
    strongest = with_bars.loc[with_bars["sink_share"].idxmax()]
    with_bars = where(with_bars, **strongest[text_keys])
    chosen = [strongest, with_bars.loc[with_bars.drop(index=strongest.name)["sink_share"].idxmin()]]
    figure, axes = panels(2, 2, height=4.3, width=min(5.4, options.width))
    for axes_row, row in zip(axes, chosen, strict=True):
        bars_of_head = where(bars, **row[keys])
        persistence_diagram(bars_of_head, ax=axes_row[0])
        betti_curve(bars_of_head, ax=axes_row[1])
        name = f"L{row['layer']}H{row['head']}, first key {row['sink_share']:.2f}"
        axes_row[0].set_ylabel(f"{name}\ndeath", linespacing=1.5)
    of_model = f" of {strongest['model']}" if heads["model"].nunique() > 1 else ""
    return captioned(
        figure,
        f"Among the heads whose bars are stored, those of sample {strongest['sample']}{of_model} that attend "
        "most and least to the first key: births and deaths of components and loops, and Betti numbers while "
        "the threshold falls.",
    )


def frame_shares(evidence: pd.DataFrame, ax: Axes) -> None:
    """Draw the share of the most frequent sink in each third of the layers, by position and by token."""
    thirds = [third for third in ("early", "middle", "late") if (evidence["third"] == third).any()] or ["all"]
    shares = evidence.pivot_table(index="third", columns="kind", values="top_1", dropna=False).reindex(thirds)
    # of two names at one place the higher share's is above
    above = [
        "token" if third.get("token", 0) > third.get("position", 0) else "position"
        for _, third in shares.iterrows()
    ]
    for place, (kind, label) in enumerate((("position", "by position"), ("token", "by token"))):
        rows = where(evidence, kind=kind).set_index("third").reindex(thirds)
        # both lines can run through the same points
        offsets = np.arange(len(thirds)) + 0.05 * (2 * place - 1)
        ax.plot(
            offsets,
            rows["top_1"],
            label=label,
            color=PALETTE[place],
            marker="os"[place],
            linestyle=DASHES[place] if not place else (0, (4, 1.5)),
            markersize=4,
            zorder=3,
        )
        for x, (_, row) in enumerate(rows.iterrows()):
            if isinstance(row.get("top"), str) and np.isfinite(row["top_1"]):
                name = f"key {row['top']}" if kind == "position" else f"“{printable(row['top'])}”"
                ax.annotate(
                    name,
                    (offsets[x], row["top_1"]),
                    xytext=(0, 5 if above[x] == kind else -5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if above[x] == kind else "top",
                    fontsize=6,
                    color=PALETTE[place],
                    zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
                )
    ax.axhline(0.8, color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.0, zorder=1, gid="centralized")
    ax.set_xticks(range(len(thirds)), thirds)
    # room for the names of low and of high shares
    ax.set(xlim=(-0.35, len(thirds) - 0.65), ylim=(-0.09, 1.16), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.set_ylabel("share of the most frequent sink")


def frames(results: Results, options: Options) -> Drawn:
    """Draw the share of the most frequent sink in each third of the layers, by position and by token; the
    verdict.
    """
    evidence = require_table(results, "frame_evidence", "group", "protocol", "kind", "third", "top_1")
    verdicts = require_table(results, "frames", "group", "protocol", "frame", "token_frame")
    evidence, verdicts = (
        where(table, group="all") if (table["group"] == "all").any() else table
        for table in (last_step(evidence).dropna(subset="top_1"), last_step(verdicts))
    )
    case = ["model", "protocol"]
    shares = dict(iter(evidence.groupby(case)))
    rows = verdicts.drop_duplicates(case).set_index(case, drop=False)
    cases = [
        (model, protocol)
        for model in list(dict.fromkeys(verdicts["model"]))[:3]
        for protocol in PROTOCOL_NAMES
        if (model, protocol) in shares and (model, protocol) in rows.index
    ]
    if not cases:
        raise NotDrawable("no verdict on a frame has its evidence stored")
    has_both = len({protocol for _, protocol in cases}) > 1
    width = min(options.width, 2.6 * min(len(cases), 2) + 0.6)
    figure, (axes,) = panels(1, len(cases), most=2, height=2.45, above=0.3, width=width)
    for ax, (model, protocol) in zip(axes, cases, strict=True):
        frame_shares(shares[model, protocol], ax)
        row = rows.loc[(model, protocol)]
        named = [str(model)] if verdicts["model"].nunique() > 1 or not has_both else []
        named += [PROTOCOL_NAMES[protocol]] if has_both else []
        probability = row.get("probability", np.nan)
        certain = f" ({probability:.0%})" if pd.notna(probability) else ""
        frame = row["frame"] if isinstance(row["frame"], str) else "unknown"
        of_tokens = row["token_frame"] if isinstance(row["token_frame"], str) else "–"
        ax.set_title(f"{', '.join(named)}: {frame}{certain}\nby token: {of_tokens}")
        ax.set_xlabel("third of the layers" if len(ax.get_xticks()) > 1 else "")
    for ax in axes[1::2]:
        ax.set_ylabel("")
    legend_row(figure)
    return captioned(
        figure,
        "Share of the most frequent sink by position and by token; dotted: the bound of a centralized frame. "
        "Titles: the frame by position, with the share of resampled texts that give it, and by token.",
        "The published computation stands beside the exact one." if has_both else "",
    )
