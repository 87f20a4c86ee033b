# SPDX-License-Identifier: MIT
"""Figures of the dimension and pieces of the buckets' clouds, with their nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Drawn, Options, Results, captioned
from attnscope.plots.panels import Panels, level_line
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, PALETTE, panels
from attnscope.studies.hallucination_geometry.evidence import null_words, range_words
from attnscope.studies.hallucination_geometry.figures.declared import (
    colors,
    controls,
    figure,
    layers_below,
    legend,
    null_range,
    without_interval,
)
from attnscope.studies.hallucination_geometry.options import HallucinationOptions
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.selection import where


@figure("clouds", "contrasts")
def dimension_by_depth(results: Results, options: Options) -> Drawn:
    """Draw the local dimension of each bucket by depth, and its ratio to that of the reference."""
    table, subject = first_model(results, "clouds", "value")
    table = where(table, null="")
    tests, _ = first_model(results, "contrasts", "null_low")
    tests = where(tests[tests["k"].notna()], quantity="log_dimension_ratio")
    if tests.empty:
        raise NotDrawable("no dimension was compared")
    k = int(tests["k"].iloc[len(tests) // 2]) if 10 not in set(tests["k"]) else 10
    dimensions = where(table, quantity="local_dimension", k=k, protocol="exact")
    if dimensions.empty:
        raise NotDrawable(f"the dimension of no bucket is stored (k = {k})")
    random = controls(results, "clouds", str(dimensions["model"].iloc[0]))
    shades = colors(list(dimensions["bucket"]))
    figure_, axes = panels(1, 2, height=2.7, width=options.width)
    if random is not None:
        random = where(random, quantity="local_dimension", k=k)
    _draw_dimensions(axes[0][0], dimensions, random, shades)
    axes[0][0].set_ylabel(f"local dimension (k = {k})")
    axes[0][0].set_title(f"buckets (n = {dimensions['n'].max():.0f} each)")
    legend(axes[0][0])
    _draw_ratios(axes[0][1], where(tests, k=k), shades)
    level_line(axes[0][1], 1)
    axes[0][1].set_ylabel("ratio to the reference")
    axes[0][1].set_title("ratio")
    for ax in axes[0]:
        layers_below(ax)
    untrained = "" if random is None else "; dashed, the same prompts through random weights"
    return captioned(
        figure_,
        f"Left: bars are 95 % jackknife intervals over templates, drawn side by side{untrained}."
        f"{without_interval(dimensions, 'value')} Right: dotted edges of a contrast's colour: its exchanged "
        f"labellings, {null_words(_labellings(results))}; {counts_of(tests)}.",
        subject,
    )


def _draw_dimensions(
    ax: Axes, dimensions: pd.DataFrame, random: pd.DataFrame | None, shades: dict[Any, str]
) -> None:
    """Draw the dimension of each bucket by layer with its interval, and its mean under random weights."""
    count = dimensions["bucket"].nunique()
    for place, (bucket, rows) in enumerate(dimensions.groupby("bucket", sort=False)):
        rows = rows.dropna(subset=["value"]).sort_values("layer")
        # side by side, as bands would cover each other
        shifted = rows["layer"] + 0.12 * (place - (count - 1) / 2)
        bars = [(rows["value"] - rows["low"]).abs(), (rows["high"] - rows["value"]).abs()]
        ax.errorbar(
            shifted,
            rows["value"],
            bars,
            color=shades[bucket],
            marker="o",
            markersize=3,
            capsize=2,
            linewidth=1.2,
            label=bucket,
        )
        if random is not None:
            means = where(random, bucket=bucket).groupby("layer")["value"].mean().dropna()
            ax.plot(means.index, means, color=shades[bucket], linestyle="--", linewidth=1)


def _draw_ratios(ax: Axes, tests: pd.DataFrame, shades: dict[Any, str]) -> None:
    """Draw the ratio of dimensions of each contrast by layer, and the range of exchanged labellings."""
    for contrast, rows in tests.groupby("contrast", sort=False):
        rows = rows.sort_values("layer")
        ax.plot(
            rows["layer"],
            np.exp(rows["value"]),
            color=shades.get(contrast, PALETTE[1]),
            marker="o",
            markersize=3,
            label=contrast,
        )
        low, high = np.exp(rows["null_low"]), np.exp(rows["null_high"])
        null_range(ax, rows["layer"], low, high, shades.get(contrast, PALETTE[1]))


@figure("contrasts")
def dimension_by_k(results: Results, options: Options) -> Drawn:
    """Draw the ratio of local dimensions over the number of neighbours."""
    table, subject = first_model(results, "contrasts", "null_low")
    table = where(table, quantity="log_dimension_ratio").dropna(subset=["value"])
    if table.empty or table["k"].nunique() < 2:
        raise NotDrawable("one number of neighbours has no course")
    layers = sorted(table["layer"].unique())
    shown = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    shades = colors(["", *table["contrast"]])
    width = options.width
    by_layer = table.sort_values("layer", kind="stable")
    drawn = Panels.by(where(by_layer, layer=shown), "layer", options, height=2.5, panel_width=width)
    for ax, rows_of_layer in drawn.rows(table):
        for contrast, rows in rows_of_layer.groupby("contrast", sort=False):
            rows = rows.sort_values("k")
            ax.plot(
                rows["k"],
                np.exp(rows["value"]),
                color=shades[contrast],
                marker="o",
                markersize=3,
                label=contrast,
            )
            low, high = np.exp(rows["null_low"]), np.exp(rows["null_high"])
            null_range(ax, rows["k"], low, high, shades[contrast])
        level_line(ax, 1)
        ax.set_title(f"layer {rows_of_layer['layer'].iloc[0]}")
        ax.set_xlabel("neighbours k")
    drawn.axes[0].set_ylabel("ratio of local dimensions")
    legend(drawn.axes[0])
    return drawn.captioned(
        f"Dotted edges: exchanged labellings of the contrast of that colour, "
        f"{null_words(_labellings(results))}; {counts_of(table)}. Few "
        "neighbours measure inside templates, many between them.",
        subject,
    )


def _labellings(results: Results) -> int:
    """Return how many labellings the run has drawn; the study's default where a run says nothing."""
    return int(stored_options(results, HallucinationOptions).permutations)


