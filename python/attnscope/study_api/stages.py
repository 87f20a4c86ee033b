# SPDX-License-Identifier: MIT
"""The stages of a study: functions that are called once for each of their units, and their order.

Example:
    >>> from attnscope.study_api.stages import Stage
    >>> from attnscope.study_api.units import Units
    >>> units = Units()
    >>> Stage("measure", units.texts(), print).units.kind, Stage("norms", units.checkpoints(), print).within
    ('texts', 'run')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnscope.study_api.stage_run import StageRun
from attnscope.study_api.units import Cut, Unit


@dataclass(frozen=True)
class Stage:
    """One function, called for each of its units.

    Args:
        name: unique in the study.
        units: along what it is cut, from `Units`.
        function: of a unit and of what the engine offers it.
        reads: tables and reductions of earlier stages that it may read.
        writes: tables that it may write.
        within: "checkpoint": a unit starts when all units of its checkpoint that it reads are stored;
            "run": when all units are, of every checkpoint that is not skipped.
    """

    name: str
    units: Cut
    function: Callable[[Unit, StageRun], Any]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    within: Literal["run", "checkpoint"] = "run"


def phases(stages: Sequence[Stage]) -> dict[str, int]:
    """Return the number of barriers before each stage.

    A stage that reads the whole run stands behind a barrier: a model is loaded again for it.

    Raises:
        ValueError: two stages of one name, or a table that no earlier stage writes.

    >>> from attnscope.study_api.units import Units
    >>> cut = Units()
    >>> phases([Stage("a", cut.texts(), print, writes=("x",)), Stage("b", cut.once(), print, reads=("x",))])
    {'a': 0, 'b': 1}
    """
    phases_by_stage: dict[str, int] = {}
    writers: dict[str, list[str]] = {}
    for stage in stages:
        if stage.name in phases_by_stage:
            raise ValueError(f"stages: two are called {stage.name!r}")
        barrier = stage.within == "run" or stage.units.kind == "once"
        phase = 0
        for table in stage.reads:
            if table not in writers:
                raise ValueError(f"stages: {stage.name!r} reads {table!r}, which no earlier stage writes")
            phase = max([phase, *(phases_by_stage[writer] + barrier for writer in writers[table])])
        phases_by_stage[stage.name] = phase
        for table in stage.writes:
            writers.setdefault(table, []).append(stage.name)
    return phases_by_stage
