# SPDX-License-Identifier: MIT
"""Axes and colours of curves: training steps, layers, labels of axes, and the range drawn on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from attnscope.metrics.discovery import quantity
from attnscope.plots.style import PALETTE


def series_colors(names: Sequence[str]) -> dict[str, str]:
    """Return a colour per series, by order of first appearance.

    >>> series_colors(["text", "copying", "text"])
    {'text': '#0072b2', 'copying': '#d55e00'}
    """
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(dict.fromkeys(names))}


def depth_axis(ax: Axes, table: pd.DataFrame) -> Callable[[str, Any], Any]:
    """Return a horizontal axis of layers, or from first to last layer when the series differ in depth."""
    last = table.groupby("series")["layer"].max()
    if last.nunique() == 1:
        layers_below(ax)
        return lambda name, layers: np.asarray(layers, dtype=float)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["first", ".25", ".5", ".75", "last"])
    ax.set_xlim(-0.03, 1.03)
    ax.set_xlabel("depth")
    return lambda name, layers: np.asarray(layers, dtype=float) / max(1, last[name])


def layers_below(ax: Axes) -> None:
    """Put whole numbers of layers on the horizontal axis."""
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def axis_label(metric: str, threshold: float | None = None) -> str:
    """Return the label of an axis: the quantity, its symbol, and the graph's threshold if it has one.

    >>> axis_label("density", 0.02)
    'density at .02'
    """
    label = quantity(metric).axis
    return label if threshold is None else f"{label} at {threshold:g}".replace(" 0.", " .")


def label_some(ax: Axes, places: Sequence[float], text: Callable[[float], str]) -> None:
    """Label places on a logarithmic axis as close as labels fit, from the last one down; ticks on all.

    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> label_some(ax, [0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2], str)
    >>> ax.get_xticks().tolist()
    [0.0, 0.001, 0.01, 0.05, 0.2]
    """
    labelled: list[float] = []
    for place in sorted(places, reverse=True):
        if not labelled or place * 3.9 <= labelled[-1]:
            labelled.append(place)
    ax.set_xticks(labelled[::-1], [text(place) for place in labelled[::-1]])
    ax.set_xticks([place for place in places if place not in labelled], [], minor=True)


def step_axis(ax: Axes, steps: Any) -> None:
    """Make a training axis: 0 first, then logarithmic, with ticks on checkpoints that exist."""
    known_steps = sorted({int(step) for step in steps})
    ax.set_xscale("symlog", linthresh=1, linscale=0.5)
    # 143000 is 143k
    label_some(ax, known_steps, lambda step: re.sub(r"(?<=\d\d)000$", "k", str(step)))
    ax.set_xlim(known_steps[0] - (0.08 if known_steps[0] == 0 else 0.0), known_steps[-1] * 1.08)
    ax.set_xlabel("training step")


def layer_colors(count: int) -> list[str]:
    """Return colours from light to dark for layers, the first ones too pale for white left out."""
    if count <= 4:
        return ["#56b4e9", "#d55e00", "#009e73", "#cc79a7"][:count]
    return [to_hex(color) for color in colormaps["viridis_r"](np.linspace(0.12, 1.0, count))]


def colors_by_layer(layers: Iterable[Any]) -> dict[Any, str]:
    """Return the colour of each layer that there is.

    >>> list(colors_by_layer([3, 0, 3]))
    [0, 3]
    """
    numbers = sorted({int(layer) for layer in layers})
    return dict(zip(numbers, layer_colors(len(numbers)), strict=True))


def scale_logarithmically(ax: Axes, values: Sequence[Any]) -> None:
    """Make the vertical axis logarithmic if any of the values is positive."""
    if any((np.asarray(series, dtype=float) > 0).any() for series in values):
        ax.set_yscale("log")


def drawn_range(ax: Axes) -> tuple[float, float]:
    """Return the lowest and highest value that lines and intervals of some axes reach; NaN without
    any.
    """
    values = [np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()]
    values += [np.asarray(path.vertices)[:, 1] for band in ax.collections for path in band.get_paths()]
    together = np.concatenate([np.ravel(part) for part in values]) if values else np.array([np.nan])
    together = together[np.isfinite(together)]
    return (float(together.min()), float(together.max())) if together.size else (np.nan, np.nan)
