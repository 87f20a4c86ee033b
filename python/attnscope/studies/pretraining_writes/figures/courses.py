# SPDX-License-Identifier: MIT
"""Figures over pairs and texts: training, objectives, the number of negatives, changes of rank one."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.errors import NotDrawable
from attnscope.plots.axes import scale_logarithmically, step_axis
from attnscope.plots.figure import Drawn, Options, Results, captioned, optional
from attnscope.plots.selection import first_model
from attnscope.plots.style import INK, MUTED, PALETTE, legend_over, named_artists, panels
from attnscope.studies.pretraining_writes.figures.declared import (
    COLORS,
    NULL_WORDS,
    NULLS,
    controls,
    figure,
    grid,
    isotropic,
    mean_log2,
    measured,
    octaves,
    spread_of,
)
from attnscope.studies.pretraining_writes.fractions import spread_over
from attnscope.studies.pretraining_writes.options import MATCHED, ROLES
from attnscope.study_api.number_text import estimate_text, two_places
from attnscope.study_api.selection import where

_SIDES = (
    (("q", "k"), "in", "inputs", "q, k on own inputs"),
    (("o", "down"), "out", "prediction", "o, down on prediction"),
)


#: Subspaces of the trajectory and whose they are, by how names begin and end.
_KINDS = {"inputs": "inputs", "prediction": "predictions"}
_REFERENCES = {"": "base", "_after": "each step", "_last": "last step"}


@figure("fractions")
def trajectory(results: Results, options: Options) -> Drawn:
    """Draw fractions over training, on the inputs and predictions of the base."""
    table = measured(results)
    table = table[table["step"] >= 0]
    table = table[table.groupby("model")["step"].transform("nunique") > 1]
    if table.empty:
        raise NotDrawable("the run has no series of checkpoints with steps")
    model = table["model"].iloc[0]
    table = where(table, model=model)
    shown = [
        name for name in _REFERENCES if any(f"{kind}{name}" in set(table["subspace"]) for kind in _KINDS)
    ]
    drawn, rows_of_axes = panels(
        len(shown), len(_KINDS), height=2.1 * len(shown), width=options.width, sharex=True, sharey=True
    )
    for reference, row in zip(shown, rows_of_axes, strict=True):
        for (kind, words), ax in zip(_KINDS.items(), row, strict=True):
            rows_of_subspace = where(table, subspace=f"{kind}{reference}")
            for role in ROLES:
                rows = where(rows_of_subspace, role=role)
                if len(rows):
                    course = rows.groupby("step")["relative"].apply(mean_log2)
                    ax.plot(course.index, course, marker="o", markersize=3, color=COLORS[role], label=role)
            isotropic(ax, spread_of(rows_of_subspace) if len(rows_of_subspace) else 0.0)
            octaves(ax)
            step_axis(ax, table["step"])
            ax.set_title(f"{words}: {_REFERENCES[reference]}")
            ax.set_xlabel("training step" if reference == shown[-1] else "")
        row[0].set_ylabel("fraction / isotropic")
    legend_over(drawn, named_artists(rows_of_axes[0][:1]), 7, loc="outside lower center")
    references = ", of each step and of the last one" if len(shown) > 1 else ""
    missing = "" if len(shown) > 1 else " options.moments_of=both adds the current and the last checkpoint's."
    return captioned(
        drawn,
        f"Changes of {model} over training, on inputs and predictions of the base{references}; 2^mean log2 "
        f"over layers; band: random subspaces.{missing}",
    )


def _arms(results: Results) -> pd.DataFrame:
    """Return the runs of arms: model, arm, both sides."""
    arms = dict(dict(getattr(results, "study", None) or {}).get("options", {}).get("arms", {}))
    arms = {model: arm for model, arm in arms.items() if not arm.endswith(MATCHED)}
    table = measured(results)
    table = where(table, model=arms)
    if table.empty:
        raise NotDrawable(
            "no model of the run has an arm (options.arms): python -m attnscope.demo.tuning makes them"
        )
    rows = []
    for model, arm in arms.items():
        rows_of_model = where(table, model=model)
        row: dict[str, object] = {"model": model, "arm": arm}
        for roles, side, subspace, label in _SIDES:
            rows_of_side = where(rows_of_model, role=roles, side=side, subspace=subspace)
            row[label] = mean_log2(rows_of_side["relative"]) if len(rows_of_side) else math.nan
            row[f"{label} spread"] = spread_of(rows_of_side) if len(rows_of_side) else math.nan
            nulls = controls(results, subspace)
            nulls = where(nulls, model=model, role=roles)
            for variant in NULLS:
                null = where(nulls, variant=variant)["relative"]
                row[f"{label} {variant}"] = mean_log2(null) if len(null) else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


@figure("fractions")
def objectives(results: Results, options: Options) -> Drawn:
    """Draw both sides for every objective that was trained from one start."""
    table = _arms(results)
    arms = list(dict.fromkeys(table["arm"]))
    drawn, axes = grid(len(_SIDES), options, 2.6, 2, 2.2)
    seen: set[str] = set()
    for ax, (*_, label), color in zip(axes, _SIDES, PALETTE, strict=False):
        isotropic(ax, float(table[f"{label} spread"].mean()))
        for place, arm in enumerate(arms):
            values = where(table, arm=arm)[label].dropna()
            if not len(values):
                continue
            rows = where(table, arm=arm)
            ax.plot(np.full(len(values), place - 0.2), values, ".", color=color, markersize=4)
            centre = mean_log2(values)
            low, high = (2.0**end for end in spread_over(np.log2(values).tolist()))
            reach = [[centre - low], [high - centre]] if math.isfinite(low) else None
            ax.errorbar(place + 0.1, centre, reach, fmt="o", color=color, markersize=6, capsize=3)
            for variant, style in NULLS.items():
                null = rows[f"{label} {variant}"].dropna()
                if len(null):
                    seen.add(variant)
                    ax.plot([place - 0.3, place + 0.3], [mean_log2(null)] * 2, **style)
        ax.set_ylim(max(ax.get_ylim()[0], 1 / 16), min(ax.get_ylim()[1], 64.0))
        ax.set_xticks(range(len(arms)), arms, rotation=45, ha="right")
        ax.margins(x=0.06)
        octaves(ax)
        ax.set_title(label)
        ax.set_ylabel("fraction / isotropic")
    return captioned(
        drawn,
        "Every arm from one start: dots are training runs, circles 2^mean log2 with 95 % t intervals over "
        "runs, cut at the axis; band: random subspaces.",
        "; ".join(NULL_WORDS[name] for name in NULLS if name in seen).capitalize() + "." if seen else "",
    )


@figure("fractions")
def graded(results: Results, options: Options) -> Drawn:
    """Draw the write side against the number of negatives of a contrastive objective."""
    table = _arms(results)
    label = _SIDES[1][3]
    negatives = table["arm"].str.extract(r"^contrastive_0*([1-9]\d*)$", flags=re.ASCII)[0]
    contrastive = (
        table[negatives.notna()].assign(negatives=negatives.dropna().astype(int)).dropna(subset=[label])
    )
    if contrastive["negatives"].nunique() < 2:
        raise NotDrawable("the run has no arms contrastive_K of several K")
    drawn, (ax,) = grid(1, options, 2.6, 1)
    isotropic(ax, float(contrastive[f"{label} spread"].mean()))
    ax.plot(contrastive["negatives"], contrastive[label], "o", color=PALETTE[0], markersize=4)
    across, along = np.log2(contrastive["negatives"]), np.log2(contrastive[label])
    claimed = _claimed_slope(results)
    slope = claimed[0] if claimed else float(np.polyfit(across, along, 1)[0])
    level, interval = along.mean() - slope * across.mean(), claimed[1:] if claimed else None
    ends = np.array([contrastive["negatives"].min(), contrastive["negatives"].max()])
    ax.plot(ends, 2.0 ** (level + slope * np.log2(ends)), color=INK, linewidth=1.0)
    if interval:
        x = np.geomspace(float(ends[0]), float(ends[1]), 30)
        middle = across.mean()
        centre = level + slope * middle
        lines = [2.0 ** (centre + end * (np.log2(x) - middle)) for end in interval]
        ax.fill_between(x, np.minimum(*lines), np.maximum(*lines), color=INK, alpha=0.12, linewidth=0)
    ax.margins(x=0.08, y=0.12)
    octaves(ax)
    octaves(ax, along="x")
    ax.set_xlabel("negatives K")
    ax.set_ylabel(f"{label} / isotropic")
    text = estimate_text(slope, *(interval or (math.nan, math.nan)), two_places)
    over_runs = ", interval over training runs; shaded about the line: the interval of the slope"
    return captioned(
        drawn,
        f"Slope {text} octaves for each doubling of K{over_runs if interval else ''}; dots: training runs; "
        "level band: random subspaces.",
    )


def _claimed_slope(results: Results) -> tuple[float, float, float] | None:
    """Return the slope of claim C5, mean over training runs, and its interval; None without any.

    The slope of all dots together is another number where runs lack an arm.
    """
    claims = optional(results, "claims")
    if claims is None:
        return None
    rows = where(claims[claims["low"].notna()], claim="C5", model="all arms")
    if rows.empty:
        return None
    value, low, high = (float(rows[name].iloc[0]) for name in ("value", "low", "high"))
    return value, low, high


#: Classes of directions in the order of the axis; the last is the null.
_CLASSES = ("prediction", "inputs", "gradients", "tokens", "complement", "haar")


@figure("rank_one")
def rank_one(results: Results, options: Options) -> Drawn:
    """Draw the effect of changes of rank one in the base, class by class of directions."""
    table, subject = first_model(results, "rank_one", "kl", "predicted_kl")
    places = sorted(
        {(int(layer), ROLES.index(role)) for layer, role in zip(table["layer"], table["role"], strict=True)}
    )
    drawn, axes = grid(len(places), options, 2.6, 4)
    first: dict[bool, Axes] = {}
    for ax, (layer, number) in zip(axes, places, strict=True):
        role = ROLES[number]
        # what reads and what writes differ by orders of magnitude
        if (other := first.setdefault(role in ("o", "down"), ax)) is not ax:
            ax.sharey(other)
        rows_of_matrix = where(table, layer=layer, role=role)
        order = [name for name in _CLASSES if name in set(rows_of_matrix["direction"])]
        for place, name in enumerate(order):
            rows = where(rows_of_matrix, direction=name)
            color = MUTED if name == "haar" else PALETTE[place]
            ax.plot(np.full(len(rows), place), rows["kl"], ".", color=color, alpha=0.35)
            ax.plot(place, rows["kl"].mean(), "o", color=color, markersize=6)
            if rows["predicted_kl"].notna().any():
                mean = rows["predicted_kl"].mean()
                ax.plot(place + 0.2, mean, "s", color=color, markerfacecolor="white", markersize=5)
        scale_logarithmically(ax, [rows_of_matrix["kl"], rows_of_matrix["predicted_kl"]])
        ax.set_xticks(range(len(order)), order, rotation=45, ha="right")
        ax.set_xlim(-0.5, len(order) - 0.5)
        ax.set_title(f"layer {layer}, {role}")
    axes[0].set_ylabel("KL of the predictions (nats)")
    return captioned(
        drawn,
        "Changes of rank one. In o and down a direction of each class is written where the first input "
        "direction is read; in q and k one of each class is read. Dots are texts, circles their mean, open "
        "squares the second-order closed form; grey, the null: directions drawn anywhere.",
        subject,
    )
