# SPDX-License-Identifier: MIT
"""Figures of detection: what the prompts alone tell, and what states tell beyond it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.errors import NotDrawable
from attnscope.plots.axes import step_axis
from attnscope.plots.figure import Drawn, Options, Results, captioned, optional, over_steps, require_table
from attnscope.plots.panels import Panels, level_line
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, NULL_LINES, PALETTE, panels
from attnscope.studies.hallucination_geometry.claims import prompt_confound
from attnscope.studies.hallucination_geometry.evidence import in_blocks
from attnscope.studies.hallucination_geometry.figures.declared import (
    colors,
    controls,
    figure,
    layers_below,
    legend,
    without_interval,
)
from attnscope.studies.hallucination_geometry.training import curves
from attnscope.study_api.selection import where

#: Scores besides the probe's, in the order of the bars.
BASELINES = {
    "auc_length": "length",
    "auc_words": "words",
    "auc_surprisal": "surprisal",
    "auc_embedding": "embeddings",
}


@figure("detection")
def confounds(results: Results, options: Options) -> Drawn:
    """Draw how well lengths, words and embeddings tell the buckets apart, with the best layer."""
    table, subject = first_model(results, "detection", "score", "auc")
    random = controls(results, "detection", str(table["model"].iloc[0]))
    drawn = Panels.by(table, "contrast", options, height=2.6, panel_width=3.0)
    reasons = []
    for contrast, (ax, rows_of_contrast) in zip(drawn.names, drawn.rows(table), strict=True):
        reason = prompt_confound(rows_of_contrast, contrast, "the reference")
        reasons += [f"{reason[0].upper()}{reason[1:]}."] if reason else []
        bars: list[tuple[str, float, float, float, str]] = []
        for score, name in BASELINES.items():
            row = where(rows_of_contrast, score=score)
            if len(row):
                bars.append((name, *row[["auc", "low", "high"]].iloc[0], MUTED))
        probe = in_blocks(where(rows_of_contrast[rows_of_contrast["auc"].notna()], score="auc"))
        if probe.empty:
            raise NotDrawable("no layer could be scored")
        best = probe.iloc[int(probe["auc"].argmax())]
        if random is not None:
            rows = where(random, contrast=contrast, score="auc")
            areas = where(rows, layer=best["layer"]).groupby("seed")["auc"].mean()
            if len(areas):
                bars.append(("random weights", areas.mean(), areas.min(), areas.max(), PALETTE[3]))
        bars.append((f"layer {int(best['layer'])}", best["auc"], best["low"], best["high"], PALETTE[0]))
        for at, (_, value, low, high, color) in enumerate(bars):
            ax.bar(at, value - 0.5, bottom=0.5, color=color, width=0.7)
            ax.plot(at, value, "o", color=color, markersize=4)
            if np.isfinite(low):
                ax.plot([at, at], [low, high], color="black", linewidth=1)
        ax.set_xticks(range(len(bars)), [bar[0] for bar in bars], rotation=40, ha="right")
        level_line(ax, 0.5)
        ax.set_ylim(*area_limits([value for bar in bars for value in bar[1:4]]))
        ax.set_title(f"{contrast} (n = {rows_of_contrast['n'].max():.0f})" + (": no claim" if reason else ""))
    drawn.axes[0].set_ylabel("AUC on held-out templates")
    untrained = "" if random is None else "; of random weights, the range of initialisations"
    return drawn.captioned(
        " ".join(reasons),
        "Area under the curve of probes fitted on other templates; .5 is chance. Grey: what is no state. The "
        "layer is the best on these prompts; its bar does not allow for that choice. "
        f"Lines: 95 % intervals over templates{untrained}.",
        subject,
    )


def area_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return limits of an axis of areas that hold the values and .5, with some room."""
    finite = np.array([0.5, *values], dtype=float)
    finite = finite[np.isfinite(finite) & (finite >= 0)]
    room = max(0.02, 0.08 * float(np.ptp(finite)))
    return max(0.0, float(finite.min()) - room), min(1.02, float(finite.max()) + room)


