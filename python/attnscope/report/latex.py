# SPDX-License-Identifier: MIT
"""The report's tables as LaTeX with booktabs rules: intervals, nulls, both protocols."""

from __future__ import annotations

from attnscope.plots.figure import Tables, stored
from attnscope.plots.latex import escaped, pdflatex
from attnscope.report.page import sections_of
from attnscope.report.section import Page, Table


def latex_tables(results: Tables) -> str:
    """Every table of the report's sections, ready to be read into a paper.

    The document needs `booktabs`.
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
        caption=escaped(table.caption),
        column_format="l" * table.names + "r" * numbers,
    )
    return pdflatex(source)
