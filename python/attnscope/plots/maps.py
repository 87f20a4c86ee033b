# SPDX-License-Identifier: MIT
"""Maps: a metric over layers and heads; and one attention matrix: its tokens, its spectrum, its bars."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

from attnscope._tokens import readable
from attnscope.arguments.scalars import flag
from attnscope.metrics.discovery import quantity
from attnscope.metrics.homology import barcodes
from attnscope.metrics.homology.barcodes import DIMENSIONS, Barcodes, bar_columns
from attnscope.metrics.spectra.null_law import null_spectrum
from attnscope.plots.selection import averaged, last_step, rows_of
from attnscope.plots.style import (
    GRID,
    INK,
    MUTED,
    PALETTE,
    SEQUENTIAL,
    SPARSE,
    UNIFORM,
    axes_or_new,
    legend_above,
    line_keywords,
    style,
)


def layer_head_table(heads: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric's mean over samples, layers down and heads across."""
    averaged("layer_head_map", heads, metric, several=bool(heads.duplicated(["layer", "head"]).any()))
    return heads[metric].astype(float).groupby([heads["layer"], heads["head"]]).mean().unstack("head")


@style()
def layer_head_map(
    heads: Any,
    metric: str = "",
    *,
    ax: Axes | None = None,
    norm: Normalize | None = None,
    colorbar: bool = True,
    numbers: bool | None = None,
    cmap: Any = SEQUENTIAL,
    label: str | None = None,
) -> Axes:
    """Return a metric's mean over samples as a map: layer 0 on top, heads to the right.

    Args:
        heads: results, of which the last checkpoint is drawn; rows of single heads of one model, checkpoint
            and series; or numbers [layer, head] or [layer, sample, head].
        metric: the column; of numbers, their name.
        ax: axes to draw on; None makes them.
        norm: the colour scale; None spans the map's own values.
        colorbar: draw it.
        numbers: print each cell's value; None does when there are at most 48 cells.
        cmap: a colour map or its name.
        label: of the colour scale; None is the quantity's own.

    Returns:
        The axes; the map is `ax.collections[0]`, its array the means, row by row.
    """
    colorbar = flag("layer_head_map", "colorbar", colorbar)
    numbers = None if numbers is None else flag("layer_head_map", "numbers", numbers)
    table = rows_of("layer_head_map", heads, metric)
    table = layer_head_table(last_step(table) if hasattr(heads, "tables") else table, metric)
    ax = axes_or_new(ax)
    cells = table.to_numpy()
    if norm is None and not np.isfinite(cells).any():
        norm = Normalize(0, 1)
    rows, columns = cells.shape
    small = rows * columns <= 48
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_invalid(cells),
        cmap=cmap,
        norm=norm,
        edgecolors="white" if small else "face",
        linewidth=1.0 if small else 0.1,
    )
    ax.invert_yaxis()
    ax.set_aspect("equal" if max(rows, columns) <= 3 * min(rows, columns) else "auto")
    for axis, numbered in ((ax.yaxis, table.index), (ax.xaxis, table.columns)):
        places = range(0, len(numbered), -(-len(numbered) // 12))
        axis.set_ticks(places, [str(numbered[place]) for place in places])
    ax.set(xlabel="head", ylabel="layer", facecolor="#eeeeee")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if numbers if numbers is not None else small:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                red, green, blue, _ = mesh.cmap(mesh.norm(value))
                bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
                ax.text(
                    column,
                    row,
                    short(value),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color=INK if bright else "white",
                )
    if colorbar:
        label = quantity(metric).axis if label is None else label
        ticks = MaxNLocator(5)
        add_colorbar(ax.figure, mesh, ax, fraction=0.05, pad=0.03, aspect=18, label=label, ticks=ticks)
    return ax


@style()
def attention_map(
    attention: Any,
    tokens: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    floor: float = 1e-3,
    colorbar: bool = True,
) -> Axes:
    """Draw one attention matrix, queries down and keys across, on a logarithmic scale.

    Attention spans orders of magnitude; values under the floor, and the causal triangle, are left white.

    Args:
        attention: `[n, n]`, anything NumPy reads.
        tokens: n names; up to 40 are written on both axes, of more every few.
        ax: axes to draw on; None makes them.
        floor: the smallest attention that gets a colour.
        colorbar: draw it.

    Returns:
        The axes; the matrix is `ax.images[0]`.

    Raises:
        ValueError: when the matrix is not square or the tokens are not n.
    """
    colorbar = flag("attention_map", "colorbar", colorbar)
    matrix = np.asarray(attention, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"attention_map: attention must be [n, n], got shape {matrix.shape}")
    n = len(matrix)
    if tokens is not None and len(tokens) != n:
        raise ValueError(f"attention_map: {n} queries but {len(tokens)} tokens")
    ax = axes_or_new(ax, 3.4, 3.0)
    shown = np.ma.masked_less(matrix, floor)
    image = ax.imshow(shown, cmap=SPARSE, norm=LogNorm(floor, 1.0), interpolation="nearest", aspect="equal")
    ax.set(xlabel="key", ylabel="query")
    # The frame would cover the first key, which is the one to look at.
    ax.spines[:].set_visible(False)
    if tokens is None:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        places = range(0, n, -(-n // 40))
        names = [printable(tokens[place]) for place in places]
        size = 6.0 if n <= 24 else 4.5
        ax.set_xticks(places, names, rotation=90, fontsize=size)
        ax.set_yticks(places, names, fontsize=size)
        ax.tick_params(length=1)
    if colorbar:
        add_colorbar(
            ax.figure, image, ax, fraction=0.046, pad=0.03, aspect=20, extend="min", label="attention"
        )
    return ax


@style()
def spectrum_against_null(attention: Any, *, ax: Axes | None = None, **line: Any) -> Axes:
    """Return how far a map is from random entries: its spectrum's distribution over the null law's.

    Args:
        attention: `[n, n]`, causal or full.
        ax: axes to draw on; None makes them.
        line: of matplotlib's lines, such as color, label, linestyle, for the map's own.

    Returns:
        The axes: the first line is the spectrum's empirical distribution, the second the null law; a bar
        marks the Kolmogorov–Smirnov distance.
    """
    line = line_keywords("spectrum_against_null", line)
    try:
        law = null_spectrum(torch.tensor(np.asarray(attention, dtype=float), device="cpu"))
    except ValueError as error:
        raise ValueError(f"spectrum_against_null: {str(error).removeprefix('null_spectrum: ')}") from None
    ax = axes_or_new(ax)
    share = np.arange(1, len(law.values) + 1) / len(law.values)
    ax.step(law.values, share, where="post", **{"color": PALETTE[0], "label": "this map", "zorder": 3} | line)
    ax.plot(law.law_x, law.law_cdf, label=law.law, **UNIFORM)
    ax.plot([law.at] * 2, law.between, color=PALETTE[1], linewidth=2.0, solid_capstyle="butt", zorder=4)
    ax.annotate(
        f"KS {law.ks:.2f}",
        (law.at, sum(law.between) / 2),
        xytext=(4, 0),
        textcoords="offset points",
        color=PALETTE[1],
        va="center",
        fontsize=7,
        fontweight="bold",
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
    )
    ax.axvline(law.edge, color=INK, linewidth=0.5, linestyle=":")
    ax.annotate(
        "edge",
        (law.edge, 0.0),
        xytext=(2, 2),
        textcoords="offset points",
        fontsize=6,
        rotation=90,
        va="bottom",
    )
    ends = max(1e-4, 0.5 * law.values[law.values > 0].min()), 1.6 * max(law.values[-1], law.edge)
    ax.set(xscale="log", xlim=ends, ylim=(0, 1.02), xlabel="eigenvalue", ylabel="share below")
    legend_above(ax)
    return ax


def bars_of(function: str, bars: Any) -> pd.DataFrame:
    """Return bars as a table of `dimension`, `birth` and `death`, from a table or from the barcodes of
    maps.

    >>> import torch, attnscope
    >>> bars_of("f", attnscope.persistence(torch.eye(2))).to_numpy().tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, inf]]
    """
    columns = ["dimension", "birth", "death"]
    frame = pd.DataFrame(bar_columns(bars, {}) if isinstance(bars, Barcodes) else bars)
    missing = [name for name in columns if name not in frame]
    if missing:
        raise ValueError(
            f"{function}: the bars have no column {missing[0]!r}; there are: {', '.join(map(str, frame))}"
        )
    return frame[columns]


@style()
def persistence_diagram(bars: Any, *, ax: Axes | None = None) -> Axes:
    """Draw births and deaths of components and loops, as distances 1 − attention.

    Bars that never die are on the line at the top.

    Args:
        bars: columns `dimension`, `birth`, `death`, or what `attnscope.persistence` returns.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: one collection of points per dimension, in order of dimension.
    """
    bars = bars_of("persistence_diagram", bars)
    ax = axes_or_new(ax, 2.8, 2.6)
    top = 1.14
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.7, zorder=1)
    ax.axhline(top, color=GRID, linewidth=0.8, zorder=1)
    for dimension, rows in bars.groupby(bars["dimension"].astype(int)):
        death = rows["death"].to_numpy(dtype=float)
        ax.scatter(
            rows["birth"],
            np.where(np.isfinite(death), death, top),
            s=9,
            alpha=0.55,
            linewidths=0,
            marker="o^s"[min(dimension, 2)],
            color=PALETTE[dimension],
            clip_on=False,
            zorder=3,
            label=f"H{dimension}: {len(rows)}",
        )
    ax.set(xlim=(-0.02, 1.02), ylim=(0, 1.18), xlabel="birth (1 − attention)", ylabel="death")
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1.0, top], ["0", ".25", ".5", ".75", "1", "∞"])
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", ".25", ".5", ".75", "1"])
    legend_above(ax)
    return ax


@style()
def betti_curve(bars: Any, *, ax: Axes | None = None, smallest: float = 1e-3, **line: Any) -> Axes:
    """Draw β0 and β1 while the attention threshold falls from 1: strong links come first.

    Args:
        bars: columns `dimension`, `birth`, `death`, or what `attnscope.persistence` returns.
        ax: axes to draw on; None makes them.
        smallest: where the axis ends.
        line: of matplotlib's lines, such as color, alpha, linewidth, for both.

    Returns:
        The axes: a line per dimension over falling thresholds.
    """
    line = line_keywords("betti_curve", line)
    bars = bars_of("betti_curve", bars)
    ax = axes_or_new(ax)
    thresholds = np.geomspace(1.0, smallest, 400)
    kind, birth, death = torch.from_numpy(bars[bars["dimension"] < DIMENSIONS].to_numpy(float).T)
    edges = torch.empty(0, 2, dtype=torch.float32, device="cpu")
    bars_of_map = Barcodes(
        birth, death, kind.to(torch.int8), edges, edges, torch.tensor([0, len(birth)], device="cpu"), ()
    )
    counts = barcodes.betti_curve(bars_of_map, torch.from_numpy(1.0 - thresholds)).clip(min=0).numpy()
    for dimension, dash in enumerate(("-", (0, (4, 1)))):
        how: dict[str, Any] = {"color": PALETTE[dimension], "label": rf"$\beta_{dimension}$"}
        ax.step(thresholds, counts[:, dimension], where="post", **how | {"linestyle": dash} | line)
    ax.set(xscale="log", xlim=(1.0, smallest), xlabel="threshold on attention", ylabel="count")
    # Loops outnumber components by orders of magnitude, and both may be 0.
    ax.set_yscale("symlog", linthresh=10)
    ax.set_ylim(bottom=0)
    top = ax.get_ylim()[1]
    few = range(6) if top < 6 else range(0, 11, 2) if top <= 10 else [0, 5, 10, 100, 1000, 10_000]
    ax.set_yticks(few, [str(count) for count in few])
    ax.set_ylim(0, top)
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:g}".replace("0.", "."))
    legend_above(ax)
    return ax