@figure("detection")
def detection_by_depth(results: Results, options: Options) -> Drawn:
    """Draw the areas of states on held-out templates, by depth, above the best of what is no state."""
    table, subject = first_model(results, "detection", "score", "auc")
    random = controls(results, "detection", str(table["model"].iloc[0]))
    drawn = Panels.by(table, "contrast", options, height=2.6, panel_width=3.0, narrowest=2.0)
    for contrast, (ax, rows_of_contrast) in zip(drawn.names, drawn.rows(table), strict=True):
        for score, label, color in (
            ("auc", "probe", PALETTE[0]),
            ("auc_direction", "difference", PALETTE[2]),
        ):
            rows = where(rows_of_contrast, score=score).sort_values("layer")
            shift = -0.06 if score == "auc" else 0.06
            reach = [(rows["auc"] - rows["low"]).clip(0), (rows["high"] - rows["auc"]).clip(0)]
            ax.errorbar(
                rows["layer"] + shift,
                rows["auc"],
                reach,
                color=color,
                marker="o",
                markersize=3,
                capsize=2,
                linewidth=1.2,
                label=label,
            )
        baseline = where(rows_of_contrast, score=BASELINES).groupby("layer")["auc"].max()
        ax.fill_between(baseline.index, 0, baseline, color=MUTED, alpha=0.25, linewidth=0, label="no state")
        if random is not None:
            rows = where(random, contrast=contrast, score="auc")
            mean = rows.groupby("layer")["auc"].mean()
            ax.plot(mean.index, mean, label="random weights", **NULL_LINES["random_weights"])
        level_line(ax, 0.5)
        areas = where(rows_of_contrast, score=["auc", "auc_direction"])
        ax.set_ylim(*area_limits([*areas[["auc", "low", "high"]].to_numpy().ravel(), *baseline]))
        ax.set_title(f"{contrast} (n = {rows_of_contrast['n'].max():.0f})")
        layers_below(ax)
    drawn.axes[0].set_ylabel("AUC on held-out templates")
    legend(drawn.axes[0])
    return drawn.captioned(
        "Bars: 95 % intervals over templates, drawn side by side."
        f"{without_interval(where(table, score=['auc', 'auc_direction']), 'auc')} "
        "Shaded from below: the best of length, "
        "words, surprisal and embeddings. Only what rises above it is of the states.",
        subject,
    )


#: What is followed over training, and how its axis is called.
COURSES = {
    "auc_excess": "best excess of AUC",
    "log_readout_gain": "log readout gain",
    "log_relative_fisher": "log ‖h‖²·bᵀFb (nats)",
}


@figure("detection")
def training(results: Results, options: Options) -> Drawn:
    """Draw what states tell, and the output's answer to it, over the course of training."""
    detection, unknown = over_steps(require_table(results, "detection", "score", "auc"))
    tables = {"detection": detection}
    for name in ("readout", "sensitivity"):
        table = optional(results, name)
        if table is not None:
            tables[name] = table[table["step"] >= 0]
    all_curves = curves(tables)
    names = [name for name in COURSES if any(key[2] == name for key in all_curves)]
    if not names:
        raise NotDrawable("no checkpoint could be scored")
    steps = optional(results, "emergence")
    keys = list(dict.fromkeys(key[:2] for key in all_curves))
    one_model = len({model for model, _ in keys}) == 1
    shades = colors([contrast if one_model else f"{model}, {contrast}" for model, contrast in keys])
    figure_, axes = panels(
        1, len(names), height=2.7, width=min(options.width, 2.6 * len(names) + 0.4), narrowest=2.0
    )
    for ax, name in zip(axes[0], names, strict=True):
        for (model, contrast), color in zip(keys, shades.values(), strict=True):
            if (model, contrast, name) not in all_curves:
                continue
            steps_of_curve, values = all_curves[model, contrast, name]
            ax.plot(
                steps_of_curve,
                np.nanmean(values, 1),
                color=color,
                marker="o",
                markersize=3,
                label=f"{model}, {contrast}",
            )
            if steps is not None:
                steps_of_contrast = where(steps, model=model, contrast=contrast, quantity=name)
                for step in steps_of_contrast["step"].dropna():
                    ax.axvline(float(step), color=color, linewidth=0.8, linestyle=":")
        if name == "auc_excess":
            level_line(ax, 0)
        step_axis(ax, [step for key in all_curves if key[2] == name for step in all_curves[key][0]])
        ax.set_ylabel(COURSES[name])
    legend(axes[0][0])
    return captioned(
        figure_,
        "The layer of the largest excess at each step; gain and sensitivity of the last layer but one, means "
        "over prompts. Dotted: the step, where the checkpoints in random orders seldom show one as clear.",
        left_out=unknown,
    )


