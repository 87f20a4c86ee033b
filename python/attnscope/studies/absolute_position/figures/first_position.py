# SPDX-License-Identifier: MIT
"""Position 0: its path, what replacing it removes, what heads pass on of it, what that tells of place."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnscope.plots.axes import layers_below, logarithmic
from attnscope.plots.figure import Drawn, NotDrawable, Options, Results, captioned, with_values
from attnscope.plots.selection import first_model
from attnscope.plots.style import INK, MUTED, PALETTE, legend_over, named_artists, panels
from attnscope.studies.absolute_position.figures.declared import figure

#: The share that the paper prints, of a statistic and a vector that it does not name where it could be read.
PUBLISHED = 0.40
READING = {"base": "as it reads", "no_bos": "without BOS", "bos_added": "BOS added"}
ORDER = (
    "zero", "mean", "token", "gaussian", "special", "no_bos", "bos_added", "unread", "hidden", "control_1",
    "control_late",
)  # fmt: skip


@figure("trajectory")
def trajectory(results: Results, options: Options) -> Drawn:
    """Position 0 through the layers: its norm beside other positions, its gap to the first token alone."""
    table, more = first_model(results, "trajectory", "norm", "gap")
    figure_, axes = panels(1, 2, height=2.5, width=options.width, narrowest=2.0)
    base = table[table["arm"] == "base"]
    ax = axes[0][0]
    for at, (arm, own) in enumerate(table.groupby("arm", sort=False)):
        label = f"position 0, {READING.get(str(arm), str(arm))}"
        ax.plot(own["layer"], own["norm"], marker="o", markersize=3, color=PALETTE[at], label=label)
    ax.fill_between(
        base["layer"], base["other_05"], base["other_95"], color=MUTED, alpha=0.25, linewidth=0,
        label="other positions, 5 to 95 %",
    )  # fmt: skip
    ax.plot(base["layer"], base["other_50"], color=MUTED, linewidth=1.0)
    logarithmic(ax, [table["norm"], base[["other_05", "other_50", "other_95"]]])
    ax.set_ylabel("norm of the state")
    ax.legend(fontsize=6.5)
    ax = axes[0][1]
    rounding = float(base["tolerance"].max()) * 1e-4
    if not rounding > 0:
        raise NotDrawable("no gap to the first token alone has a tolerance")
    for at, (arm, own) in enumerate(table.groupby("arm", sort=False)):
        ax.plot(
            own["layer"], own["gap"].clip(lower=rounding), marker="o", markersize=3, color=PALETTE[at],
            label=READING.get(str(arm), str(arm)),
        )  # fmt: skip
    ax.axhline(1e4 * rounding, color=INK, linewidth=0.9, linestyle="--", label="tolerance")
    ax.set_yscale("log")
    ax.set_ylim(bottom=rounding / 2)
    ax.set_ylabel("relative gap to the first token alone")
    ax.legend(fontsize=6.5)
    for ax in axes[0]:
        layers_below(ax)
    return captioned(
        figure_,
        f"Layer −1 is what enters the first block. A gap of 0 is drawn at {rounding:g}. Largest distance "
        f"between "
        f"two texts, as a share of the norm: {base['across'].max():.3g}.",
        more,
    )


@figure("removed")
def removed(results: Results, options: Options) -> Drawn:
    """What each arm removes of the residual: energy and pattern, draws apart, controls below a line."""
    table, more = first_model(results, "removed", "energy_removed", "pattern_removed")
    table = table[
        (table["scope"] == "from_1") & (table["queries"] == "early") & (table["measure"] == "uniform")
    ]
    if table["energy_removed"].isna().all():
        raise NotDrawable("no layer from 1 on has a residual that could be removed")
    rows = list(_rows(table))
    figure_, axes = panels(1, 1, height=1.1 + 0.24 * len(rows), width=min(options.width, 5.6))
    ax = axes[0][0]
    ends = table[["energy_removed_low", "pattern_removed_low", "energy_removed_high", "pattern_removed_high"]]
    low, high = max(-1.5, float(ends.min().min()) - 0.05), min(2.0, max(1.1, float(ends.max().max()) + 0.05))
    for place, (_, own) in enumerate(rows):
        mean = own[["energy_removed", "pattern_removed"]].mean()
        if mean.isna().all():
            ax.annotate("base within its noise", (0.02, place), color=MUTED, fontsize=6.5, va="center")
        elif len(own) == 1:
            one = own.iloc[0]
            for column, shift in (("energy_removed", -0.12), ("pattern_removed", 0.12)):
                ends = np.clip([one[f"{column}_low"], one[f"{column}_high"]], low, high)
                ax.plot(ends, [place + shift] * 2, color=PALETTE[0], linewidth=1.0)
        else:
            x = own["energy_removed"].clip(low, high)
            ax.plot(x, [place - 0.12] * len(own), "|", color=PALETTE[0], markersize=6, alpha=0.6)
        ax.plot(np.clip(mean.iloc[0], low, high), place - 0.12, "o", color=PALETTE[0], markersize=4.5)
        ax.plot(
            np.clip(mean.iloc[1], low, high), place + 0.12, "o", markerfacecolor="white",
            markeredgecolor=PALETTE[0], markersize=4.5,
        )  # fmt: skip
    controls = [at for at, (label, _) in enumerate(rows) if label.startswith("position")]
    if controls:
        ax.axhline(controls[0] - 0.5, color=INK, linewidth=0.8)
    ax.axvline(0, color=MUTED, linewidth=0.8, linestyle=(0, (5, 2)))
    ax.axvline(PUBLISHED, color=PALETTE[1], linewidth=1.0, linestyle="--")
    ax.annotate(
        "published 40 %", (PUBLISHED, -0.6), color=PALETTE[1], fontsize=6.5, xytext=(2, 0),
        textcoords="offset points", va="bottom",
    )  # fmt: skip
    ax.set_yticks(range(len(rows)), [label for label, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -0.9)
    ax.set_xlim(low - 0.05, high + 0.05)
    ax.set_xlabel("removed of the residual, layers from 1")
    return captioned(
        figure_,
        "Filled: energy, 1 − c'²/c²; open: pattern, 1 − <R', R>/<R, R>. Lines: 95 % intervals; thin marks: "
        "draws. "
        f"Below the line: the same done to other positions. Values beyond {low:.1f} and {high:.1f} stand "
        f"at the edge. The "
        f"dashed "
        "share is of another model, by a statistic and a vector that were not to be read.",
        more,
    )


def _rows(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One for each arm, reads by whose they are, in order."""
    names = {
        "zero": "zero vector", "mean": "mean embedding", "token": "ordinary token",
        "gaussian": "Gaussian vector", "special": "another special token",
        "no_bos": "no BOS", "bos_added": "BOS added",
        "control_1": "position 1 replaced", "control_late": "position m/2 replaced",
    }  # fmt: skip
    found = []
    for arm in ORDER:
        own = table[table["arm"] == arm]
        if arm in ("unread", "hidden"):
            for label, part in (
                ("readers", own[own["draw"] == 0]),
                ("as many others", own[own["draw"] > 0]),
                ("all heads", own[own["draw"] == -1]),
            ):
                if len(part):
                    found.append((f"key 0 {arm}: {label}", part))
        elif len(own):
            found.append((names[arm], own))
    return found


