# SPDX-License-Identifier: MIT
"""The study's analyses beyond single maps: sink removal, value space, reference influence, Fisher, frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from attnscope.figures.lines import depth_axis, depth_profile, draw_curve, drawn_range, series_colors
from attnscope.figures.maps import printable
from attnscope.figures.protocols import PROTOCOL_NAMES
from attnscope.figures.quantities import quantity
from attnscope.figures.registry import (
    NotDrawable,
    Tables,
    figure,
    is_series,
    measured_heads,
    optional,
    over_layers,
    stored,
    with_values,
)
from attnscope.figures.selection import estimate, last_step, with_groups
from attnscope.figures.style import (
    DASHES,
    INK,
    MUTED,
    PALETTE,
    axes_or_new,
    captioned,
    compared_with,
    legend_row,
    panels,
    styled,
)

PERCENTILES = (80, 90, 95)
#: Which keys were masked, and how they are called.
ABLATED = {"sinks": "sinks", "first": "first key", "control": "as many others"}


@styled
def kl_by_threshold(
    layers: pd.DataFrame,
    *,
    ax: Axes | None = None,
    protocol: str = "exact",
    column: str = "kl_reduction_{}",
    colors: Any = None,
) -> Axes:
    """How much less heads differ once sinks are removed, over the percentile that makes a key a sink.

    Args:
        layers: the `layers` table at one step, with `series`.
        ax: axes to draw on; None makes them.
        protocol: whose rows.
        column: with a place for the percentile.
        colors: by series.

    Returns:
        The axes: a line per series, its data percentiles and means over samples and layers.

    Raises:
        NotDrawable: when there is no value at any percentile.
    """
    ax = axes_or_new(ax)
    own = layers[layers["protocol"] == protocol]
    colors = colors or series_colors(list(layers["series"]))
    there = [at for at in PERCENTILES if column.format(at) in own and own[column.format(at)].notna().any()]
    if not there:
        raise NotDrawable(f"the layers table has no {', '.join(column.format(at) for at in PERCENTILES)}")
    for name in dict.fromkeys(own["series"]):
        rows = own[own["series"] == name]
        means = pd.concat(
            [estimate(rows, column.format(at), ["series"]).assign(at=at) for at in there], ignore_index=True
        )
        if means["mean"].notna().any():
            draw_curve(ax, means["at"], means, str(name), colors[name], marker=True)
    ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    ax.xaxis.set_major_locator(FixedLocator(there))
    ax.set_xlim(min(there) - 2, max(there) + 2)
    ax.set_xlabel("percentile of a sink")
    ax.set_ylabel("reduction of KL (nats)")
    return ax


@figure
def sink_removal(results: Tables) -> Figure:
    """KL between heads without their sinks: over the sink percentile and over depth, both protocols."""
    layers = last_step(with_groups(stored(results, "layers", "protocol"), optional(results, "samples")))
    there = with_values(layers, "layers", [f"kl_reduction_{at}" for at in PERCENTILES])
    kinds = [
        kind for kind in PROTOCOL_NAMES if layers[layers["protocol"] == kind][there].notna().any(axis=None)
    ]
    colors = series_colors(list(layers["series"]))
    by_layer = {
        kind for kind in kinds
        if "kl_reduction_90" in there and layers[layers["protocol"] == kind]["kl_reduction_90"].notna().any()
    }  # fmt: skip
    figure_, axes = panels(1, len(kinds) + len(by_layer), height=2.2, sharey=True)
    free = iter(axes[0])
    for number, protocol in enumerate(kinds):
        over = next(free)
        kl_by_threshold(layers, ax=over, protocol=protocol, colors=colors)
        # two protocols leave room for no more than their names
        over.set_title(PROTOCOL_NAMES[protocol] if len(kinds) > 1 else "by percentile")
        if number:
            over.set_ylabel("")
        if protocol not in by_layer:
            continue
        depth = next(free)
        own = layers[layers["protocol"] == protocol]
        place = depth_axis(depth, layers)
        for name in dict.fromkeys(own["series"]):
            rows = estimate(own[own["series"] == name], "kl_reduction_90", ["layer"]).sort_values("layer")
            draw_curve(
                depth, place(name, rows["layer"]), rows, str(name), colors[name], marker=len(rows) < 50
            )
        depth.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        depth.set_title(f"{PROTOCOL_NAMES[protocol]}, 90th" if len(kinds) > 1 else "by layer, 90th")
    legend_row(figure_, axes[0], colors)
    return captioned(
        figure_,
        "How much closer heads come to their mean when sink keys are removed and rows renormalised, over the "
        "percentile that makes a key a sink (mean over layers)"
        + (" and by layer at the 90th." if by_layer else "."),
        "Positive: heads differ less without sinks.",
        "The published computation stands beside the exact one."
        if len(kinds) > 1
        else "By the published computation."
        if kinds == ["ruscio2025"]
        else "",
        compared_with(figure_),
    )


@figure
def ablation(results: Tables) -> Figure:
    """Sink keys masked inside the model: divergence of its output and change of its loss."""
    table = last_step(with_groups(stored(results, "ablation", "keys"), optional(results, "samples")))
    shown = [
        (column, label)
        for column, label in (
            ("output_kl", "KL of the output (nats)"),
            ("loss_change", "change of loss (nats)"),
        )
        if column in table and table[column].notna().any()
    ]
    if not shown:
        raise NotDrawable("the ablation table has no value")
    names = list(dict.fromkeys(table["series"]))
    colors = series_colors(names)
    figure_, axes = panels(1, len(shown), height=2.3, width=2.9 * len(shown) + 0.4)
    kinds = [kind for kind in ABLATED if (table["keys"] == kind).any()]
    for ax, (column, label) in zip(axes[0], shown, strict=True):
        for place, name in enumerate(names):
            means = (
                estimate(table[table["series"] == name], column, ["keys"]).set_index("keys").reindex(kinds)
            )
            x = np.arange(len(kinds)) + 0.16 * (place - (len(names) - 1) / 2)
            mean = means["mean"].to_numpy(float)
            spread = np.vstack([mean - means["low"].to_numpy(float), means["high"].to_numpy(float) - mean])
            ax.errorbar(
                x, mean, yerr=np.nan_to_num(spread), fmt="o", markersize=4, color=colors[name],
                elinewidth=1.2, capsize=2.5, label=str(name), gid=f"ablation:{name}",
            )  # fmt: skip
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        ax.set_xticks(range(len(kinds)), [ABLATED[kind] for kind in kinds])
        ax.set_xlim(-0.5, len(kinds) - 0.5)
        ax.set_xlabel("keys masked")
        ax.set_title(label)
    if len(names) > 1:
        legend_row(figure_, axes[0], colors)
    what = " and ".join({"output_kl": "divergence of the next-token distributions",
                         "loss_change": "change of the loss"}[column] for column, _ in shown)  # fmt: skip
    return captioned(
        figure_,
        f"Keys masked before the softmax in every layer and head of the model: {what}, mean over samples "
        "with 95 % intervals.",
        "The control masks as many other keys." if "control" in kinds else "",
    )


@figure
def alignment(results: Tables) -> Figure:
    """Alignment over depth: value vectors, hidden states, without sinks, and as published."""
    heads = measured_heads(results)
    wanted = (
        "alignment_value",
        "alignment_value_without_sinks",
        "alignment_hidden",
        "alignment_hidden_without_sinks",
    )
    there = with_values(last_step(heads), "heads", wanted)
    over_layers(heads)
    colors = series_colors(list(heads["series"]))
    drawn: list[tuple[str, str, pd.DataFrame]] = []
    for space, title in (("value", "values"), ("hidden", "states")):
        for ending, words in (("", ""), ("_without_sinks", ", no sinks")):
            if f"alignment_{space}{ending}" in there:
                drawn.append((f"alignment_{space}{ending}", title + words, heads))
    whole = stored(results, "heads")
    if "protocol" in whole and (whole["protocol"] == "ruscio2025").any():
        published = whole[(whole["protocol"] == "ruscio2025") & (whole["head"] == -1)]
        if "alignment_hidden" in published and last_step(published)["alignment_hidden"].notna().any():
            drawn.append(
                ("alignment_hidden", "as published", with_groups(published, optional(results, "samples")))
            )
    columns = min(len(drawn), 5)
    figure_, axes = panels(1, columns, height=2.1, sharey=True)
    baselines = optional(results, "baselines")
    for ax, (column, title, rows) in zip(axes[0], drawn, strict=False):
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
    legend_row(figure_, axes[0], colors, untrained="before training" if is_series(heads) else None)
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


@figure
def spectra(results: Tables) -> Figure:
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
    there = there[:4] if len(there) > 4 else there
    colors = series_colors(list(heads["series"]))
    figure_, axes = panels(1, len(there), height=2.1)
    for ax, column in zip(axes[0], there, strict=True):
        depth_profile(heads, column, ax=ax, colors=colors, baselines=optional(results, "baselines"))
        ax.set_title(quantity(column).label)
        ax.set_ylabel("")
        if column == "mp_over_edge":
            ax.axhline(1, color=MUTED, linewidth=0.6, zorder=1)
            ax.set_ylim(0, 1.06 * max(1.0, drawn_range(ax)[1]))
    legend_row(figure_, axes[0], colors, untrained="before training" if is_series(heads) else None)
    beside = compared_with(figure_)
    return captioned(
        figure_,
        f"By layer, mean over heads: {', '.join(quantity(column).label for column in there)}.",
        beside,
        "Shuffled rows keep each row's values and break their columns." if "shuffled" in beside else "",
    )


@figure
def reference(results: Tables) -> Figure:
    """Influence of the reference points over depth: share of the output, its direction, what they change."""
    heads = measured_heads(results)
    titles = {
        "reference_magnitude": "size of their part",
        "reference_directional": "its direction",
        "reference_information": "turn without them",
    }
    there = with_values(last_step(heads), "heads", list(titles))
    over_layers(heads)
    colors = series_colors(list(heads["series"]))
    whole = stored(results, "heads")
    published = pd.DataFrame()
    if "protocol" in whole:
        published = whole[(whole["protocol"] == "ruscio2025") & (whole["head"] == -1)]
    rows = [heads]
    if len(published) and last_step(published)[there].notna().any(axis=None):
        rows.append(with_groups(published, optional(results, "samples")))
    figure_, axes = panels(len(rows), len(there), height=1.75 * len(rows) + 0.4)
    for number, (axes_row, table) in enumerate(zip(axes, rows, strict=True)):
        for ax, column in zip(axes_row, there, strict=True):
            depth_profile(table, column, ax=ax, colors=colors)
            ax.set_title(titles[column] if not number else "")
            ax.set_ylabel("")
            if number < len(rows) - 1:
                ax.set_xlabel("")
        if len(rows) > 1:
            axes_row[0].set_ylabel("as published" if number else "exact, single heads")
    legend_row(
        figure_, [ax for row in axes for ax in row], colors,
        untrained="before training" if is_series(heads) else None,
    )  # fmt: skip
    if len(rows) > 1:
        words = (
            "By layer: single heads with their value vectors (top), and the published computation on the "
            "head mean and hidden states (bottom); its scales differ."
        )
    else:
        words = "By layer: single heads with their value vectors."
    return captioned(figure_, words, compared_with(figure_))


GROUPS = ("attention", "mlp", "norm", "embedding")
GROUP_NAMES = {"mlp": "MLP"}


@styled
def fisher_profile(fisher: pd.DataFrame, *, column: str = "trace", ax: Axes | None = None) -> Axes:
    """The trace of the Fisher information over depth, one line per group of parameters.

    Args:
        fisher: rows of one series and protocol.
        column: `trace`, `trace_per_parameter` or `trace_sampled`.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: a line per group of the blocks (means over samples), and a level for what lies outside.
    """
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
                    value,
                    color=color,
                    linestyle=(0, (5, 2)),
                    linewidth=1.0,
                    label=GROUP_NAMES.get(name, name),
                    gid=f"outside:{name}",
                )
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    wide = high > 300 * low
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("layer")
    ax.set_ylabel("trace")
    return ax


def power(value: float) -> str:
    """A tick of a logarithmic axis: plain where that is short, a power of ten elsewhere.

    Args:
        value: positive.

    Returns:
        Text.

    >>> power(0.5), power(200.0), power(2e-6), power(1e7)
    ('0.5', '200', '2e−6', '1e7')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}".replace("-", "−")


