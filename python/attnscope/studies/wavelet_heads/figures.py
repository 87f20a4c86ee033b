# SPDX-License-Identifier: MIT
"""The figures of the study on wavelet-like heads, each drawn from stored tables only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from attnscope.errors import NotDrawable
from attnscope.metrics.signals.wavelet import morlet_scalogram
from attnscope.plots.axes import colors_by_layer, layers_below, series_colors
from attnscope.plots.figure import (
    Drawn,
    Figure,
    Options,
    Results,
    captioned,
    compared_with,
    declared_in,
    optional,
    over_steps,
    require_table,
    with_values,
)
from attnscope.plots.lines import draw_curve, emergence_curve
from attnscope.plots.panels import Panels
from attnscope.plots.selection import estimate, first_model, first_step, last_step, measured_heads
from attnscope.plots.standard import depth, metric_grid
from attnscope.plots.style import (
    BEFORE,
    INK,
    MUTED,
    NARROWEST,
    PALETTE,
    SEQUENTIAL,
    UNIFORM,
    UNTRAINED,
    axes_or_new,
    legend_over,
    named_artists,
    panels,
    style,
)
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import in_series, rows_of_protocol
from attnscope.study_api.number_text import counted
from attnscope.study_api.selection import where

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: Below this many tokens a signal has no scales to tell apart.
FEWEST = 16
#: Colours of harmonics, which the bars beside them do not have.
HARMONICS = (PALETTE[2], PALETTE[3], PALETTE[4], PALETTE[6])
#: Metrics of the depth figure and of the phases, in this order.
DEPTH = (
    *("low_band", "mid_band", "high_band", "spectral_selectivity"),
    *("spectral_entropy", "wavelet_entropy", "position_entropy", "local_share"),
)


@style()
def scalogram(signal: Sequence[float], *, ax: Axes | None = None) -> Axes:
    """Draw Morlet power of a query's attention by key and period, darker where its ends are not yet felt."""
    ax = axes_or_new(ax)
    x = torch.tensor(list(signal), dtype=torch.float64, device="cpu")
    sizes = np.geomspace(2.0, max(len(x) / 4, 4.0), 48)
    power = morlet_scalogram(
        x.expand(len(x), len(x)), list(sizes), signal="last", support="full", detrend="mean", min_keys=2
    ).numpy()
    of_size = 4 * np.pi / (6 + np.sqrt(38))
    periods = sizes * of_size
    top = float(power.max())
    shown = 10 * np.log10(np.maximum(power, top * 1e-4) / top) if top > 0 else np.zeros_like(power)
    place = np.arange(len(x))
    ax.pcolormesh(
        place, periods, shown, cmap=SEQUENTIAL, vmin=-40, vmax=0, shading="nearest", rasterized=True
    )
    cone = np.clip(np.minimum(place, len(x) - 1 - place) / np.sqrt(2) * of_size, periods[0], periods[-1])
    ax.fill_between(place, cone, periods[-1], color="white", alpha=0.45, linewidth=0)
    ax.set_yscale("log")
    ticks = [period for period in (2, 4, 8, 16, 32, 64, 128) if periods[0] <= period <= periods[-1]]
    ax.set_yticks(ticks, [str(period) for period in ticks])
    ax.minorticks_off()
    ax.set(xlim=(0, len(x) - 1), ylim=(periods[0], periods[-1]), xlabel="key", ylabel="period (tokens)")
    return ax


