# SPDX-License-Identifier: MIT
"""Identities that hold for any model, checked before a study measures, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.rows import rows_as
from attnscope.study_api.tables import Column, Table

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.study_api.stage_run import StageRun

CHECKS = Table(
    "checks",
    (*CHECKPOINT_KEYS, "check"),
    (Column("value"), Column("tolerance"), Column("holds", kind="flag"), Column("reason", "string", "text")),
)


@dataclass(frozen=True)
class Check:
    """The result of a check; `value` is None if it does not apply, and `reason` explains it."""

    name: str
    value: float | None
    tolerance: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        """True if it does, as far as it applies."""
        return self.value is None or self.value <= self.tolerance


@dataclass(frozen=True)
class StoredCheck:
    """A row of the table `checks`; `value` is NaN if the check does not apply."""

    check: str
    value: float
    tolerance: float
    holds: bool
    reason: str = ""


def failed_checks(checks: pd.DataFrame) -> list[StoredCheck]:
    """Return the checks of a table that do not hold."""
    return [check for check in rows_as(StoredCheck, checks) if not check.holds]


def write_checks(run: StageRun, checks: Iterable[Check]) -> None:
    """Store the results of checks."""
    for check in checks:
        value = np.nan if check.value is None else check.value
        run.write(
            "checks",
            check=check.name,
            value=value,
            tolerance=check.tolerance,
            holds=check.holds,
            reason=check.reason,
        )
