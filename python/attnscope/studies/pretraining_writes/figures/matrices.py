# SPDX-License-Identifier: MIT
"""Figures of the matrices of one pair: roles, curves, depth, mechanism, rounding."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Drawn, Options, Results, captioned, over_layers, require_table
from attnscope.plots.style import INK, MUTED, legend_over, legend_row, named_artists
from attnscope.studies.pretraining_writes.figures.declared import (
    COLORS,
    NULL_WORDS,
    NULLS,
    chosen_pairs,
    controls,
    figure,
    grid,
    isotropic,
    mean_log2,
    measured,
    octaves,
    pair_panels,
    spread_of,
    with_pairs,
)
from attnscope.studies.pretraining_writes.options import ROLES
from attnscope.study_api.selection import where

#: Position of each role in the figures.
_SUBSPACES = (("inputs", "own inputs"), ("prediction", "predictions"))


@figure("fractions")
def asymmetry(results: Results, options: Options) -> Drawn:
    """Draw the share of each role's change in its own inputs and in the prediction subspace."""
    table = measured(results)
    names, left_out = chosen_pairs(table, 6)
    drawn = pair_panels(table, names, options, 2.3)
    first_row = drawn.axes[0].get_position().y0
    columns = max(1, sum(ax.get_position().y0 == first_row for ax in drawn.axes))
    for place_of_pair, (ax, rows_of_pair) in enumerate(drawn.rows(table)):
        name = drawn.names[place_of_pair]
        isotropic(ax, spread_of(where(rows_of_pair, subspace="inputs")))
        for subspace, label in _SUBSPACES:
            rows = where(rows_of_pair, subspace=subspace)
            nulls = where(controls(results, subspace), pair=name)
            shift = -0.16 if subspace == "inputs" else 0.16
            for place, role in enumerate(ROLES):
                values = where(rows, role=role)["relative"]
                if not len(values):
                    continue
                x = place + shift
                ax.plot(np.full(len(values), x), values, ".", color=COLORS[role], alpha=0.35, markersize=3)
                face = COLORS[role] if subspace == "inputs" else "white"
                ax.plot(x, mean_log2(values), "o", color=COLORS[role], markerfacecolor=face, markersize=6)
                for variant, style in NULLS.items():
                    null = where(nulls, role=role, variant=variant)["relative"]
                    if len(null):
                        ends = [x - 0.14, x + 0.14]
                        ax.plot(ends, [mean_log2(null)] * 2, **style, gid=f"null:{variant}:{label}")
        ax.set_xticks(range(len(ROLES)), ROLES)
        ax.tick_params("x", rotation=90 if options.width < 2.2 * min(len(names), 3) else 0)
        ax.set_xlim(-0.6, len(ROLES) - 0.4)
        ax.set_title(name)
        octaves(ax)
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, 0.5), max(high, 2.0))
        ax.set_ylabel("fraction / isotropic" if place_of_pair % columns == 0 else "")
    seen = controls(results, "inputs")["variant"].unique()
    return drawn.captioned(
        "Change of each role's matrices in the tested subspace, over that of an isotropic change: filled, "
        "its own inputs; open, the prediction subspace; dots are layers, circles 2^mean log2.",
        left_out,
        "Band: 95 % of random subspaces.",
        "; ".join(NULL_WORDS[null] for null in NULLS if null in seen).capitalize() + "." if len(seen) else "",
    )


