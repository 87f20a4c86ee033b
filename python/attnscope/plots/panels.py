# SPDX-License-Identifier: MIT
"""Panels that every study draws: one for each model or other value of a column, and curves over layers.

Example:
    >>> import pandas as pd
    >>> from attnscope.plots.figure import Options
    >>> from attnscope.plots.panels import ModelPanels, layer_axis, layer_line
    >>> table = pd.DataFrame({"model": ["a", "a", "b"], "layer": [0, 1, 0], "estimate": [0.1, 0.2, 0.3]})
    >>> panels = ModelPanels.of(table, Options(), "correlation", height=2.5)
    >>> for ax, rows in panels.rows(table):
    ...     layer_line(ax, rows, "within texts", "black")
    ...     layer_axis(ax, 0)
    >>> [ax.get_title() for ax in panels.axes], panels.axes[0].lines[0].get_ydata().tolist()
    (['a', 'b'], [0.1, 0.2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm

from attnscope.plots.axes import layers_below
from attnscope.plots.figure import Drawn, captioned
from attnscope.plots.figure_options import Options
from attnscope.plots.style import MUTED, legend_columns, panels
from attnscope.study_api.selection import where

#: How the value that an absent effect gives is drawn.
LEVEL: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (5, 2)), "zorder": 1.0}


@dataclass(frozen=True)
class Panels:
    """A row of panels, one for each value of a column, each with the rows of its value.

    Attributes:
        figure: of all panels.
        axes: the panels, in the order of the table.
        column: whose values have a panel each.
        names: the values, in the order of the panels.
        left_out: values for which there is no room, in words.
    """

    figure: mpl.Figure
    axes: list[Axes]
    column: str
    names: list[Any]
    left_out: tuple[str, ...] = ()

    @classmethod
    def by(
        cls,
        table: pd.DataFrame,
        column: str,
        options: Options,
        *,
        height: float,
        panel_width: float,
        margin: float = 0.4,
        most: int | None = None,
        across: int | None = None,
        **panel_options: Any,
    ) -> Panels:
        """Return a panel for each value of a column, in the order in which the table first has them.

        Args:
            table: whose values have panels.
            column: of the values.
            options: of the figure; its width is not exceeded.
            height: inches of a row of panels.
            panel_width: inches of a panel where there is room.
            margin: inches next to the panels.
            most: panels that are drawn; other values are named as left out.
            across: panels in a row; None takes as many as have room.
            panel_options: of `plots.style.panels`, such as `sharey` and `narrowest`.
        """
        values = list(dict.fromkeys(table[column]))
        shown = values[:most]
        in_row = min(across or len(shown), len(shown))
        width = min(options.width, margin + panel_width * in_row)
        figure, axes = panels(1, len(shown), height=height, width=width, most=in_row, **panel_options)
        return cls(
            figure, axes[0], column, shown, tuple(f"{column} {value}" for value in values[len(shown) :])
        )

    def rows(self, table: pd.DataFrame) -> Iterator[tuple[Axes, pd.DataFrame]]:
        """Yield each panel with the rows of its value, of the same table or of another one."""
        for ax, name in zip(self.axes, self.names, strict=True):
            yield ax, where(table, **{self.column: name})

    def legend(self, columns: int = 4) -> None:
        """Draw the legend of the first panel above all of them."""
        handles, labels = self.axes[0].get_legend_handles_labels()
        columns = legend_columns(self.figure, labels, columns)
        self.figure.legend(handles, labels, loc="outside upper center", ncols=columns)

    def captioned(self, *sentences: str) -> Drawn:
        """Return the figure with the sentences of its caption; empty ones are left out."""
        return captioned(self.figure, *sentences, left_out=self.left_out)


class ModelPanels(Panels):
    """A row of panels of the first three models, titled where there are several."""

    @classmethod
    def of(
        cls, table: pd.DataFrame, options: Options, ylabel: str, *, height: float = 2.6, **panel_options: Any
    ) -> Panels:
        """Return a panel for each model, the vertical axis of the first one labelled.

        Args:
            table: with the models.
            options: of the figure.
            ylabel: of the first panel.
            height: inches.
            panel_options: as `Panels.by` takes them.
        """
        several = table["model"].nunique() > 1
        sizes: dict[str, Any] = {
            "panel_width": 2.2 if several else 3.2,
            "margin": 1.2,
            "most": 3,
            **panel_options,
        }
        drawn = cls.by(table, "model", options, height=height, **sizes)
        drawn.axes[0].set_ylabel(ylabel)
        for ax, name in zip(drawn.axes, drawn.names, strict=True):
            ax.set_title(str(name) if len(drawn.names) > 1 else "")
        return drawn


@dataclass(frozen=True)
class PanelGrid:
    """A grid of panels: a row for each value of a column, and in it a panel for each drawn quantity.

    Attributes:
        figure: of all panels.
        axes: the panels, row by row.
        column: whose values have a row each.
        names: the values, from the top.
        quantities: what the panels of a row draw, from the left.
        left_out: values for which there is no room, in words.

    >>> from attnscope.plots.figure import Options
    >>> table = pd.DataFrame({"model": ["a", "b"], "loss": [2.0, 1.0], "entropy": [0.5, 0.7]})
    >>> grid = PanelGrid.by(table, "model", ["loss", "entropy"], Options(), height=1.5)
    >>> [(quantity, rows[quantity].item()) for ax, quantity, rows in grid.panels(table)]
    [('loss', 2.0), ('entropy', 0.5), ('loss', 1.0), ('entropy', 0.7)]
    """

    figure: mpl.Figure
    axes: list[list[Axes]]
    column: str
    names: list[Any]
    quantities: list[Any]
    left_out: tuple[str, ...] = ()

    @classmethod
    def by(
        cls,
        table: pd.DataFrame,
        column: str,
        quantities: Iterable[Any],
        options: Options,
        *,
        height: float,
        above: float = 0.4,
        most: int | None = None,
        **panel_options: Any,
    ) -> PanelGrid:
        """Return a row of panels for each value of a column, in the order in which the table first has them.

        Args:
            table: whose values have rows.
            column: of the values.
            quantities: what each panel of a row draws: names, or names with labels.
            options: of the figure; the grid is as wide as it says.
            height: inches of a row.
            above: inches of the figure beside its rows.
            most: rows that are drawn; other values are named as left out.
            panel_options: of `plots.style.panels`, such as `sharey` and `narrowest`.
        """
        values, drawn = list(dict.fromkeys(table[column])), list(quantities)
        shown = values[:most]
        total = above + height * len(shown)
        figure, axes = panels(len(shown), len(drawn), height=total, width=options.width, **panel_options)
        left_out = tuple(f"{column} {value}" for value in values[len(shown) :])
        return cls(figure, axes, column, shown, drawn, left_out)

    def rows(self, table: pd.DataFrame) -> Iterator[tuple[Any, list[Axes], pd.DataFrame]]:
        """Yield each value with its panels and its rows of a table, of the same one or of another."""
        for name, row_of_axes in zip(self.names, self.axes, strict=True):
            yield name, row_of_axes, where(table, **{self.column: name})

    def panels(self, table: pd.DataFrame) -> Iterator[tuple[Axes, Any, pd.DataFrame]]:
        """Yield each panel with its quantity and the rows of its value."""
        for _, row_of_axes, rows in self.rows(table):
            for ax, quantity in zip(row_of_axes, self.quantities, strict=True):
                yield ax, quantity, rows

    def title_rows(self, title: Callable[[Any], str]) -> None:
        """Write a title over the first panel of each row, made of the row's value."""
        for name, row_of_axes in zip(self.names, self.axes, strict=True):
            row_of_axes[0].set_title(title(name), loc="left")

    def captioned(self, *sentences: str) -> Drawn:
        """Return the figure with the sentences of its caption; empty ones are left out."""
        return captioned(self.figure, *sentences, left_out=self.left_out)


