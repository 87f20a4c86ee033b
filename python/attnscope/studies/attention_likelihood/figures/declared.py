# SPDX-License-Identifier: MIT
"""The study's figures by name."""

from __future__ import annotations

from attnscope.plots.figure import Figure, declared_in

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)
