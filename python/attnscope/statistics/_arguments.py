# SPDX-License-Identifier: MIT
"""Arguments of the statistics: checked here once, with the value in the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnscope.arguments import scalars
from attnscope.arguments.number_lists import number_array

Vector = npt.NDArray[np.float64]


def vector(function: str, name: str, values: Any) -> Vector:
    data = number_array(function, name, values)
    if data.ndim != 1:
        raise ValueError(f"{function}: {name} must have one dimension, got shape {data.shape}")
    return data


def label_numbers(
    function: str, name: str, values: Any, items: int | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the different labels, ascending, and which of them each item has."""
    items_array = number_array(function, name, values, None)
    if items_array.ndim != 1 or items not in (None, len(items_array)):
        size = "" if items is None else f", [{items}]"
        raise ValueError(
            f"{function}: {name} must hold one label per item{size}, got shape {items_array.shape}"
        )
    if (missing := missing_labels(items_array)).any():
        raise ValueError(
            f"{function}: {name} must hold a label for every item, got none for item {int(missing.argmax())}"
        )
    try:
        unique, item_labels = np.unique(items_array, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"{function}: {name} must be labels of one kind: {error}") from None
    return unique, item_labels.astype(np.int64)


def missing_labels(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which labels are missing: NaN or None, which are no label that items could share."""
    if labels.dtype.kind == "O":
        import pandas as pd

        return np.asarray(pd.isna(labels), dtype=bool)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, dtype=bool)


def pairs(function: str, a: Any, b: Any) -> tuple[Vector, Vector]:
    x, y = vector(function, "the first argument", a), vector(function, "the second argument", b)
    if len(x) != len(y):
        raise ValueError(
            f"{function}: both arguments must hold the same sentences, got {len(x)} and {len(y)}"
        )
    defined = ~(np.isnan(x) | np.isnan(y))
    return x[defined], y[defined]


def check_draws(function: str, confidence: Any, draws: Any, seed: Any) -> tuple[float, int, int]:
    """Return the arguments of a bootstrap as numbers."""
    return (
        scalars.fraction_argument(function, "confidence", confidence),
        scalars.at_least(function, "draws", draws, 1),
        scalars.at_least(function, "seed", seed, 0),
    )


def table_argument(
    function: str, table: Any, needed: Sequence[str], metric: Any, by: Sequence[Any] = ()
) -> None:
    """Raise an error if data is no table with the columns that a function reads and numbers in `metric`."""
    if not hasattr(table, "groupby") or not hasattr(table, "columns"):
        raise TypeError(f"{function}: table must be a pandas DataFrame, got {type(table).__name__}")
    if not isinstance(by, (list, tuple)):
        raise TypeError(f"{function}: by must be a list of columns, got {by!r}")
    present = list(table.columns)
    for column in (*needed, metric, *by):
        if not isinstance(column, str) or present.count(column) != 1:
            raise ValueError(
                f"{function}: the table has no column {column!r}, only {', '.join(map(str, present))}"
            )
    if table[metric].dtype.kind not in "biuf":
        raise ValueError(f"{function}: column {metric!r} must hold numbers, got {table[metric].dtype}")
