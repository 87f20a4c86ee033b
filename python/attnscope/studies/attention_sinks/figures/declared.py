# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

from attnscope.plots.figure import Figure, declared_in
from attnscope.plots.style import PALETTE

#: The threshold at which Betti numbers are shown where a figure has room for one.
THRESHOLD = 0.02

#: Quantities of the map, emergence and depth figures; those with a threshold come from `graphs`.
METRICS: tuple[tuple[str, float | None], ...] = (
    ("sink_share", None),
    ("entropy_normalized", None),
    ("fiedler_value", None),
    ("fiedler_value_normalized", None),
    ("participation_ratio", None),
    ("mp_ks", None),
    ("betti_0", THRESHOLD),
    ("betti_1", THRESHOLD),
)

#: Under which colour and name a protocol is drawn wherever the two stand side by side.
PROTOCOL_COLORS = {"exact": PALETTE[0], "ruscio2025": PALETTE[1]}
PROTOCOL_NAMES = {"exact": "exact", "ruscio2025": "as published"}

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)
