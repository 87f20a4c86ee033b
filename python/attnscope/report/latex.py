# SPDX-License-Identifier: MIT
"""The report's numbers as LaTeX tables with booktabs rules: intervals, nulls, both protocols."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscope.report.numbers import number_rows, pair_rows
from attnscope.report.page import STUDIES, has_text, study_name

if TYPE_CHECKING:
    from attnscope.figures.registry import Tables

_SPECIAL = {letter: rf"\{letter}" for letter in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
}
#: Letters of our own words and of tokens that pdflatex does not set by itself.
_LETTERS = {
    "−": "$-$", "–": "--", "…": r"\dots{}", "“": "``", "”": "''", "‖": r"$\Vert$", "∞": r"$\infty$",
    "→": r"$\to$", "≥": r"$\ge$", "λ": r"$\lambda$", "β": r"$\beta$", "σ": r"$\sigma$", "₀": "$_0$",
    "₁": "$_1$", "₂": "$_2$", "␣": r"\textvisiblespace{}", "×": r"$\times$",
}  # fmt: skip


def latex_tables(results: Tables) -> str:
    """Every table of numbers of the report, ready to be read into a paper.

    Each analysis gives up to two tables: single heads beside their nulls, and the head mean under both
    protocols. The document needs `booktabs`.

    Args:
        results: what `attnscope.load` returns.

    Returns:
        LaTeX source.

    Raises:
        NotDrawable: when the run has no table `heads`.
    """
    from attnscope.figures.registry import measured_heads, optional
    from attnscope.figures.selection import series_are, with_groups

    heads, baselines = measured_heads(results), optional(results, "baselines")
    samples = optional(results, "samples")
    named = {
        name: with_groups(table, samples)
        for name in ("heads", "layers", "graphs")
        if (table := optional(results, name)) is not None and "sample" in table
    }
    both = "protocol" in named["heads"] and (named["heads"]["protocol"] == "ruscio2025").any()
    words = importlib.import_module(STUDIES.get(study_name(results), STUDIES["sink_study"]))
    apart = series_are(named["heads"])
    parts = [
        r"% \usepackage{booktabs} in the preamble; numbers in brackets are 95 % intervals over sentences."
    ]
    for section in words.SECTIONS:
        rows = number_rows(heads, baselines, section.metrics)
        if rows:
            parts.append(_of_heads(section.id, section.title, rows, apart))
        pairs = pair_rows(named, section.pairs) if both else []
        if pairs:
            parts.append(_of_protocols(section.id, section.title, pairs, apart))
    return "\n\n".join(parts) + "\n"


def _of_heads(name: str, title: str, rows: Sequence[Any], apart: str) -> str:
    """Means over single heads with intervals, baselines and the highest head."""
    wanted = [
        ("uniform", "uniform"),
        ("random_weights", "random weights"),
        ("row_permutation", "rows shuffled"),
        ("untrained", "step 0"),
        ("strongest", "highest head"),
    ]
    shown = [(field, label) for field, label in wanted if any(has_text(getattr(row, field)) for row in rows)]
    several = len({row.series for row in rows}) > 1
    head = [
        "quantity",
        *([apart] if several else []),
        "mean",
        "95 % interval",
        *(label for _, label in shown),
    ]
    body = [
        [row.label, *([row.series] if several else []), row.mean, row.interval]
        + [getattr(row, field) for field, _ in shown]
        for row in rows
    ]
    counted = sorted({row.samples for row in rows})
    about = f"{title}: mean over heads, {' or '.join(map(str, counted))} sentences."
    return _table(f"tab:{name}", about, head, body, text=2 if several else 1)


def _of_protocols(name: str, title: str, rows: Sequence[Any], apart: str) -> str:
    """The head mean under both protocols."""
    several = len({row.series for row in rows}) > 1
    head = [
        "quantity",
        *([apart] if several else []),
        "exact",
        "95 % interval",
        "as published",
        "95 % interval",
    ]
    body = [
        [
            row.label, *([row.series] if several else []), row.exact, row.exact_interval, row.published,
            row.published_interval,
        ]
        for row in rows
    ]  # fmt: skip
    return _table(
        f"tab:{name}-protocols", f"{title}: the head mean under both protocols.", head, body,
        text=2 if several else 1,
    )  # fmt: skip


def _table(label: str, caption: str, head: Sequence[str], body: Sequence[Sequence[str]], *, text: int) -> str:
    """A floating table; a first cell that repeats the one above is left empty."""
    lines = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{tex(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{'l' * text}{'r' * (len(head) - text)}}}",
        r"\toprule",
        " & ".join(tex(cell) for cell in head) + r" \\",
        r"\midrule",
    ]
    above = ""
    for row in body:
        first = "" if row[0] == above else row[0]
        above = row[0]
        # a bracket at the start of a row would be read as the argument of the line break before it
        cells = [tex(cell) for cell in (first, *row[1:])]
        lines.append(" & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def tex(text: str) -> str:
    r"""Text as LaTeX sets it: special letters escaped, marks of our own words as mathematics.

    Args:
        text: plain, or with the few HTML tags of the report.

    Returns:
        LaTeX source in which nothing is a command that was none.

    >>> tex("50 % & $x_1$"), tex("λ₂ − 1")
    ('50 \\% \\& \\$x\\_1\\$', '$\\lambda$$_2$ $-$ 1')
    """
    plain = html.unescape(re.sub(r"</?(?:i|sub|sup|b)>", "", text))
    letters = (_SPECIAL.get(letter) or _LETTERS.get(letter) or _plain(letter) for letter in plain)
    return "".join(letters)


def _plain(letter: str) -> str:
    """Latin letters as they are; what pdflatex has no glyph for by its code point."""
    if letter.isascii() and (letter.isprintable() or letter == " "):
        return letter
    return letter if "\u00a0" <= letter <= "\u017f" else rf"\texttt{{U+{ord(letter):04X}}}"
