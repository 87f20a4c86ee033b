# SPDX-License-Identifier: MIT
"""Selections of rows by the values of their columns, the same in every study.

A study's tables hold several designs, protocols, arms or models next to each other. A figure, a claim or a
section is about the rows with certain values: `where` keeps these rows and `without` drops them. Any other
condition, such as `rows[rows["step"] >= 0]`, is one of pandas.

Example:
    >>> import pandas as pd
    >>> from attnscope.study_api.selection import where, without
    >>> table = pd.DataFrame({"design": ["within", "swap", "within"], "layer": [0, 0, 1], "n": [5, 6, 7]})
    >>> where(table, design="within", layer=1)["n"].tolist()
    [7]
    >>> without(table, design="swap")["n"].tolist()
    [5, 7]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def where(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values, in the table's order.

    Args:
        table: with the columns that `values` name.
        values: column -> value, or a collection of values of which any will do; text is a single value.

    Raises:
        KeyError: the table has no such column.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"measure": ["share", "special", "context"], "layer": [0, 1, 2]})
    >>> where(table, measure=("share", "context"))["layer"].tolist()
    [0, 2]
    """
    for column, value in values.items():
        table = table[_has(table[column], value)]
    return table


def without(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have none of these values, in the table's order.

    A missing entry is no value: its row stays.

    Args:
        table: with the columns that `values` name.
        values: column -> value, or a collection of values.

    Raises:
        KeyError: the table has no such column.

    >>> import pandas as pd
    >>> without(pd.DataFrame({"mode": ["real", "swap", None], "n": [1, 2, 3]}), mode="swap")["n"].tolist()
    [1, 3]
    """
    for column, value in values.items():
        table = table[~_has(table[column], value)]
    return table


def matching(table: pd.DataFrame, keys: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows with these keys, as far as the table has their columns.

    So the rows of one checkpoint are selected from every table of a study, whatever its keys are.

    Args:
        table: any; one without columns has no rows to select.
        keys: column -> value, such as model, revision and step.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"model": ["a", "b"], "draw": [0, 1]})
    >>> matching(table, {"model": "b", "step": 512})["draw"].tolist()
    [1]
    """
    return where(table, **{column: value for column, value in keys.items() if column in table})


def _has(entries: pd.Series[Any], value: Any) -> pd.Series[bool]:
    """Return True for each entry that is the value, or one of a collection; False for missing entries."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return entries.isin(list(value))
    return (entries == value).fillna(False).astype(bool)