@figure("fingerprints")
def fingerprints(results: Results, options: Options) -> Drawn:
    """How alike what a head writes of position 0 is over texts, with and without BOS."""
    table, more = first_model(results, "fingerprints", "fingerprint_cosine", "a0")
    figure_, axes = panels(1, 2, height=2.5, width=options.width)
    for at, (arm, own) in enumerate(table.groupby("arm", sort=False)):
        label = READING.get(str(arm), str(arm))
        shift = (at - 0.5) * 0.16
        for ax, column in zip(axes[0], ("fingerprint_cosine", "a0"), strict=True):
            ax.plot(
                own["layer"] + shift,
                own[column],
                "o",
                color=PALETTE[at],
                markersize=3,
                alpha=0.65,
                label=label,
            )
            mean = own.groupby("layer")[column].mean()
            ax.plot(mean.index + shift, mean, color=PALETTE[at], linewidth=1.0)
    axes[0][0].axhline(0, color=MUTED, linewidth=0.8, linestyle=(0, (5, 2)))
    axes[0][0].set_ylabel("cosine over texts")
    uniform = table.groupby("layer")["uniform"].first()  # layers of windows have another
    edges = np.append(uniform.index - 0.5, uniform.index[-1] + 0.5)
    axes[0][1].stairs(uniform, edges, baseline=None, color=MUTED, linewidth=0.9, linestyle=(0, (5, 2)))
    axes[0][1].set_ylabel("mean attention to key 0")
    axes[0][1].set_ylim(-0.03, 1.03)
    for ax in axes[0]:
        layers_below(ax)
    legend_over(figure_, named_artists(axes[0][:1]))
    best = table[table["arm"] == "base"].sort_values("a0").iloc[-1]
    return captioned(
        figure_,
        "Each point a head, lines their means. Left: unbiased cosine between the fingerprints of two "
        "texts; texts "
        "that have nothing in common have 0 (dashed). Right: mean over the queries that see key 0; dashed: "
        "uniform attention. The strongest "
        "reader is "
        f"layer {best['layer']:.0f} head {best['head']:.0f} with {best['a0']:.2f}.",
        more,
    )


@figure("clocks", "fingerprints")
def clock(results: Results, options: Options) -> Drawn:
    """What the strongest readers of position 0 receive along the text, beside what the mask alone gives."""
    table, more = first_model(results, "clocks", "a0", "a0_mask")
    with_values(table, "clocks", ("a0", "a0_mask"))
    heads, _ = first_model(results, "fingerprints", "a0", "clock")
    heads = heads[heads["arm"] == "base"].sort_values("a0", ascending=False).head(4)
    figure_, axes = panels(1, 1, height=2.7, width=min(options.width, 4.6))
    ax = axes[0][0]
    for at, one in enumerate(heads.itertuples()):
        own = table[(table["arm"] == "base") & (table["layer"] == one.layer) & (table["head"] == one.head)]
        own = own[own["query"] >= 1]
        label = f"layer {one.layer} head {one.head}: clock {one.clock:.2f}, mask {one.clock_mask:.2f}"
        ax.plot(own["query"], own["a0"], color=PALETTE[at], label=label)
        ax.plot(own["query"], own["a0_mask"], color=PALETTE[at], linestyle="--", linewidth=0.9)
    query = np.arange(1, int(table["query"].max()) + 1)
    ax.plot(query, 1 / (query + 1), color=MUTED, linewidth=0.9, linestyle=":", label="uniform, 1/(i + 1)")
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("query i")
    ax.set_ylabel("attention to key 0")
    legend_over(figure_, named_artists([ax]), 2, fontsize=6.0)
    return captioned(
        figure_,
        "Solid: mean attention to key 0; dashed: late queries that see i + 1 keys alone. Clock: share of "
        "its variance "
        "that lies between positions; a saturated reader tells no time.",
        more,
    )
