# SPDX-License-Identifier: MIT
"""Rows of a table as objects: a column is an attribute of a declared type.

A dataclass names the columns that some code reads. A typo in an attribute is then found by mypy, and a table
that lacks a column is refused where it is read, by the name of the column.

Example:
    >>> from dataclasses import dataclass
    >>> import pandas as pd
    >>> from attnscope.study_api.rows import first_as, rows_as
    >>> @dataclass(frozen=True)
    ... class Association:
    ...     layer: int
    ...     estimate: float
    ...     mode: str
    >>> table = pd.DataFrame({"layer": [0, 1], "estimate": [0.5, None], "mode": ["real", None], "n": 3})
    >>> rows_as(Association, table)
    [Association(layer=0, estimate=0.5, mode='real'), Association(layer=1, estimate=nan, mode='')]
    >>> first_as(Association, table).layer
    0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from attnscope._nearest import nearest
from attnscope.errors import MissingError

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")


def rows_as(kind: type[Row], table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as objects, in its order.

    Args:
        kind: dataclass whose fields are columns of type str, float, int or bool. A missing text is "", a
            missing number of a float field NaN, a missing flag False. A field with a default may lack its
            column.
        table: with further columns or without.

    Raises:
        MissingError: the table lacks a column.
    """
    readers = _readers(kind)
    columns = [str(column) for column in table.columns]
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in columns and field.default is dataclasses.MISSING:
            near = nearest(field.name, columns)
            raise MissingError(f"{kind.__name__}: the table has no column {field.name!r}{near}")
    present = {name: read for name, read in readers.items() if name in columns}
    cells = [[read(cell) for cell in table[name]] for name, read in present.items()]
    return [kind(**dict(zip(present, row, strict=True))) for row in zip(*cells, strict=True)]


def first_as(kind: type[Row], table: pd.DataFrame) -> Row:
    """Return the first row of a table that has one, as `rows_as` returns it."""
    return rows_as(kind, table.iloc[:1])[0]


def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Return for each column the function that reads a cell of it."""
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: _read_text if hints[name] is str else _of_type(hints[name]) for name in names}


def _of_type(hint: Any) -> Callable[[Any], Any]:
    """Return the reader of a number or flag; TypeError for another type."""
    if hint not in (float, int, bool):
        raise TypeError(f"rows_as: a column is str, float, int or bool, got {hint!r}")
    return {float: _read_number, bool: _read_flag}.get(hint, hint)


def _read_text(cell: Any) -> str:
    """Return a text; "" for a missing one."""
    import pandas as pd

    return "" if pd.isna(cell) else str(cell)


def _read_number(cell: Any) -> float:
    """Return a number; NaN for a missing one."""
    import pandas as pd

    return float("nan") if pd.isna(cell) else float(cell)


def _read_flag(cell: Any) -> bool:
    """Return a truth value; False for a missing one."""
    import pandas as pd

    return False if pd.isna(cell) else bool(cell)
