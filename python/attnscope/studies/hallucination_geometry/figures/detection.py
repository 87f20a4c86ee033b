# SPDX-License-Identifier: MIT
"""What the prompts alone tell, and what states tell beyond it."""

from __future__ import annotations

import numpy as np

from attnscope.plots.figure import Drawn, NotDrawable, Options, Tables, captioned, over_steps, stored
from attnscope.plots.style import MUTED, NULL_LINES, PALETTE, panels
from attnscope.studies.hallucination_geometry.figures.declared import (
    controls,
    figure,
    first_model,
    layers_below,
    legend,
    level,
)

#: Scores beside the probe's, in the order of the bars.
BASELINES = {
    "auc_length": "length",
    "auc_words": "words",
    "auc_surprisal": "surprisal",
    "auc_embedding": "embeddings",
}


@figure("detection")
def confounds(results: Tables, options: Options) -> Drawn:
    """What lengths, words and embeddings know of the buckets, beside the best layer."""
    table, more = first_model(results, "detection", "score", "auc")
    contrasts = list(dict.fromkeys(table["contrast"]))
    random = controls(results, "detection", str(table["model"].iloc[0]))
    figure_, axes = panels(
        1, len(contrasts), height=2.6, width=min(options.width, 3.0 * len(contrasts) + 0.4)
    )
    for ax, contrast in zip(axes[0], contrasts, strict=True):
        own = table[table["contrast"] == contrast]
        bars: list[tuple[str, float, float, float, str]] = []
        for score, name in BASELINES.items():
            row = own[own["score"] == score]
            if len(row):
                bars.append((name, *row[["auc", "low", "high"]].iloc[0], MUTED))
        probe = own[(own["score"] == "auc") & own["auc"].notna()]
        if probe.empty:
            raise NotDrawable("no layer could be scored")
        best = probe.loc[probe["auc"].idxmax()]
        if random is not None:
            rows = random[(random["contrast"] == contrast) & (random["score"] == "auc")]
            value = rows[rows["layer"] == best["layer"]].groupby("seed")["auc"].mean()
            if len(value):
                bars.append(("random weights", value.mean(), value.min(), value.max(), PALETTE[3]))
        bars.append((f"layer {int(best['layer'])}", best["auc"], best["low"], best["high"], PALETTE[0]))
        for at, (_, value, low, high, color) in enumerate(bars):
            ax.bar(at, value - 0.5, bottom=0.5, color=color, width=0.7)
            ax.plot(at, value, "o", color=color, markersize=4)
            if np.isfinite(low):
                ax.plot([at, at], [low, high], color="black", linewidth=1)
        ax.set_xticks(range(len(bars)), [one[0] for one in bars], rotation=40, ha="right")
        level(ax, 0.5)
        ax.set_ylim(0, 1)
        ax.set_title(f"{contrast} (n = {own['n'].max():.0f})")
    axes[0][0].set_ylabel("AUC on held-out templates")
    return captioned(
        figure_,
        "Area under the curve of probes fitted on other templates; .5 is chance. Grey: what is no state. "
        "Lines: 95 % intervals over templates; of random weights, the range of initialisations.",
        more,
    )


@figure("detection")
def detection_by_depth(results: Tables, options: Options) -> Drawn:
    """What states tell on held-out templates, by depth, above the best of what is no state."""
    table, more = first_model(results, "detection", "score", "auc")
    contrasts = list(dict.fromkeys(table["contrast"]))
    random = controls(results, "detection", str(table["model"].iloc[0]))
    figure_, axes = panels(
        1, len(contrasts), height=2.6, width=min(options.width, 3.0 * len(contrasts) + 0.4)
    )
    for ax, contrast in zip(axes[0], contrasts, strict=True):
        own = table[table["contrast"] == contrast]
        for score, label, color in (
            ("auc", "probe", PALETTE[0]),
            ("auc_direction", "difference", PALETTE[2]),
        ):
            rows = own[own["score"] == score].sort_values("layer")
            ax.plot(rows["layer"], rows["auc"], color=color, marker="o", markersize=3, label=label)
            ax.fill_between(rows["layer"], rows["low"], rows["high"], color=color, alpha=0.15, linewidth=0)
        baseline = own[own["score"].isin(BASELINES)].groupby("layer")["auc"].max()
        ax.fill_between(baseline.index, 0, baseline, color=MUTED, alpha=0.25, linewidth=0, label="no state")
        if random is not None:
            rows = random[(random["contrast"] == contrast) & (random["score"] == "auc")]
            mean = rows.groupby("layer")["auc"].mean()
            ax.plot(mean.index, mean, label="random weights", **NULL_LINES["random_weights"])
        level(ax, 0.5)
        ax.set_ylim(0, 1)
        ax.set_title(f"{contrast} (n = {own['n'].max():.0f})")
        layers_below(ax)
    axes[0][0].set_ylabel("AUC on held-out templates")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure_.legend(handles, labels, loc="outside upper center", ncols=4)
    return captioned(
        figure_,
        "Bands: 95 % intervals over templates. Shaded from below: the best of length, words, surprisal and "
        "embeddings. Only what rises above it is of the states.",
        more,
    )


