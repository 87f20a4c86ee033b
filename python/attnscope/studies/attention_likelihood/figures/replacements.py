# SPDX-License-Identifier: MIT
"""Figures of replacements: the effect of their likelihood, the attention budget, and single heads."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from attnscope.errors import NotDrawable
from attnscope.plots.axes import layers_below
from attnscope.plots.figure import Drawn, Options, Results, optional
from attnscope.plots.panels import ModelPanels, diverging, level_line, sparse_ticks
from attnscope.plots.selection import final
from attnscope.plots.style import INK, NULL_LINES, PALETTE, legend_columns, legend_over, named_artists
from attnscope.studies.attention_likelihood.claims import least_likely
from attnscope.studies.attention_likelihood.figures.declared import figure
from attnscope.study_api.selection import where, without

#: Colour and marker of the layers that a line is a mean over: thirds of the depth, where there are as many.
LAYERS = {
    "first third": (PALETTE[0], "o"),
    "middle third": (PALETTE[1], "s"),
    "last third": (PALETTE[2], "^"),
    "all layers": (PALETTE[3], "D"),
}
#: Parts of a row's attention, in the order in which they are stacked.
PARTS = {"share": "the word itself", "special": "special tokens", "context": "the rest"}


@figure("shifts")
def dose(results: Results, options: Options) -> Drawn:
    """Draw the change of the share by the loss of likelihood, a line for each third of the depth."""
    columns = ("difference", "log_likelihood_difference")
    table = without(final(results, "shifts", *columns, protocol="exact", measure="share"), mode="swap")
    if table["difference"].isna().all():
        raise NotDrawable("no replacement was measured")
    control = optional(results, "controls")
    drawn = ModelPanels.of(table, options, "change of the share", height=2.8, narrowest=2.0, sharey=True)
    for ax, rows_of_model in drawn.rows(table):
        _draw_thirds(ax, rows_of_model)
        untrained = (
            pd.DataFrame() if control is None else where(control, model=rows_of_model["model"].iloc[0])
        )
        untrained = where(untrained, design="shift") if len(untrained) else untrained
        named = rows_of_model.groupby("mode")["log_likelihood_difference"].first().sort_values()
        if len(untrained):
            means = untrained.groupby("mode")["estimate"].mean().reindex(named.index)
            ax.plot(named, means, label="random weights, all layers", **NULL_LINES["random_weights"])
        if len(drawn.names) == 1:
            _name_modes(ax, named)
        level_line(ax, 0)
        level_line(ax, 0, along="x")
        ax.set_xlabel("change of log-likelihood (nats)")
    artists = named_artists(drawn.axes)
    order_of_names = [*LAYERS, "random weights, all layers"]
    legend_over(drawn.figure, {name: artists[name] for name in order_of_names if name in artists}, 2)
    over = ["the layers of a third of the depth"] if "last third" in artists else []
    over += ["all layers of a model of fewer than three"] if "all layers" in artists else []
    return drawn.captioned(
        f"Each point is a mode of replacement, mean over texts and over {', or '.join(over)}, less the real "
        "word (0, 0), with the mean of the layers' 95 % intervals; from the left: "
        f"{_from_the_left(where(table, model=drawn.names))}.",
    )


def _from_the_left(table: pd.DataFrame) -> str:
    """Return the modes in the order of their points, by model where models order them differently."""
    orders = {}
    for model, rows in table.dropna(subset=["difference", "log_likelihood_difference"]).groupby(
        "model", sort=False
    ):
        means = rows.groupby("mode")["log_likelihood_difference"].mean().sort_values()
        orders[model] = ", ".join(map(str, means.index))
    if len(set(orders.values())) == 1:
        return next(iter(orders.values()))
    return "; ".join(f"{model}: {modes}" for model, modes in orders.items())


def _draw_thirds(ax: Axes, rows_of_model: pd.DataFrame) -> None:
    """Draw a line for each third of a model's layers, or for all layers where they are fewer than three."""
    layers = sorted(rows_of_model["layer"].unique())
    names = list(LAYERS)[:3] if len(layers) >= 3 else ["all layers"]
    part = rows_of_model["layer"].map(
        {layer: len(names) * at // len(layers) for at, layer in enumerate(layers)}
    )
    for at, name in enumerate(names):
        rows = rows_of_model[part == at].groupby("mode")
        shown = ["log_likelihood_difference", "difference", "low", "high"]
        rows = rows[[column for column in shown if column in rows_of_model]].mean()
        rows = rows.sort_values("log_likelihood_difference")
        color, marker = LAYERS[name]
        nats = rows["log_likelihood_difference"]
        ax.plot(
            nats,
            rows["difference"],
            "-",
            color=color,
            marker=marker,
            markersize=3.5,
            linewidth=1.0,
            label=name,
        )
        if {"low", "high"} <= set(rows):
            ax.vlines(nats, rows["low"], rows["high"], color=color, linewidth=0.8)


def _name_modes(ax: Axes, nats: pd.Series[float]) -> None:
    """Write the names of modes over their points, in two rows where they are close."""
    reach = float(nats.max() - min(nats.min(), 0.0)) or 1.0
    last, high = -math.inf, False
    for mode, place in nats.items():
        high = place - last < 0.08 * reach and not high
        last = float(place)
        ax.annotate(
            str(mode),
            (last, 1.12 if high else 1.01),
            xycoords=("data", "axes fraction"),
            fontsize=6.0,
            ha="left",
            va="bottom",
            color=INK,
            rotation=40,
        )


@figure("shifts")
def attention_budget(results: Results, options: Options) -> Drawn:
    """Draw the attention of real and of least likely words: to the word, special tokens, the rest."""
    table = final(results, "shifts", "difference", "real", protocol="exact", measure=PARTS)
    if table["real"].isna().all():
        raise NotDrawable("no word's attention was measured")
    drawn = ModelPanels.of(table, options, "share of the word's attention", sharey=True)
    modes = [least_likely(rows_of_model) for _, rows_of_model in drawn.rows(table)]
    are_alike = len(set(modes)) == 1
    for model, (ax, rows_of_model), mode in zip(drawn.names, drawn.rows(table), modes, strict=True):
        if not are_alike:
            ax.set_title(f"{model}: {mode}")
        rows_of_model = where(rows_of_model, mode=mode)
        layers = np.array(sorted(rows_of_model["layer"].unique()))
        grid = rows_of_model.pivot_table(index="layer", columns="measure", values=["real", "difference"])
        grid = grid.reindex(layers)
        for side, hatch in ((-0.2, ""), (0.2, "////")):
            bottom = np.zeros(len(layers))
            for at, part in enumerate(PARTS):
                if ("real", part) not in grid or ("difference", part) not in grid:
                    continue
                height = grid["real", part].to_numpy()
                height = height + (grid["difference", part].to_numpy() if hatch else 0.0)
                ax.bar(
                    layers + side,
                    height,
                    0.36,
                    bottom=bottom,
                    color=PALETTE[at],
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0.4,
                )
                bottom = bottom + np.nan_to_num(height)
        layers_below(ax)
        ax.set_ylim(0, 1.02)
    handles = [Patch(facecolor=PALETTE[at], label=f"to {name}") for at, name in enumerate(PARTS.values())]
    handles += [
        Patch(facecolor="white", edgecolor=INK, label="real word"),
        Patch(
            facecolor="white",
            edgecolor=INK,
            hatch="////",
            label=f"replaced ({modes[0]})" if are_alike else "replaced",
        ),
    ]
    columns = legend_columns(drawn.figure, [str(handle.get_label()) for handle in handles])
    drawn.figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize=6.5)
    return drawn.captioned(
        "Left bar of a pair: the real word; right, hatched: the least likely one in its place. The parts add "
        "up to a row of the map; what the word no longer gives itself goes where the others grow.",
    )


