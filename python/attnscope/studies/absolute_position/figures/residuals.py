# SPDX-License-Identifier: MIT
"""Mask and residual over depth and heads: how much of a change along the text each of them is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, TwoSlopeNorm

from attnscope.errors import NotDrawable
from attnscope.plots.axes import layers_below
from attnscope.plots.figure import Drawn, Options, Results, captioned, optional, require_table, with_values
from attnscope.plots.panels import Panels, layer_line, level_line, sparse_ticks
from attnscope.plots.selection import final, first_model, last_step
from attnscope.plots.style import (
    INK,
    MUTED,
    NULL_LINES,
    PALETTE,
    SEQUENTIAL,
    legend_over,
    named_artists,
    panels,
)
from attnscope.studies.absolute_position.figures.declared import ARMS, figure
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.tables import ResidualOfHead
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.number_text import estimate_text, rounded
from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import where


@figure("offset_means")
def position_balance(results: Results, options: Options) -> Drawn:
    """Draw the effects of the mask and of the residual stream on attention at one offset, over depth."""
    table, subject = first_model(results, "offset_means", "mask", "residual")
    table = where(table, arm="base", input="windows")
    shown = where(table, offset=(1, 4, 16)).sort_values("offset", kind="stable")
    if shown.empty:
        raise NotDrawable("the windows are too short for an offset to have three queries")
    drawn = Panels.by(shown, "offset", options, height=2.5, panel_width=2.3, margin=0.6)
    parts = {
        "mask": ("mask: Var Λᴹ", PALETTE[0], "-"),
        "residual": ("residual: Var ρ", PALETTE[1], "-"),
        "cross": ("−2 Cov(Λᴹ, ρ)", PALETTE[2], "--"),
    }
    for offset, (ax, rows) in zip(drawn.names, drawn.rows(shown), strict=True):
        for column, (label, color, dash) in parts.items():
            ends = (f"{column}_low", f"{column}_high")
            band = 0.15 if ends[0] in rows else 0.0
            layer_line(ax, rows, label, color, dash, column=column, ends=ends, band=band, clip_on=False)
        level_line(ax, 0)
        # all panels have the scale that the whole figure needs
        _signed(ax, shown[list(parts)], shown["residual_high"] - shown["residual_low"])
        ax.set_title(f"offset {offset}")
        ax.margins(x=0.06)
        layers_below(ax)
    drawn.axes[0].set_ylabel("variance along the text (nats²)")
    legend_over(drawn.figure, named_artists(drawn.axes[:1]))
    return drawn.captioned(
        "Variance of mean log attention over queries at one offset, split into what the mask does, what the "
        "residual does, and their covariance; means over heads. Bands: 95 % intervals (jackknife over "
        "groups of "
        "texts); dashed: 0, where the residual of layer 0 belongs.",
        subject,
    )


def _signed(ax: Axes, values: pd.DataFrame, widths: pd.Series[float]) -> None:
    """Make an axis logarithmic beyond the noise where values reach far beyond it; linear otherwise."""
    largest, noise = np.nanmax(np.abs(values.to_numpy())), float(widths.median()) / 2
    if noise > 0 and largest > 30 * noise:
        ax.set_yscale("symlog", linthresh=10.0 ** np.ceil(np.log10(noise)), linscale=1.0)


@figure("layer_means")
def residual_depth(results: Results, options: Options) -> Drawn:
    """Draw the residual as attention feels it, and the distance that it moves attention, over depth."""
    table, subject = first_model(results, "layer_means", "felt", "moved_tv")
    table = where(table, queries="early")
    control = optional(results, "controls")
    control = None if control is None else where(control, model=table["model"].unique(), queries="early")
    figure_, axes = panels(1, 2, height=2.7, width=options.width, narrowest=2.0)
    for ax, column, title in zip(
        axes[0],
        ("felt", "moved_tv"),
        ("felt residual (nats²)", "moved attention\n(total variation)"),
        strict=True,
    ):
        for (arm, kind), (label, color, dash) in ARMS.items():
            rows = where(table, arm=arm, input=kind)
            if rows.empty or rows[column].isna().all():
                continue
            band = 0.12 if column == "felt" and kind == "windows" else 0.0
            ends = ("felt_low", "felt_high")
            layer_line(ax, rows, label, color, dash, column=column, ends=ends, band=band)
        if column == "moved_tv":
            floor = where(table, arm="base", input="windows")
            ax.fill_between(
                floor["layer"],
                0,
                floor["moved_floor"],
                color=MUTED,
                alpha=0.25,
                linewidth=0,
                label="floor: noise alone",
            )
        if control is not None and control[column].notna().any():
            rows_of_controls = control.groupby("layer")[column].mean()
            ax.plot(
                rows_of_controls.index,
                rows_of_controls,
                label="random weights",
                **NULL_LINES["random_weights"],
            )
        level_line(ax, 0)
        if column == "felt":
            _signed(ax, table[["felt"]], table["felt_high"] - table["felt_low"])
        ax.set_ylabel(title)
        layers_below(ax)
    legend_over(figure_, named_artists(axes[0][1:]))
    return captioned(
        figure_,
        "Early queries, means over heads. First panel: unbiased variance of the residual under the mask's "
        "attention (bands: 95 % intervals; 0 dashed). Second panel: distance of early body attention to what "
        "the mask alone makes of late attention; what does not rise above the grey floor is noise.",
        subject,
    )


@figure("position")
def residual_maps(results: Results, options: Options) -> Drawn:
    """Draw residual and advantage of key 0 of every head."""
    table, subject = first_model(results, "position", "residual", "sink_advantage", "p_adjusted")
    table = where(table, queries="early", arm="base", input="windows")
    titles = {"residual": "residual (nats²)", "sink_advantage": "advantage of key 0 (nats)"}
    columns = with_values(table, "position", tuple(titles))
    alpha = stored_options(results, PositionOptions).alpha
    tested = table[table["p_adjusted"].notna() & table["residual"].notna()]
    certain = tested[tested["p_adjusted"] <= alpha]
    layers, heads = table["layer"].nunique(), table["head"].nunique()
    height = min(6.5, 1.3 + 0.24 * layers)
    width = min(options.width, 2.4 + 0.5 * heads)
    figure_, axes = panels(1, len(columns), height=height, width=width)
    for ax, column in zip(axes[0], columns, strict=True):
        grid = table.pivot_table(index="layer", columns="head", values=column)
        largest = float(np.nanmax(np.abs(grid.to_numpy()))) or 1.0
        if column == "residual":
            # the size of a negative estimate is no end of a scale of what is above 0
            largest = max(float(np.nanmax(grid.to_numpy())), 0.0) or largest
            norm: Any = LogNorm(largest / 1000, largest)
            shown, cmap = grid.clip(lower=largest / 1000), SEQUENTIAL
        else:
            norm, shown, cmap = TwoSlopeNorm(0, -largest, largest), grid, "RdBu_r"
        image = ax.imshow(shown, aspect="auto", cmap=cmap, norm=norm, interpolation="nearest")
        if column == "residual":
            _dots(ax, certain, list(grid.index), list(grid.columns))
        ax.set_title(titles[column])
        ax.set_xlabel("head")
        sparse_ticks(ax.set_xticks, grid.columns)
        sparse_ticks(ax.set_yticks, grid.index, most=12)
        figure_.colorbar(image, ax=ax, shrink=0.9)
    axes[0][0].set_ylabel("layer")
    return captioned(
        figure_,
        f"Dots: heads whose residual is above 0 (sign flips of groups of texts, Benjamini–Hochberg, "
        f"{alpha:g}): {len(certain)} of {len(tested)}. What is negative or below a thousandth of the largest "
        "has the darkest colour."
        if "residual" in columns
        else "No head has a residual.",
        subject,
    )


def _dots(ax: Axes, table: pd.DataFrame, layers: list[Any], heads: list[Any]) -> None:
    """Mark the heads of a table on a map of layers and heads."""
    x = [heads.index(head) for head in table["head"]]
    y = [layers.index(layer) for layer in table["layer"]]
    ax.scatter(x, y, s=9, color="white", edgecolor=INK, linewidth=0.6, zorder=3)


@figure("residual_maps", "position")
def score_split(results: Results, options: Options) -> Drawn:
    """Draw the head with the clearest residual: its profile over offsets, and its residual by query and
    key.
    """
    table, subject = first_model(results, "residual_maps", "mean", "profile")
    layer, head = int(table["layer"].iloc[0]), int(table["head"].iloc[0])
    position, _ = first_model(results, "position", "residual")
    rows = where(position, layer=layer, head=head, queries="early", arm="base", input="windows")
    if rows.empty:
        raise NotDrawable(f"there is no estimate of layer {layer}, head {head}")
    row_of_head = first_as(ResidualOfHead, rows)
    figure_, axes = panels(1, 2, height=2.9, width=options.width, narrowest=2.0)
    profile = table.assign(offset=table["query"] - table["key"]).groupby("offset")["profile"].first()
    ax = axes[0][0]
    ax.plot(profile.index, profile, color=PALETTE[0], marker="o", markersize=2.5)
    ax.set_xlabel("offset i − j")
    ax.set_ylabel("profile T (nats)")
    ax.set_title(f"profile of layer {layer} head {head}")
    grid = table.pivot_table(index="query", columns="key", values="mean", dropna=False)
    largest = float(np.nanmax(np.abs(grid.to_numpy()))) or 1.0
    ax = axes[0][1]
    image = ax.imshow(
        grid,
        cmap="RdBu_r",
        norm=TwoSlopeNorm(0, -largest, largest),
        interpolation="nearest",
        aspect="auto",
        extent=(0.5, grid.columns.max() + 0.5, grid.index.max() + 0.5, grid.index.min() - 0.5),
    )
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.set_title("residual R (nats)")
    bar = figure_.colorbar(image, ax=ax, shrink=0.9)
    noise = float(max(row_of_head.plain - row_of_head.residual, 0.0)) ** 0.5
    for line in (-noise, noise):
        if abs(line) < largest:
            bar.ax.axhline(line, color=INK, linewidth=1.2)
    ends = (row_of_head.residual_low, row_of_head.residual_high)
    variance = estimate_text(row_of_head.residual, *ends, rounded)
    pattern = ": nothing of the picture is told from noise"
    if row_of_head.residual > 0:
        part = rounded(row_of_head.residual / row_of_head.plain, ".2f")
        pattern = f": the part of the picture that is pattern and not noise is their ratio, {part}"
    return captioned(
        figure_,
        "Mean over texts, row constants removed, key 0 left out; lines on the bar: the noise of a cell, "
        f"{rounded(noise)}. Unbiased variance {variance} nats², not corrected "
        f"for noise {rounded(row_of_head.plain)}{pattern}.",
        subject,
    )


#: Inches: a panel with names of encodings.
_NAMED = 2.1


@figure("layer_means", "encodings", "depth_slopes")
def encodings(results: Results, options: Options) -> Drawn:
    """Draw felt residual and moved attention by depth for each encoding, and the latter's slope."""
    table = final(results, "layer_means", "felt", "moved_tv", queries="early", arm="base", input="windows")
    slopes = require_table(results, "depth_slopes", "slope")
    slopes = where(slopes, measure="moved_l2")
    # a model that a check has ended has no slope
    names = slopes.set_index("model")["encoding"]
    names = names.reindex([model for model in dict.fromkeys(table["model"]) if model in names.index])
    if len(names) < 2:
        raise NotDrawable("the run has one model; encodings are compared between models")
    layers = last_step(require_table(results, "encodings", "layers")).set_index("model")["layers"]
    table = table.assign(depth=table["layer"] / (table["model"].map(layers) - 1).clip(lower=1))
    all_names = list(dict.fromkeys(names))
    shown = all_names[: len(PALETTE)]
    # names of encodings are next to the third panel
    narrow = options.width < 3 * _NAMED
    figure_, axes = panels(1, 3, height=2.2 if narrow else 3.0, width=options.width, narrowest=_NAMED)
    for at, name in enumerate(shown):
        rows = where(table, model=names.index[names == name])
        means = rows.groupby("depth")[["felt", "moved_tv", "moved_floor"]].mean()
        for ax, column in zip(axes[0], ("felt", "moved_tv"), strict=False):
            ax.plot(means.index, means[column], marker="o", markersize=3, color=PALETTE[at], label=name)
        axes[0][1].plot(means.index, means["moved_floor"], color=PALETTE[at], linewidth=0.7, linestyle=":")
        values = where(slopes, encoding=name)["slope"].dropna().to_numpy()
        place = np.full(len(values), at)
        axes[0][2].plot(values, place, "o", color=PALETTE[at], markersize=3, alpha=0.6)
        if len(values):
            axes[0][2].plot(values.mean(), at, "|", color=PALETTE[at], markersize=12)
    for ax, label in zip(
        axes[0], ("felt residual (nats²)", "moved attention\n(total variation)"), strict=False
    ):
        level_line(ax, 0)
        ax.set_xlabel("depth (share of the layers)")
        ax.set_ylabel(label)
    ax = axes[0][2]
    level_line(ax, 0, along="x")
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("slope of moved attention, squared")
    _signed(axes[0][0], table[["felt"]], table["felt_high"] - table["felt_low"])
    legend_over(figure_, named_artists(axes[0][:1]))
    return captioned(
        figure_,
        "Early queries, means over heads and trainings; dotted: the floor of moved attention. Right: slope "
        "on depth, a point each training, a line their mean. Models of different shape or data differ in "
        "more than their encoding.",
        left_out=[f"encoding {name}" for name in all_names[len(PALETTE) :]],
    )
