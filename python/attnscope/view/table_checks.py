# SPDX-License-Identifier: MIT
"""Stored tables of unknown origin, checked before a page is made of them.

Columns that place a number or a matrix on the page must exist, be of their type and have no gap. Measured
columns and names of tokens, which a page only prints, may be anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attnscope.errors import ResultsError
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import optional

#: Columns without which a row of a table has no place on the page.
REQUIRED = {
    "heads": (*CHECKPOINT_KEYS, "sample", "layer", "head"),
    "graphs": (*CHECKPOINT_KEYS, "sample", "layer", "head", "threshold"),
    "samples": (*CHECKPOINT_KEYS, "sample"),
    "examples": (*CHECKPOINT_KEYS, "sample", "layer", "head", "n_tokens", "attention"),
    "baselines": ("metric", "kind", "n_tokens", "threshold", "value", "support"),
}
#: Kind of each column that is read by its value: texts, whole numbers, numbers and flags.
KINDS = {
    **dict.fromkeys(("model", "revision", "metric"), "text"),
    **dict.fromkeys(("step", "sample", "layer", "head", "n_tokens"), "whole number"),
}
#: The same of single tables. In examples `attention` is the matrix, elsewhere the kind of attention.
KINDS_OF_TABLES = {"examples": {"attention": "list"}}
#: The same of columns that may have gaps.
KINDS_WITH_GAPS = {
    **dict.fromkeys(("attention", "group", "protocol", "support", "kind", "scope"), "text"),
    **dict.fromkeys(("threshold", "value"), "number"),
    "causal": "flag",
}
#: Whole numbers are below this; a larger one counts nothing of a model.
LIMIT = 2**31


def checked_table(results: Results, name: str) -> pd.DataFrame:
    """Return a table whose columns that place rows are as they must be.

    Raises:
        ResultsError: a column is absent, occurs twice, is of another type or has a gap.
    """
    check_table(name, table := results.table(name))
    return table


def checked_optional(results: Results, name: str) -> pd.DataFrame | None:
    """Return `optional` of a table, checked like `checked_table`."""
    if (table := optional(results, name)) is not None:
        check_table(name, table)
    return table


def check_table(name: str, table: pd.DataFrame) -> None:
    """Raise ResultsError where a column that is read by its value is not as it must be."""
    for column in REQUIRED[name]:
        if column not in table:
            raise ResultsError(f"view: table {name!r} has no column {column!r}")
    complete = {**KINDS, **KINDS_OF_TABLES.get(name, {})}
    for column in table.columns:
        if kind := complete.get(column) or KINDS_WITH_GAPS.get(column):
            _check_column(f"view: column {column!r} of table {name!r}", table[column], kind)
    for column in sorted(complete.keys() & set(table.columns)):
        if (gaps := table[column].isna()).any():
            row = int(np.argmax(gaps))
            raise ResultsError(f"view: column {column!r} of table {name!r} has a gap in row {row}")


def _check_column(where: str, cells: pd.Series[Any], kind: str) -> None:
    """Raise ResultsError where a column holds anything but its kind and gaps."""
    if cells.ndim > 1:
        raise ResultsError(f"{where} occurs twice")
    present = cells[~cells.isna()]
    if not len(present):
        return
    inferred = pd.api.types.infer_dtype(present)
    if kind == "text":
        right = inferred in ("string", "categorical")
    elif kind == "list":
        right = all(isinstance(cell, (np.ndarray, list)) for cell in present)
    elif kind == "flag":
        right = inferred == "boolean"
    elif kind == "number":
        right = inferred in ("floating", "integer", "mixed-integer-float")
    else:
        right = inferred == "integer"
    if not right:
        cell = present.iloc[0]
        cell = cell.item() if isinstance(cell, np.generic) else cell
        raise ResultsError(f"{where} must hold a {kind}, got {cell!r:.60}")
    if kind == "whole number" and not (present.min() >= -1 and present.max() < LIMIT):
        raise ResultsError(f"{where} must lie between -1 and {LIMIT}, got {present.min()} to {present.max()}")


def read_matrix(cells: Any, n: int, where: str) -> np.ndarray[Any, Any]:
    """Return the n × n matrix of a stored row.

    Raises:
        ResultsError: the row does not hold n² numbers.
    """
    try:
        entries = np.asarray(cells, dtype=float)
    except (TypeError, ValueError) as error:
        raise ResultsError(f"view: the matrix of {where} must hold numbers: {error}") from error
    if n < 1 or entries.shape != (n * n,):
        raise ResultsError(f"view: the matrix of {where} must hold {n}² numbers, got {entries.size}")
    return entries.reshape(n, n)


def read_token_ids(cells: Any, sample: int) -> list[int]:
    """Return the token ids of a stored sample.

    Raises:
        ResultsError: the row does not hold a list of token ids.
    """
    ids = np.asarray(cells)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= LIMIT:
        raise ResultsError(f"view: sample {sample} must hold a list of token ids, got {cells!r:.60}")
    return [int(token) for token in ids]
