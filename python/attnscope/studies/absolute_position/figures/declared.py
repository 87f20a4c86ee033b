# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attnscope.plots.figure import Figure, declared_in
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


def layers_below(ax: Axes) -> None:
    """Whole numbers of layers on the horizontal axis."""
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