@figure("fractions")
def fraction_curves(results: Results, options: Options) -> Drawn:
    """Draw the fraction against the number of directions, between isotropic and the best possible."""
    table = require_table(results, "fractions", "fraction", "ceiling", "relative", "share_of_energy")
    table = where(table, role=ROLES, subspace=list(dict(_SUBSPACES)))
    share = table["k"] / (table["k"] * table["relative"] / table["fraction"]).round()
    table = table.assign(share=share)[(table["fraction"] > 0) & (share > 0) & np.isfinite(share)]
    if table.empty:
        raise NotDrawable("the run has no fractions above 0 on own inputs or predictions")
    table = with_pairs(table)
    names, left_out = chosen_pairs(table, 2)
    curves = [
        (name, label, where(table, pair=name, subspace=subspace))
        for name in names
        for subspace, label in _SUBSPACES
    ]
    curves = [(name, label, rows) for name, label, rows in curves if len(rows)]
    drawn, axes = grid(len(curves), options, 2.3, 2)
    for ax, (name, label, rows) in zip(axes, curves, strict=True):
        for role in ROLES:
            curve = where(rows, role=role).groupby("share")[["fraction", "ceiling"]].mean()
            if len(curve):
                ax.plot(curve.index, curve["fraction"], color=COLORS[role], label=role)
                ax.plot(curve.index, curve["ceiling"], color=COLORS[role], linestyle=":", linewidth=0.8)
        ax.plot([], [], color=INK, linestyle=":", linewidth=0.8, label="best possible")
        # of one width: roles of another have other k/d
        first = where(rows, role=next(role for role in ROLES if role in set(rows["role"])))
        energy = first.groupby("share")["share_of_energy"].mean()
        ax.plot(energy.index, energy, color=INK, linestyle="--", linewidth=0.9, label="own energy")
        ends = np.geomspace(rows["share"].min(), rows["share"].max(), 50)
        ax.plot(ends, ends, color=MUTED, linewidth=0.9, gid="isotropic", label="isotropic")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(LogLocator(base=2, numticks=6 if options.width > 4 else 4))
        ax.xaxis.set_major_formatter(lambda value, _: f"1/{1 / value:g}" if value < 1 else f"{value:g}")
        ax.set_yticks([0, 0.5, 1])
        ax.set_title(f"{name}\n{label}" if len(names) > 1 else label)
        ax.set_xlabel("k / d")
        ax.set_ylabel("fraction" if ax.get_position().x0 == axes[0].get_position().x0 else "")
    legend_over(drawn, named_artists(axes[:1]), 9, loc="outside lower center")
    return captioned(
        drawn,
        "Share of a change in the first k directions, means over layers. Grey: isotropic; dotted: what the "
        "best k directions hold; dashed: the directions' own energy, of the first role.",
        left_out,
    )


@figure("fractions")
def depth(results: Results, options: Options) -> Drawn:
    """Draw each role's fraction on its own inputs, layer by layer."""
    table = measured(results, "inputs")
    over_layers(table)
    names, left_out = chosen_pairs(table, 1)
    rows_of_pair = where(table, pair=names[0])
    nulls = where(controls(results, "inputs"), pair=names[0])
    roles = [role for role in ROLES if role in set(rows_of_pair["role"])]
    drawn, axes = grid(len(roles), options, 1.9, 4, 1.0)
    seen = set()
    for ax, role in zip(axes, roles, strict=True):
        rows = where(rows_of_pair, role=role).groupby("layer")[["relative", "low", "high"]].mean()
        isotropic(ax)
        ax.plot(rows.index, rows["relative"], marker="o", markersize=3, color=COLORS[role])
        if rows["low"].notna().any():
            low = rows["low"].clip(lower=0.5)
            ax.fill_between(rows.index, low, rows["high"], color=COLORS[role], alpha=0.2, linewidth=0)
        for variant, style in NULLS.items():
            null = where(nulls, role=role, variant=variant)
            if len(null):
                seen.add(variant)
                mean = null.groupby("layer")["relative"].mean()
                ax.plot(mean.index, mean, **style, gid=f"null:{variant}")
        ax.set_title(role)
        octaves(ax)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer")
    axes[0].set_ylabel("fraction / isotropic")
    return captioned(
        drawn,
        f"Changes of {names[0]} on each matrix's own inputs by layer; bands: jackknife over groups of texts.",
        left_out,
        "; ".join(NULL_WORDS[null] for null in NULLS if null in seen).capitalize() + "." if seen else "",
    )


