# SPDX-License-Identifier: MIT
r"""Tables as LaTeX that fit a page: of one column of a two-column paper, or as wide as its text.

Every column of a table gets a share of `\linewidth`, numbers as much as they need, names the rest, in which
they break. Numbers that have no room are left out, the usual ones last, and a table that is too wide for one
column is set across both.

Example:
    >>> from attnscope.report.latex_tables import natural_width
    >>> round(natural_width("0.458")), round(natural_width("a name", 8.0))
    (24, 27)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from attnscope._nearest import nearest
from attnscope.plots.latex import escaped, pdflatex
from attnscope.report.section import Table, printable_line

#: Of one column of a two-column paper, or of both.
WIDTHS = ("single", "double")
#: Points of the narrowest column, or text, of the usual classes, less a safety margin; wider ones have more.
_ROOM = {"single": 225.0, "double": 340.0}
#: Points of letters by the command that sets them, the first that lets the most columns in.
_SIZES = {r"\small": 9.0, r"\footnotesize": 8.0}
#: For tables of which not even one column of numbers fits at those sizes.
_SMALLEST = {r"\scriptsize": 7.0, r"\tiny": 5.0}
_COLUMN_GAP = 6.0  # points between two columns, twice `\tabcolsep`
#: Headings of numbers that stay when others have no room, the first first.
_USUAL = ("exact", "mean", "95 % interval", "uniform", "n")
_MOST_SINGLE = 3  # columns of numbers of a narrow table
_LONGEST_WORD = 10  # letters of a word that is not broken
_NARROWEST_NAME = 48.0  # points that a column of names may be pressed to
#: Widths of letters of Computer Modern, as parts of the size of letters; others are .52 or, capitals, .76.
_LETTERS = {
    **dict.fromkeys("ijl.,:;!'|[]()", 0.29),
    **dict.fromkeys("ft -–/", 0.4),
    **dict.fromkeys("mwMW%−×<>=", 0.86),
}


class Layout(NamedTuple):
    """Places of the columns of a table that are set, their widths in points, the environment and size."""

    columns: list[int]
    widths: list[float]
    width: str
    size: str


def natural_width(text: str, size: float = 10.0) -> float:
    """Return roughly how many points a text takes in one line; rather more than less."""
    parts = (
        _LETTERS.get(letter, 0.76 if letter.isupper() else 0.52 if letter.isascii() else 0.6)
        if letter < "\u0180" or letter in _LETTERS
        else 3.8  # as the number of its code point
        for letter in text
    )
    return size * sum(parts)


def latex_table(
    table: Table, label: str, *, width: str = "single", columns: Sequence[str] | None = None
) -> str:
    r"""Return a floating table as LaTeX; the document needs `booktabs` and `array`.

    Args:
        table: of a report.
        label: its address, behind `tab:`.
        width: "single" for one column of a two-column paper, "double" for both (`table*`).
        columns: headings of numbers that are set, in their order; None takes as many as fit, of a narrow
            table at most three.

    Raises:
        ValueError: another width, an unknown heading, or columns that do not fit even a whole page.
    """
    if width not in WIDTHS:
        raise ValueError(f"latex: width must be {' or '.join(WIDTHS)}, got {width!r}")
    frame = table.frame.astype(str).map(printable_line).reset_index(drop=True)
    frame.columns = frame.columns.map(lambda name: printable_line(str(name)))
    if table.names < len(frame.columns):
        first = frame.iloc[:, 0]
        frame.iloc[:, 0] = first.where(first != first.shift(), "")
    headings = [str(name) for name in frame.columns]
    cells = [[heading, *frame.iloc[:, at]] for at, heading in enumerate(headings)]
    layout = _layout(cells, table.names, width, columns, label)
    environment = "table" if layout.width == "single" else "table*"
    lines = [
        rf"\begin{{{environment}}}[t]",
        r"\centering\setlength{\belowcaptionskip}{4pt}",
        rf"\caption{{{_source(table.caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"{layout.size}\setlength{{\tabcolsep}}{{3pt}}",
    ]
    lines += [rf"\begin{{tabular}}{{{_preamble(layout, table.names)}}}", r"\toprule"]
    rows = [[headings[at] for at in layout.columns], *frame.iloc[:, layout.columns].to_numpy().tolist()]
    for number, row in enumerate(rows):
        bold = number - 1 in table.certain
        words = [_source(str(cell), at >= table.names) for at, cell in zip(layout.columns, row, strict=True)]
        source = " & ".join(rf"\textbf{{{word}}}" if bold else word for word in words)
        # a bracket would be read as the argument of the line break before it
        lines.append(("{}" if source.startswith("[") else "") + source + r" \\")
        lines += [r"\midrule"] if number == 0 else []
    lines += [r"\bottomrule", r"\end{tabular}", rf"\end{{{environment}}}", ""]
    missing = [headings[at] for at in range(len(headings)) if at not in layout.columns]
    note = f"% no room for: {', '.join(map(_comment, missing))}\n" if missing else ""
    return note + "\n".join(lines)


def _layout(
    cells: Sequence[Sequence[str]], names: int, width: str, columns: Sequence[str] | None, label: str
) -> Layout:
    """Return the columns of a table that fit, and their widths."""
    headings = [column[0] for column in cells]
    numbers = list(range(names, len(cells)))
    if columns is not None:
        for name in columns:
            if name not in headings[names:]:
                raise ValueError(
                    f"latex: table {label} has no column {name!r}{nearest(name, headings[names:])}"
                )
        numbers = [headings.index(name, names) for name in columns]
    candidates = [(kind, _SIZES) for kind in (WIDTHS if width == "single" else ("double",))]
    if columns is None:
        candidates.append(("double", _SMALLEST))
    for kind, sizes in candidates:
        preferred = numbers if columns is not None else _preferred(headings, numbers, kind)
        least = len(preferred) if columns is not None else min(len(preferred), 1)
        for count in range(len(preferred), least - 1, -1):
            # the order of the table, or that which was asked for
            chosen = preferred[:count] if columns is not None else sorted(preferred[:count])
            for size in sizes:
                widths = _widths(cells, names, [*range(names), *chosen], kind, sizes[size])
                if widths is not None:
                    return Layout([*range(names), *chosen], widths, kind, size)
    shown = ", ".join(columns or headings)
    raise ValueError(f"latex: the columns of table {label} do not fit a page, got {shown}; name fewer")


def _preferred(headings: Sequence[str], numbers: Sequence[int], width: str) -> list[int]:
    """Return the columns of numbers, those that stay longest first."""
    rank = {heading: place for place, heading in enumerate(_USUAL)}
    ordered = sorted(numbers, key=lambda at: (rank.get(headings[at], len(rank)), at))
    return ordered[:_MOST_SINGLE] if width == "single" else ordered


def _widths(
    cells: Sequence[Sequence[str]], names: int, chosen: Sequence[int], width: str, size: float
) -> list[float] | None:
    """Return the points of each chosen column, which fill the width together; None where they do not fit."""
    room = _ROOM[width] - _COLUMN_GAP * len(chosen)
    numbers = [
        max(natural_width(part, size) for part in [*cells[at][0].split(" "), *cells[at][1:]]) + 2
        for at in chosen[names:]
    ]
    natural = [max(natural_width(part, size) for part in cells[at]) + 2 for at in chosen[:names]]
    least = [
        min(points, max(_NARROWEST_NAME, _longest(cells[at], size))) for at, points in enumerate(natural)
    ]
    rest = room - sum(numbers)
    if sum(least) > rest:
        return None
    if sum(natural) <= rest:
        share = (rest - sum(natural)) / len(chosen)
        return [points + share for points in (*natural, *numbers)]
    spare = rest - sum(least)
    slack = [points - low for points, low in zip(natural, least, strict=True)]
    scale = spare / sum(slack)
    return [*(low + scale * points for low, points in zip(least, slack, strict=True)), *numbers]


def _longest(cells: Sequence[str], size: float) -> float:
    """Return the points of the longest part of cells that is not broken."""
    parts = (part for cell in cells for word in cell.split(" ") for part in _breakable(word))
    return max((natural_width(part, size) for part in parts), default=0.0) + 4


def _preamble(layout: Layout, names: int) -> str:
    r"""Return the columns of the tabular, as parts of `\linewidth` that fill it."""
    total = sum(layout.widths) + _COLUMN_GAP * len(layout.widths)
    specifications = []
    for place, points in enumerate(layout.widths):
        side = r"\raggedright" if place < names else r"\raggedleft"
        share = math.floor(1e4 * (points + _COLUMN_GAP) / total) / 1e4  # the sum stays below 1
        specifications.append(rf">{{{side}\arraybackslash}}p{{\dimexpr{share:.4f}\linewidth-2\tabcolsep}}")
    return "".join(specifications)


def _source(text: str, is_number: bool = False) -> str:
    """Return a cell as LaTeX, with places where long words may break; numbers stay whole."""
    if is_number:
        return pdflatex(escaped(text))
    words = (r"\hspace{0pt}".join(map(escaped, _breakable(word))) for word in text.split(" "))
    return pdflatex(" ".join(words))


def _breakable(word: str) -> list[str]:
    """Return the parts of a word between which a line may break.

    >>> _breakable("meta-llama/Llama-3.2-1B"), _breakable("head_mean")
    (['meta-', 'llama/', 'Llama-', '3.', '2-', '1B'], ['head_mean'])
    """
    if len(word) <= _LONGEST_WORD:
        return [word]
    parts = re.findall(r"[^-_/.:]*[-_/.:]|[^-_/.:]+", word)
    return [
        part[start : start + _LONGEST_WORD] for part in parts for start in range(0, len(part), _LONGEST_WORD)
    ]


def _comment(text: str) -> str:
    """Return a text as it may be in a comment of LaTeX."""
    return text.encode("ascii", "replace").decode("ascii")
