# SPDX-License-Identifier: MIT
"""The model along the boundary, by depth."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import special

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Drawn, Options, Results, captioned
from attnscope.plots.panels import PanelGrid, Panels, level_line
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, panels
from attnscope.studies.hallucination_geometry.evidence import range_words
from attnscope.studies.hallucination_geometry.figures.declared import (
    colors,
    decades,
    figure,
    layers_below,
    legend,
    null_range,
    prompts_of_each,
    with_buckets,
)
from attnscope.study_api.selection import where


@figure("sensitivity", "prompts")
def sensitivity_by_depth(results: Results, options: Options) -> Drawn:
    """Draw sensitivity along the boundary in three units, with directions of the states' covariance."""
    table, subject = first_model(results, "sensitivity", "relative_fisher")
    table = with_buckets(results, table)
    shades = colors(list(table["bucket"]))
    count = prompts_of_each(where(table, direction="boundary"), "contrast", "bucket")
    names = {
        "directional_fisher": "bᵀFb (nats)",
        "relative_fisher": "‖h‖²·bᵀFb (nats)",
        "transport_kl": "divergence of v put there (nats)",
    }
    grid = PanelGrid.by(table, "contrast", names.items(), options, height=2.2)
    for ax, (column, label), rows_of_contrast in grid.panels(table):
        boundary = where(rows_of_contrast, direction="boundary")
        null = where(rows_of_contrast, direction="covariance")
        positive = bool((rows_of_contrast[column] > 0).all())
        means = means_by(null, ["layer", "draw"], column, logarithmic=positive).groupby("layer")
        low, high = means.min(), means.max()
        ax.fill_between(low.index, low, high, color=MUTED, alpha=0.25, linewidth=0, label="covariance")
        for bucket, rows in boundary.groupby("bucket", sort=False):
            draw_means(ax, rows, column, shades[bucket], str(bucket), logarithmic=positive)
        if positive:
            decades(ax)
        ax.set_ylabel(label)
        layers_below(ax)
    grid.title_rows(lambda contrast: f"{contrast} against the reference")
    legend(grid.axes[0][0])
    return grid.captioned(
        f"Means over {count} prompts of each bucket and contrast, on logarithmic axes geometric ones, bars: "
        "95 % over prompts. Grey: directions of the states' covariance and the same length, "
        f"{drawn_range(where(table, direction='covariance'))}.",
        subject,
    )


def draw_means(
    ax: Axes, rows: pd.DataFrame, column: str, color: str, label: str, *, logarithmic: bool = False
) -> None:
    """Draw means over prompts by layer with 95 % bars of Student; of positive numbers the geometric mean."""
    numbers = rows[column].astype(float)
    values = pd.Series(np.log(numbers) if logarithmic else numbers, index=rows.index)
    groups = values.groupby(rows["layer"])
    mean, prompts = groups.mean(), groups.count()
    reach = special.stdtrit(prompts - 1, 0.975) * groups.sem()  # NaN of one prompt: no bar
    low, high = mean - reach, mean + reach
    if logarithmic:
        mean, low, high = np.exp(mean), np.exp(low), np.exp(high)
    ax.errorbar(
        mean.index,
        mean,
        [mean - low, high - mean],
        color=color,
        marker="o",
        markersize=3,
        capsize=2,
        linewidth=1.2,
        label=label,
    )


def means_by(
    rows: pd.DataFrame, keys: list[str], column: str, *, logarithmic: bool = False
) -> pd.Series[float]:
    """Return means over prompts by some keys, of logarithms the geometric mean: as `draw_means` has them."""
    numbers = rows[column].astype(float)
    values = pd.Series(np.log(numbers) if logarithmic else numbers, index=rows.index)
    means = values.groupby([rows[key] for key in keys]).mean()
    return pd.Series(np.exp(means) if logarithmic else means, index=means.index)


