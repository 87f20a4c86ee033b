# SPDX-License-Identifier: MIT
"""Metrics, one concept a file: docstring, defaults and checks; the arithmetic is in the compiled core.

The package itself can be called: `attnscope.metrics()` is a table of every column that metrics give.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


class _Metrics(ModuleType):
    """The package of metrics, which gives their catalogue when it is called."""

    def __call__(self, n: int = 64, *, protocol: str | None = "exact") -> pd.DataFrame:
        """Return the catalogue of metrics; see `attnscope.metrics.catalogue.catalogue`."""
        from attnscope.metrics.catalogue import catalogue

        return catalogue(n, protocol=protocol)


sys.modules[__name__].__class__ = _Metrics
