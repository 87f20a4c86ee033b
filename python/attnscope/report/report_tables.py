# SPDX-License-Identifier: MIT
"""Tables of a report from rows of a stored table: the keys of each row, then cells by heading.

    show(
        page, "within", "Correlation within texts.", rows, layer_keys(rows),
        {"estimate": number_cells("estimate"), "95 %": interval_cells(), "texts": count_cells("n")},
    )

A column of cells is a function of the rows, so that a section declares what its table holds and formats
nothing itself.

Example:
    >>> import pandas as pd
    >>> from attnscope.report.report_tables import estimate_cells, frame_of, number_cells
    >>> rows = pd.DataFrame({"layer": [0, 1], "rho": [0.5, 0.25], "low": 0.1, "high": 0.9})
    >>> frame_of(rows, ["layer"], {"ρ": estimate_cells("rho"), "least": number_cells("low")})
      layer                     ρ  least
    0     0  0.500 [0.100, 0.900]  0.100
    1     1  0.250 [0.100, 0.900]  0.100
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pandas as pd

from attnscope.report.section import Page
from attnscope.study_api.number_text import estimate_text, interval_text, number
from attnscope.study_api.rows import rows_as

#: The cells of a column, one for each row.
Cells = Callable[[pd.DataFrame], list[str]]
Row = TypeVar("Row")


def number_cells(column: str) -> Cells:
    """Return cells of numbers with two or three digits, a dash for a missing one."""
    return lambda rows: [number(value) for value in rows[column]]


def count_cells(column: str) -> Cells:
    """Return cells of whole numbers with commas between thousands, a dash for a missing one."""
    return lambda rows: ["–" if pd.isna(value) else f"{int(value):,}" for value in rows[column]]


def text_cells(column: str, missing: str = "–") -> Cells:
    """Return cells of text; `missing` where there is none."""
    return lambda rows: [missing if pd.isna(value) or value == "" else str(value) for value in rows[column]]


def interval_cells(low: str = "low", high: str = "high", missing: str = "–") -> Cells:
    """Return cells of intervals in brackets; `missing` where there is none."""
    return lambda rows: [interval_text(*ends) or missing for ends in zip(rows[low], rows[high], strict=True)]


def estimate_cells(column: str, low: str = "low", high: str = "high") -> Cells:
    """Return cells of numbers followed by their intervals; alone without one, a dash for a missing number."""
    return lambda rows: [
        estimate_text(*parts) for parts in zip(rows[column], rows[low], rows[high], strict=True)
    ]


def spread_cells(column: str) -> Cells:
    """Return cells of means with their standard deviation, that of `rho` from the column `rho_std`."""
    return lambda rows: [
        "–" if pd.isna(mean) else f"{number(mean)} (±{number(deviation)})"
        for mean, deviation in zip(rows[column], rows[f"{column}_std"], strict=True)
    ]


def row_cells(kind: type[Row], text: Callable[[Row], str]) -> Cells:
    """Return cells that are made of several columns of a row.

    Args:
        kind: the row as an object, as `rows_as` takes it.
        text: the cell of a row.
    """
    return lambda rows: [text(row) for row in rows_as(kind, rows)]


def layer_keys(rows: pd.DataFrame) -> list[str]:
    """Return the keys of rows of layers: the model is among them where there are several.

    >>> layer_keys(pd.DataFrame({"model": ["a", "a"], "layer": [0, 1]}))
    ['layer']
    """
    return ["model", "layer"] if rows["model"].nunique() > 1 else ["layer"]


def frame_of(
    rows: pd.DataFrame, keys: Sequence[str] | Mapping[str, Cells], cells: Mapping[str, Cells]
) -> pd.DataFrame:
    """Return the text cells of a table.

    Args:
        rows: of the table, in order.
        keys: columns that name a row, or heading -> cells of what names it.
        cells: heading -> cells of a further column.
    """
    names = keys if isinstance(keys, Mapping) else {key: text_cells(key) for key in keys}
    return pd.DataFrame({heading: fill(rows) for heading, fill in {**names, **cells}.items()})


def show(
    page: Page,
    name: str,
    caption: str,
    rows: pd.DataFrame,
    keys: Sequence[str] | Mapping[str, Cells],
    cells: Mapping[str, Cells],
    *,
    folded: bool = False,
) -> None:
    """Write rows as a table of a page, if there are any.

    Args:
        page: of the report.
        name: of the table, unique in its section.
        caption: a sentence.
        rows: of the table, in order.
        keys: columns that name a row, or heading -> cells of what names it.
        cells: heading -> cells of a further column.
        folded: the table is behind its caption.
    """
    if len(rows):
        page.frame(name, caption, frame_of(rows, keys, cells), names=len(keys), folded=folded)
