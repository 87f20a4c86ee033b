# SPDX-License-Identifier: MIT
r"""Text of unknown origin, made harmless where it is shown: on terminals, in pages, figures and spreadsheets.

Labels, groups, tokens and names of files come from whoever wrote a model, a text or a run folder. Four places
read more into a text than its letters: a terminal obeys escape sequences, a page and a terminal reverse what
follows a bidirectional control, XML refuses control characters, and a spreadsheet computes a cell that begins
like a formula. Nothing here removes a letter silently: each is replaced by something that can be seen.

Example:
    >>> escape_controls("red\x1b[31m"), mark_controls("a\u202eb"), quote_formula("=1+1")
    ('red\\u001b[31m', 'a·b', "'=1+1")
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: Control characters but tab and line feed, separators of lines and paragraphs, controls of direction, halves
#: of surrogate pairs, and the two code points of the basic plane that are no characters.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
#: Cells that a spreadsheet takes for a formula, and cells that quoting already wrote.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
#: Numbers as text, with or without separators, an exponent or a percent sign.
_NUMBER = re.compile(r"[+-]?(\d[\d,_ ]*)?\.?\d+([eE][+-]?\d+)?( ?%)?")


def escape_controls(text: str) -> str:
    r"""Return a text with control characters as the escapes that JSON has for them; tabs and line feeds stay.

    In JSON the result stands for the same data, because there such characters occur inside of strings only.

    >>> escape_controls("a\x9b31mb"), escape_controls("two\nlines")
    ('a\\u009b31mb', 'two\nlines')
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_unprintable(text: str) -> str:
    r"""Return a text with escapes of Python in the place of controls and of code points that Unicode gives
    to no letter.

    >>> escape_unprintable("a\x1b b\u05c8 ק")
    'a\\x1b b\\u05c8 ק'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def mark_controls(text: str, mark: str = "·") -> str:
    r"""Return a text with a mark in the place of each control character; tabs and line feeds stay.

    >>> mark_controls("a\x00b\u202ec\td")
    'a·b·c\td'
    """
    return _CONTROLS.sub(mark, text)


def show_name(name: Any) -> str:
    r"""Return a name as a message shows it: in one line, short, without control characters.

    >>> show_name("head"), show_name("a\x1fb")
    ('head', "'a\\x1fb'")
    """
    text = str(name)
    return text if text.isprintable() and len(text) <= 80 else f"{text[:80]!a}"


def list_names(names: Iterable[Any], letters: int = 300) -> str:
    r"""Return names as a message lists them: in one line of about so many letters, or "none".

    >>> list_names(["a", "\x1f", 3]), list_names([]), list_names(range(10_000), letters=10)
    ("a, '\\x1f', 3", 'none', '0, 1, 2, 3, ...')
    """
    line = ""
    for name in names:
        longer = f"{line}, {show_name(name)}" if line else show_name(name)
        if line and len(longer) > letters:
            return f"{line}, ..."
        line = longer
    return line or "none"


def quote_formula(cell: str) -> str:
    """Return a text cell for CSV with an apostrophe before what a spreadsheet would compute.

    A cell is quoted if it begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return and is no
    number. A cell that begins with apostrophes and then such a letter gets another one: without the first
    apostrophe every cell of this form is the stored text.

    >>> quote_formula("=1+1"), quote_formula("-0.5"), quote_formula("- 1 %"), quote_formula("'=x")
    ("'=1+1", '-0.5', "'- 1 %", "''=x")
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def quote_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table for CSV, its text cells and the names of its columns as `quote_formula` writes them."""

    def quote(cell: Any) -> Any:
        return quote_formula(cell) if isinstance(cell, str) else cell

    texts = [place for place, kind in enumerate(frame.dtypes) if kind.kind not in "biufcmM"]
    columns = {
        place: frame.iloc[:, place].map(quote) if place in texts else frame.iloc[:, place]
        for place in range(frame.shape[1])
    }
    quoted = type(frame)(columns, index=frame.index)
    quoted.columns = frame.columns.map(quote)
    return quoted


def write_csv(frame: pd.DataFrame, out: IO[bytes]) -> None:
    """Write a table as CSV, with what a spreadsheet would compute quoted.

    A carriage return in a text ends its row for whoever reads the file, and is quoted only where lines end in
    one. So lines do in a table that holds such a text.
    """
    quoted = quote_formulas(frame)
    texts = [quoted.iloc[:, place] for place, kind in enumerate(quoted.dtypes) if kind.kind not in "biufcmM"]
    cells = itertools.chain(quoted.columns, *texts)
    has_return = any("\r" in cell for cell in cells if isinstance(cell, str))
    quoted.to_csv(out, index=False, lineterminator="\r\n" if has_return else "\n")
