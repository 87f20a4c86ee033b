# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

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
