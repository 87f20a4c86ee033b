# SPDX-License-Identifier: MIT
"""Numbers that others published, as data, and a run's own numbers beside them."""

from attnscope.published.comparison import Compared, compare_published
from attnscope.published.numbers import PAPERS, published_numbers, publishes, same_model

__all__ = ["PAPERS", "Compared", "compare_published", "published_numbers", "publishes", "same_model"]
