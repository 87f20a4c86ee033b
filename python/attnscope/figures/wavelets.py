# SPDX-License-Identifier: MIT
"""The wavelet study's figures: spectra, scalograms, bands over depth, uncertainty, phases, harmonics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from attnscope.figures.lines import (
    depth_profile,
    draw_curve,
    emergence_curve,
    layer_colors,
    series_colors,
)
from attnscope.figures.quantities import QUANTITIES, Quantity
from attnscope.figures.registry import (
    NotDrawable,
    Tables,
    entered_in,
    is_series,
    metric_grid,
    optional,
    stored,
)
from attnscope.figures.selection import CHECKPOINT, estimate, first_step, heads_only, last_step, with_groups
from attnscope.figures.style import (
    INK,
    MUTED,
    SEQUENTIAL,
    UNIFORM,
    UNTRAINED,
    WIDTH,
    axes_or_new,
    panels,
    styled,
)

FIGURES: dict[str, Callable[[Tables], Figure]] = {}
"""The study's figures by name."""

figure = entered_in(FIGURES)

QUANTITIES.update(
    {
        "low_band": Quantity(
            "low band", "", "Share of power below a quarter of the Nyquist frequency.", 0, 1
        ),
        "mid_band": Quantity("mid band", "", "Share of power from a quarter to three quarters of it.", 0, 1),
        "high_band": Quantity("high band", "", "Share of power above three quarters of it.", 0, 1),
        "spectral_selectivity": Quantity(
            "selectivity",
            "",
            "Share of the strongest bin; uniform attention has up to 2/3 of a Hann window.",
            0,
            1,
        ),
        "spectral_peak": Quantity(
            "peak frequency", "", "Frequency of the strongest bin over Nyquist's.", 0, 1
        ),
        "spectral_flatness": Quantity(
            "flatness", "", "Geometric over arithmetic mean of the spectrum: 0 a tone, 1 white.", 0, 1
        ),
        "spectral_entropy": Quantity("spectral entropy", "$H_s$", "Entropy of the spectrum in bits.", 0),
        "wavelet_entropy": Quantity(
            "wavelet entropy", "", "Entropy in bits of the energies of the scales: 0 where one holds all.", 0
        ),
        "wavelet_energy_0": Quantity("energy, smooth part", "", "Share of the approximation's energy.", 0, 1),
        "wavelet_energy_1": Quantity("energy, coarse detail", "", "Share of the coarsest detail.", 0, 1),
        "wavelet_energy_2": Quantity("energy, middle detail", "", "Share of the next finer detail.", 0, 1),
        "wavelet_energy_3": Quantity("energy, fine detail", "", "Share of the finest detail.", 0, 1),
        "reconstruction_error": Quantity(
            "reconstruction error",
            "",
            "‖a − IDWT(DWT a)‖/‖a‖: rounding for every signal, random ones too. A check of the transform, no "
            "evidence.",
            0,
        ),
        "position_entropy": Quantity("position entropy", "$H_p$", "−Σ a log a in nats.", 0),
        "fourier_entropy": Quantity(
            "Fourier entropy", "", "Entropy in nats of |DFT √a|², the unitary transform.", 0
        ),
        "uncertainty_product": Quantity(
            "variance product",
            r"$\sigma_t^2\sigma_\omega^2$",
            "Variance of position times that of frequency.",
            0,
        ),
        "uncertainty_bound": Quantity(
            "its bound", "", "What no variance product of these signals is below.", 0
        ),
        "local_global_ratio": Quantity(
            "local / global", "", "Attention to keys at most 8 tokens away over attention to all others.", 0
        ),
        "rho": Quantity(
            "uncertainty",
            r"$\rho$",
            "Correlation of position and spectral entropy across a sentence's heads.",
            -1,
            1,
        ),
    }
)

#: Metrics of the depth figure and of the phases, in this order.
DEPTH = (
    *("low_band", "mid_band", "high_band", "spectral_selectivity"),
    *("spectral_entropy", "wavelet_entropy", "position_entropy", "local_global_ratio"),
)
#: Bounds of the bands, in Nyquist frequencies.
EDGES = (0.25, 0.75)