@figure("detection")
def training(results: Tables, options: Options) -> Drawn:
    """The best excess of detection over the course of training."""
    table = over_steps(stored(results, "detection", "score", "auc"))
    own = table[table["score"] == "auc_excess"].dropna(subset=["auc"])
    if own.empty:
        raise NotDrawable("no checkpoint could be scored")
    best = own.loc[own.groupby(["model", "contrast", "step"])["auc"].idxmax()]
    figure_, axes = panels(1, 1, height=2.6, width=min(options.width, 4.2))
    for at, (key, rows) in enumerate(best.groupby(["model", "contrast"], sort=False)):
        color = PALETTE[at % len(PALETTE)]
        axes[0][0].plot(rows["step"], rows["auc"], color=color, marker="o", markersize=3, label=" ".join(key))
        axes[0][0].fill_between(rows["step"], rows["low"], rows["high"], color=color, alpha=0.15, linewidth=0)
    level(axes[0][0], 0)
    axes[0][0].set_xscale("symlog", linthresh=1)
    axes[0][0].set_xlabel("step")
    axes[0][0].set_ylabel("best excess of AUC")
    legend(axes[0][0])
    return captioned(figure_, "The layer of the largest excess at each step; bands: 95 % over templates.")


@figure("clouds")
def published(results: Tables, options: Options) -> Drawn:
    """The paper's ratios of dimension to factual prompts, beside this run's and its control's, by depth."""
    from attnscope.published.numbers import published_numbers

    table, more = first_model(results, "clouds", "value")
    own = table[
        (table["quantity"] == "local_dimension") & (table["protocol"] == "exact") & (table["layer"] >= 0)
    ]
    own = own[own["k"] == own["k"].max()].pivot_table(index="layer", columns="bucket", values="value")
    numbers = published_numbers("ruscio2026")
    numbers = numbers[(numbers["quantity"] == "local_dimension") & numbers["control"].notna()]
    if "factual" not in own or own.shape[1] < 2 or numbers.empty:
        raise NotDrawable("no bucket besides factual")
    figure_, axes = panels(1, 1, height=2.7, width=min(options.width, 4.4))
    ax = axes[0][0]
    for at, (model, rows) in enumerate(
        numbers[numbers["token"] == "impossible"].groupby("model", sort=False)
    ):
        depth = rows["layer"] / rows["layer"].max()
        printed = rows["value"] / rows["control"]
        ax.plot(depth, printed, ":", color=PALETTE[at], marker="s", markersize=3, label=f"{model}, printed")
    other = next(name for name in own if name != "factual")
    ratio = (own[other] / own["factual"]).dropna()
    ax.plot(
        ratio.index / max(ratio.index.max(), 1),
        ratio,
        color="black",
        marker="o",
        markersize=3,
        label="this run",
    )
    random = controls(results, "clouds", str(table["model"].iloc[0]))
    if random is not None:
        rows = random[(random["quantity"] == "local_dimension") & (random["layer"] >= 0)]
        rows = rows[rows["k"] == rows["k"].max()]
        wide = rows.pivot_table(index="layer", columns="bucket", values="value")
        line = wide[other] / wide["factual"]
        ax.plot(
            line.index / max(line.index.max(), 1),
            line,
            label="random weights",
            **NULL_LINES["random_weights"],
        )
    level(ax, 1)
    ax.set_xlabel("depth")
    ax.set_ylabel(f"dimension, {other} / factual")
    legend(ax)
    return captioned(
        figure_,
        "The paper's prompts differ in template, length and number between buckets; those of this run need "
        "not. Dashed: no difference.",
        more,
    )
