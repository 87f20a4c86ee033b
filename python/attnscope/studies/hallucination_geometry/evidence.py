# SPDX-License-Identifier: MIT
"""What a verdict rests on: the stored rows of one contrast, and what decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.engine.claims import NOT_TESTABLE, Claim

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

ALPHA = 0.05


@dataclass(frozen=True)
class Evidence:
    """What is stored of one checkpoint and one contrast, and of the same architecture with random weights.

    Attributes:
        contrast: the bucket beside the reference.
        reference: that one.
        tables: of the checkpoint.
        controls: of its random-weight controls.
        options: of the study.
        adjusted: p of claims over the primary list, by code.
    """

    contrast: str
    reference: str
    tables: dict[str, pd.DataFrame]
    controls: dict[str, pd.DataFrame]
    options: HallucinationOptions
    adjusted: Mapping[str, float] = field(default_factory=dict)

    def level(self, code: str, p_value: float) -> float:
        """What a claim is decided by: p over the primary list; without the list the claim's own."""
        return self.adjusted.get(code, p_value)

    def rows(self, table: str, **keys: Any) -> pd.DataFrame:
        """Rows of a table of this contrast."""
        return only(self.tables.get(table, pd.DataFrame()), {"contrast": self.contrast, **keys})

    def random(self, table: str, column: str, **keys: Any) -> tuple[float, float]:
        """Mean and upper end, over initialisations, of a control's number."""
        own = only(self.controls.get(table, pd.DataFrame()), {"contrast": self.contrast, **keys})
        if own.empty:
            return np.nan, np.nan
        values = own.groupby("seed")[column].mean().dropna()
        if len(values) < 2:
            return float(values.mean()), float(values.mean())
        from scipy import special

        wide = float(special.stdtrit(len(values) - 1, 0.975))
        reach = wide * values.std(ddof=1) * np.sqrt(1 + 1 / len(values))
        return float(values.mean()), float(values.mean() + reach)


def only(table: pd.DataFrame, keys: dict[str, Any]) -> pd.DataFrame:
    """Rows whose columns, as far as there are, have these values."""
    for name, value in keys.items():
        if name in table:
            table = table[table[name] == value]
    return table


def smallest(rows: pd.DataFrame, column: str = "p_adjusted") -> pd.Series[Any] | None:
    """The row of the smallest p, None without any."""
    there = rows[rows[column].notna()] if len(rows) else rows
    return None if there.empty else there.iloc[int(there[column].argmin())]


def missing(code: str, statistic: str, why: str = "not measured in this run") -> Claim:
    """A claim of which nothing was measured."""
    return Claim(code, statistic, NOT_TESTABLE, why)
