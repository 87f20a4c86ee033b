# SPDX-License-Identifier: MIT
"""Key columns of tables that somebody else may have written: what they must hold to tell rows apart.

Example:
    >>> import pandas as pd
    >>> from attnscope.results.key_columns import check_single, kind_of
    >>> frame = pd.DataFrame({"layer": [0, 1], "texts": [["a"], ["b"]]})
    >>> kind_of(frame["layer"])
    'whole numbers'
    >>> check_single("compare", "heads", frame, ["texts"])
    Traceback (most recent call last):
    attnscope.errors.ResultsError: compare: column 'texts' of table 'heads' must hold single values, got ['a']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.errors import ResultsError

if TYPE_CHECKING:
    import pandas as pd

#: Kinds that are numbers, or can be taken as such.
NUMERIC = ("whole numbers", "numbers", "truth values", "nothing")


def kind_of(column: pd.Series) -> str:
    """Return what a column holds, in words: whole numbers, numbers, texts, truth values, or its type."""
    from pandas.api import types

    if hasattr(column.dtype, "categories"):  # categories count as their values
        column = column.astype(column.dtype.categories.dtype)

    if types.is_bool_dtype(column) or types.infer_dtype(column, skipna=True) == "boolean":
        return "truth values"
    if types.is_numeric_dtype(column):
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        is_whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
        return "whole numbers" if bool(is_whole.all()) else "numbers"
    if column.isna().all():
        return "nothing"
    if types.is_string_dtype(column.dropna()):
        return "texts"
    return str(column.dtype)


def numeric_columns(frame: pd.DataFrame) -> list[Any]:
    """Return the columns that hold numbers or truth values, in order.

    Truth values of which some are missing come from a file as objects, and categories count as their values.

    >>> import pandas as pd
    >>> numeric_columns(pd.DataFrame({"name": ["a", "b"], "has_sink": [True, None], "share": [0.5, 1.0]}))
    ['has_sink', 'share']
    """
    from pandas.api import types

    return [
        name
        for name, column in frame.items()
        if types.is_numeric_dtype(column)
        or types.is_bool_dtype(column)  # of Arrow's type they are no numbers
        or (types.is_object_dtype(column) and kind_of(column) == "truth values")
        or (hasattr(column.dtype, "categories") and kind_of(column) in NUMERIC)
    ]


def check_single(function: str, table: str, frame: pd.DataFrame, keys: Sequence[str]) -> None:
    """Raise where a key holds lists or other things that are no single value."""
    for key in keys:
        if frame[key].dtype != object:
            continue
        for value in frame[key]:
            if hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
                raise ResultsError(
                    f"{function}: {_column(key, table)} must hold single values, got {_shown(value)}"
                )


def check_whole(function: str, table: str, frame: pd.DataFrame, keys: Sequence[str]) -> None:
    """Raise where a key that counts something holds anything but whole numbers, or is missing in a row."""
    for key in keys:
        if len(frame) and (kind := kind_of(frame[key])) != "whole numbers":
            is_missing = frame[key].isna()
            if kind == "numbers" and is_missing.any():
                row = int(np.flatnonzero(is_missing)[0])
                raise ResultsError(f"{function}: {_column(key, table)} has no value in row {row}")
            raise ResultsError(f"{function}: {_column(key, table)} must hold whole numbers, got {kind}")


def check_same_kind(
    function: str, table: str, rows: pd.DataFrame, other_rows: pd.DataFrame, columns: Sequence[str]
) -> None:
    """Raise where a column holds values of two kinds in two runs, of which no row can be equal."""
    for name in columns:
        first, second = kind_of(rows[name]), kind_of(other_rows[name])
        # in a column of numbers with a point some may be whole
        has_point = rows[name].dtype.kind == other_rows[name].dtype.kind == "f"
        kinds = {kind.removeprefix("whole ") if has_point else kind for kind in (first, second)}
        if len(kinds) > 1 and len(rows) and len(other_rows):
            raise ResultsError(
                f"{function}: {_column(name, table)} holds {first} in one run and {second} in the other"
            )


def _column(key: str, table: str) -> str:
    return f"column {key!r} of table {table!r}"


def _shown(value: Any) -> str:
    plain = value.tolist() if hasattr(value, "tolist") else value
    return f"{plain!r:.60}"