def layer_line(
    ax: Axes,
    rows: pd.DataFrame,
    label: str,
    color: str,
    dash: str = "-",
    *,
    column: str = "estimate",
    ends: tuple[str, str] = ("low", "high"),
    band: float = 0.0,
    **line: Any,
) -> None:
    """Draw a column over layers as a line with a mark on each layer.

    Args:
        ax: the panel.
        rows: one for each layer.
        label: in the legend.
        color: of line and band.
        dash: style of the line.
        column: what is drawn.
        ends: columns of the interval.
        band: opacity of the interval; 0 draws none.
        line: further words of matplotlib's lines, such as `clip_on`.
    """
    rows = rows.sort_values("layer")
    line = {"color": color, "marker": "o", "markersize": 3, "label": label, **line}
    ax.plot(rows["layer"], rows[column], dash, **line)
    if band:
        low, high = (rows[end] for end in ends)
        ax.fill_between(rows["layer"], low, high, color=color, alpha=band, linewidth=0)


def layer_points(ax: Axes, rows: pd.DataFrame, column: str, color: str) -> None:
    """Draw a column over layers with its interval as bars, and the level 0."""
    rows = rows.sort_values("layer")
    reach = [(rows[column] - rows["low"]).clip(0), (rows["high"] - rows[column]).clip(0)]
    marks: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.0, "capsize": 2}
    ax.errorbar(rows["layer"], rows[column], yerr=reach, color=color, **marks)
    layer_axis(ax, 0)


def layer_axis(ax: Axes, level: float | None = None) -> None:
    """Put whole numbers of layers on the horizontal axis, and draw a level where there is one."""
    if level is not None:
        level_line(ax, level)
    layers_below(ax)


def level_line(ax: Axes, value: float, *, along: str = "y", **line: Any) -> None:
    """Draw the value that an absent effect gives as a dashed line.

    Args:
        ax: the panel.
        value: of the level.
        along: "y" for a value of the vertical axis, "x" for one of the horizontal axis.
        line: of matplotlib's lines, in the place of the usual ones.
    """
    (ax.axhline if along == "y" else ax.axvline)(value, **{**LEVEL, **line})


def diverging(values: Sequence[pd.Series[float]], least: float = 0.1) -> TwoSlopeNorm:
    """Return a colour scale that is white at 0 and symmetric about it.

    Args:
        values: that are to fit.
        least: end of the scale where all of them are smaller.

    >>> diverging([pd.Series([-0.4, 0.2])]).vmax
    0.4
    """
    largest = max(least, *(float(column.abs().max()) for column in values))
    return TwoSlopeNorm(0.0, -largest, largest)


def sparse_ticks(set_ticks: Callable[..., Any], labels: Iterable[Any], most: int = 8) -> None:
    """Label about `most` places of an axis of categories.

    Args:
        set_ticks: `ax.set_xticks` or `ax.set_yticks`.
        labels: of the places 0, 1, ...
        most: labels at which the step between them grows.
    """
    names = list(labels)
    step = max(1, len(names) // most)
    set_ticks(range(0, len(names), step), names[::step])