@figure("sensitivity")
def amplification(results: Results, options: Options) -> Drawn:
    """Draw how much the next block lengthens the boundary, with differences of exchanged labels."""
    table, subject = first_model(results, "sensitivity", "amplification")
    table = table.dropna(subset=["amplification"])
    if table.empty:
        raise NotDrawable("the model has a single block")
    drawn = Panels.by(table, "contrast", options, height=2.6, panel_width=3.0, narrowest=2.0)
    shades = colors(["", *drawn.names])
    geometric: dict[str, bool] = {}
    for contrast, (ax, rows) in zip(drawn.names, drawn.rows(table), strict=True):
        positive = geometric[contrast] = bool((rows["amplification"] > 0).all())
        # each panel has a colour of its own
        of_panel = f"{contrast}: " if len(drawn.names) > 1 else ""
        for kind, color in (("labels", shades[contrast]), ("isotropic", MUTED)):
            drawn_rows = where(rows, direction=kind)
            null = means_by(drawn_rows, ["layer", "draw"], "amplification", logarithmic=positive)
            low, high = null.groupby("layer").min(), null.groupby("layer").max()
            name = f"{of_panel}exchanged labels" if kind == "labels" else "isotropic"
            ax.fill_between(low.index, low, high, color=color, alpha=0.25, linewidth=0.6, label=name)
        draw_means(
            ax,
            where(rows, direction="boundary"),
            "amplification",
            shades[contrast],
            f"{of_panel}boundary",
            logarithmic=positive,
        )
        level_line(ax, 1)
        ax.set_title(f"{contrast} (n = {rows['sample'].nunique()})")
        layers_below(ax)
    drawn.axes[0].set_ylabel("‖J b‖ of the next block")
    legend(drawn.axes[0])
    return drawn.captioned(
        "1 (dashed): the residual stream passes the boundary on. "
        f"{_kinds_of_means(geometric)} and 95 % over prompts; bands: random directions, "
        f"{drawn_range(where(table, direction=['labels', 'isotropic']))}. Only what exceeds exchanged "
        "labels is of the boundary.",
        subject,
    )


def drawn_range(rows: pd.DataFrame) -> str:
    """Return what a band from the smallest to the largest of a figure's random draws is, in words."""
    return range_words(int(rows["draw"].nunique()))


def _kinds_of_means(geometric: dict[str, bool]) -> str:
    """Return which means are drawn of which contrast: of a number that is 0 there is no geometric one.

    >>> _kinds_of_means({"a": True, "b": False}), _kinds_of_means({"b": False})
    ('Geometric means (b: arithmetic ones, as some are 0)', 'Arithmetic means (some are 0)')
    """
    others = [name for name, is_geometric in geometric.items() if not is_geometric]
    if not others:
        return "Geometric means"
    if len(others) == len(geometric):
        return "Arithmetic means (some are 0)"
    return f"Geometric means ({', '.join(others)}: arithmetic ones, as some are 0)"


