# SPDX-License-Identifier: MIT
"""Persistence diagrams and Betti curves, drawn from bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from attnscope.plots.style import GRID, MUTED, PALETTE, axes_or_new, legend_above, styled

_MARKS = {0: "o", 1: "^"}


def bars_of(bars: Any) -> pd.DataFrame:
    """Bars as a table of `dimension`, `birth` and `death`, from a table or from the barcodes of maps.

    >>> import torch, attnscope
    >>> bars_of(attnscope.persistence(torch.eye(2))).to_numpy().tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, inf]]
    """
    columns = ["dimension", "birth", "death"]
    if all(hasattr(bars, name) for name in (*columns, "offsets")):
        bars = {name: getattr(bars, name).numpy() for name in columns}
    frame = pd.DataFrame(bars)
    missing = [name for name in columns if name not in frame]
    if missing:
        raise ValueError(f"bars: no column {missing[0]!r}; there are: {', '.join(map(str, frame))}")
    return frame[columns]


@styled
def persistence_diagram(bars: Any, *, ax: Axes | None = None) -> Axes:
    """Births and deaths of components and loops, as distances 1 − attention.

    Bars that never die stand on the line at the top.

    Args:
        bars: columns `dimension`, `birth`, `death`, or what `attnscope.persistence` returns.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: one collection of points per dimension, in order of dimension.
    """
    ax = axes_or_new(ax, 2.8, 2.6)
    bars = bars_of(bars)
    top = 1.14
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.7, zorder=1)
    ax.axhline(top, color=GRID, linewidth=0.8, zorder=1)
    for dimension in sorted({int(value) for value in bars["dimension"]}):
        rows = bars[bars["dimension"] == dimension]
        death = rows["death"].to_numpy(dtype=float)
        ax.scatter(
            rows["birth"], np.where(np.isfinite(death), death, top), s=9, alpha=0.55, linewidths=0,
            marker=_MARKS.get(dimension, "s"), color=PALETTE[dimension], clip_on=False, zorder=3,
            label=f"H{dimension}: {len(rows)}",
        )  # fmt: skip
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(0, 1.18)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1.0, top], ["0", ".25", ".5", ".75", "1", "∞"])
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", ".25", ".5", ".75", "1"])
    ax.set_xlabel("birth (1 − attention)")
    ax.set_ylabel("death")
    legend_above(ax)
    return ax


def betti_numbers_of(bars: pd.DataFrame, dimension: int, thresholds: Sequence[float] | Any) -> Any:
    """How many bars of a dimension are alive at each attention threshold t: birth <= 1 − t < death.

    >>> square = pd.DataFrame({"dimension": [0, 1], "birth": [0.0, 0.5], "death": [np.inf, 0.9]})
    >>> betti_numbers_of(square, 1, [0.6, 0.5, 0.2, 0.05]).tolist()
    [0, 1, 1, 0]
    """
    rows = bars[bars["dimension"] == dimension]
    scale = 1.0 - np.asarray(thresholds, dtype=float)[:, None]
    birth, death = rows["birth"].to_numpy(float), rows["death"].to_numpy(float)
    return ((birth <= scale) & (scale < death)).sum(axis=1).astype(np.int64)


@styled
def betti_curve(bars: Any, *, ax: Axes | None = None, smallest: float = 1e-3) -> Axes:
    """β0 and β1 while the attention threshold falls from 1: strong links come first.

    Args:
        bars: columns `dimension`, `birth`, `death`, or what `attnscope.persistence` returns.
        ax: axes to draw on; None makes them.
        smallest: where the axis ends.

    Returns:
        The axes: a line per dimension over falling thresholds.
    """
    ax = axes_or_new(ax)
    bars = bars_of(bars)
    thresholds = np.geomspace(1.0, smallest, 400)
    for dimension, symbol in ((0, r"$\beta_0$"), (1, r"$\beta_1$")):
        ax.step(
            thresholds, betti_numbers_of(bars, dimension, thresholds), where="post",
            color=PALETTE[dimension], label=symbol, linestyle="-" if dimension == 0 else (0, (4, 1)),
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(1.0, smallest)
    # Loops outnumber components by orders of magnitude, and both may be 0.
    ax.set_yscale("symlog", linthresh=10)
    ax.set_ylim(bottom=0)
    top = ax.get_ylim()[1]
    few = range(6) if top < 6 else range(0, 11, 2) if top <= 10 else [0, 5, 10, 100, 1000, 10_000]
    ax.yaxis.set_major_locator(FixedLocator(list(few)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}".replace("0.", ".")))
    ax.set_xlabel("threshold on attention")
    ax.set_ylabel("count")
    legend_above(ax)
    return ax
