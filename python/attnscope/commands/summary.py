# SPDX-License-Identifier: MIT
"""Means of stored tables for people and papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope._nearest import nearest
from attnscope.engine.results import Results
from attnscope.engine.schema import MissingError

if TYPE_CHECKING:
    import pandas as pd


def means(results: Results, table: str, by: Sequence[str]) -> pd.DataFrame:
    """Means of the numeric columns: first within each sentence, then over sentences.

    The head mean (head −1) is left out where heads are averaged, so that it is not counted beside them.

    Raises:
        MissingError: an unknown table or key column.
    """
    import pandas as pd

    frame = results.table(table)
    keys = results.keys(table)
    for key in by:
        if key not in keys:
            raise MissingError(f"{key!r} is no key of table {table!r}{nearest(key, keys)}")
    if "protocol" in frame and "protocol" not in by and frame["protocol"].nunique() > 1:
        by = [*by, "protocol"]
    if "head" in frame and "head" not in by and (frame["head"] >= 0).any():
        frame = frame[frame["head"] >= 0]
    values = [
        name for name in frame.columns if name not in keys and pd.api.types.is_numeric_dtype(frame[name])
    ]
    inner = [*by, "sample"] if "sample" in frame and "sample" not in by else list(by)
    whole: pd.DataFrame = frame.groupby(inner, sort=True)[values].mean().reset_index()
    return whole if inner == list(by) else whole.groupby(list(by), sort=True)[values].mean().reset_index()


def latex_table(frame: pd.DataFrame) -> str:
    """The frame as a LaTeX tabular with booktabs rules, four significant digits."""
    styler = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    floats = [name for name in frame if frame[name].dtype.kind == "f"]
    source: str = styler.format("{:.4g}", subset=floats).to_latex(hrules=True)
    return source.rstrip()
