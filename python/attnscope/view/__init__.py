# SPDX-License-Identifier: MIT
"""One page to look at heads with: the layer × head map of any metric, and behind each head its matrix.

jinja2, pandas and matplotlib are reached when a page is made, never by the import.
"""

from attnscope.view.page import View, view

__all__ = ["View", "view"]
