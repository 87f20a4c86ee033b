# SPDX-License-Identifier: MIT
"""Figures over depth: associations of attention and likelihood, with and without the token's identity."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Drawn, Options, Results, captioned, optional
from attnscope.plots.panels import (
    ModelPanels,
    PanelGrid,
    diverging,
    layer_axis,
    layer_line,
    layer_points,
    sparse_ticks,
)
from attnscope.plots.selection import final
from attnscope.plots.style import MUTED, NULL_LINES, PALETTE, panels
from attnscope.studies.attention_likelihood.claims import least_likely
from attnscope.studies.attention_likelihood.figures.declared import figure
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.number_text import number
from attnscope.study_api.selection import where

#: What the map shows: title, protocol, design, predictor, measure.
MAPS = (
    ("within texts", "exact", "within", "log_likelihood", "share"),
    ("between texts, boost", "exact", "between", "per_piece", "boost"),
    ("as published", "ruscio2023", "between", "own_probability", "inner"),
)
#: Models whose exchange has a row of panels.
MOST = 3
#: Colour of cells without a number.
NO_LAYER = "0.75"


@figure("head_mean_associations")
def likelihood_map(results: Results, options: Options) -> Drawn:
    """Draw the correlation of likelihood and attention of a word to itself, models by layers."""
    table = final(results, "head_mean_associations", "estimate")
    models = list(dict.fromkeys(table["model"]))
    maps: list[tuple[str, pd.DataFrame]] = []
    estimates: list[pd.Series[float]] = []
    modes: list[str] = []
    for title, protocol, design, predictor, measure in MAPS:
        rows_of_design = where(table, protocol=protocol, design=design, predictor=predictor, measure=measure)
        published = protocol == "ruscio2023"
        # a mode chosen by its correlation would be shown on the texts that chose it
        best = (
            _best_modes(rows_of_design)
            if published
            else {str(model): _fixed_mode(rows_of_design) for model in rows_of_design["model"]}
        )
        chosen = [where(rows_of_design, model=model, mode=mode) for model, mode in best.items()]
        if not any(rows["estimate"].notna().any() for rows in chosen):
            continue
        if published:
            modes += [f"{model} {mode}" for model, mode in best.items() if mode]
        estimates.append(rows_of_design["estimate"])
        grid = pd.concat(chosen).pivot_table(index="model", columns="layer", values="estimate")
        maps.append((title, grid.reindex(models)))
    if not maps:
        raise NotDrawable("no layer has a correlation")
    norm = diverging(estimates)
    if len(models) == 1:  # one row a design, in one panel
        rows = pd.concat([grid.set_axis([title]) for title, grid in maps]).sort_index(axis=1)
        maps = [(str(models[0]), rows)]
    height = 1.2 + 0.26 * max(len(grid) for _, grid in maps)
    figure_, axes = panels(1, len(maps), height=height, width=options.width)
    for ax, (title, grid) in zip(axes[0], maps, strict=True):
        image = ax.imshow(grid, aspect="auto", cmap="RdBu_r", norm=norm, interpolation="nearest")
        ax.set_facecolor(NO_LAYER)  # seen where a cell has no number
        ax.set_title(title)
        ax.set_xlabel("layer")
        sparse_ticks(ax.set_xticks, grid.columns)
        names = [str(name) for name in grid.index]
        ax.set_yticks(range(len(names)), names if ax is axes[0][0] else [""] * len(names))
    figure_.colorbar(image, ax=axes[0], shrink=0.9, label="Spearman's ρ")
    return captioned(
        figure_,
        "White is 0, grey that a model has no such layer or number. Between texts: of the real words.",
        f"As published: the mode with the largest correlation of any layer, chosen and shown on the same "
        f"texts "
        f"({'; '.join(modes)})."
        if modes
        else "",
        "Correlations between texts follow length and number of pieces too.",
    )


def _fixed_mode(rows: pd.DataFrame) -> str:
    """Return the mode that is shown of a design between texts, the real words; "" within texts."""
    return "real" if (rows["mode"] == "real").any() else str(rows["mode"].iloc[0])


def _best_modes(rows: pd.DataFrame) -> dict[str, str]:
    """Return the mode of each model whose best layer is largest."""
    modes = {}
    for model, rows_of_model in rows.groupby("model", sort=False):
        most = rows_of_model.groupby("mode")["estimate"].max()
        modes[str(model)] = str(most.idxmax()) if most.notna().any() else str(rows_of_model["mode"].iloc[0])
    return modes


@figure("head_mean_associations")
def likelihood_depth(results: Results, options: Options) -> Drawn:
    """Draw the correlation within texts over depth, with that between texts given their length."""
    table = final(results, "head_mean_associations", "estimate", "z", protocol="exact")
    control = optional(results, "controls")
    drawn = ModelPanels.of(table, options, "Spearman's ρ of L and share", sharey=True)
    for ax, rows_of_model in drawn.rows(table):
        rows = where(rows_of_model, design="within", predictor="log_likelihood").sort_values("layer")
        reach = 1.96 * (rows["estimate"] / rows["z"]).abs()
        ax.fill_between(
            rows["layer"], -reach, reach, color=MUTED, alpha=0.25, linewidth=0, label="chance (permutations)"
        )
        layer_line(ax, rows, "within texts", PALETTE[0], band=0.18)
        partial = where(rows_of_model, design="between_partial", mode="real", measure="boost")
        layer_line(ax, partial, "between texts, given length and place", PALETTE[1], "--", band=0.12)
        if control is not None:
            untrained = where(control, model=rows_of_model["model"].iloc[0], design="within")
            if len(untrained):
                mean = untrained.groupby("layer")["estimate"].mean()
                ax.plot(mean.index, mean, label="within, random weights", **NULL_LINES["random_weights"])
        layer_axis(ax, 0)
    drawn.legend(2)
    return drawn.captioned(
        "With 95 % intervals over texts; grey: 95 % of permutations of a text's versions. Within a "
        "text every version is another token: the line says that attention follows what stands there, not "
        "that the model expects it. How large the changes are is in the figures dose and swap_depth.",
    )


@figure("head_mean_associations", "shifts")
def swap_depth(results: Results, options: Options) -> Drawn:
    """Draw the gain of a word's share at home, next to the effect of the least likely word."""
    table = final(
        results, "head_mean_associations", "estimate", protocol="exact", design="swap", measure="share"
    )
    if table["estimate"].isna().all():
        raise NotDrawable("no two texts exchange words")
    shifts = final(results, "shifts", "difference", protocol="exact", measure="share")
    overall, control = optional(results, "overall"), optional(results, "controls")
    least_nats = stored_options(results, LikelihoodOptions).least_nats
    grid = PanelGrid.by(
        table, "model", ("swap", "shift"), options, height=1.9, above=0.6, most=MOST, narrowest=2.0
    )
    words = []
    for model, (first, second), rows_of_model in grid.rows(table):
        shifts_of_model = where(shifts, model=model)
        mode = least_likely(shifts_of_model)
        layer_points(first, rows_of_model, "estimate", PALETTE[0])
        if control is not None:
            _draw_untrained(first, where(control, model=model, design="swap"))
        layer_points(second, where(shifts_of_model, mode=mode), "difference", PALETTE[1])
        name = f"{model}: " if len(grid.names) > 1 else ""
        first.set_title(f"{name}at home − away")
        second.set_title(f"{name}{mode} − real word")
        first.set_ylabel("change of the share")
        if first.get_legend_handles_labels()[1]:
            first.legend(fontsize=6.5)
        if overall is not None:
            nats = where(overall, model=model, statistic="swap_nats")
            words += [f"{model} {number(value)} nats" for value in nats["estimate"].tail(1)]
    untrained = "" if control is None else "; grey: smallest to largest of the models with random weights"
    return grid.captioned(
        "First panel: two texts exchange words; every token and text is once at home and once away, so "
        f"effects of either cancel and what is left is due to word and text fitting each other{untrained}. "
        "Second: the whole effect of the least likely words, that of the token included; the scales differ. "
        "Bars: 95 % intervals over pairs and texts, none of fewer than five.",
        f"An exchanged word costs {', '.join(words)}; below {least_nats:g} nats the exchange tests nothing."
        if words
        else "",
    )


