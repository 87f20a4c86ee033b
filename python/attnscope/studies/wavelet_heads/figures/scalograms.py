# SPDX-License-Identifier: MIT
"""Scalograms of single signals, and the harmonics of RoPE behind a model's own nonlinearities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from attnscope.plots.axes import layer_colors
from attnscope.plots.figure import Drawn, Figure, NotDrawable, Options, Tables, captioned, declared_in, stored
from attnscope.plots.selection import heads_only, last_step
from attnscope.plots.style import (
    INK,
    MUTED,
    NARROWEST,
    SEQUENTIAL,
    UNTRAINED,
    axes_or_new,
    legend_columns,
    panels,
    styled,
)

#: The study's figures by name.
FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: Below this many tokens a signal has no scales to tell apart.
FEWEST = 16


@styled
def scalogram(signal: Sequence[float], *, ax: Axes | None = None) -> Axes:
    """Morlet power of a query's attention by key and period, darker where its ends are not yet felt."""
    from attnscope.metrics.signals.wavelet import morlet_scalogram

    ax = axes_or_new(ax)
    x = torch.tensor(list(signal), dtype=torch.float64)
    sizes = np.geomspace(2.0, max(len(x) / 4, 4.0), 48)
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


@figure("signals")
def scalograms(results: Tables, options: Options) -> Drawn:
    """The last query's attention and its Morlet scalogram: per layer the widest head and a middling one."""
    signals = last_step(heads_only(stored(results, "signals", "signal")))
    whole = [signal is not None and bool(np.isfinite(np.asarray(signal, dtype=float)).all())
             for signal in signals["signal"]]  # fmt: skip
    own = signals[whole]
    own = own[[len(signal) >= FEWEST for signal in own["signal"]]]
    if own.empty:
        raise NotDrawable(f"no stored signal has {FEWEST} tokens or more, all with values")
    own = own[own["model"] == own["model"].iloc[0]]
    own = own[own["sample"] == own["sample"].min()]
    layers = sorted(own["layer"].unique())
    across = min(3, len(layers), max(1, int(options.width / NARROWEST)))
    layers = [layers[round(at)] for at in np.linspace(0, len(layers) - 1, across)]
    chosen = [(layer, *_wide_and_middling(own[own["layer"] == layer])) for layer in layers]
    figure_, axes = panels(
        4, len(layers), height=4.6, width=options.width, height_ratios=[1, 2.2, 1, 2.2], sharex=True
    )
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
    return captioned(
        figure_,
        f"Attention of the last query of sample {own['sample'].iloc[0]} and its Morlet power, of the widest "
        "and a middling head of a layer; pale where the edges of the signal are felt.",
    )


def _wide_and_middling(rows: pd.DataFrame) -> tuple[Any, Any]:
    """The heads whose signals have the largest and the middle entropy."""
    entropies = [float(torch.special.entr(torch.tensor(list(signal))).sum()) for signal in rows["signal"]]
    order = np.argsort(entropies)
    return rows.iloc[int(order[-1])], rows.iloc[int(order[len(order) // 2 - 1 if len(order) > 1 else 0])]


@figure("harmonics")
def harmonics(results: Tables, options: Options) -> Drawn:
    """Harmonics of RoPE's frequencies behind the activation, and interference in and out of phase."""
    table = last_step(stored(results, "harmonics"))
    table = table[table["model"] == table["model"].iloc[0]]
    names = table["activation"].dropna() if "activation" in table else pd.Series(dtype=object)
    activation = str(names.iloc[0]).replace("Activation", "") if len(names) else "the activation"
    orders = [column for column in table.columns if column.startswith("distortion_") and column[-1].isdigit()]
    means = table.groupby("layer").mean(numeric_only=True)
    powers = [name for name in (*orders, "distortion_before") if name in means and means[name].notna().any()]
    bars = [what for what in ("norm", "entropy") if _interference(means, what)]
    if not powers and not bars:
        raise NotDrawable("the harmonics table has no value")
    columns = bool(powers) + len(bars)
    figure_, axes = panels(1, columns, height=2.4, width=min(options.width, 2.6 * columns + 0.4))
    if powers:
        _powers(axes[0][0], means[powers], activation)
    titles = {"norm": "activation norm", "entropy": "attention entropy (nats)"}
    for ax, what in zip(axes[0][bool(powers) :], bars, strict=True):
        _pairs_of_bars(ax, means, what, table.groupby("layer"))
        ax.set_title(titles[what])
    if bars:
        shown: dict[str, Any] = {}
        for ax in axes[0][bool(powers) :]:
            shown |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        columns = legend_columns(figure_, list(shown), 2)
        figure_.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=columns)
    return captioned(
        figure_,
        "Means over frequencies that make four cycles, over heads and both inputs."
        + (" Whiskers: the lowest and the highest frequency." if bars else ""),
        "Half a turn apart, two rotations cancel: small activations, and attention near uniform."
        if bars
        else "",
    )


def _interference(means: pd.DataFrame, what: str) -> list[str]:
    names = [f"{what}_aligned", f"{what}_shifted"]
    return [name for name in names if name in means and means[name].notna().any()]


def _powers(ax: Axes, means: pd.DataFrame, activation: str) -> None:
    """Power at each harmonic over power at the frequency itself, a line per harmonic."""
    means = means.clip(lower=1e-12)
    orders = [name for name in means if name != "distortion_before"]
    for order, color in zip(orders, layer_colors(len(orders)), strict=True):
        label = f"{str(order)[-1]}θ"
        ax.plot(means.index, means[order], marker="o", markersize=3, color=color, label=label)
    if "distortion_before" in means:
        ax.plot(means.index, means["distortion_before"], label="before", **UNTRAINED)
    ax.set_yscale("log")
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_ylabel("power / power at θ")
    ax.set_title(f"behind {activation}")
    ax.legend(ncols=2, fontsize=6.5, handlelength=1.4, columnspacing=0.8)


def _pairs_of_bars(ax: Axes, means: pd.DataFrame, what: str, rows: Any) -> None:
    """Two bars a layer: both rotations in phase, and half a turn apart; their range over `rows` by layer."""
    layers = list(means.index)
    place = np.arange(len(layers))
    for shift, color, offset in (("aligned", "#0072b2", -0.18), ("shifted", "#d55e00", 0.18)):
        if f"{what}_{shift}" in _interference(means, what):
            label = "in phase" if shift == "aligned" else "half a turn apart"
            name = f"{what}_{shift}"
            spread = [means[name] - rows[name].min(), rows[name].max() - means[name]]
            ax.bar(
                place + offset, means[name], 0.34, color=color, label=label,
                yerr=np.clip(spread, 0, None), error_kw={"elinewidth": 0.8, "ecolor": MUTED},
            )  # fmt: skip
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(FixedLocator(place[:: max(1, len(layers) // 8)].tolist()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{layers[int(value)]}"))
