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
from functools import partial
from typing import Any, Literal, NamedTuple

from attnscope.study_api.stage_run import StageRun
from attnscope.study_api.units import Cut, Unit, Units


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


#: A stage as a function of the study, a unit, and the context of the unit.
StageFunction = Callable[[Any, Unit, StageRun], None]


class Declared(NamedTuple):
    """A stage as a module declares it."""

    function: StageFunction
    units: Callable[[Units, Any], Cut]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    within: Literal["run", "checkpoint"]
    when: Callable[[Any], bool]


class Stages:
    """The stages of a study, declared on the functions that do the work, in their order.

    Example:
        >>> from types import SimpleNamespace
        >>> STAGES = Stages()
        >>> @STAGES.stage(lambda units, study: units.texts(), writes=("heads",))
        ... def measure(study, unit, run):
        ...     pass
        >>> @STAGES.stage(lambda units, study: units.once(), reads=("heads",), when=lambda study: study.nulls)
        ... def control(study, unit, run):
        ...     pass
        >>> study = SimpleNamespace(nulls=False)
        >>> [(stage.name, stage.writes) for stage in STAGES.of(study, Units())]
        [('measure', ('heads',))]
    """

    def __init__(self) -> None:
        self.declared: dict[str, Declared] = {}

    def stage(
        self,
        units: Callable[[Units, Any], Cut],
        *,
        name: str = "",
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        within: Literal["run", "checkpoint"] = "run",
        when: Callable[[Any], bool] = lambda study: True,
    ) -> Callable[[StageFunction], StageFunction]:
        """Return a decorator that declares a function as a stage.

        Args:
            units: from `Units` and the study to that along which the stage is cut.
            name: of the stage; "" takes that of the function.
            reads: tables and reductions of earlier stages that it may read. Those that only a stage writes
                which takes no part are left out.
            writes: tables that it may write.
            within: as that of a `Stage`.
            when: from the study to whether the stage takes part.

        Raises:
            ValueError: two stages of one name.
        """

        def declare(function: StageFunction) -> StageFunction:
            title = name or function.__name__
            if title in self.declared:
                raise ValueError(f"Stages.stage: two stages are called {title!r}")
            self.declared[title] = Declared(function, units, tuple(reads), tuple(writes), within, when)
            return function

        return declare

    def of(self, study: Any, units: Units) -> list[Stage]:
        """Return the stages of a study that take part.

        Args:
            study: whose functions take it first.
            units: by which the stages are cut.
        """
        taking_part = {name: stage for name, stage in self.declared.items() if stage.when(study)}
        absent = {table for stage in self.declared.values() for table in stage.writes}
        absent -= {table for stage in taking_part.values() for table in stage.writes}
        return [
            Stage(
                name,
                stage.units(units, study),
                partial(stage.function, study),
                tuple(table for table in stage.reads if table not in absent),
                stage.writes,
                stage.within,
            )
            for name, stage in taking_part.items()
        ]


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
