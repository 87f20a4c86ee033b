# SPDX-License-Identifier: MIT
"""Spectra, bands over depth, uncertainty, phases, and how little a longer text changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.figure as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from attnscope.plots.axes import layer_colors, series_colors
from attnscope.plots.figure import (
    Drawn,
    NotDrawable,
    Options,
    Tables,
    captioned,
    compared_with,
    optional,
    over_steps,
    stored,
    with_values,
)
from attnscope.plots.lines import draw_curve, emergence_curve
from attnscope.plots.selection import (
    CHECKPOINT,
    estimate,
    first_step,
    heads_only,
    in_series,
    last_step,
    measured_heads,
)
from attnscope.plots.standard import depth, metric_grid
from attnscope.plots.style import INK, MUTED, UNIFORM, UNTRAINED, axes_or_new, legend_columns, panels, styled
from attnscope.studies.wavelet_heads.figures.scalograms import FIGURES, figure

#: Metrics of the depth figure and of the phases, in this order.
DEPTH = (
    *("low_band", "mid_band", "high_band", "spectral_selectivity"),
    *("spectral_entropy", "wavelet_entropy", "position_entropy", "local_share"),
)
#: Bounds of the bands, in Nyquist frequencies.
EDGES = (0.25, 0.75)


@styled
def power_by_layer(spectra: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Share of power over frequency, one line per layer, mean over heads with its interval over samples."""
    ax = axes_or_new(ax)
    layers = sorted(spectra["layer"].unique())
    colors = layer_colors(len(layers))
    table = estimate(spectra, "power_share", ["layer", "frequency"])
    for layer, color in zip(layers, colors, strict=True):
        rows = table[table["layer"] == layer]
        draw_curve(ax, rows["frequency"], rows, f"layer {layer}", color, dash="-")
    for edge in EDGES:
        ax.axvline(edge, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.5)
    ax.set_yscale("log")
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("frequency / Nyquist")
    ax.set_ylabel("share of power per 1/32")
    return ax


@figure("spectra")
def power_spectra(results: Tables, options: Options) -> Drawn:
    """Power spectra of attention along the keys by layer, one panel per series, at the last checkpoint."""
    spectra = in_series(stored(results, "spectra", "power_share"), results)
    final, before = last_step(spectra), first_step(spectra)
    final = final[final["power_share"] > 0]
    if final.empty:
        raise NotDrawable("the spectra table has no power: too few tokens for a signal")
    names = list(dict.fromkeys(final["series"]))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    width = min(options.width, 3.6 * columns + 0.6)
    figure_, axes = panels(rows, columns, height=2.35 * rows + 0.35, width=width, sharey=True)
    flat = [ax for row in axes for ax in row]
    floor = float(final["power_share"].min())
    for ax, name in zip(flat, names, strict=False):
        power_by_layer(final[final["series"] == name], ax=ax)
        if before is not None and (before["series"] == name).any():
            own = before[before["series"] == name].groupby("frequency")["power_share"].mean()
            floor = np.nanmin([floor, *own])
            ax.plot(own.index, own, label="before training", gid="untrained", **UNTRAINED)
        ax.set_title(name)
        ax.label_outer()
    for ax in flat[: len(names)][-columns:]:  # the lowest of each column, also above an empty place
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("frequency / Nyquist")
    for ax in flat:
        ax.set_ylim(bottom=max(floor * 0.6, 1e-7))
    for ax in flat[len(names) :]:
        ax.set_axis_off()
    _layer_legend(figure_, flat, sorted(final["layer"].unique()))
    return captioned(figure_, "Mean over heads; dotted verticals bound the bands.", compared_with(figure_))


FIGURES["band_shares"] = depth(tuple((name, None) for name in DEPTH))


@figure("heads")
def phases(results: Tables, options: Options) -> Drawn:
    """Every number over training, mean over heads with its interval over samples: the phases."""
    heads = over_steps(measured_heads(results))
    there = with_values(heads, "heads", DEPTH)
    rho = optional(results, "uncertainty")
    if rho is not None and "rho" in rho:
        keys = [*CHECKPOINT, "sample", "protocol"]
        heads = heads.merge(rho[[*keys, "rho"]], on=keys, how="left")
        there = [*there[:7], "rho"] if heads["rho"].notna().any() else there
    figure_ = metric_grid(
        heads, [(name, None) for name in there], emergence_curve, optional(results, "baselines"),
        untrained="before training", width=options.width,
    )  # fmt: skip
    if "rho" in there:
        figure_.axes[there.index("rho")].set_title(r"correlation of entropies $\rho$")
    return captioned(figure_, "Each quantity over training, mean over heads.", compared_with(figure_))


#: The panels of `uncertainty`: columns across and up, and those that they need besides.
_BOUNDED = {
    "entropies": ("position_entropy", "fourier_entropy", ("entropy_bound",)),
    "variances": ("uncertainty_bound", "uncertainty_product", ()),
}


