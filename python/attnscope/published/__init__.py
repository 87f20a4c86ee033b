# SPDX-License-Identifier: MIT
"""Numbers that others published, as data, and a run's own numbers beside them."""

from attnscope.published.comparison import Compared, compare_published
from attnscope.published.numbers import papers, published_numbers, same_model

__all__ = ["Compared", "compare_published", "papers", "published_numbers", "same_model"]