def wavelet_heads(results: Tables) -> pd.DataFrame:
    """Single heads with their series.

    Args:
        results: the stored tables.

    Returns:
        The `heads` table with `group` and `series`.

    Raises:
        NotDrawable: when there is none.
    """
    heads: pd.DataFrame = with_groups(heads_only(stored(results, "heads")), optional(results, "samples"))
    return heads


@styled
def power_by_layer(spectra: pd.DataFrame, *, ax: Axes | None = None, interval: bool = True) -> Axes:
    """Share of power over frequency, one line per layer, mean over heads with its interval over samples.

    Args:
        spectra: rows of one series at one checkpoint.
        ax: axes to draw on; None makes them.
        interval: whether the 95 % interval is drawn.

    Returns:
        The axes. Each layer is a line labelled `layer L`.
    """
    ax = axes_or_new(ax)
    layers = sorted(spectra["layer"].unique())
    colors = layer_colors(len(layers))
    table = estimate(spectra, "power_share", ["layer", "frequency"])
    for layer, color in zip(layers, colors, strict=True):
        rows = table[table["layer"] == layer]
        draw_curve(ax, rows["frequency"], rows, f"layer {layer}", color, interval=interval, dash="-")
    for edge in EDGES:
        ax.axvline(edge, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.5)
    ax.set_yscale("log")
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("frequency / Nyquist")
    ax.set_ylabel("share of power per 1/32")
    return ax


