# SPDX-License-Identifier: MIT
"""The figure of sinks and entropy over positions of long texts, from profiles that no map was needed for."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.plots.axes import axis_label, layer_colors
from attnscope.plots.figure import Drawn, Options, Results, captioned, with_values
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, legend_over, named_artists, panels

#: Columns of the profiles, with what has their positions and how their axis is scaled.
_PANELS = (
    ("sink_share", "query", "log"),
    ("entropy", "query", "linear"),
    ("incoming_attention", "key", "log"),
)


def positions(results: Results, options: Options) -> Drawn:
    """Draw the share of the first key and entropy by query, and incoming attention by key, a line per
    layer.
    """
    names = [name for name, _, _ in _PANELS]
    columns = ("position", "last_position", "layer", *names)
    profiles, others = first_model(results, "position_profiles", *columns)
    profiles = profiles[profiles["last_position"] >= profiles["position"]]
    # a logarithmic axis has no place for 0
    above = {name: profiles[name].where(profiles[name] > 0) for name, _, scale in _PANELS if scale == "log"}
    place = np.sqrt(profiles["position"] * profiles["last_position"])
    profiles = profiles.assign(place=place, **above)
    names = with_values(profiles, "position_profiles", names)
    layers = sorted(profiles["layer"].unique())
    figure, (axes,) = panels(1, len(names), height=2.5, width=options.width)
    for ax, (name, kind, scale) in zip(axes, [panel for panel in _PANELS if panel[0] in names], strict=True):
        means = profiles.groupby(["layer", "place"], sort=True)[name].mean()
        for layer, color in zip(layers, layer_colors(len(layers)), strict=True):
            line = means.loc[layer]
            ax.plot(line.index, line.to_numpy(), color=color, linewidth=1.2, label=f"layer {layer}")
        _draw_uniform(ax, profiles, name)
        ax.set(xscale="log", yscale=scale, xlabel=f"position of the {kind}", ylabel=axis_label(name))
    named = named_artists(axes)
    shown = [layers[0], layers[len(layers) // 2], layers[-1]] if len(layers) > 4 else layers
    labels = [*(f"layer {layer}" for layer in shown), "uniform attention"]
    legend_over(figure, {label: named[label] for label in labels})
    return captioned(
        figure,
        "Share of the first key and entropy of queries, and mean attention that keys receive, by position; a "
        "line per layer is the mean over its heads and the texts.",
        "Dashed: uniform causal attention of the longest text.",
        f"Drawn: {others}" if others else "",
    )


def _draw_uniform(ax: Axes, profiles: pd.DataFrame, name: str) -> None:
    """Draw uniform causal attention of the longest text."""
    place = np.unique(profiles["place"])
    n = int(profiles["last_position"].max())
    if name == "sink_share":
        values = 1 / place
    elif name == "entropy":
        values = np.log(place)
    else:
        tails = np.cumsum(1 / np.arange(n, 0, -1))[::-1]  # of 1/i over the queries from a key on
        key = np.clip(np.round(place).astype(int), 1, n)
        values = tails[key - 1] / (n - key + 1)
    ax.plot(place, values, color=MUTED, linestyle="--", linewidth=1.0, label="uniform attention")
