# SPDX-License-Identifier: MIT
"""The model along the boundary, by depth."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnscope.plots.figure import Drawn, NotDrawable, Options, Results, captioned, stored
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, panels
from attnscope.studies.hallucination_geometry.figures.declared import (
    colors,
    decades,
    figure,
    layers_below,
    legend,
    level,
)


@figure("sensitivity", "prompts")
def sensitivity_by_depth(results: Results, options: Options) -> Drawn:
    """Sensitivity along the boundary in three units, beside directions of the states' covariance."""
    table, more = first_model(results, "sensitivity", "relative_fisher")
    prompts = stored(results, "prompts")[["model", "sample", "bucket"]].drop_duplicates()
    table = table.merge(prompts, on=["model", "sample"], how="left")
    contrast = str(table["contrast"].iloc[0])
    table = table[table["contrast"] == contrast]
    shades = colors(list(table["bucket"]))
    count = table[table["direction"] == "boundary"].groupby("bucket")["sample"].nunique().min()
    names = {"directional_fisher": "bᵀFb (nats)", "relative_fisher": "‖h‖²·bᵀFb (nats)",
             "transport_kl": "divergence of v put there (nats)"}  # fmt: skip
    figure_, axes = panels(1, 3, height=2.6, width=options.width)
    for ax, (column, label) in zip(axes[0], names.items(), strict=True):
        for bucket, rows in table[table["direction"] == "boundary"].groupby("bucket", sort=False):
            mean = rows.groupby("layer")[column].mean()
            ax.plot(mean.index, mean, color=shades[bucket], marker="o", markersize=3, label=bucket)
        null = table[table["direction"] == "covariance"].groupby(["layer", "draw"])[column].mean()
        low, high = (null.groupby("layer").quantile(q) for q in (0.025, 0.975))
        ax.fill_between(low.index, low, high, color=MUTED, alpha=0.25, linewidth=0, label="covariance")
        if (table[column] > 0).all():
            decades(ax)
        ax.set_ylabel(label)
        layers_below(ax, count)
    legend(axes[0][0])
    return captioned(
        figure_,
        f"{contrast} against the reference, means over {count} prompts of each bucket. Grey: 95 % of random "
        "directions of the states' covariance and the same length.",
        more,
    )


@figure("readout")
def readout_by_depth(results: Results, options: Options) -> Drawn:
    """How much of what the logits read the boundary is, by depth."""
    table, more = first_model(results, "readout", "readout_gain", "top_share")
    figure_, axes = panels(1, 2, height=2.6, width=options.width)
    shades = colors(["", *table["contrast"]])
    # all directions hold all of any
    ks = sorted(table[table["chance"] < 1]["k"].unique()) or sorted(table["k"].unique())
    k = ks[len(ks) // 2]
    for (contrast, direction), rows in table.groupby(["contrast", "direction"], sort=False):
        rows = rows[rows["k"] == k].sort_values("layer")
        if direction == "boundary":
            axes[0][0].plot(rows["layer"], rows["readout_gain"], color=shades[contrast], marker="o",
                            markersize=3, label=contrast)  # fmt: skip
            axes[0][1].plot(
                rows["layer"], rows["top_share"], color=shades[contrast], marker="o", markersize=3
            )
        else:
            axes[0][0].fill_between(
                rows["layer"], rows["low"], rows["high"], color=MUTED, alpha=0.2, linewidth=0
            )
            axes[0][1].plot(rows["layer"], rows["top_share"], color=shades[contrast], linestyle=":")
    level(axes[0][0], 1)
    for chance in table[table["k"] == k]["chance"].dropna().unique()[:1]:
        level(axes[0][1], float(chance))
    decades(axes[0][0])
    axes[0][0].set_ylabel("readout gain")
    axes[0][1].set_ylim(0, None)
    axes[0][1].set_ylabel(f"share in the top {k} directions")
    legend(axes[0][0])
    for ax in axes[0]:
        layers_below(ax)
    return captioned(
        figure_,
        "Gain 1 (dashed): the logits read the boundary as much as any direction. Grey and dotted: directions "
        "of the states' covariance. Right, dashed: chance k/D.",
        more,
    )


@figure("sensitivity")
def refusal_slope(results: Results, options: Options) -> Drawn:
    """Whether moving towards the other bucket raises the odds of a refusal, and the entropy."""
    table, more = first_model(results, "sensitivity", "refusal_slope")
    if table["refusal_slope"].isna().all() and table["entropy_slope"].isna().all():
        raise NotDrawable("no refusal token")
    shades = colors(["", *table["contrast"]])
    figure_, axes = panels(1, 2, height=2.6, width=options.width)
    for ax, column, label in zip(
        axes[0], ("refusal_slope", "entropy_slope"), ("slope of refusal (logits)", "slope of entropy (nats)"),
        strict=True,
    ):  # fmt: skip
        for contrast, rows in table.groupby("contrast", sort=False):
            mean = rows[rows["direction"] == "boundary"].groupby("layer")[column].mean()
            ax.plot(mean.index, mean, color=shades[contrast], marker="o", markersize=3, label=contrast)
            null = rows[rows["direction"] == "labels"].groupby(["layer", "draw"])[column].mean()
            low, high = (null.groupby("layer").quantile(q) for q in (0.025, 0.975))
            ax.fill_between(low.index, low, high, color=shades[contrast], alpha=0.12, linewidth=0)
        level(ax, 0)
        ax.set_ylabel(label)
        layers_below(ax, table["sample"].nunique())
    legend(axes[0][0])
    return captioned(
        figure_,
        "Derivatives along the whole mean difference, means over prompts; bands: 95 % of differences of "
        "exchanged labels. Above 0: towards the other bucket means towards refusal, or towards entropy.",
        more,
    )


@figure("lens", "prompts")
def lens(results: Results, options: Options) -> Drawn:
    """Every layer read out as the last one is: entropy, largest probability and the answer's rank."""
    table, more = first_model(results, "lens", "prediction_entropy", "top")
    prompts = stored(results, "prompts")[["model", "sample", "bucket"]].drop_duplicates()
    table = table.merge(prompts, on=["model", "sample"], how="left")
    shades = colors(list(table["bucket"]))
    columns = {"prediction_entropy": "entropy (nats)", "top": "largest probability"}
    if table["log_p_answer"].notna().any():
        columns["log_p_answer"] = "log p of the answer"
    count = int(table.groupby("bucket")["sample"].nunique().min()) if table["bucket"].notna().any() else 0
    figure_, axes = panels(1, len(columns), height=2.5, width=options.width, narrowest=2.0)
    for ax, (column, label) in zip(axes[0], columns.items(), strict=True):
        for bucket, rows in table.groupby("bucket", sort=False):
            values = rows.groupby("layer")[column]
            mean, error = values.mean(), values.sem()
            if mean.isna().all():
                continue
            ax.plot(mean.index, mean, color=shades[bucket], marker="o", markersize=3, label=bucket)
            reach = 1.96 * pd.Series(np.nan_to_num(error), index=mean.index)
            ax.fill_between(
                mean.index, mean - reach, mean + reach, color=shades[bucket], alpha=0.12, linewidth=0
            )
        ax.set_ylabel(label)
        layers_below(ax, count)
    legend(axes[0][0])
    return captioned(
        figure_, f"Means over prompts, at least {count} of each bucket; bands: 95 %. The last layer is the "
        "model's own output.", more,
    )  # fmt: skip
