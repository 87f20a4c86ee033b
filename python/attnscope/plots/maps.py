# SPDX-License-Identifier: MIT
"""Maps: a metric over layers and heads, and one attention matrix with its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

from attnscope._tokens import readable
from attnscope.metrics.quantity import quantity
from attnscope.plots.selection import last_step, rows_of
from attnscope.plots.style import INK, SEQUENTIAL, SPARSE, axes_or_new, styled


def layer_head_table(heads: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric's mean over samples, layers down and heads across; the head mean (head −1) is left out."""
    if metric not in heads:
        raise KeyError(
            f"layer_head_map: no column {metric!r}; there are: {', '.join(map(str, heads.columns))}"
        )
    heads = heads[heads["head"] >= 0]
    means = heads[metric].astype(float).groupby([heads["layer"], heads["head"]]).mean()
    return means.unstack("head")


@styled
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
    """A metric's mean over samples as a map: layer 0 on top, heads to the right.

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
    ax = axes_or_new(ax)
    rows_there = rows_of(heads, metric)
    table = layer_head_table(last_step(rows_there) if hasattr(heads, "tables") else rows_there, metric)
    cells = table.to_numpy()
    if norm is None:
        finite = cells[np.isfinite(cells)]
        norm = Normalize(finite.min(), finite.max()) if finite.size else Normalize(0, 1)
    rows, columns = cells.shape
    small = rows * columns <= 48
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, np.ma.masked_invalid(cells),
        cmap=cmap, norm=norm, edgecolors="white" if small else "face", linewidth=1.0 if small else 0.1,
    )  # fmt: skip
    ax.set_facecolor("#eeeeee")
    ax.invert_yaxis()
    ax.set_aspect("equal" if max(rows, columns) <= 3 * min(rows, columns) else "auto")
    _cell_ticks(ax, [str(layer) for layer in table.index], [str(head) for head in table.columns])
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if numbers if numbers is not None else small:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                ax.text(
                    column, row, short(value), ha="center", va="center", fontsize=6,
                    color=ink_on(mesh.cmap(norm(value))),
                )  # fmt: skip
    if colorbar:
        label = quantity(metric).axis if label is None else label
        ticks = MaxNLocator(5)
        add_colorbar(ax.figure, mesh, ax, fraction=0.05, pad=0.03, aspect=18, label=label, ticks=ticks)
    return ax


@styled
def attention_map(
    attention: Any,
    tokens: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    floor: float = 1e-3,
    colorbar: bool = True,
) -> Axes:
    """One attention matrix, queries down and keys across, on a logarithmic scale.

    Attention spans orders of magnitude; what lies under the floor, the causal triangle too, is left white.

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
    matrix = np.asarray(attention, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"attention_map: attention must be [n, n], got shape {matrix.shape}")
    n = len(matrix)
    if tokens is not None and len(tokens) != n:
        raise ValueError(f"attention_map: {n} queries but {len(tokens)} tokens")
    ax = axes_or_new(ax, 3.4, 3.0)
    shown = np.ma.masked_less(matrix, floor)
    image = ax.imshow(shown, cmap=SPARSE, norm=LogNorm(floor, 1.0), interpolation="nearest", aspect="equal")
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    # The frame would cover the first key, which is the one to look at.
    ax.spines[:].set_visible(False)
    if tokens is None:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        every = -(-n // 40)
        places = list(range(0, n, every))
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


def add_colorbar(figure: Any, shown: Any, axes: Any, **options: Any) -> Any:
    """A colour scale without a frame, as vectors like the map beside it."""
    bar = figure.colorbar(shown, ax=axes, **options)
    bar.outline.set_visible(False)
    # Matplotlib turns scales of many colours into pixels; without an edge their seams would show.
    bar.solids.set(rasterized=False, edgecolor="face", linewidth=0.3)
    return bar


def printable(token: str) -> str:
    r"""A token as it can be drawn: white space made visible, mathematics switched off, long ones cut.

    >>> printable("\u0120the"), printable("a\nb"), printable("$x$")
    ('␣the', 'a↵b', '\\$x\\$')
    """
    text = readable(token).replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    text = text if len(text) <= 12 else text[:11] + "…"
    return text.replace("$", r"\$")


def short(value: float) -> str:
    """A number in the three or four characters that fit a cell; below a millionth it is 0.

    >>> short(0.5), short(12.34), short(0.0034), short(0.0)
    ('.50', '12', '.003', '0')
    """
    if abs(value) < 1e-6:
        return "0"
    if abs(value) >= 10:
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}"
    if abs(value) < 0.0005:
        return f"{value:.0e}".replace("e-0", "e-")
    text = f"{value:.2f}" if abs(value) >= 0.0095 else f"{value:.3f}"
    return text.replace("0.", ".", 1)


def ink_on(color: Any) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = color[:3]
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _cell_ticks(ax: Axes, layers: list[str], heads: list[str]) -> None:
    for axis, names in ((ax.yaxis, layers), (ax.xaxis, heads)):
        every = -(-len(names) // 12)
        places = list(range(0, len(names), every))
        axis.set_ticks(places, [names[place] for place in places])
