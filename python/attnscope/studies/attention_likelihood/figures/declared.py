# SPDX-License-Identifier: MIT
"""The study's figures by name, and their shared panels for each model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from attnscope.plots.figure import Figure, Options, Results, declared_in
from attnscope.plots.selection import final
from attnscope.plots.style import MUTED, legend_columns
from attnscope.study_api.selection import where

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: Panels side by side.
MOST = 3
ZERO: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (5, 2)), "zorder": 1.0}


def exact(results: Results, name: str, *columns: str) -> pd.DataFrame:
    """Return the rows of the exact protocol at each model's last checkpoint."""
    table = final(results, name, *columns)
    return where(table, protocol="exact")


def models_of(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the models that have a panel, and those that have none."""
    models = [str(name) for name in dict.fromkeys(table["model"])]
    return models[:MOST], [f"model {name}" for name in models[MOST:]]


def by_model(table: pd.DataFrame, axes: list[Axes]) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """Yield each model's panel with its rows; panels are named where several models are drawn."""
    models, _ = models_of(table)
    for ax, model in zip(axes, models, strict=True):
        if len(models) > 1:
            ax.set_title(model)
        yield ax, where(table, model=model)


def legend_of(figure_: Any, ax: Axes, columns: int = 4) -> None:
    """Draw one legend for all panels, above them."""
    handles, labels = ax.get_legend_handles_labels()
    figure_.legend(
        handles, labels, loc="outside upper center", ncols=legend_columns(figure_, labels, columns)
    )


def width_of(options: Options, count: int) -> float:
    """Inches of a row of panels."""
    return min(options.width, 1.2 + (2.2 if count > 1 else 3.2) * count)