@figure("signals")
def scalograms(results: Results, options: Options) -> Drawn:
    """Return the last query's attention and its Morlet scalogram: per layer the widest head and a middling
    one.
    """
    signals = last_step(rows_of_protocol(require_table(results, "signals", "signal")))
    long_signals = signals[signals["signal"].map(_has_scales).astype(bool)]
    if long_signals.empty:
        raise NotDrawable(f"no stored signal has {FEWEST} tokens or more, all with values")
    first, *others = long_signals["model"].unique()
    long_signals = where(long_signals, model=first)
    long_signals = where(long_signals, sample=long_signals["sample"].min())
    layers = sorted(long_signals["layer"].unique())
    across = min(3, len(layers), max(1, int(options.width / NARROWEST)))
    layers = [layers[round(at)] for at in np.linspace(0, len(layers) - 1, across)]
    figure_, axes = panels(
        4, len(layers), height=4.6, width=options.width, height_ratios=[1, 2.2, 1, 2.2], sharex="col"
    )
    for column, layer in enumerate(layers):
        for place, row in enumerate(_wide_and_middling(where(long_signals, layer=layer))):
            above, below = axes[2 * place][column], axes[2 * place + 1][column]
            signal = np.asarray(row["signal"], dtype=float)
            above.fill_between(range(len(signal)), signal, color=INK, alpha=0.75, linewidth=0.4, step="mid")
            top = float(signal.max())
            digit = 10.0 ** np.floor(np.log10(max(top, 1e-6)))
            above.set(yticks=[0, float(np.floor(top / digit) * digit)], ylim=(0, max(1.05 * top, 1e-6)))
            above.set(title=f"L{layer}H{int(row['head'])}", ylabel="" if column else "attention")
            scalogram(signal.tolist(), ax=below)
            below.set_xlim(-0.5, len(signal) - 0.5)
            if column:
                below.set_ylabel("")
            # of a window the signal begins with the first key that the query sees
            in_window = "n_tokens" in row and len(signal) < row["n_tokens"]
            below.set_xlabel("visible key" if in_window else "key")
            if place == 0:
                below.set_xlabel("")
    bar = figure_.colorbar(axes[1][0].collections[0], ax=figure_.axes, pad=0.012, aspect=30, fraction=0.03)
    bar.set_label("power (dB below the strongest)")
    bar.outline.set_visible(False)
    return captioned(
        figure_,
        f"Attention of the last query of sample {long_signals['sample'].iloc[0]} and its Morlet power, of "
        "the widest "
        "and a middling head of a layer; pale where the edges of the signal are felt.",
        f"Drawn: {first}; the run holds {len(others)} more." if others else "",
    )


def _has_scales(signal: Any) -> bool:
    """Return True if a stored signal is long enough and whole."""
    values = np.asarray(signal, dtype=float)
    return values.size >= FEWEST and bool(np.isfinite(values).all())