@figure
def power_spectra(results: Tables) -> Figure:
    """Power spectra of attention along the keys by layer, one panel per series, at the last checkpoint."""
    spectra = with_groups(stored(results, "spectra"), optional(results, "samples"))
    final, before = last_step(spectra), first_step(spectra)
    names = list(dict.fromkeys(final["series"]))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure_, axes = panels(
        rows, columns, height=2.35 * rows + 0.35, width=min(WIDTH, 3.6 * columns + 0.6), sharey=True
    )
    flat = [ax for row in axes for ax in row]
    floor = float(final["power_share"].min())
    for ax, name in zip(flat, names, strict=False):
        power_by_layer(final[final["series"] == name], ax=ax)
        if before is not None and (before["series"] == name).any():
            own = before[before["series"] == name].groupby("frequency")["power_share"].mean()
            floor = min(floor, float(own.min()))
            ax.plot(own.index, own, label="before training", **UNTRAINED)
        ax.set_title(name)
        ax.label_outer()
    for ax in flat[: len(names)][-columns:]:  # the lowest of each column, also above an empty place
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("frequency / Nyquist")
    for ax in flat:
        ax.set_ylim(bottom=max(floor * 0.6, 1e-7))
    for ax in flat[len(names) :]:
        ax.set_axis_off()
    lines = {str(line.get_label()): line for line in flat[0].get_lines()}
    layers = [label for label in lines if label.startswith("layer")]
    shown = layers if len(layers) <= 5 else [layers[0], layers[len(layers) // 2], layers[-1]]
    shown += [label for label in ("before training",) if label in lines]
    figure_.legend([lines[label] for label in shown], shown, loc="outside upper center", ncols=len(shown))
    return figure_


@styled
def scalogram(signal: Sequence[float], *, ax: Axes | None = None, scales: int = 48) -> Axes:
    """Morlet power of a signal by place and scale, darker where edges of the signal are not yet felt.

    Args:
        signal: attention of one query along its keys; its mean is taken away.
        ax: axes to draw on; None makes them.
        scales: number of scales between 1.4 and a quarter of the length.

    Returns:
        The axes; the vertical one is the period in tokens, long periods at the top.
    """
    from attnscope.metrics.wavelet import morlet_scalogram

    ax = axes_or_new(ax)
    x = torch.tensor(list(signal), dtype=torch.float64)
    sizes = np.geomspace(2.0, max(len(x) / 4, 4.0), scales)
    power = morlet_scalogram(
        x.expand(len(x), len(x)), list(sizes), signal="last", support="full", detrend="mean", min_keys=2
    ).numpy()
    periods = sizes * 4 * np.pi / (6 + np.sqrt(38))
    top = float(power.max())
    shown = 10 * np.log10(np.maximum(power, top * 1e-4) / top) if top > 0 else np.zeros_like(power)
    ax.pcolormesh(
        np.arange(len(x)), periods, shown, cmap=SEQUENTIAL, vmin=-40, vmax=0, shading="nearest",
        rasterized=True,
    )  # fmt: skip
    place = np.arange(len(x))
    cone = np.minimum(place, len(x) - 1 - place) / np.sqrt(2) * 4 * np.pi / (6 + np.sqrt(38))
    ax.fill_between(
        place, np.clip(cone, periods[0], periods[-1]), periods[-1], color="white", alpha=0.45, linewidth=0
    )
    ax.set_yscale("log")
    ax.set_ylim(periods[0], periods[-1])
    ticks = [period for period in (2, 4, 8, 16, 32, 64, 128) if periods[0] <= period <= periods[-1]]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.minorticks_off()
    ax.set_xlim(0, len(x) - 1)
    ax.set_xlabel("key")
    ax.set_ylabel("period (tokens)")
    return ax


@figure
def scalograms(results: Tables) -> Figure:
    """The last query's attention and its Morlet scalogram: per layer the widest head and a middling one."""
    signals = last_step(heads_only(stored(results, "signals")))
    model = signals["model"].iloc[0]
    own = signals[(signals["model"] == model) & (signals["sample"] == signals["sample"].min())]
    own = own[own["n_tokens"] >= 16]
    if own.empty:
        raise NotDrawable("the stored signals have fewer than 16 tokens")
    layers = sorted(own["layer"].unique())
    layers = layers if len(layers) <= 3 else [layers[0], layers[len(layers) // 2], layers[-1]]
    chosen = [(layer, *_wide_and_middling(own[own["layer"] == layer])) for layer in layers]
    figure_, axes = panels(4, len(layers), height=4.6, height_ratios=[1, 2.2, 1, 2.2], sharex=True)
    for column, (layer, wide, middling) in enumerate(chosen):
        for place, row in enumerate((wide, middling)):
            above, below = axes[2 * place][column], axes[2 * place + 1][column]
            signal = np.asarray(row["signal"], dtype=float)
            above.fill_between(
                np.arange(len(signal)), signal, color=INK, alpha=0.75, linewidth=0.4, step="mid"
            )
            above.set_ylim(0, max(1.05 * float(signal.max()), 1e-6))
            digit = 10.0 ** np.floor(np.log10(max(float(signal.max()), 1e-6)))
            above.yaxis.set_major_locator(FixedLocator([0, float(np.floor(signal.max() / digit) * digit)]))
            above.set_title(f"L{layer}H{int(row['head'])}")
            scalogram(signal.tolist(), ax=below)
            below.set_xlim(-0.5, len(signal) - 0.5)
            if column:
                below.set_ylabel("")
            else:
                above.set_ylabel("attention")
            if place == 0:
                below.set_xlabel("")
    mesh = axes[1][0].collections[0]
    bar = figure_.colorbar(mesh, ax=[ax for row in axes for ax in row], pad=0.012, aspect=30, fraction=0.03)
    bar.set_label("power (dB below the strongest)")
    bar.outline.set_visible(False)
    return figure_


def _wide_and_middling(rows: pd.DataFrame) -> tuple[Any, Any]:
    """The heads whose signals have the largest and the middle entropy."""
    entropies = [float(torch.special.entr(torch.tensor(list(signal))).sum()) for signal in rows["signal"]]
    order = np.argsort(entropies)
    return rows.iloc[int(order[-1])], rows.iloc[int(order[len(order) // 2 - 1 if len(order) > 1 else 0])]


@figure
def band_shares(results: Tables) -> Figure:
    """Band shares and entropies over depth at the last checkpoint, one line per series."""
    heads = wavelet_heads(results)
    metrics = _there(heads, DEPTH)
    if heads["layer"].nunique() < 2:
        raise NotDrawable("the run has one layer; a profile over depth needs several")
    untrained = "before training" if is_series(heads) else None
    return metric_grid(heads, metrics, depth_profile, optional(results, "baselines"), untrained=untrained)


@figure
def phases(results: Tables) -> Figure:
    """Every number over training, mean over heads with its interval over samples: the phases."""
    heads = wavelet_heads(results)
    if not is_series(heads):
        raise NotDrawable("the run has one checkpoint; phases need several")
    metrics = _there(heads, DEPTH)
    rho = optional(results, "uncertainty")
    if rho is not None and rho["rho"].notna().any():
        keys = [*CHECKPOINT, "sample", "protocol"]
        heads = heads.merge(rho[[*keys, "rho"]], on=keys, how="left")
        metrics = [*metrics[:7], ("rho", None)]
    return metric_grid(
        heads, metrics, emergence_curve, optional(results, "baselines"), untrained="before training"
    )


@figure
def uncertainty(results: Tables) -> Figure:
    """Position against frequency for every head at the last checkpoint, with the bounds of both pairs."""
    heads = wavelet_heads(results)
    needed = [
        "position_entropy",
        "fourier_entropy",
        "entropy_bound",
        "uncertainty_product",
        "uncertainty_bound",
    ]
    if not set(needed) <= set(heads.columns) or heads[needed[0]].isna().all():
        raise NotDrawable("the heads table has no uncertainty")
    final, before = last_step(heads), first_step(heads)
    keys = ["series", "layer", "head"]
    points = final.groupby(keys)[needed].mean().reset_index()
    layers = sorted(points["layer"].unique())
    colors = dict(zip(layers, layer_colors(len(layers)), strict=True))
    figure_, axes = panels(1, 2, height=2.9)
    left, right = axes[0]
    bound = float(points["entropy_bound"].mean())
    corner = 1.05 * max(bound, float(points[needed[:2]].max().max()))
    left.fill_between([0, bound], [bound, 0], color=MUTED, alpha=0.14, linewidth=0)
    left.plot([0, bound], [bound, 0], color=INK, linewidth=1.0, label="$H_p + H_f$ = log m")
    left.annotate(
        "no signal", (0.22 * bound, 0.22 * bound), color=MUTED, fontsize=7, ha="center", va="center"
    )
    pairs: tuple[tuple[Axes, str, str], ...] = (
        (left, needed[0], needed[1]),
        (right, "uncertainty_bound", "uncertainty_product"),
    )
    if before is not None:
        old = before.groupby(keys)[needed].mean()
        for ax, x, y in pairs:
            ax.scatter(
                old[x],
                old[y],
                s=13,
                marker="x",
                color=MUTED,
                linewidth=0.8,
                label="before training",
                zorder=2,
            )
    for layer in layers:
        own = points[points["layer"] == layer]
        for ax, x, y in pairs:
            ax.scatter(
                own[x], own[y], s=18, color=colors[layer], edgecolor="white", linewidth=0.4,
                label=f"layer {layer}", zorder=3,
            )  # fmt: skip
    left.set_xlim(-0.02 * corner, corner)
    left.set_ylim(-0.02 * corner, corner)
    left.set_xlabel("position entropy $H_p$ (nats)")
    left.set_ylabel("Fourier entropy $H_f$ (nats)")
    left.set_title("entropies")
    low = 0.5 * float(points["uncertainty_bound"].clip(lower=1e-3).min())
    line = np.geomspace(max(low, 1e-4), 0.3, 50)
    right.fill_between(line, line, np.full(50, line[0] * 0.3), color=MUTED, alpha=0.14, linewidth=0)
    right.plot(line, line, color=INK, linewidth=1.0)
    right.axhline(0.25, **UNIFORM)
    right.annotate("1/4", (line[0], 0.25), xytext=(2, 2), textcoords="offset points", color=MUTED, fontsize=7)
    right.set_yscale("log")
    right.set_xlim(line[0], 0.3)
    right.set_ylim(bottom=line[0] * 0.3)
    right.set_xlabel(r"its bound $(1 - |\hat\psi(\pi)|^2)^2/4$")
    right.set_ylabel(r"$\sigma_t^2\,\sigma_\omega^2$")
    right.set_title("variances")
    _layer_legend(figure_, left, layers)
    return figure_


@figure
def scale_sensitivity(results: Tables) -> Figure:
    """1 − cosine between the wavelet descriptions of a text and of its beginning, over depth."""
    table = with_groups(heads_only(stored(results, "scale_sensitivity")), optional(results, "samples"))
    table = last_step(table)
    if table["energy"].isna().all():
        raise NotDrawable("no beginning of a text is long enough for a signal")
    figure_, axes = panels(1, 2, height=2.4)
    names = list(dict.fromkeys(table["series"]))
    colors = series_colors(names)
    fractions = sorted(table["fraction"].unique(), reverse=True)
    dashes = ("-", "--", ":", "-.")
    for ax, column, title in zip(
        axes[0], ("energy", "coefficients"), ("energies of the scales", "resampled coefficients"), strict=True
    ):
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
        ax.set_title(title)
        ax.set_ylim(bottom=0)
    axes[0][0].set_ylabel("1 − cosine")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure_.legend(handles, labels, loc="outside upper center", ncols=min(5, len(labels)))
    return figure_


@figure
def harmonics(results: Tables) -> Figure:
    """Harmonics of RoPE's frequencies behind the activation, and interference in and out of phase."""
    table = last_step(stored(results, "harmonics"))
    table = table[table["model"] == table["model"].iloc[0]]
    name = str(table["activation"].iloc[0]).replace("Activation", "")
    figure_, axes = panels(1, 3, height=2.4)
    orders = [column for column in table.columns if column.startswith("distortion_") and column[-1].isdigit()]
    grouped = table.groupby("layer")
    layers = sorted(table["layer"].unique())
    place = np.arange(len(layers))
    for order, color in zip(orders, layer_colors(len(orders)), strict=True):
        mean = grouped[order].mean().clip(lower=1e-12)
        axes[0][0].plot(layers, mean, marker="o", markersize=3, color=color, label=f"{order[-1]}θ")
    before = grouped["distortion_before"].mean().clip(lower=1e-12)
    axes[0][0].plot(layers, before, label="before", **UNTRAINED)
    axes[0][0].set_yscale("log")
    axes[0][0].set_xlabel("layer")
    axes[0][0].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[0][0].set_ylabel("power / power at θ")
    axes[0][0].set_title(f"behind {name}")
    axes[0][0].legend(ncols=2, fontsize=6.5, handlelength=1.4, columnspacing=0.8)
    for ax, what, title in (
        (axes[0][1], "norm", "activation norm"), (axes[0][2], "entropy", "attention entropy (nats)"),
    ):  # fmt: skip
        for shift, color, offset in (("aligned", "#0072b2", -0.18), ("shifted", "#d55e00", 0.18)):
            label = "in phase" if shift == "aligned" else "half a turn apart"
            ax.bar(place + offset, grouped[f"{what}_{shift}"].mean(), 0.34, color=color, label=label)
        ax.set_title(title)
        ax.set_xlabel("layer")
        step = max(1, len(layers) // 8)
        ax.xaxis.set_major_locator(FixedLocator(place[::step].tolist()))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{layers[int(value)]}"))
    figure_.legend(*axes[0][1].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure_


def _there(heads: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, float | None]]:
    found: list[tuple[str, float | None]] = [
        (name, None) for name in names if name in heads and heads[name].notna().any()
    ]
    if not found:
        raise NotDrawable(f"the heads table has none of {', '.join(names)}")
    return found


def _layer_legend(figure_: Figure, ax: Axes, layers: Sequence[int]) -> None:
    """Bound, untrained model and layers (first, middle and last of many)."""
    handles, labels = ax.get_legend_handles_labels()
    few = layers if len(layers) <= 5 else [layers[0], layers[len(layers) // 2], layers[-1]]
    wanted = {f"layer {layer}" for layer in few}
    kept = [
        (handle, label)
        for handle, label in zip(handles, labels, strict=True)
        if not label.startswith("layer") or label in wanted
    ]
    figure_.legend(
        [handle for handle, _ in kept], [label for _, label in kept], loc="outside upper center",
        ncols=min(6, len(kept)),
    )  # fmt: skip
