# SPDX-License-Identifier: MIT
"""Position 0: its path, what replacing it removes, what heads pass on of it, what that tells of place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from attnscope.errors import NotDrawable
from attnscope.plots.axes import layers_below, scale_logarithmically
from attnscope.plots.figure import Drawn, Options, Results, captioned, optional, with_values
from attnscope.plots.panels import layer_line, level_line
from attnscope.plots.selection import first_model, last_step
from attnscope.plots.style import INK, MUTED, PALETTE, legend_over, named_artists, panels
from attnscope.studies.absolute_position.figures.declared import figure
from attnscope.studies.absolute_position.tables import Fingerprint
from attnscope.study_api.number_text import rounded
from attnscope.study_api.rows import first_as, rows_as
from attnscope.study_api.selection import where

#: The share that the paper prints, of a statistic and a vector that it does not name where it could be read.
PUBLISHED = 0.40
READING = {"base": "as it reads", "no_bos": "without BOS", "bos_added": "BOS added"}
ORDER = (
    "zero",
    "mean",
    "token",
    "gaussian",
    "special",
    "no_bos",
    "bos_added",
    "unread",
    "hidden",
    "control_1",
    "control_late",
)


@figure("trajectory")
def trajectory(results: Results, options: Options) -> Drawn:
    """Draw position 0 through the layers: its norm next to other positions, and its path as a system."""
    table, subject = first_model(results, "trajectory", "norm", "gap")
    figure_, axes = panels(1, 2, height=2.5, width=options.width, narrowest=2.0)
    base = where(table, arm="base")
    ax = axes[0][0]
    for at, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
        label = f"position 0, {READING.get(str(arm), str(arm))}"
        layer_line(ax, rows, label, PALETTE[at], column="norm")
    ax.fill_between(
        base["layer"],
        base["other_05"],
        base["other_95"],
        color=MUTED,
        alpha=0.25,
        linewidth=0,
        label="other positions, 5 to 95 %",
    )
    ax.plot(base["layer"], base["other_50"], color=MUTED, linewidth=1.0)
    scale_logarithmically(ax, [table["norm"], base[["other_05", "other_50", "other_95"]]])
    ax.set_ylabel("norm of the state")
    ax.legend(fontsize=6.5)
    _plain_ticks(ax)
    path = optional(results, "dynamics")
    drawn = path is not None and _dynamics(axes[0][1], last_step(path), base["model"].iloc[0])
    if not drawn:
        _gaps(axes[0][1], table)
    for ax in axes[0]:
        layers_below(ax)
    tolerance, largest = float(base["tolerance"].max()), float(table["gap"].max())
    words = "is 0" if largest == 0 else f"is at most {rounded(largest, '.2g')}"
    second = (
        "Right: distance between different tokens read alone, relative to their norms, and the gain of small "
        "disturbances in each block: below 1 they shrink. "
        if drawn
        else ""
    )
    return captioned(
        figure_,
        f"Layer −1 is what enters the first block. {second}The gap between position 0 of a text and its "
        f"first token read alone {words} (tolerance {rounded(tolerance, '.0e')}). Largest distance between "
        f"two texts that were read together, as a share of the norm: {rounded(base['across'].max())}.",
        subject,
    )


def _plain_ticks(ax: Axes) -> None:
    """Write numbers and not powers of ten on a logarithmic axis that spans few decades."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log" and high < 100 * low:
        for axis_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            axis_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))


def _dynamics(ax: Axes, table: pd.DataFrame, model: str) -> bool:
    """Draw distances between tokens and gains by layer; return False where there is nothing to draw."""
    rows = where(table, model=model).sort_values("layer")
    if rows["distance"].isna().all():
        return False
    layer_line(ax, rows, "distance of tokens", PALETTE[0], column="distance")
    if rows["gain"].notna().any():
        ax.plot(
            rows["layer"],
            rows["gain"],
            "--",
            marker="s",
            markersize=3,
            color=PALETTE[1],
            label="gain of a block",
        )
    level_line(ax, 1)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("relative to the norm")
    ax.legend(fontsize=6.5)
    return True