def add_colorbar(figure: Any, shown: Any, axes: Any, **options: Any) -> Any:
    """Return a colour scale without a frame, as vectors like the map next to it."""
    bar = figure.colorbar(shown, ax=axes, **options)
    bar.outline.set_visible(False)
    # Matplotlib turns scales of many colours into pixels; without an edge their seams would show.
    bar.solids.set(rasterized=False, edgecolor="face", linewidth=0.3)
    return bar


def printable(token: str) -> str:
    r"""Return a token as it can be drawn: white space made visible, mathematics switched off, long ones cut.

    >>> printable("\u0120the"), printable("a\nb"), printable("$x$")
    ('␣the', 'a↵b', '\\$x\\$')
    """
    text = readable(token).translate(str.maketrans(" \n\t", "␣↵⇥"))
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    text = text if len(text) <= 12 else text[:11] + "…"
    return text.replace("$", r"\$")


def short(value: float) -> str:
    """Return a number in the three or four characters that fit a cell; below a millionth it is 0.

    >>> short(0.5), short(12.34), short(0.0034), short(0.0)
    ('.50', '12', '.003', '0')
    """
    if abs(value) < 1e-6:
        return "0"
    if abs(value) < 0.0005:
        return f"{value:.0e}".replace("e-0", "e-")
    places = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2 if abs(value) >= 0.0095 else 3
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{places}f}")