@figure("clouds")
def published(results: Results, options: Options) -> Drawn:
    """Draw the paper's ratios of dimension to factual prompts, with this run's and its control's, by
    depth.
    """
    from attnscope.published import published_numbers

    table, subject = first_model(results, "clouds", "value")
    dimensions = where(table[table["layer"] >= 0], quantity="local_dimension", protocol="exact", null="")
    if dimensions["k"].isna().all():
        raise NotDrawable("no local dimension")
    k = int(dimensions["k"].max())
    dimensions = where(dimensions, k=k).pivot_table(index="layer", columns="bucket", values="value")
    numbers = published_numbers("ruscio2026")
    numbers = where(numbers[numbers["control"].notna()], quantity="local_dimension")
    if "factual" not in dimensions or dimensions.shape[1] < 2 or numbers.empty:
        raise NotDrawable("no bucket besides factual")
    figure_, axes = panels(1, 1, height=2.7, width=min(options.width, 4.4))
    ax = axes[0][0]
    _draw_printed(ax, where(numbers, token="impossible"))
    other = (
        "impossible" if "impossible" in dimensions else next(name for name in dimensions if name != "factual")
    )
    ratio = (dimensions[other] / dimensions["factual"]).dropna()
    ax.plot(
        ratio.index / max(ratio.index.max(), 1),
        ratio,
        color="black",
        marker="o",
        markersize=3,
        label=f"this run, {other}",
    )
    random = controls(results, "clouds", str(table["model"].iloc[0]))
    if random is not None:
        _draw_random_weights(ax, random, other)
    level_line(ax, 1)
    ax.set_xlabel("depth (0: first block, 1: last)")
    ax.set_ylabel("dimension / that of factual")
    legend(ax)
    return captioned(
        figure_,
        f"This run: pooled maximum likelihood at k = {k}. Printed: means of the paper's estimator at k = 30, "
        "which is 1.07 times too large in both buckets, on prompts that differ in template, length and "
        "number. Dashed: no difference.",
        subject,
    )


def _draw_printed(ax: Axes, numbers: pd.DataFrame) -> None:
    """Draw the paper's ratio of each model to its control, by depth."""
    for place, (model, rows) in enumerate(numbers.groupby("model", sort=False)):
        depth = rows["layer"] / rows["layer"].max()
        printed = rows["value"] / rows["control"]
        ax.plot(
            depth,
            printed,
            ":",
            color=PALETTE[place],
            marker="s",
            markersize=3,
            label=f"{model}, impossible, printed",
        )


def _draw_random_weights(ax: Axes, random: pd.DataFrame, bucket: str) -> None:
    """Draw the ratio of a bucket's dimension to that of factual prompts under random weights, by depth."""
    rows = where(random[random["layer"] >= 0], quantity="local_dimension")
    rows = where(rows, k=rows["k"].max())
    wide = rows.pivot_table(index="layer", columns="bucket", values="value")
    line = wide[bucket] / wide["factual"]
    ax.plot(
        line.index / max(line.index.max(), 1),
        line,
        label=f"random weights, {bucket}",
        **NULL_LINES["random_weights"],
    )