@figure
def fisher(results: Tables) -> Figure:
    """Fisher information by block and kind of parameters: as published, exact, and per parameter."""
    table = last_step(
        with_groups(
            stored(results, "fisher", "protocol").rename(columns={"group": "part"}),
            optional(results, "samples"),
        )
    )
    table = table.rename(columns={"group": "input", "part": "group"})
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
    figure_, axes = panels(len(names), len(shown), height=1.85 * len(names) + 0.35)
    for number, (axes_row, name) in enumerate(zip(axes, names, strict=True)):
        own = table[table["series"] == name]
        for ax, (protocol, column, title) in zip(axes_row, shown, strict=True):
            fisher_profile(own[own["protocol"] == protocol], column=column, ax=ax)
            ax.set_title("" if number else title)
            ax.set_ylabel("")
            if number < len(names) - 1:
                ax.set_xlabel("")
        axes_row[0].set_ylabel(f"{name}\ntrace of Fisher" if len(names) > 1 else "trace of Fisher")
    legend_row(figure_, [ax for row in axes for ax in row])
    ids = [str(line.get_gid()) for row in axes for ax in row for line in ax.get_lines()]
    return captioned(
        figure_,
        "Trace by block on a logarithmic scale, mean over samples.",
        "Dashed levels: what lies outside the blocks."
        if any(one.startswith("outside:") for one in ids)
        else "",
        compared_with(figure_),
    )


