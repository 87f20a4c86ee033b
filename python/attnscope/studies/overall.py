# SPDX-License-Identifier: MIT
"""Rows of the tables `overall`: a statistic of all layers with its interval and its test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Statistic:
    """A number over all layers of a checkpoint.

    Attributes:
        estimate: its value.
        low: end of the interval.
        high: likewise.
        p_value: NaN without a test.
        least: smallest of several values behind it.
        most: largest of them.
        n: texts, pairs, groups or layers behind it.
    """

    estimate: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    least: float = math.nan
    most: float = math.nan
    n: float = math.nan


def statistic_of(overall: pd.DataFrame, name: str) -> Statistic | None:
    """Return a statistic of a table with a row for each; None where it has no value.

    >>> import pandas as pd
    >>> overall = pd.DataFrame({"statistic": ["depth"], "estimate": [0.5], "low": [0.1], "high": [0.9]})
    >>> statistic_of(overall, "depth").low, statistic_of(overall, "swap")
    (0.1, None)
    """
    rows = where(overall, statistic=name) if len(overall) else overall
    if rows.empty:
        return None
    statistic = first_as(Statistic, rows)
    return statistic if math.isfinite(statistic.estimate) else None