@figure("associations")
def likelihood_heads(results: Results, options: Options) -> Drawn:
    """Draw the correlation within texts of every head."""
    table = final(results, "associations", "estimate", "p_adjusted", protocol="exact", design="within")
    if table["estimate"].isna().all():
        raise NotDrawable("no head has a correlation")
    layers, heads = table["layer"].nunique(), table["head"].nunique()
    height, width = min(6.5, 1.4 + 0.24 * layers), 0.8 + 0.22 * heads
    drawn = ModelPanels.of(table, options, "layer", height=height, panel_width=width, margin=1.4)
    norm = diverging([table["estimate"]])
    for ax, rows_of_model in drawn.rows(table):
        grid = rows_of_model.pivot_table(index="layer", columns="head", values="estimate", dropna=False)
        image = ax.imshow(grid, aspect="auto", cmap="RdBu_r", norm=norm, interpolation="nearest")
        certain = rows_of_model[rows_of_model["p_adjusted"] <= 0.05]
        places = [list(grid.index), list(grid.columns)]
        ax.scatter(
            [places[1].index(head) for head in certain["head"]],
            [places[0].index(layer) for layer in certain["layer"]],
            s=7,
            color="white",
            edgecolor=INK,
            linewidth=0.5,
            zorder=3,
        )
        ax.set_xlabel("head")
        sparse_ticks(ax.set_xticks, grid.columns)
        sparse_ticks(ax.set_yticks, grid.index)
    drawn.figure.colorbar(image, ax=drawn.axes, shrink=0.9, label="ρ within texts")
    shown = where(table, model=drawn.names)
    count = int((shown["p_adjusted"] <= 0.05).sum())
    slopes = shown["slope"].abs()
    return drawn.captioned(
        f"White is 0. Dots: {count} of {len(shown)} heads whose correlation is beyond chance "
        f"(Benjamini–Hochberg, .05). Slopes reach {slopes.max():.3g} share per nat, half of them stay below "
        f"{slopes.median():.2g}.",
    )
