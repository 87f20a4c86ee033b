# SPDX-License-Identifier: MIT
"""One process does the units one after the other, in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attnscope.engine.executors.executor import Executor, Outcome
from attnscope.models import LoadError

if TYPE_CHECKING:
    from attnscope.engine.run import Engine
    from attnscope.engine.units import Unit


class Local(Executor):
    """The executor of one process.

    Args:
        only: asked of each unit when its turn comes, whether this process does it; None does all.
    """

    def __init__(self, only: Callable[[Unit], bool] | None = None) -> None:
        self.only = only

    def outcomes(self, engine: Engine) -> Iterator[Outcome]:
        """Every unit that is wanted, when it is done; a checkpoint is let go after its last unit."""
        units = engine.plan.units
        last = {one: unit for unit in units for one in (unit.checkpoint, unit.other) if one}
        for unit in units:
            if engine.stopping():
                return
            if (self.only is None or self.only(unit)) and engine.wanted(unit):
                engine.show(unit.title)
                yield _done(engine, unit)
            if unit.checkpoint is not None and unit is last[unit.checkpoint]:
                engine.release(remove=engine.settings.models[unit.source].free_disk)


def _done(engine: Engine, unit: Unit) -> Outcome:
    try:
        return Outcome(unit, engine.work(unit))
    except LoadError as error:
        return Outcome(unit, skipped=str(error))