@figure("mechanism")
def mechanism(results: Results, options: Options) -> Drawn:
    """Draw observed fractions against those of independent inputs and gradients."""
    table = require_table(results, "mechanism", "predicted", "observed")
    table = where(table[(table["predicted"] > 0) & (table["observed"] > 0)], role=ROLES)
    if table.empty:
        raise NotDrawable("the mechanism table has no fractions above 0")
    table = with_pairs(table)
    names, left_out = chosen_pairs(table, 1)
    rows_of_pair = where(table, pair=names[0])
    drawn, axes = grid(2, options, 2.3, 2)
    for ax, (side, label) in zip(axes, (("in", "inputs"), ("out", "output gradients")), strict=True):
        rows = where(rows_of_pair, side=side)
        for role in ROLES:
            points = where(rows, role=role)
            ax.plot(
                points["predicted"], points["observed"], "o", color=COLORS[role], markersize=4, label=role
            )
        values = pd.concat([rows["predicted"], rows["observed"]])
        if len(values):
            ends = [values.min() / 1.1, values.max() * 1.1]
            ax.plot(ends, ends, color=MUTED, linewidth=0.9, gid="identity")
        octaves(ax)
        octaves(ax, along="x")
        ax.set_title(label)
        ax.set_xlabel("predicted / isotropic")
        ax.set_ylabel("observed / isotropic" if side == "in" else "")
    legend_row(drawn)
    return captioned(
        drawn,
        f"Fractions of {names[0]} against those that independent inputs and gradients would give (line); for "
        "k both are about the mean of each text.",
        left_out,
    )


@figure("deltas", "fractions")
def rounding(results: Results, options: Options) -> Drawn:
    """Draw fractions against the size of a change in steps of the stored numbers."""
    table = measured(results, "inputs")
    keys = ["model", "revision", "step", "reference", "layer", "role", "expert"]
    deltas = require_table(results, "deltas", "step_ratio")[
        [*keys, "step_ratio", "noise_share", "below_floor"]
    ]
    changes = table.merge(deltas, on=keys)
    changes = changes[changes["step_ratio"] > 0]
    if changes.empty:
        raise NotDrawable("no change has a rounding step: adapters are not stored in the base's numbers")
    names, left_out = chosen_pairs(changes, 6)
    drawn = pair_panels(changes, names, options, 2.4)
    near = bool((changes["step_ratio"] < 10).any())
    logs = np.log10(changes["step_ratio"].astype(float))
    decades = (10 ** np.floor(logs.min()), 10 ** np.ceil(logs.max() + 1e-9))
    for name, (ax, pair) in zip(drawn.names, drawn.rows(changes), strict=True):
        for role in ROLES:
            rows = where(pair, role=role)
            for below in (False, True):
                points = rows[rows["below_floor"].astype(bool) == below]
                face = "white" if below else COLORS[role]
                ax.plot(
                    points["step_ratio"],
                    points["relative"],
                    "o",
                    color=COLORS[role],
                    markerfacecolor=face,
                    markersize=4,
                )
        isotropic(ax, spread_of(pair))
        if near:
            ax.axvline(1.0, color=MUTED, linewidth=0.9, linestyle=":")
        ax.set_xscale("log")
        ax.set_xlim(*decades)
        ax.xaxis.set_minor_formatter(NullFormatter())  # of one decade they would be written over each other
        octaves(ax)
        ax.set_title(name)
        ax.set_xlabel("change / rounding step")
    drawn.axes[0].set_ylabel("fraction / isotropic")
    legend_over(
        drawn.figure, {role: Line2D([], [], marker="o", linestyle="", color=COLORS[role]) for role in ROLES}
    )
    return drawn.captioned(
        "Fractions on own inputs against the size of changes in rounding steps; hollow: half of the change "
        "or more may be rounding.",
        "Left of the dotted line most changes are too small to be stored."
        if near
        else "Every change is more than ten rounding steps: rounding plays no part.",
        left_out,
    )
