# SPDX-License-Identifier: MIT
"""Cells of tables as JSON has them, with every digit: rows of an answer, lists and records in a CSV file.

Writers of tables round numbers to some digits behind the point, so that a difference of 1e-12 would become 0.

Example:
    >>> import pandas as pd
    >>> from attnscope.results.json_rows import json_rows
    >>> json_rows(pd.DataFrame({"metric": ["a", None], "difference": [1.5e-12, float("nan")]}))
    [{'metric': 'a', 'difference': 1.5e-12}, {'metric': None, 'difference': None}]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as objects of JSON; what is missing or infinite is null."""
    cells = [[_without_infinity(plain_cell(cell)) for cell in column.tolist()] for _, column in frame.items()]
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def plain_cell(cell: Any) -> Any:
    """Return a cell as plain data: arrays as lists, records as objects, what JSON has no word for as text.

    >>> import numpy as np
    >>> plain_cell([np.array([1, 2]), {"a": np.float64(0.5)}, b"x"])
    [[1, 2], {'a': 0.5}, "b'x'"]
    """
    import pandas as pd

    if cell is None or cell is pd.NA or cell is pd.NaT:
        return None
    if isinstance(cell, float):
        return float(cell)
    if isinstance(cell, (str, bool, int)):
        return cell
    if isinstance(cell, Mapping):
        return {str(key): plain_cell(entry) for key, entry in cell.items()}
    if hasattr(cell, "tolist"):
        return plain_cell(cell.tolist())
    return [plain_cell(entry) for entry in cell] if isinstance(cell, (list, tuple)) else str(cell)


def _without_infinity(value: Any) -> Any:
    """Return plain data with null for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_infinity(entry) for key, entry in value.items()}
    return [_without_infinity(entry) for entry in value] if isinstance(value, list) else value
