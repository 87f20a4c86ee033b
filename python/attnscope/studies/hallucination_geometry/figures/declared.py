# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attnscope.plots.figure import Figure, NotDrawable, Tables, declared_in, optional, stored
from attnscope.plots.selection import last_step
from attnscope.plots.style import MUTED, PALETTE, legend_row

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: How buckets are drawn everywhere, in the order of the run.
COLORS = (PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3])


def first_model(results: Tables, name: str, *columns: str) -> tuple[pd.DataFrame, str]:
    """A table's rows of the first model at its last checkpoint, and a sentence when there are more."""
    table = last_step(stored(results, name, *columns))
    models = list(dict.fromkeys(table["model"]))
    rows: pd.DataFrame = table[table["model"] == models[0]]
    if rows.empty:
        raise NotDrawable(f"the {name} table has no row")
    return rows, f"{models[0]}; the run holds {len(models) - 1} more." if len(models) > 1 else ""


def controls(results: Tables, name: str, model: str) -> pd.DataFrame | None:
    """Rows of a model's random-weight control."""
    table = optional(results, f"{name}_variants")
    if table is None:
        return None
    own: pd.DataFrame = table[table["model"] == model]
    return None if own.empty else own


def layers_below(ax: Axes) -> None:
    """Whole numbers of layers on the horizontal axis."""
    ax.set_xlabel("layer (−1: before the first)" if ax.get_xlim()[0] < -0.5 else "layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def legend(ax: Axes) -> None:
    """One legend above all panels of these axes' figure, of what has a name."""
    legend_row(ax.figure, ax.figure.axes)  # type: ignore[arg-type]


def level(ax: Axes, value: float) -> None:
    """A dashed line at what nothing gives."""
    ax.axhline(value, color=MUTED, linewidth=0.8, linestyle=(0, (5, 2)))


def colors(names: list[str]) -> dict[Any, str]:
    """One colour for each name."""
    return {name: COLORS[at % len(COLORS)] for at, name in enumerate(dict.fromkeys(names))}