@styled
def frame_shares(evidence: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """The share of the commonest sink in each third of the layers, by position and by token.

    Args:
        evidence: rows of `frame_evidence` of one model, step and protocol.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: a line by position and one by token, and the threshold of a centralized frame.
    """
    ax = axes_or_new(ax)
    thirds = [third for third in ("early", "middle", "late") if (evidence["third"] == third).any()] or ["all"]
    shares = evidence.pivot_table(index="third", columns="kind", values="top_1", dropna=False).reindex(thirds)
    # of two names at one place the higher share's stands above
    above = [
        "token" if one.get("token", 0) > one.get("position", 0) else "position"
        for _, one in shares.iterrows()
    ]
    for place, (kind, label) in enumerate((("position", "by position"), ("token", "by token"))):
        rows = evidence[evidence["kind"] == kind].set_index("third").reindex(thirds)
        ax.plot(
            range(len(thirds)), rows["top_1"], label=label, color=PALETTE[place], marker="os"[place],
            linestyle=DASHES[place] if not place else (0, (4, 1.5)), markersize=4, zorder=3,
        )  # fmt: skip
        for x, (_, row) in enumerate(rows.iterrows()):
            if isinstance(row.get("top"), str) and np.isfinite(row["top_1"]):
                name = f"key {row['top']}" if kind == "position" else f"“{printable(row['top'])}”"
                ax.annotate(
                    name, (x, row["top_1"]), xytext=(0, 5 if above[x] == kind else -5),
                    textcoords="offset points", ha="center", va="bottom" if above[x] == kind else "top",
                    fontsize=6, color=PALETTE[place],
                )  # fmt: skip
    ax.axhline(0.8, color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.0, zorder=1, gid="centralized")
    ax.set_xticks(range(len(thirds)), thirds)
    ax.set_xlim(-0.35, len(thirds) - 0.65)
    # room for the names of low shares
    ax.set_ylim(-0.09, 1.08)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.set_ylabel("share of the commonest sink")
    return ax


@figure
def frames(results: Tables) -> Figure:
    """Reference frames: share of the commonest sink in each third, by position and by token; the verdict."""
    evidence = stored(results, "frame_evidence", "group", "protocol", "kind", "third", "top_1")
    verdicts = stored(results, "frames", "group", "protocol", "frame", "token_frame")
    evidence, verdicts = last_step(evidence), last_step(verdicts)
    evidence = evidence[evidence["top_1"].notna()]
    whole = [
        frame[frame["group"] == "all"] if (frame["group"] == "all").any() else frame
        for frame in (evidence, verdicts)
    ]
    evidence, verdicts = whole
    cases = [
        (model, protocol)
        for model in list(dict.fromkeys(verdicts["model"]))[:3]
        for protocol in ("exact", "ruscio2025")
        if all(
            ((table["model"] == model) & (table["protocol"] == protocol)).any()
            for table in (verdicts, evidence)
        )
    ]
    if not cases:
        raise NotDrawable("no verdict on a frame has its evidence stored")
    several = verdicts["model"].nunique() > 1
    columns = min(len(cases), 4)
    rows = -(-len(cases) // columns)
    figure_, axes = panels(rows, columns, height=2.45 * rows + 0.3, width=min(7.0, 2.6 * columns + 0.6))
    flat = [ax for row in axes for ax in row]
    for ax, (model, protocol) in zip(flat, cases, strict=False):
        own = evidence[(evidence["model"] == model) & (evidence["protocol"] == protocol)]
        frame_shares(own, ax=ax)
        row = verdicts[(verdicts["model"] == model) & (verdicts["protocol"] == protocol)].iloc[0]
        both = len({protocol for _, protocol in cases}) > 1
        if both:
            ax.set_title(f"{model}, {PROTOCOL_NAMES[protocol]}" if several else PROTOCOL_NAMES[protocol])
        else:
            ax.set_title(str(model))
        probability = row.get("probability", np.nan)
        certain = f", {probability:.0%}" if pd.notna(probability) else ""
        frame, of_tokens = (
            row[name] if isinstance(row[name], str) else "unknown" for name in ("frame", "token_frame")
        )
        ax.set_xlabel(f"position: {frame}{certain}\ntoken: {of_tokens}", color=INK)
    for ax in flat[len(cases) :]:
        ax.set_axis_off()
    for place, ax in enumerate(flat[: len(cases)]):
        if place % columns:
            ax.set_ylabel("")
    legend_row(figure_, flat[: len(cases)])
    return captioned(
        figure_,
        "Share of the commonest sink by position and by token; dotted: the bound of a centralized frame.",
        "The published computation stands beside the exact one."
        if len({protocol for _, protocol in cases}) > 1
        else "",
    )
