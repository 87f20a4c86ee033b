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

_LATEX = {letter: rf"\{letter}" for letter in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


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
    numeric = [frame[name].dtype.kind in "fiu" for name in frame.columns]
    lines = [rf"\begin{{tabular}}{{{''.join('r' if one else 'l' for one in numeric)}}}", r"\toprule"]
    lines += [" & ".join(_escaped(str(name)) for name in frame.columns) + r" \\", r"\midrule"]
    for row in frame.itertuples(index=False):
        cells = [f"{cell:.4g}" if isinstance(cell, float) else _escaped(str(cell)) for cell in row]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