def _gaps(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the gap of position 0 to the first token alone under its tolerance."""
    tolerance = float(table["tolerance"].max())
    if not tolerance > 0:
        raise NotDrawable("no gap to the first token alone has a tolerance")
    for at, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
        label = READING.get(str(arm), str(arm))
        layer_line(ax, rows, label, PALETTE[at], column="gap")
    ax.axhline(tolerance, color=INK, linewidth=0.9, linestyle="--", label="tolerance")
    ax.set_yscale("symlog", linthresh=tolerance * 1e-3)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("relative gap to the first token alone")
    ax.legend(fontsize=6.5)


@figure("removed")
def removed(results: Results, options: Options) -> Drawn:
    """Draw the share of the residual that each arm removes: energy and pattern, draws apart, controls
    below a line.
    """
    table, subject = first_model(results, "removed", "energy_removed", "pattern_removed")
    table = where(table, scope="from_1", queries="early", measure="uniform")
    if table["energy_removed"].isna().all():
        raise NotDrawable("no layer from 1 on has a residual that could be removed")
    rows = list(_rows(table))
    arms = optional(results, "removed_arms")
    pooled = pd.DataFrame() if arms is None else last_step(arms).set_index(["model", "arm"])
    figure_, axes = panels(1, 1, height=1.3 + 0.24 * len(rows), width=min(options.width, 5.6))
    ax = axes[0][0]
    ends = table[["energy_removed_low", "pattern_removed_low", "energy_removed_high", "pattern_removed_high"]]
    low, high = max(-1.5, float(ends.min().min()) - 0.05), min(2.0, max(1.1, float(ends.max().max()) + 0.05))
    for place, (_, rows_of_arm) in enumerate(rows):
        _mark(ax, place, rows_of_arm, pooled, (low, high))
    controls = [at for at, (label, _) in enumerate(rows) if label.startswith("position")]
    if controls:
        ax.axhline(controls[0] - 0.5, color=INK, linewidth=0.8)
    level_line(ax, 0, along="x")
    ax.axvline(PUBLISHED, color=PALETTE[1], linewidth=1.0, linestyle="--")
    ax.annotate(
        "published 40 %",
        (PUBLISHED, -0.6),
        color=PALETTE[1],
        fontsize=6.5,
        xytext=(2, 0),
        textcoords="offset points",
        va="bottom",
    )
    ax.set_yticks(range(len(rows)), [label for label, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -0.9)
    ax.set_xlim(low - 0.05, high + 0.05)
    ax.set_xlabel("removed of the residual, layers from 1")
    legend_over(figure_, named_artists([ax]), 3)
    bounds = " and ".join(f"{end:.1f}".replace("-", "−") for end in (low, high))
    return captioned(
        figure_,
        "Energy: 1 − c'²/c²; pattern: 1 − <R', R>/<R, R>. Lines: 95 % intervals over groups of texts, of "
        "several draws with the spread of the draws (none of sets of heads); thin marks: draws. Below the "
        f"line: the same done to other positions. Values beyond {bounds} are at the edge. Dashed: the share "
        "that was published, of another model; which statistic and vector gave it is not known.",
        subject,
    )


def _mark(
    ax: Axes, place: int, rows: pd.DataFrame, pooled: pd.DataFrame, bounds: tuple[float, float]
) -> None:
    """Draw energy and pattern of one arm: mean, interval, draws."""
    mean = rows[["energy_removed", "pattern_removed"]].mean()
    if mean.isna().all():
        ax.annotate("base within its noise", (0.02, place), color=MUTED, fontsize=6.5, va="center")
        return
    first = rows.iloc[0]
    key = (first["model"], first["arm"])
    interval: Any = first if len(rows) == 1 else None
    if len(rows) > 1 and first["kind"] != "read" and key in pooled.index:
        interval = pooled.loc[key]
    for column, shift in (("energy_removed", -0.12), ("pattern_removed", 0.12)):
        if interval is not None:
            ends = np.clip([interval[f"{column}_low"], interval[f"{column}_high"]], *bounds)
            ax.plot(ends, [place + shift] * 2, color=PALETTE[0], linewidth=1.0)
    if len(rows) > 1:
        ax.plot(
            rows["energy_removed"].clip(*bounds),
            [place - 0.12] * len(rows),
            "|",
            color=PALETTE[0],
            markersize=6,
            alpha=0.6,
        )
    energy, pattern = np.clip(mean, *bounds)
    ax.plot(energy, place - 0.12, "o", color=PALETTE[0], markersize=4.5, linestyle="", label="energy")
    ax.plot(
        pattern,
        place + 0.12,
        "o",
        markerfacecolor="white",
        markeredgecolor=PALETTE[0],
        markersize=4.5,
        linestyle="",
        label="pattern",
    )


def _rows(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return one row for each arm, reads by their heads, in order."""
    names = {
        "zero": "zero vector",
        "mean": "mean embedding",
        "token": "ordinary token",
        "gaussian": "Gaussian vector",
        "special": "another special token",
        "no_bos": "no BOS",
        "bos_added": "BOS added",
        "control_1": "position 1 replaced",
        "control_late": "position m/2 replaced",
    }
    rows = []
    for arm in ORDER:
        rows_of_arm = where(table, arm=arm)
        if arm in ("unread", "hidden"):
            for label, part in (
                ("readers", where(rows_of_arm, draw=0)),
                ("as many others", rows_of_arm[rows_of_arm["draw"] > 0]),
                ("all heads", where(rows_of_arm, draw=-1)),
            ):
                if len(part):
                    rows.append((f"key 0 {arm}: {label}", part))
        elif len(rows_of_arm):
            rows.append((names[arm], rows_of_arm))
    return rows


@figure("fingerprints")
def fingerprints(results: Results, options: Options) -> Drawn:
    """Draw the similarity over texts of what a head writes of position 0, with and without BOS."""
    table, subject = first_model(results, "fingerprints", "fingerprint_cosine", "a0")
    figure_, axes = panels(1, 2, height=2.5, width=options.width)
    for at, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
        label = READING.get(str(arm), str(arm))
        shift = (at - 0.5) * 0.16
        for ax, column in zip(axes[0], ("fingerprint_cosine", "a0"), strict=True):
            ax.plot(
                rows["layer"] + shift,
                rows[column],
                "o",
                color=PALETTE[at],
                markersize=3,
                alpha=0.65,
                label=label,
            )
            mean = rows.groupby("layer")[column].mean()
            ax.plot(mean.index + shift, mean, color=PALETTE[at], linewidth=1.0)
    level_line(axes[0][0], 0)
    axes[0][0].set_ylabel("cosine over texts")
    uniform = table.groupby("layer")["uniform"].first()  # layers of windows have another
    edges = np.append(uniform.index - 0.5, uniform.index[-1] + 0.5)
    axes[0][1].stairs(uniform, edges, baseline=None, color=MUTED, linewidth=0.9, linestyle=(0, (5, 2)))
    axes[0][1].set_ylabel("mean attention to key 0")
    axes[0][1].set_ylim(-0.03, 1.03)
    for ax in axes[0]:
        layers_below(ax)
    legend_over(figure_, named_artists(axes[0][:1]))
    best = first_as(Fingerprint, where(table, arm="base").sort_values("a0", ascending=False))
    return captioned(
        figure_,
        "Each point a head, lines their means. Left: unbiased cosine between the fingerprints of two "
        "texts; texts "
        "that have nothing in common have 0 (dashed). Right: mean over the queries that see key 0; dashed: "
        "uniform attention. The strongest "
        "reader is "
        f"layer {best.layer} head {best.head} with {best.a0:.2f}.",
        subject,
    )


@figure("clocks", "fingerprints")
def clock(results: Results, options: Options) -> Drawn:
    """Draw the attention of the strongest readers to position 0 along the text, with that of the mask
    alone.
    """
    table, subject = first_model(results, "clocks", "a0", "a0_mask")
    with_values(table, "clocks", ("a0", "a0_mask"))
    heads, _ = first_model(results, "fingerprints", "a0", "clock")
    strongest = where(heads, arm="base").sort_values("a0", ascending=False).head(4)
    figure_, axes = panels(1, 1, height=2.7, width=min(options.width, 4.6))
    ax = axes[0][0]
    for at, head in enumerate(rows_as(Fingerprint, strongest)):
        rows = where(table, arm="base", layer=head.layer, head=head.head)
        rows = rows[rows["query"] >= 1]
        label = (
            f"layer {head.layer} head {head.head}: clock {rounded(head.clock, '.2f')}, "
            f"mask {rounded(head.clock_mask, '.2f')}"
        )
        ax.plot(rows["query"], rows["a0"], color=PALETTE[at], label=label)
        ax.plot(rows["query"], rows["a0_mask"], color=PALETTE[at], linestyle="--", linewidth=0.9)
    query = np.arange(1, int(table["query"].max()) + 1)
    ax.plot(
        query, 1 / (query + 1), color=INK, linewidth=1.4, linestyle=":", label="uniform, 1/(i + 1)", zorder=4
    )
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("query i")
    ax.set_ylabel("attention to key 0")
    legend_over(figure_, named_artists([ax]), 2, fontsize=6.0)
    return captioned(
        figure_,
        "Solid: mean attention to key 0; dashed: late queries that see i + 1 keys alone. Clock: share of "
        "its variance "
        "that is between positions; a saturated reader tells no time.",
        subject,
    )
