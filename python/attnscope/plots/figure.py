# SPDX-License-Identifier: MIT
"""Figures of a study: functions from stored tables to a drawing and its caption.

A study declares its figures with `declared_in`; this module knows no study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib.figure as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch

from attnscope.config.study_folders import study_of
from attnscope.errors import NotDrawable
from attnscope.plots.drawable import drawable, plain_caption
from attnscope.plots.figure_options import Options as Options
from attnscope.plots.figure_options import adapt, fit_titles, wrap_titles
from attnscope.plots.style import MUTED, freeze_layout, style
from attnscope.results.results import Results as Results
from attnscope.results.summaries import optional as optional
from attnscope.study_api.study import study_class


class Drawn(NamedTuple):
    """A figure, its caption in plain text, and the parts that it had no room for."""

    figure: mpl.Figure
    caption: str
    left_out: tuple[str, ...] = ()


Draw = Callable[[Results, Options], Drawn]


@dataclass(frozen=True)
class Figure:
    """A figure that a study declares.

    Attributes:
        draw: from results to the drawing; raises `NotDrawable` when a table or column is missing.
        tables: names of the tables that the figure needs.
        caption: one sentence on the content of the figure, true of any run.
    """

    draw: Draw
    tables: tuple[str, ...]
    caption: str

    def __call__(self, results: Results, options: Options | None = None) -> Drawn:
        """Draw in the style, laid out once and for all."""
        results = drawable(results)
        for name in self.tables:
            require_table(results, name)
        options = options or Options()
        with warnings.catch_warnings(), style(options.font):
            # a mean of nothing is NaN, which is not drawn
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                drawn = self.draw(results, options)
            except (KeyError, AttributeError) as error:
                if missing := describe_missing_column(results, self.tables, error):
                    raise NotDrawable(missing) from error
                raise
            _without_empty_panels(drawn.figure)
            adapt(drawn.figure, options)
            wrap_titles(drawn.figure)
            freeze_layout(drawn.figure)
            fit_titles(drawn.figure)
            return drawn._replace(caption=plain_caption(drawn.caption))


def describe_missing_column(results: Results, tables: Sequence[str], error: KeyError | AttributeError) -> str:
    """Return which column of a stored table an error is about, in words; "" where no table lacks any.

    Args:
        results: of a run, or tables in memory.
        tables: that come first: those that were read.
        error: of what was read.
    """
    missing = _missing_columns(results, tables)
    return _describe_missing(missing, _keys_of(error)) if missing else ""


def _missing_columns(results: Results, first: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns that stored tables lack although their study declares them, by table.

    Args:
        results: of a run, or tables in memory.
        first: tables that come first: those that a figure needs.
    """
    study = study_of(results)
    stored_tables = results.tables()
    missing = {}
    for table in study_class(study.name).tables if study else ():
        if table.name in stored_tables:
            columns = set(results.table(table.name))
            names = [*table.keys, *(column.name for column in table.columns or ())]
            missing[table.name] = [name for name in names if name not in columns]
    order = [name for name in first if name in missing]
    return {name: missing[name] for name in dict.fromkeys([*order, *missing]) if missing[name]}


def _keys_of(error: KeyError | AttributeError) -> set[Any]:
    """Return the names that an error says are not there, as far as it holds them."""
    if isinstance(error, AttributeError):
        return {error.name}
    keys = error.args[0] if error.args else ()
    return {keys} if isinstance(keys, str) else set(keys) if isinstance(keys, (list, tuple)) else set()


def _describe_missing(missing: Mapping[str, Sequence[str]], keys: set[Any]) -> str:
    """Return the missing columns that an error is about, or else those of the first table, in words."""
    for table, names in missing.items():
        if named := [name for name in names if name in keys]:
            return f"the {table} table has no {', '.join(named)}"
    table, names = next(iter(missing.items()))
    return f"the {table} table has no {', '.join(names)}"


def _without_empty_panels(figure: mpl.Figure) -> None:
    """Remove panels on which no mark has a finite place, and put a note in their place."""
    # the axes of a colour bar hold its colours, whatever the map holds
    shown = [ax for ax in figure.axes if ax.axison and ax.get_visible() and not hasattr(ax, "_colorbar")]
    empty = [ax for ax in shown if not _has_data(ax)]
    if len(empty) == len(shown):
        raise NotDrawable("nothing that it shows has a finite value")
    for ax in empty:
        title = ax.get_title() or ax.get_title(loc="left") or ax.get_ylabel()
        ax.clear()
        show_placeholder(ax, f"{title}: no values" if title else "no values", color=MUTED, fontsize=6.5)


