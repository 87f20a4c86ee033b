# SPDX-License-Identifier: MIT
"""Units that sleep."""

from __future__ import annotations

import time
from typing import Any

from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table
from attnscope.study_api.units import Unit, Units


class SleepingOptions(Options):
    """How long a unit takes."""

    seconds: float = 10.0


class Sleeping(Study):
    """`rests` of every text."""

    name = "sleeping"
    Options = SleepingOptions
    tables = (Table("rests", keys=("model", "revision", "step", "sample"), columns=(Column("seconds"),)),)

    def stages(self, units: Units) -> list[Stage]:
        """Texts alone."""
        return [Stage("rest", units.texts(), self.rest, writes=("rests",))]

    def rest(self, unit: Unit, run: Any) -> None:
        """Sleeps, and writes a row for each text."""
        time.sleep(self.options.seconds)
        run.write(
            "rests", sample=[text.sentence.sample for text in unit.inputs], seconds=self.options.seconds
        )


STUDY = Sleeping
