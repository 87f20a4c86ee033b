# SPDX-License-Identifier: MIT
"""Identities that hold for any model, tried before a study measures: what each found, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.engine.tables import Column, Table

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun

CHECKS = Table(
    "checks",
    (*CHECKPOINT_KEYS, "check"),
    (Column("value"), Column("tolerance"), Column("holds", kind="flag"), Column("reason", "string", "text")),
)


@dataclass(frozen=True)
class Check:
    """What a check found; `value` is None where it does not apply, and the reason says why."""

    name: str
    value: float | None
    tolerance: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        """True if it does, as far as it applies."""
        return self.value is None or self.value <= self.tolerance


def write_checks(run: StageRun, found: Iterable[Check]) -> None:
    """Store what was found."""
    for one in found:
        value = np.nan if one.value is None else one.value
        run.write(
            "checks", check=one.name, value=value, tolerance=one.tolerance, holds=one.holds, reason=one.reason
        )