def show_placeholder(ax: Axes, words: str, **text_style: Any) -> None:
    """Put words in the place of a panel."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", **text_style)


def _has_data(ax: Axes) -> bool:
    """Return True if a line, point, cell, area or bar has a finite place; lines across the axes do not
    count.
    """
    places: list[Any] = [line.get_xydata() for line in ax.get_lines() if line.get_transform() is ax.transData]
    for collection in ax.collections:
        points = collection.get_offset_transform() is ax.transData
        places += [collection.get_offsets()] if points else [area.vertices for area in collection.get_paths()]
    places += [np.reshape(np.ma.asarray(image.get_array()), (-1, 1)) for image in ax.images]
    for patch in ax.patches:
        if isinstance(patch, Rectangle):
            places.append([[patch.get_x(), patch.get_width(), patch.get_height()]])
        elif isinstance(patch, StepPatch):
            places.append(np.reshape(patch.get_data()[0], (-1, 1)))
    return any(
        np.isfinite(np.ma.asarray(coordinates, dtype=float).filled(np.nan)).all(-1).any()
        for coordinates in places
    )


def _caption_of(draw: Draw) -> str:
    """Return what a drawing function draws, from the first paragraph of its docstring.

    >>> def shares(results, options):
    ...     '''Draw shares of attention: of the first key,
    ...     and of the last one.
    ...     '''
    >>> _caption_of(shares)
    'Shares of attention: of the first key, and of the last one.'
    """
    paragraph = " ".join((draw.__doc__ or "").partition("\n\n")[0].split())
    words = paragraph.removeprefix("Draw ").removeprefix("Return ")
    return words[:1].upper() + words[1:]


def declared_in(figures: dict[str, Figure]) -> Callable[..., Callable[[Draw], Draw]]:
    """Return a decorator that declares a function as a figure of a study, under its own name."""

    def needing(*tables: str) -> Callable[[Draw], Draw]:
        def declare(draw: Draw) -> Draw:
            figures[draw.__name__] = Figure(draw, tables, _caption_of(draw))
            return draw

        return declare

    return needing


def require_table(results: Results, name: str, *columns: str) -> pd.DataFrame:
    """Return a table, infinite measurements as missing ones; NotDrawable without it, its rows or a column."""
    table = optional(results, name)
    if table is None:
        raise NotDrawable(
            f"the run has no table {name!r}" + (" with rows" if name in results.tables() else "")
        )
    missing = [column for column in columns if column not in table]
    if missing:
        raise NotDrawable(f"the {name} table has no {', '.join(missing)}")
    return table


def with_values(table: pd.DataFrame, name: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that hold at least one value; NotDrawable without any."""
    present = [column for column in columns if column in table and table[column].notna().any()]
    if not present:
        raise NotDrawable(f"the {name} table has no value of {', '.join(columns)}")
    return present


def over_steps(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return rows of the models that were measured at more than one known step, and the checkpoints of
    none (−1).
    """
    rows = table[table["step"] >= 0]
    rows = rows[rows.groupby("model")["step"].transform("nunique") > 1]
    if rows.empty:
        raise NotDrawable(
            "the run has one checkpoint of known step or none; a course over training needs several"
        )
    unknown = table.loc[table["step"] < 0, ["model", "revision"]].drop_duplicates()
    return rows, [" ".join(filter(None, names)) + " (step unknown)" for names in unknown.to_numpy()]


def over_layers(table: pd.DataFrame) -> None:
    """Raise NotDrawable where all rows are of one layer."""
    if table["layer"].nunique() < 2:
        raise NotDrawable("the run has one layer; a profile over depth needs several")


def captioned(figure: mpl.Figure, *sentences: str, left_out: Sequence[str] = ()) -> Drawn:
    """Return a figure with the sentences of its caption; empty ones are left out."""
    return Drawn(figure, " ".join(sentence for sentence in sentences if sentence), tuple(left_out))


#: Reference values drawn with the measured ones, by the start of their artists' ids.
_BESIDE = {
    "interval": "bands: 95 % intervals over texts",
    "uniform": "dashed: uniform attention of the same lengths",
    "untrained": "dotted: before training",
    "random_weights": "dash-dotted: copies of the model with random weights",
    "shuffled": "dotted: the same maps with shuffled rows, whose keys are chosen in the same way",
    "row_permutation": "short dashes: the same maps with shuffled rows",
}


def compared_with(figure: mpl.Figure) -> str:
    """Return the intervals and baselines that a figure shows, in words."""
    ids = {
        str(artist.get_gid()).partition(":")[0]
        for ax in figure.axes
        for artist in ax.get_children()
        # a line of nothing but undefined values is not seen
        if not isinstance(artist, Line2D) or np.isfinite(artist.get_ydata(orig=False)).any()
    }
    words = "; ".join(text for start, text in _BESIDE.items() if start in ids)
    return f"{words[0].upper()}{words[1:]}." if words else ""
