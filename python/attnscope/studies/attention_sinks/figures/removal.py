# SPDX-License-Identifier: MIT
"""Heads and models without their sinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.plots.axes import depth_axis, series_colors
from attnscope.plots.figure import (
    Drawn,
    NotDrawable,
    Options,
    Tables,
    captioned,
    compared_with,
    stored,
    with_values,
)
from attnscope.plots.lines import draw_curve
from attnscope.plots.selection import estimate, in_series, last_step
from attnscope.plots.style import MUTED, axes_or_new, legend_row, panels, style
from attnscope.studies.attention_sinks.figures.declared import PROTOCOL_NAMES, figure
from attnscope.studies.attention_sinks.matched_keys import RANDOM

PERCENTILES = (80, 90, 95)
#: Which keys were masked, and how they are called.
ABLATED = {
    "sinks": "sinks",
    "control_sinks": "random, as many",
    "first": "first key",
    "control_first": "one random",
}


@style()
def kl_by_threshold(
    layers: pd.DataFrame,
    *,
    ax: Axes | None = None,
    protocol: str = "exact",
    colors: Any = None,
) -> Axes:
    """How much less heads differ once sinks are removed, over the percentile that makes a key a sink."""
    ax = axes_or_new(ax)
    own = layers[layers["protocol"] == protocol]
    colors = colors or series_colors(list(layers["series"]))
    named = {at: f"kl_reduction_{at}" for at in PERCENTILES}
    there = [at for at, column in named.items() if column in own and own[column].notna().any()]
    if not there:
        raise NotDrawable(f"the layers table has no {', '.join(named.values())}")
    for name in dict.fromkeys(own["series"]):
        rows = own[own["series"] == name]
        means = pd.concat([estimate(rows, named[at], ["series"]).assign(at=at) for at in there])
        if means["mean"].notna().any():
            draw_curve(ax, means["at"], means, str(name), colors[name], marker=True)
        random = [RANDOM.get(at, "") for at in there]
        if protocol == "exact" and set(random) <= set(rows) and rows[random].notna().any(axis=None):
            ax.plot(
                there, [rows[one].mean() for one in random], color=colors[name], linestyle=":", gid="random"
            )
    ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    ax.set_xticks(there)
    ax.set_xlim(min(there) - 2, max(there) + 2)
    ax.set_xlabel("percentile of a sink")
    ax.set_ylabel("reduction of KL (nats)")
    return ax


@figure("layers")
def sink_removal(results: Tables, options: Options) -> Drawn:
    """KL between heads without their sinks: over the sink percentile and over depth, both protocols."""
    layers = last_step(in_series(stored(results, "layers", "protocol"), results))
    there = with_values(layers, "layers", [f"kl_reduction_{at}" for at in PERCENTILES])
    kinds = [
        kind for kind in PROTOCOL_NAMES if layers[layers["protocol"] == kind][there].notna().any(axis=None)
    ]
    colors = series_colors(list(layers["series"]))
    by_layer = {
        kind for kind in kinds
        if "kl_reduction_90" in there and layers[layers["protocol"] == kind]["kl_reduction_90"].notna().any()
    }  # fmt: skip
    figure_, axes = panels(1, len(kinds) + len(by_layer), height=2.2, width=options.width, sharey=True)
    free = iter(axes[0])
    for number, protocol in enumerate(kinds):
        over = next(free)
        kl_by_threshold(layers, ax=over, protocol=protocol, colors=colors)
        # two protocols leave room for no more than their names
        over.set_title(PROTOCOL_NAMES[protocol] if len(kinds) > 1 else "ΔKL by percentile")
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
        where = "keys ≥ 90th percentile"
        depth.set_title(
            f"{PROTOCOL_NAMES[protocol]}, {where}" if len(kinds) > 1 else f"ΔKL by layer, {where}"
        )
    legend_row(figure_, colors)
    return captioned(
        figure_,
        "How much closer heads come to their mean when sink keys are removed and rows renormalised, over the "
        "percentile that makes a key a sink (mean over layers)"
        + (" and by layer at the 90th." if by_layer else "."),
        "Positive: heads differ less without sinks."
        + (" Dotted: without as many random keys." if "exact" in kinds else ""),
        "The published computation stands beside the exact one."
        if len(kinds) > 1
        else "By the published computation."
        if kinds == ["ruscio2025"]
        else "",
        compared_with(figure_),
    )


#: Inches: the room that the name of a kind of keys takes beside others.
NAMED = 0.85


@figure("ablation")
def ablation(results: Tables, options: Options) -> Drawn:
    """Sink keys masked inside the model: divergence of its output and change of its loss."""
    table = last_step(in_series(stored(results, "ablation", "keys"), results))
    words = {
        "output_kl": ("KL of the output (nats)", "divergence of the next-token distributions"),
        "loss_change": ("change of loss (nats)", "change of the loss"),
    }
    shown = [column for column in words if column in table and table[column].notna().any()]
    if not shown:
        raise NotDrawable("the ablation table has no value")
    names = list(dict.fromkeys(table["series"]))
    colors = series_colors(names)
    figure_, axes = panels(1, len(shown), height=2.3, width=min(options.width, 2.9 * len(shown) + 0.4))
    kinds = [kind for kind in ABLATED if (table["keys"] == kind).any()]
    for ax, column in zip(axes[0], shown, strict=True):
        for place, series in enumerate(names):
            means = (
                estimate(table[table["series"] == series], column, ["keys"]).set_index("keys").reindex(kinds)
            )
            x = np.arange(len(kinds)) + 0.16 * (place - (len(names) - 1) / 2)
            mean = means["mean"].to_numpy(float)
            spread = np.vstack([mean - means["low"].to_numpy(float), means["high"].to_numpy(float) - mean])
            ax.errorbar(
                x, mean, yerr=np.nan_to_num(spread), fmt="o", markersize=4, color=colors[series],
                elinewidth=1.2, capsize=2.5, label=str(series), gid=f"ablation:{series}",
            )  # fmt: skip
        ax.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        ax.set_xticks(range(len(kinds)), [ABLATED[kind] for kind in kinds])
        if figure_.get_figwidth() / len(shown) / len(kinds) < NAMED:
            for name in ax.get_xticklabels():
                name.set(rotation=30, ha="right", rotation_mode="anchor")
        ax.set_xlim(-0.5, len(kinds) - 0.5)
        ax.set_xlabel("keys masked")
        ax.set_title(words[column][0])
    legend_row(figure_, colors)
    what = " and ".join(words[column][1] for column in shown)
    return captioned(
        figure_,
        f"Keys masked before the softmax in every layer and head of the model: {what}, mean over texts "
        "with 95 % intervals.",
        "Random: as many other visible keys near them, mean of five draws, where there are sinks."
        if any("control" in kind for kind in kinds)
        else "",
    )