@figure("heads")
def uncertainty(results: Tables, options: Options) -> Drawn:
    """Position against frequency for every head at the last checkpoint, with the bounds of both pairs."""
    heads = measured_heads(results)
    columns = {title: [x, y, *more] for title, (x, y, more) in _BOUNDED.items()}
    there = {
        title: needed
        for title, needed in columns.items()
        if set(needed) <= set(heads) and last_step(heads)[needed].notna().all(axis=1).any()
    }
    if not there:
        raise NotDrawable("the heads table has no uncertainty")
    final, before = last_step(heads), first_step(heads)
    layers = sorted(final["layer"].unique())
    colors = dict(zip(layers, layer_colors(len(layers)), strict=True))
    figure_, axes = panels(1, len(there), height=2.9, width=min(options.width, 3.3 * len(there) + 0.4))
    keys = ["series", "layer", "head"]
    for ax, (title, needed) in zip(axes[0], there.items(), strict=True):
        x, y = needed[:2]
        if before is not None:
            old = before.groupby(keys)[needed].mean().dropna()
            ax.scatter(
                old[x], old[y], s=13, marker="x", color=MUTED, linewidth=0.8,
                label="before training", zorder=2,
            )  # fmt: skip
        points = final.groupby(keys)[needed].mean().dropna().reset_index()
        for layer, own in points.groupby("layer"):
            ax.scatter(
                own[x], own[y], s=18, color=colors[layer], edgecolor="white", linewidth=0.4,
                label=f"layer {layer}", zorder=3,
            )  # fmt: skip
        (_below_entropies if title == "entropies" else _below_variances)(ax, points)
        ax.set_title(title)
    _layer_legend(figure_, axes[0], layers)
    return captioned(figure_, "Each point a head, mean over texts; grey is where no signal can be.")


def _below_entropies(ax: Axes, points: pd.DataFrame) -> None:
    """The bound of the two entropies, and what lies below it in grey."""
    bound = float(points["entropy_bound"].mean())
    corner = 1.05 * max(bound, float(points[["position_entropy", "fourier_entropy"]].max().max()), 1e-3)
    ax.fill_between([0, bound], [bound, 0], color=MUTED, alpha=0.14, linewidth=0)
    ax.plot([0, bound], [bound, 0], color=INK, linewidth=1.0, label="$H_p + H_f$ = log m")
    ax.annotate("impossible", (0.06 * bound, 0.2 * bound), color=MUTED, fontsize=7, va="center")
    ax.set_xlim(-0.02 * corner, corner)
    ax.set_ylim(-0.02 * corner, corner)
    ax.set_xlabel("position entropy $H_p$ (nats)")
    ax.set_ylabel("Fourier entropy $H_f$ (nats)")


def _below_variances(ax: Axes, points: pd.DataFrame) -> None:
    """The bound of the two variances, what lies below it in grey, and the line's own bound of 1/4."""
    low = max(0.5 * float(points["uncertainty_bound"].clip(lower=1e-3).min()), 1e-4)
    line = np.geomspace(low, 0.3, 50)
    ax.fill_between(line, line, np.full(50, low * 0.3), color=MUTED, alpha=0.14, linewidth=0)
    ax.plot(line, line, color=INK, linewidth=1.0)
    ax.axhline(0.25, **UNIFORM)
    ax.annotate(
        "1/4", (1, 0.25), xycoords=ax.get_yaxis_transform(), xytext=(3, 0), textcoords="offset points",
        color=MUTED, fontsize=7, va="center", annotation_clip=False,
    )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlim(low, 0.3)
    ax.set_ylim(bottom=low * 0.3)
    ax.set_xlabel(r"its bound $(1 - |\hat\psi(\pi)|^2)^2/4$")
    ax.set_ylabel(r"$\sigma_t^2\,\sigma_\omega^2$")


@figure("scale_sensitivity")
def scale_sensitivity(results: Tables, options: Options) -> Drawn:
    """1 − cosine between the wavelet descriptions of a text and of its beginning, over depth."""
    table = in_series(heads_only(stored(results, "scale_sensitivity")), results)
    table = last_step(table)
    titles = {"energy": "energies of the scales", "coefficients": "resampled coefficients"}
    there = [name for name in titles if name in table and table[name].notna().any()]
    if not there:
        raise NotDrawable("no beginning of a text is long enough for a signal")
    figure_, axes = panels(1, len(there), height=2.4, width=min(options.width, 3.3 * len(there) + 0.4))
    names = list(dict.fromkeys(table["series"]))
    colors = series_colors(names)
    fractions = sorted(table["fraction"].unique(), reverse=True)
    dashes = ("-", "--", ":", "-.")
    for ax, column in zip(axes[0], there, strict=True):
        found = estimate(table, column, ["series", "fraction", "layer"])
        for name in names:
            for place, fraction in enumerate(fractions):
                rows = found[(found["series"] == name) & (found["fraction"] == fraction)]
                label = f"{name}, {fraction:g}" if len(names) > 1 else f"first {fraction:g} of the text"
                draw_curve(
                    ax, rows["layer"], rows, label, colors[name], marker=len(rows) < 40,
                    dash=dashes[place % 4], width=1.2,
                )  # fmt: skip
        ax.set_xlabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.set_title(titles[column])
        ax.set_ylim(bottom=0)
    axes[0][0].set_ylabel("1 − cosine")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure_.legend(handles, labels, loc="outside upper center", ncols=legend_columns(figure_, labels))
    words = {"energy": "energies of the common scales", "coefficients": "coefficients resampled"}
    return captioned(
        figure_,
        f"1 − cosine by layer: {', and '.join(words[name] for name in there)}.",
        compared_with(figure_),
    )


def _layer_legend(figure_: mpl.Figure, axes: Sequence[Axes], layers: Sequence[int]) -> None:
    """Bound, untrained model and layers (first, middle and last of many)."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    few = layers if len(layers) <= 5 else [layers[0], layers[len(layers) // 2], layers[-1]]
    wanted = {f"layer {layer}" for layer in few}
    kept = {
        label: handle for label, handle in found.items() if not label.startswith("layer") or label in wanted
    }
    columns = legend_columns(figure_, list(kept))
    figure_.legend(kept.values(), kept.keys(), loc="outside upper center", ncols=columns)