def _draw_untrained(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the range of the models with random weights by layer, where there are any."""
    ends = rows.groupby("layer")["estimate"].agg(["min", "max"])
    if len(ends):
        band: dict[str, Any] = {"color": MUTED, "alpha": 0.35, "linewidth": 0}
        ax.fill_between(ends.index, ends["min"], ends["max"], label="models with random weights", **band)


@figure("head_mean_associations")
def copy_or_context(results: Results, options: Options) -> Drawn:
    """Draw the likelihood under an encoder's mask given the probability at its position, and the reverse."""
    table = final(results, "head_mean_associations", "estimate", protocol="exact", design="within_given")
    if table["estimate"].isna().all():
        raise NotDrawable("no encoder with a vocabulary head was measured")
    drawn = ModelPanels.of(table, options, "partial correlation with share", height=2.5, sharey=True)
    lines = (
        ("masked given own", "expected (masked), given kept", PALETTE[0], "-"),
        ("own given masked", "kept (own position), given expected", PALETTE[1], "--"),
    )
    for ax, rows_of_model in drawn.rows(table):
        for name, label, color, dash in lines:
            layer_line(ax, where(rows_of_model, predictor=name), label, color, dash, band=0.15)
        layer_axis(ax, 0)
    drawn.legend(2)
    return drawn.captioned(
        "The probability of a word at its own, unmasked position says whether the model kept the token, not "
        "whether it expects it. Each is shown with the other held; bands are 95 % intervals over texts.",
    )
