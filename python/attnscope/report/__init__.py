# SPDX-License-Identifier: MIT
"""One HTML file that explains a run: definitions, figures, numbers with interval and baseline, provenance."""

from attnscope.report.page import latex_tables, report

__all__ = ["latex_tables", "report"]