@figure("readout")
def readout_by_depth(results: Results, options: Options) -> Drawn:
    """Draw the share of the boundary in what the logits read, by depth."""
    table, subject = first_model(results, "readout", "readout_gain", "top_share")
    figure_, axes = panels(1, 2, height=2.6, width=options.width)
    shades = colors(["", *table["contrast"]])
    # all directions hold all of any
    ks = sorted(table[table["chance"] < 1]["k"].unique()) or sorted(table["k"].unique())
    k = ks[len(ks) // 2]
    for (contrast, direction), rows in table.groupby(["contrast", "direction"], sort=False):
        rows = where(rows, k=k).sort_values("layer")
        if direction == "boundary":
            axes[0][0].plot(
                rows["layer"],
                rows["readout_gain"],
                color=shades[contrast],
                marker="o",
                markersize=3,
                label=contrast,
            )
            axes[0][1].plot(
                rows["layer"], rows["top_share"], color=shades[contrast], marker="o", markersize=3
            )
        else:
            null_range(axes[0][0], rows["layer"], rows["low"], rows["high"], shades[contrast])
            axes[0][1].plot(rows["layer"], rows["top_share"], color=shades[contrast], linestyle=":")
    level_line(axes[0][0], 1)
    for chance in where(table, k=k)["chance"].dropna().unique()[:1]:
        level_line(axes[0][1], float(chance))
    decades(axes[0][0])
    axes[0][0].set_ylabel("readout gain")
    axes[0][1].set_ylim(0, None)
    axes[0][1].set_ylabel(f"share in the top {k} directions")
    legend(axes[0][0])
    for ax in axes[0]:
        layers_below(ax)
    return captioned(
        figure_,
        "Gain 1 (dashed): the logits read the boundary as much as any direction. Dotted: directions "
        "of the states' covariance, left 95 % of them, right their mean. Right, dashed: chance k/D.",
        subject,
    )


@figure("sensitivity")
def refusal_slope(results: Results, options: Options) -> Drawn:
    """Draw the change of the odds of a refusal, and of the entropy, on moving towards the other bucket."""
    table, subject = first_model(results, "sensitivity", "refusal_slope")
    if table["refusal_slope"].isna().all() and table["entropy_slope"].isna().all():
        raise NotDrawable("no refusal token")
    count = prompts_of_each(table, "contrast")
    shades = colors(["", *table["contrast"]])
    labels = {"refusal_slope": "slope of refusal (logits)", "entropy_slope": "slope of entropy (nats)"}
    labels = {column: label for column, label in labels.items() if table[column].notna().any()}
    width = options.width if len(labels) > 1 else min(options.width, 4.2)
    figure_, axes = panels(1, len(labels), height=2.6, width=width)
    for ax, (column, label) in zip(axes[0], labels.items(), strict=True):
        for contrast, rows in table.groupby("contrast", sort=False):
            mean = where(rows, direction="boundary").groupby("layer")[column].mean()
            ax.plot(mean.index, mean, color=shades[contrast], marker="o", markersize=3, label=contrast)
            null = where(rows, direction="labels").groupby(["layer", "draw"])[column].mean()
            low, high = null.groupby("layer").min(), null.groupby("layer").max()
            null_range(ax, low.index, low, high, shades[contrast])
        level_line(ax, 0)
        ax.set_ylabel(label)
        layers_below(ax)
    legend(axes[0][0])
    return captioned(
        figure_,
        f"Derivatives along the whole mean difference, means over {count} prompts of each contrast; dotted "
        f"edges: differences of exchanged labels, {drawn_range(where(table, direction='labels'))}. Above 0: "
        "towards the other bucket means towards refusal, or towards entropy.",
        "" if "refusal_slope" in labels else "The refusal's words have no token of their own here.",
        subject,
    )


@figure("lens", "prompts")
def lens(results: Results, options: Options) -> Drawn:
    """Draw the readout of every layer: entropy, largest probability and the answer's rank."""
    table, subject = first_model(results, "lens", "prediction_entropy", "top")
    table = with_buckets(results, table)
    shades = colors(list(table["bucket"]))
    columns = {"prediction_entropy": "entropy (nats)", "top": "largest probability"}
    if table["log_p_answer"].notna().any():
        columns["log_p_answer"] = "log p of the answer"
    count = int(table.groupby("bucket")["sample"].nunique().min()) if table["bucket"].notna().any() else 0
    figure_, axes = panels(1, len(columns), height=2.5, width=options.width, narrowest=2.0)
    for ax, (column, label) in zip(axes[0], columns.items(), strict=True):
        buckets = list(dict.fromkeys(table["bucket"].dropna()))
        for at, bucket in enumerate(buckets):
            rows = where(table[table[column].notna()], bucket=bucket)
            if rows.empty:
                continue
            shift = 0.12 * (at - (len(buckets) - 1) / 2)
            moved = rows.assign(layer=rows["layer"] + shift)
            draw_means(ax, moved, column, shades[bucket], str(bucket))
        ax.set_ylabel(label)
        layers_below(ax, count)
    legend(axes[0][0])
    return captioned(
        figure_,
        f"Means over prompts, at least {count} of each bucket; bars: 95 %, drawn side by side. The last "
        "layer is the model's own output.",
        subject,
    )
