# SPDX-License-Identifier: MIT
"""The figures of a study by name, and what they take from stored tables or refuse to be drawn without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attnscope.figures.selection import CHECKPOINT, heads_only, with_groups
from attnscope.figures.style import styled

THRESHOLD = 0.02
"""The threshold at which Betti numbers are shown where a figure has room for one."""

#: Integer columns of `heads` that are no measurement.
COUNTED = ("sample", "layer", "head", "n_tokens", "sink_position")

#: Metrics of the map, emergence and depth figures; those with a threshold come from `graphs`.
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


class Tables(Protocol):
    """What a figure needs of `Results`."""

    def tables(self) -> list[str]:
        """Names of the stored tables."""

    def table(self, name: str) -> Any:
        """One table."""


class NotDrawable(LookupError):
    """The stored tables lack what a figure shows; the message says what."""


FIGURES: dict[str, Callable[[Tables], Figure]] = {}
"""Figures by name."""


Draw = Callable[[Tables], Figure]


def entered_in(figures: dict[str, Draw]) -> Callable[[Draw], Draw]:
    """A decorator that enters a function into a study's figures under its own name.

    Args:
        figures: of the study. What is entered goes from results to a figure and raises `NotDrawable` when a
            table or column is missing.

    Returns:
        The decorator; it gives back the function in the style.
    """

    def enter(draw: Draw) -> Draw:
        inside = styled(draw)
        figures[draw.__name__] = inside
        return inside

    return enter


figure = entered_in(FIGURES)


def stored(results: Tables, name: str, *columns: str) -> pd.DataFrame:
    """A table that must be there and have rows, infinite measurements as missing ones.

    Args:
        results: the stored tables.
        name: of the table.
        columns: that it must have.

    Returns:
        The table.

    Raises:
        NotDrawable: when it is missing, empty or without one of the columns.
    """
    table = optional(results, name)
    if table is None:
        raise NotDrawable(
            f"the run has no table {name!r}" + (" with rows" if name in results.tables() else "")
        )
    missing = [column for column in columns if column not in table]
    if missing:
        raise NotDrawable(f"the {name} table has no {', '.join(missing)}")
    return table


#: Columns in which infinity is a value: a bar that never ends.
ENDLESS = ("birth", "death")


def optional(results: Tables, name: str) -> pd.DataFrame | None:
    """A table, infinite measurements as missing ones; None when the run has no rows of it.

    Args:
        results: the stored tables.
        name: of the table.

    Returns:
        The table or None.
    """
    if name not in results.tables():
        return None
    table: pd.DataFrame = results.table(name)
    for column in table.columns:
        if table[column].dtype.kind == "f" and column not in ENDLESS and np.isinf(table[column]).any():
            table[column] = table[column].where(np.isfinite(table[column]))
    return None if table.empty else table


def with_values(table: pd.DataFrame, name: str, wanted: Sequence[str]) -> list[str]:
    """Those of some columns that hold at least one value.

    Args:
        table: where they stand.
        name: of the table, for the reason.
        wanted: the columns.

    Returns:
        Columns in the order asked for.

    Raises:
        NotDrawable: when there is none.
    """
    found = [column for column in wanted if column in table and table[column].notna().any()]
    if not found:
        raise NotDrawable(f"the {name} table has none of {', '.join(wanted)}")
    return found


def over_steps(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows of the models that were measured at more than one step.

    Args:
        heads: a table with `model` and `step`.

    Returns:
        The chosen rows.

    Raises:
        NotDrawable: when there is no such model.
    """
    rows: pd.DataFrame = heads[heads.groupby("model")["step"].transform("nunique") > 1]
    if rows.empty:
        raise NotDrawable("the run has one checkpoint; a course over training needs several")
    return rows


def over_layers(table: pd.DataFrame) -> None:
    """Refuses what has no depth.

    Args:
        table: with `layer`.

    Raises:
        NotDrawable: when all rows are of one layer.
    """
    if table["layer"].nunique() < 2:
        raise NotDrawable("the run has one layer; a profile over depth needs several")


def measured_heads(results: Tables) -> pd.DataFrame:
    """Single heads under the exact protocol with their series, and Betti numbers at `THRESHOLD` beside them.

    Args:
        results: the stored tables.

    Returns:
        The `heads` table with `group`, `series` and, where `graphs` is stored, `betti_0` and `betti_1`.

    Raises:
        NotDrawable: when there is no `heads` table.
    """
    heads: pd.DataFrame = with_groups(heads_only(stored(results, "heads")), optional(results, "samples"))
    heads = defined(heads)
    graphs = optional(results, "graphs")
    if graphs is None:
        return heads
    there = graphs["threshold"].astype(float)
    at = graphs[np.isclose(there, THRESHOLD, rtol=1e-6, atol=0)]
    keys = [*CHECKPOINT, "sample", "layer", "head", "protocol"]
    betti = [name for name in ("betti_0", "betti_1") if name in at]
    if betti and not at.empty:
        heads = heads.merge(defined(at)[keys + betti], on=keys, how="left")
    return heads


def defined(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose counts of −1, which stand for "undefined", enter no mean.

    Args:
        table: with counts as integers.

    Returns:
        A copy with NaN in their place.
    """
    counts = [name for name in table.select_dtypes("integer") if name not in (*CHECKPOINT, *COUNTED)]
    kept: pd.DataFrame = table.assign(**{name: table[name].where(table[name] >= 0) for name in counts})
    return kept


def drawable(heads: pd.DataFrame) -> list[tuple[str, float | None]]:
    """Those of `METRICS` that the table holds with at least one value.

    Args:
        heads: from `measured_heads`.

    Returns:
        Metric and threshold.

    Raises:
        NotDrawable: when there is none.
    """
    found = [(name, at) for name, at in METRICS if name in heads and heads[name].notna().any()]
    if not found:
        raise NotDrawable(f"the heads table has none of {', '.join(name for name, _ in METRICS)}")
    return found


def sinks(results: Tables) -> pd.DataFrame:
    """`measured_heads`, with `sink_share` in it.

    Args:
        results: the stored tables.

    Returns:
        The table.

    Raises:
        NotDrawable: when `sink_share` was not measured.
    """
    heads = measured_heads(results)
    if "sink_share" not in heads or heads["sink_share"].isna().all():
        raise NotDrawable("the heads table has no sink_share")
    return heads


def is_series(heads: pd.DataFrame) -> bool:
    """Whether a model was measured at more than one step.

    Args:
        heads: a table with `model` and `step`.

    Returns:
        True for checkpoint series.
    """
    return bool((heads.groupby("model")["step"].nunique() > 1).any())