def _wide_and_middling(rows: pd.DataFrame) -> tuple[Any, Any]:
    """Return the heads whose signals have the largest and the middle entropy; of two in the middle the
    lower.
    """
    entropies = [
        float(torch.special.entr(torch.tensor(list(signal), device="cpu")).sum()) for signal in rows["signal"]
    ]
    order = np.argsort(entropies)
    return rows.iloc[int(order[-1])], rows.iloc[int(order[(len(order) - 1) // 2])]


@figure("harmonics")
def harmonics(results: Results, options: Options) -> Drawn:
    """Draw harmonics of RoPE's frequencies behind the activation, and interference in and out of phase."""
    table, others = first_model(results, "harmonics")
    names = table["activation"].dropna() if "activation" in table else pd.Series(dtype=object)
    activation = str(names.iloc[0]).replace("Activation", "") if len(names) else "the activation"
    layers = table.groupby("layer")
    means = layers.mean(numeric_only=True)
    means = means[[name for name in means if means[name].notna().any()]]
    powers = [name for name in means if str(name).startswith("distortion_")]
    titles = {"norm": "activation norm", "entropy": "attention entropy (nats)"}
    bars = [measure for measure in titles if {f"{measure}_aligned", f"{measure}_shifted"} & set(means)]
    if not powers and not bars:
        raise NotDrawable("the harmonics table has no value")
    columns = bool(powers) + len(bars)
    figure_, ((*axes,),) = panels(1, columns, height=2.4, width=min(options.width, 2.6 * columns + 0.4))
    if powers:
        _powers(axes.pop(0), means[powers].clip(lower=1e-12), activation)
    for ax, measure in zip(axes, bars, strict=True):
        _pairs_of_bars(ax, means, measure, layers)
        ax.set_title(titles[measure])
    words = ["Means over frequencies that make four cycles, over heads and both inputs."]
    if "distortion_before" in means:
        words.append(f"Dotted: all harmonics together in front of {activation}, where rotations are pure.")
    legend_over(figure_, named_artists(figure_.axes))
    if bars:
        words += [
            "Whiskers: from the lowest to the highest mean over heads among frequencies and inputs. "
            "Half a turn apart, two rotations cancel: small activations, and attention near uniform."
        ]
    return captioned(figure_, *words, f"Drawn: {others}" if others else "")


def _powers(ax: Axes, means: pd.DataFrame, activation: str) -> None:
    """Draw power at each harmonic over power at the frequency itself, a line per harmonic."""
    orders = [name for name in means if name != "distortion_before"]
    for order, color in zip(orders, HARMONICS[: len(orders)], strict=True):
        ax.plot(means.index, means[order], marker="o", markersize=3, color=color, label=f"{str(order)[-1]}θ")
    if "distortion_before" in means:
        # above the lines, because harmonics without power of their own lie on it
        before = {**UNTRAINED, "color": INK, "zorder": 4}
        ax.plot(means.index, means["distortion_before"], label=f"before {activation}", **before)
    layers_below(ax)
    ax.set(yscale="log", ylabel="power / power at θ", title=f"behind {activation}")


def _pairs_of_bars(ax: Axes, means: pd.DataFrame, measure: str, rows: Any) -> None:
    """Draw two bars a layer: both rotations in phase, and half a turn apart; their range over `rows` by
    layer.
    """
    place = np.arange(len(means))
    for name, label, color, offset in (
        (f"{measure}_aligned", "in phase", PALETTE[0], -0.18),
        (f"{measure}_shifted", "half a turn apart", PALETTE[1], 0.18),
    ):
        if name in means:
            spread = [means[name] - rows[name].min(), rows[name].max() - means[name]]
            ax.bar(
                place + offset,
                means[name],
                0.34,
                color=color,
                label=label,
                yerr=np.clip(spread, 0, None),
                error_kw={"elinewidth": 0.8, "ecolor": MUTED},
            )
    few = place[:: max(1, len(place) // 8)]
    ax.set_xticks(few, [str(layer) for layer in means.index[few]])
    ax.set_xlabel("layer")


@style()
def power_by_layer(
    spectra: pd.DataFrame, *, ax: Axes | None = None, colors: Mapping[Any, str] | None = None
) -> Axes:
    """Draw the share of power over frequency, one line per layer, mean over heads with its interval over
    samples.

    A layer without power, of which no signal is long enough, has no line. `colors` are by layer.
    """
    ax = axes_or_new(ax)
    spectra = spectra[spectra["power_share"].notna()]
    colors = colors_by_layer(spectra["layer"]) if colors is None else colors
    table = estimate(spectra, "power_share", ["layer", "frequency"])
    for layer, rows in table.groupby("layer", sort=True):
        draw_curve(ax, rows["frequency"], rows, f"layer {layer}", colors[layer], dash="-")
    for edge in (0.25, 0.75):  # bounds of the bands
        ax.axvline(edge, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.5)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    ax.set(yscale="log", xlim=(0, 1), xlabel="frequency / Nyquist", ylabel="share of power per 1/32")
    return ax


@figure("spectra")
def power_spectra(results: Results, options: Options) -> Drawn:
    """Draw power spectra of attention along the keys by layer, one panel per series, at the last
    checkpoint.
    """
    spectra = in_series(require_table(results, "spectra", "power_share"), results)
    final, before = last_step(spectra), first_step(spectra)
    # a share of 0 is in the means, which a scale of logarithms leaves out where they are 0
    final = final[final["power_share"].notna()]
    above_0 = final["power_share"][final["power_share"] > 0]
    if above_0.empty:
        raise NotDrawable("the spectra table has no power: too few tokens for a signal")
    sizes: dict[str, Any] = {"height": 2.35, "panel_width": 3.6, "margin": 0.6, "across": 3, "above": 0.35}
    drawn = Panels.by(final, "series", options, sharey=True, **sizes)
    floor = float(above_0.min())
    # one legend is of all panels, whose models may have more or fewer layers
    colors = colors_by_layer(final["layer"])
    for name, (ax, rows) in zip(drawn.names, drawn.rows(final), strict=True):
        power_by_layer(rows, ax=ax, colors=colors)
        rows_before = where(before, series=name)
        if len(rows_before):
            untrained = rows_before.groupby("frequency")["power_share"].mean()
            floor = np.nanmin([floor, *untrained])
            ax.plot(untrained.index, untrained, label=BEFORE, gid="untrained", **UNTRAINED)
        ax.set_title(name)
        ax.label_outer()
    columns = min(3, len(drawn.axes))
    for ax in drawn.axes[-columns:]:  # the lowest of each column, also above an empty place
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("frequency / Nyquist")
    drawn.axes[0].set_ylim(bottom=max(floor * 0.6, 1e-7))
    _layer_legend(drawn.figure, sorted(final["layer"].unique()))
    return drawn.captioned("Mean over heads; dotted verticals bound the bands.", compared_with(drawn.figure))


FIGURES["band_shares"] = depth(tuple((name, None) for name in DEPTH))


@figure("heads")
def phases(results: Results, options: Options) -> Drawn:
    """Draw every number over training, mean over heads with its interval over samples: the phases."""
    heads, unknown = over_steps(measured_heads(results))
    present = with_values(heads, "heads", DEPTH)
    rho = optional(results, "uncertainty")
    if rho is not None and "rho" in rho:
        keys = [*CHECKPOINT_KEYS, "sample", "protocol"]
        heads = heads.merge(rho[[*keys, "rho"]], on=keys, how="left")
        present = [*present[:7], "rho"] if heads["rho"].notna().any() else present
    figure_ = metric_grid(
        heads,
        [(name, None) for name in present],
        emergence_curve,
        optional(results, "baselines"),
        width=options.width,
    )
    if "rho" in present:
        figure_.axes[present.index("rho")].set_title(r"correlation of entropies $\rho$")
    words = "Each quantity over training, mean over heads."
    return captioned(figure_, words, compared_with(figure_), left_out=unknown)


#: The panels of `uncertainty`: columns across and up, and further columns that they need.
_BOUNDED = {
    "entropies": ["position_entropy", "fourier_entropy", "entropy_bound"],
    "variances": ["uncertainty_bound", "uncertainty_product"],
}


@figure("heads")
def uncertainty(results: Results, options: Options) -> Drawn:
    """Draw position against frequency for every head at the last checkpoint, with the bounds of both
    pairs.
    """
    heads = measured_heads(results)
    final, before = last_step(heads), first_step(heads)
    panels_with_values = {
        title: needed
        for title, needed in _BOUNDED.items()
        if set(needed) <= set(heads) and final[needed].notna().all(axis=1).any()
    }
    if not panels_with_values:
        raise NotDrawable("the heads table has no uncertainty")
    layers = sorted(final["layer"].unique())
    colors = colors_by_layer(layers)
    figure_, axes = panels(
        1, len(panels_with_values), height=2.9, width=min(options.width, 3.3 * len(panels_with_values) + 0.4)
    )
    keys, beyond = ["series", "layer", "head"], 0
    for ax, (title, needed) in zip(axes[0], panels_with_values.items(), strict=True):
        x, y = needed[:2]
        old = before.groupby(keys)[needed].mean().dropna()
        if len(old):
            ax.scatter(old[x], old[y], s=13, marker="x", color=MUTED, linewidth=0.8, label=BEFORE, zorder=2)
        points = final.groupby(keys)[needed].mean().dropna().reset_index()
        for layer, points_of_layer in points.groupby("layer"):
            ax.scatter(
                points_of_layer[x],
                points_of_layer[y],
                s=18,
                color=colors[layer],
                edgecolor="white",
                linewidth=0.4,
                label=f"layer {layer}",
                zorder=3,
            )
        (_below_entropies if title == "entropies" else _below_variances)(ax, pd.concat([points, old]))
        if title == "variances":
            (left, _), (bottom, _) = ax.get_xlim(), ax.get_ylim()
            beyond = int(((points[x] < left) | (points[y] < bottom)).sum())
        ax.set_title(title)
    _layer_legend(figure_, layers)
    return captioned(
        figure_,
        "Each point a head, mean over texts; grey is where no signal can be.",
        f"{counted(beyond, 'head')} with a product or bound of 0, or near it, not drawn." if beyond else "",
    )


def _below_entropies(ax: Axes, points: pd.DataFrame) -> None:
    """Draw the lowest bound of the two entropies, and the region below it in grey: that of the layer whose
    queries see the fewest keys.
    """
    bound = float(points["entropy_bound"].min())
    corner = 1.05 * max(bound, float(points[["position_entropy", "fourier_entropy"]].max().max()), 1e-3)
    ax.fill_between([0, bound], [bound, 0], color=MUTED, alpha=0.14, linewidth=0)
    ax.plot([0, bound], [bound, 0], color=INK, linewidth=1.0, label="$H_p + H_f$ = log m")
    ax.annotate("impossible", (0.06 * bound, 0.2 * bound), color=MUTED, fontsize=7, va="center")
    ax.set(xlim=(-0.02 * corner, corner), ylim=(-0.02 * corner, corner))
    ax.set(xlabel="position entropy $H_p$ (nats)", ylabel="Fourier entropy $H_f$ (nats)")


def _below_variances(ax: Axes, points: pd.DataFrame) -> None:
    """Draw the bound of the two variances, the region below it in grey, and the line's bound of 1/4."""
    low = max(0.5 * float(points["uncertainty_bound"].clip(lower=1e-3).min()), 1e-4)
    line = np.geomspace(low, 0.3, 50)
    ax.fill_between(line, line, np.full(50, low * 0.3), color=MUTED, alpha=0.14, linewidth=0)
    ax.plot(line, line, color=INK, linewidth=1.0)
    ax.axhline(0.25, **UNIFORM)
    ax.annotate(
        "1/4",
        (1, 0.25),
        xycoords=ax.get_yaxis_transform(),
        xytext=(3, 0),
        textcoords="offset points",
        color=MUTED,
        fontsize=7,
        va="center",
        annotation_clip=False,
    )
    ax.set(yscale="log", xlim=(low, 0.3), ylim=(low * 0.3, None))
    ax.set(xlabel=r"its bound $(1 - |\hat\psi(\pi)|^2)^2/4$", ylabel=r"$\sigma_t^2\,\sigma_\omega^2$")


@figure("scale_sensitivity")
def scale_sensitivity(results: Results, options: Options) -> Drawn:
    """Draw 1 − cosine between the wavelet descriptions of a text and of its beginning, over depth."""
    table = last_step(in_series(rows_of_protocol(require_table(results, "scale_sensitivity")), results))
    words = {
        "energy": ("energies of the scales", "energies of the common scales"),
        "coefficients": ("resampled coefficients", "coefficients resampled"),
    }
    present = [name for name in words if name in table and table[name].notna().any()]
    if not present:
        raise NotDrawable("no beginning of a text is long enough for a signal")
    figure_, axes = panels(1, len(present), height=2.4, width=min(options.width, 3.3 * len(present) + 0.4))
    colors = series_colors(list(table["series"]))
    fractions = sorted(table["fraction"].unique(), reverse=True)
    for ax, column in zip(axes[0], present, strict=True):
        estimates = estimate(table, column, ["series", "fraction", "layer"])
        for name, color in colors.items():
            for place, fraction in enumerate(fractions):
                rows = where(estimates, series=name, fraction=fraction)
                label = f"{name}, {fraction:g}" if len(colors) > 1 else f"first {fraction:g} of the text"
                draw_curve(
                    ax,
                    rows["layer"],
                    rows,
                    label,
                    color,
                    marker=len(rows) < 40,
                    dash=("-", "--", ":", "-.")[place % 4],
                    width=1.2,
                )
        layers_below(ax)
        ax.set(title=words[column][0], ylim=(0, None))
    axes[0][0].set_ylabel("1 − cosine")
    legend_over(figure_, named_artists(axes[0][:1]))
    descriptions = ", and ".join(words[name][1] for name in present)
    return captioned(figure_, f"1 − cosine by layer: {descriptions}.", compared_with(figure_))


def _layer_legend(figure_: mpl.Figure, layers: Sequence[int]) -> None:
    """Draw the legend of bound, untrained model and layers (first, middle and last of many)."""
    few = layers if len(layers) <= 5 else [layers[0], layers[len(layers) // 2], layers[-1]]
    others = {f"layer {layer}" for layer in layers if layer not in few}
    named = named_artists(figure_.axes)
    legend_over(figure_, {name: artist for name, artist in named.items() if name not in others})
