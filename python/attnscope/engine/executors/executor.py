# SPDX-License-Identifier: MIT
"""The interface of an executor: it executes units of a plan in any order that their reads allow.

The engine plans, asks the executor, and stores what comes back; tables are written in the order of the plan,
so that they are the same whoever did which unit when.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnscope.config.run_config import RunConfig
from attnscope.models import LoadError
from attnscope.results.store import Store
from attnscope.study_api.plan import Plan
from attnscope.study_api.units import Unit


@dataclass(frozen=True)
class Outcome:
    """Result of a unit: exactly one of `tables`, `skipped`, `failed` is set.

    Attributes:
        unit: of the plan.
        tables: what it wrote, to be stored.
        skipped: the reason for which its checkpoint cannot be used anywhere.
        failed: the reason for which it is given up.
        machine: name of the host that did it.
        tally: what was counted meanwhile, as plain data.
        notes: sentences for the user.
    """

    unit: Unit
    tables: Mapping[str, Any] | None = None
    skipped: str = ""
    failed: str = ""
    machine: str = field(default_factory=socket.gethostname)
    tally: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


class RunState(Protocol):
    """The part of the engine that an executor can see.

    Attributes:
        settings: of the run.
        plan: its units.
        store: the units that are stored.
        say: shows a line to the user.
        stopping: True once the run was asked to stop.
        machines: facts of each host that did units.
    """

    settings: RunConfig
    plan: Plan
    store: Store
    say: Callable[[str], None]
    stopping: Callable[[], bool]
    machines: dict[str, dict[str, Any]]

    def is_pending(self, unit: Unit) -> bool:
        """Return True if a unit is still to be done."""

    def is_ready(self, unit: Unit) -> bool:
        """Return True if all that a unit reads is stored, or never will be."""

    def counts(self, unit: Unit) -> bool:
        """Return True if a unit is stored and its rows belong to the run."""

    def show(self, text: str) -> None:
        """Write a text behind the progress bar."""

    def work(self, unit: Unit) -> Outcome:
        """Compute a unit in this process."""

    def release(self, *, remove: bool = False) -> None:
        """Let the model in memory go, and with `remove` its files in the hub's cache."""


class Executor:
    """The processes that compute the units of a run: a context that is connected to its workers."""

    def __enter__(self) -> Executor:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect to the workers, before anything is planned; ConfigError if none answers."""

    def check(self, engine: RunState) -> None:
        """Raise ConfigError if the units cannot be computed there, before anything is written."""

    def close(self) -> None:
        """Disconnect from the workers."""

    def outcomes(self, engine: RunState) -> Iterator[Outcome | None]:
        """Yield the outcome of each unit, when it is known; None while nothing is new.

        The engine stores a unit before it asks for the next. An executor hands out a unit when the engine
        still needs it (`engine.is_pending`) and all that it reads is stored or skipped (`engine.is_ready`).
        Once `engine.stopping()` it hands out no more, and ends when the units at work are finished.
        """
        raise NotImplementedError(f"{type(self).__name__}.outcomes")


class LocalExecutor(Executor):
    """This process, which computes the units one after the other in the order of the plan.

    Args:
        only: asked of each unit when its turn comes, whether this process does it; None does all.
        skipping: errors that leave a checkpoint out.
    """

    def __init__(
        self,
        only: Callable[[Unit], bool] | None = None,
        skipping: tuple[type[Exception], ...] = (LoadError,),
    ) -> None:
        self.only, self.skipping = only, skipping

    def outcomes(self, engine: RunState) -> Iterator[Outcome]:
        """Yield the outcome of each pending unit; a checkpoint is released after its last unit."""
        units = engine.plan.units
        last = {
            checkpoint: unit for unit in units for checkpoint in (unit.checkpoint, unit.other) if checkpoint
        }
        for unit in units:
            if engine.stopping():
                return
            if (self.only is None or self.only(unit)) and engine.is_pending(unit):
                engine.show(unit.title)
                try:
                    outcome = engine.work(unit)
                except self.skipping as error:
                    if unit.checkpoint is None:  # no checkpoint that could be left out
                        raise
                    outcome = Outcome(unit, skipped=str(error))
                yield outcome
            if unit.checkpoint is not None and unit is last[unit.checkpoint]:
                engine.release(remove=engine.settings.models[unit.source].free_disk)
