# SPDX-License-Identifier: MIT
"""One HTML file that explains a run: definitions, figures, numbers with interval and baseline, provenance."""

from attnscope.report.latex import latex_tables
from attnscope.report.page import report

__all__ = ["latex_tables", "report"]