def counts_of(table: pd.DataFrame) -> str:
    """Return how many pairs each contrast has, in words."""
    counts = table.groupby("contrast", sort=False)["n_pairs"].max()
    return ", ".join(f"{count:.0f} pairs ({contrast})" for contrast, count in counts.items())


#: The only scale of the paper's Betti numbers.
PUBLISHED_RADIUS = 0.15


def _bands(kinds: list[str], null: str, draws: int) -> str:
    words = {
        "covariance": "clouds of the same covariance",
        "template": "clouds of the same template means",
        "gaussian": "clouds of the same variance",
        "labels": "exchanged labels",
    }
    return f"bands: {words[null]}, {range_words(draws)}. " if kinds else ""


@figure("betti")
def betti_curves(results: Results, options: Options) -> Drawn:
    """Draw pieces and loops over all scales, with null clouds."""
    table, subject = first_model(results, "betti", "beta0", "scale")
    layers = sorted(table["layer"].unique())
    layer = layers[len(layers) // 2]
    table = where(table, layer=layer)
    shades = colors(list(table["bucket"]))
    figure_, axes = panels(1, 3, height=2.5, width=options.width)
    kinds = [name for name in dict.fromkeys(table["null"]) if name]
    null = "covariance" if "covariance" in kinds or not kinds else kinds[0]
    table = where(table, null=["", null])
    for (bucket, kind), rows in table.groupby(["bucket", "null"], sort=False):
        rows = rows.assign(beta0=rows["beta0"] / rows["n"])
        for ax, column in zip(axes[0], ("beta0", "clusters", "beta1"), strict=True):
            if not kind:
                ax.step(rows["scale"], rows[column], where="post", color=shades[bucket], label=bucket)
                continue
            drawn = rows.groupby("scale")[column]
            low, high = drawn.min(), drawn.max()
            ax.fill_between(
                low.index, low, high, step="post", color=shades[bucket], alpha=0.25, linewidth=0.4
            )
    largest = float(table["scale"].max())
    if not largest > 0:
        raise NotDrawable("no cloud has a bar")
    smallest = float(table["scale"][table["scale"] > 0].min())
    count = f"n = {table['n'].max():.0f}"
    for ax, title in zip(axes[0], (f"pieces / n ({count})", "clusters", "loops"), strict=True):
        if smallest < PUBLISHED_RADIUS:
            ax.axvline(PUBLISHED_RADIUS, color=MUTED, linewidth=1.0, linestyle=(0, (1, 1.5)))
            top = ax.get_ylim()[1]
            ax.text(PUBLISHED_RADIUS, top, ".15 ", color=MUTED, fontsize="x-small", ha="right", va="top")
            largest = max(largest, 1.3 * PUBLISHED_RADIUS)
        ax.set_xscale("log")
        if smallest < largest:
            ax.set_xlim(smallest, largest)
        ax.set_title(title)
        ax.set_xlabel("distance")
    draws = int(where(table, null=null)["draw"].nunique())
    place = "dotted" if smallest < PUBLISHED_RADIUS else "below the smallest distance here"
    legend(axes[0][0])
    return captioned(
        figure_,
        f"Layer {layer}, {table['n'].max():.0f} prompts a bucket; {_bands(kinds, null, draws)}"
        f"The only radius of the paper, .15: {place}.",
        subject,
    )
