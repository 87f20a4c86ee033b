# SPDX-License-Identifier: MIT
"""The stored rows of a contrast that verdicts rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.study_api.selection import matching, where

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

NOT_MEASURED = "not measured in this run"


@dataclass(frozen=True)
class Evidence:
    """The stored rows of a checkpoint and a contrast, and those of the same architecture with random weights.

    Attributes:
        contrast: the bucket that is compared with the reference.
        reference: the bucket that it is compared with.
        tables: of the checkpoint.
        controls: of its random-weight controls.
        options: of the study.
    """

    contrast: str
    reference: str
    tables: dict[str, pd.DataFrame]
    controls: dict[str, pd.DataFrame]
    options: HallucinationOptions

    @property
    def templates(self) -> int:
        """Templates of the two buckets, the unit of intervals."""
        prompts = self.tables["prompts"]
        return int(where(prompts, bucket=[self.contrast, self.reference])["template"].nunique())

    def rows(self, table: str, **keys: Any) -> pd.DataFrame:
        """Return the rows of a table of this contrast."""
        return matching(self.tables.get(table, pd.DataFrame()), {"contrast": self.contrast, **keys})

    def largest_of_seeds(self, table: str, column: str, **keys: Any) -> list[float]:
        """Return each initialisation's largest value over layers, as the trained model's is chosen."""
        rows = matching(self.controls.get(table, pd.DataFrame()), {"contrast": self.contrast, **keys})
        rows = in_blocks(rows)
        if rows.empty:
            return []
        return [float(value) for value in rows.groupby("seed")[column].max().dropna()]

    def check_reason(self, check: str) -> str:
        """Return why a check of the model does not apply, "" if it does."""
        rows = matching(self.tables.get("checks", pd.DataFrame()), {"check": check})
        return "" if rows.empty else str(rows["reason"].fillna("").iloc[0])


def in_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of states behind a block: those that enter the first one are all alike."""
    return rows[rows["layer"] >= 0] if len(rows) else rows


def smallest(rows: pd.DataFrame) -> pd.Series[Any] | None:
    """Return the row of the smallest p, None without any.

    Adjusted values decide; where they are equal, such as several of 1, those of the single layers do.
    """
    tested = rows[rows["p_adjusted"].notna()] if len(rows) else rows
    if tested.empty:
        return None
    return tested.sort_values(["p_adjusted", "p_value"], kind="stable").iloc[0]


def widen(value: float, low: float, high: float, choices: int, groups: int) -> tuple[float, float]:
    """Return a t interval over groups widened for the choice among several, by Bonferroni.

    >>> widen(1.0, 0.0, 2.0, 1, 10)
    (0.0, 2.0)
    >>> tuple(round(end, 3) for end in widen(1.0, 0.0, 2.0, 5, 10))
    (-0.437, 2.437)
    """
    if choices <= 1 or groups < 2:
        return float(low), float(high)
    from scipy import special

    ratio = float(special.stdtrit(groups - 1, 1 - 0.025 / choices) / special.stdtrit(groups - 1, 0.975))
    return float(value - (value - low) * ratio), float(value + (high - value) * ratio)


def widen_by_draws(
    value: float, low: float, high: float, draws: Sequence[np.ndarray[Any, Any]]
) -> tuple[float, float]:
    """Return an interval of a difference from the mean of random draws, widened by what one draw differs.

    The measured direction is one more draw where it has no effect, and each draw has a rate of its own, which
    prompts and templates do not show. The variance is that within kinds, of one draw less the mean of all.

    Args:
        value: of the difference.
        low: end of its interval over templates.
        high: likewise.
        draws: the statistic of each draw, by kind.

    Returns:
        NaN for both ends where no kind has two draws.

    >>> tuple(round(end, 2) for end in widen_by_draws(0.0, -1.0, 1.0, [np.array([0.0, 0.0, 0.0])]))
    (-1.0, 1.0)
    >>> widen_by_draws(0.0, -1.0, 1.0, [np.array([0.3])])
    (nan, nan)
    """
    from scipy import special

    count = sum(len(kind) for kind in draws)
    freedom = count - len(draws)
    if freedom < 1:
        return math.nan, math.nan
    within = sum(float(np.square(kind - kind.mean()).sum()) for kind in draws) / freedom
    reach = float(special.stdtrit(freedom, 0.975)) * math.sqrt(within * (1 + 1 / count))
    return value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)


#: The fewest draws of a null of which a further one lies between the smallest and the largest in 95 of 100.
DRAWS_OF_95 = 39


def null_ends(drawn: Any) -> np.ndarray[Any, Any]:
    """Return the ends [2, ...] between which a further draw lies in 95 of 100 cases; draws: [m, ...].

    They are order statistics at (m + 1)·0.025 and (m + 1)·0.975 (Weibull's rule): the chance is that of ranks
    and needs no law. Fewer than 39 draws have no such ends: theirs are the smallest and the largest,
    between which a further one lies in (m − 1) of (m + 1) cases.

    >>> null_ends(np.arange(20.0)).tolist(), null_ends(np.arange(99.0)).round(6).tolist()
    ([0.0, 19.0], [1.5, 96.5])
    """
    values = np.asarray(drawn, dtype=float)
    columns = values.reshape(len(values), math.prod(values.shape[1:])).T
    finite = (column[np.isfinite(column)] for column in columns)
    ends = [
        np.quantile(column, [0.025, 0.975], method="weibull") if len(column) else [math.nan, math.nan]
        for column in finite
    ]
    return np.array(ends).reshape(-1, 2).T.reshape(2, *values.shape[1:])


def null_words(draws: int) -> str:
    """Return what the ends of a null of so many draws hold, in words.

    >>> null_words(999), null_words(20)
    ('95 % of draws', 'the range of 20 draws (90 % of further ones)')
    """
    return "95 % of draws" if draws >= DRAWS_OF_95 else range_words(draws)


def range_words(draws: int) -> str:
    """Return how much the range of some draws holds, in words: (m − 1)/(m + 1) whatever their law.

    >>> range_words(20)
    'the range of 20 draws (90 % of further ones)'
    """
    return f"the range of {draws} draws ({100 * max(draws - 1, 0) / (draws + 1):.0f} % of further ones)"


def exceedance(value: float, null: np.ndarray[Any, Any]) -> float:
    """Return the two-sided p of a value among draws of its null: that of one more draw, t on n − 1.

    >>> round(exceedance(0.0, np.array([-1.0, 0.0, 1.0])), 3)
    1.0
    """
    from scipy import special

    null = null[np.isfinite(null)]
    if len(null) < 3 or not math.isfinite(value):
        return math.nan
    deviation = float(null.std(ddof=1)) * math.sqrt(1 + 1 / len(null))
    if deviation == 0:
        return 1.0 if value == null[0] else 0.0
    return float(2 * special.stdtr(len(null) - 1, -abs(value - float(null.mean())) / deviation))
