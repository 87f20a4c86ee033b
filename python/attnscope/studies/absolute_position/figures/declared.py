# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attnscope.plots.figure import Figure, Tables, declared_in, stored
from attnscope.plots.selection import last_step
from attnscope.plots.style import PALETTE

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: How arms are drawn everywhere, in the order of legends.
ARMS = {
    ("base", "windows"): ("as it reads", PALETTE[0], "-"),
    ("base", "shuffled"): ("shuffled tokens", PALETTE[2], "--"),
    ("base", "repeated"): ("one token repeated", PALETTE[3], ":"),
    ("no_bos", "windows"): ("without BOS", PALETTE[1], "-"),
    ("no_bos", "repeated"): ("repeated, without BOS", PALETTE[5], ":"),
    ("bos_added", "windows"): ("BOS added", PALETTE[1], "-"),
}


def first_model(results: Tables, name: str, *columns: str) -> tuple[pd.DataFrame, str]:
    """A table's rows of the first model at its last checkpoint, and a sentence when there are more models."""
    table = last_step(stored(results, name, *columns))
    models = list(dict.fromkeys(table["model"]))
    rows: pd.DataFrame = table[table["model"] == models[0]]
    return rows, f"{models[0]}; the run holds {len(models) - 1} more." if len(models) > 1 else ""


def layers_below(ax: Axes) -> None:
    """Whole numbers of layers on the horizontal axis."""
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
