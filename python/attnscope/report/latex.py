# SPDX-License-Identifier: MIT
"""The report's tables as LaTeX with booktabs rules: intervals, nulls, both protocols."""

from __future__ import annotations

import re

from attnscope.plots.figure import Tables, stored
from attnscope.report.page import sections_of
from attnscope.report.section import Page, Table

#: Letters of our own words and of tokens that pdflatex does not set by itself.
_LETTERS = {
    "−": "$-$", "–": "--", "…": r"\dots{}", "“": "``", "”": "''", "‖": r"$\Vert$", "∞": r"$\infty$",
    "→": r"$\to$", "≥": r"$\ge$", "λ": r"$\lambda$", "β": r"$\beta$", "σ": r"$\sigma$", "₀": "$_0$",
    "₁": "$_1$", "₂": "$_2$", "␣": r"\textvisiblespace{}", "×": r"$\times$",
    "<": "$<$", ">": "$>$", "|": "$|$",
}  # fmt: skip


def latex_tables(results: Tables) -> str:
    """Every table of the report's sections, ready to be read into a paper.

    The document needs `booktabs`.

    Args:
        results: what `attnscope.load` returns.

    Returns:
        LaTeX source.

    Raises:
        NotDrawable: when the run has no table `heads`.
    """
    stored(results, "heads")
    page = Page(results, {})
    parts = ["% \\usepackage{booktabs} in the preamble; numbers in brackets are 95 % intervals over texts.\n"]
    for section in sections_of(results):
        parts += [
            latex(block.content)
            for block in page.written(section)
            if block.kind == "table" and not block.content.folded
        ]
    return "\n".join(parts)


def latex(table: Table) -> str:
    """A floating table."""
    numbers = len(table.frame.columns) - table.names
    source = table.styled("latex").to_latex(
        hrules=True,
        convert_css=True,
        position="t",
        position_float="centering",
        label=f"tab:{table.label}",
        caption=re.sub(r"([&%$#_{}])", r"\\\1", table.caption),
        column_format="l" * table.names + "r" * numbers,
    )
    return pdflatex(source)


def pdflatex(source: str) -> str:
    r"""LaTeX source in letters that pdflatex can set; those that it has no glyph for by their code point.

    >>> pdflatex("λ₂ − 1, 漢")
    '$\\lambda$$_2$ $-$ 1, \\texttt{U+6F22}'
    """
    # a bracket at the start of a row would be read as the argument of the line break before it
    source = source.replace("\\\\\n[", "\\\\\n{}[")
    return re.sub(
        r"[^\n -~\u00a0-\u017f]|[<>|]",
        lambda found: _LETTERS.get(found[0]) or rf"\texttt{{U+{ord(found[0]):04X}}}",
        source,
    )
