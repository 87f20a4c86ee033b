# SPDX-License-Identifier: MIT
"""Results whose names can be drawn as they are, whatever letters a label or an input set has.

Matplotlib reads the text between two dollar signs as a formula, and the pictures of a report are XML, which
has no control characters. Names of models, revisions and input sets are changed once, where a figure reads
its tables, so that no figure has to think of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.results import Results
from attnscope.untrusted.safe_text import mark_controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

#: Columns of names that somebody chose; a cell of another column that is such a name changes with it.
_NAMES = ("model", "revision", "group")


def drawable_name(name: str) -> str:
    r"""Return a name as Matplotlib draws it: one line, a dollar sign that opens no formula.

    >>> print(drawable_name("a$b$"), drawable_name("two\nlines"))
    a\$b\$ two·lines
    """
    return re.sub(r"[\t\n]", "·", mark_controls(name)).replace("$", r"\$")


def plain_caption(caption: str) -> str:
    r"""Return a caption, which is no formula, with the dollar signs of names as they were.

    >>> plain_caption(r"Mean over the texts of a\$b.")
    'Mean over the texts of a$b.'
    """
    return caption.replace(r"\$", "$")


class DrawableResults(Results):
    """Results of a run, their names as `drawable_name` gives them."""

    def __init__(self, results: Results) -> None:
        self.__dict__.update(vars(results))
        self._stored_results = results
        self._changes: dict[tuple[str, ...], dict[str, str]] = {}

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a table as the results give it, with names that can be drawn."""
        frame = self._stored_results.table(name, columns)
        read = (name, *(columns or ()))
        if read not in self._changes:
            chosen = [frame[key].unique() for key in _NAMES if key in frame]
            names = {text for texts in chosen for text in texts if isinstance(text, str)}
            self._changes[read] = {text: new for text in names if (new := drawable_name(text)) != text}
        if changes := self._changes[read]:

            def change(cell: Any) -> Any:
                return changes.get(cell, cell) if isinstance(cell, str) else cell

            for column in frame.columns:
                if frame[column].dtype.kind not in "biufcmM":
                    frame[column] = frame[column].map(change)
        return frame


def drawable(results: Any) -> Any:
    """Return results with names that can be drawn, equal texts once; what are no results, as they are."""
    is_changed = isinstance(results, DrawableResults) or not isinstance(results, Results)
    return results if is_changed else DrawableResults(of_distinct_texts(results))
