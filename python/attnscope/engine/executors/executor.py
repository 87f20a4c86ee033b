# SPDX-License-Identifier: MIT
"""What an executor is: it does units of a plan in any order that their reads allow, and says what came of it.

The engine plans, asks the executor, and stores what comes back; tables are written in the order of the plan,
so that they are the same whoever did which unit when.

Example:
    >>> from attnscope.engine.executors.executor import Tally
    >>> tally = Tally(units=1)
    >>> tally.add({"units": 2, "unit_seconds": 0.5, "undefined": {"fiedler_value": 3}})
    >>> tally.units, tally.unit_seconds, tally.undefined["fiedler_value"]
    (3, 0.5, 3)
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope._warn import NonFiniteWarning, NotAttentionWarning, collect_warnings
from attnscope.models import LoadError

if TYPE_CHECKING:
    from attnscope.engine.run import Engine
    from attnscope.engine.units import Unit


class UnitsFailed(RuntimeError):
    """Units were tried as often as allowed and given up; the message names them, all others are stored."""


@dataclass
class Tally:
    """Counts over a run that provenance and report tell."""

    units: int = 0
    forward_seconds: float = 0.0
    metric_seconds: float = 0.0
    unit_seconds: float = 0.0
    non_finite: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Gathers the metrics' warnings on maps without a value: a count per run, not a line per layer."""
        with collect_warnings() as found:
            yield
        for one in found:
            # captured rows are a softmax; with a learned sink they sum to less
            if not isinstance(one, NotAttentionWarning):
                tally = self.non_finite if isinstance(one, NonFiniteWarning) else self.undefined
                tally[one.function] += one.count

    def add(self, other: Mapping[str, Any]) -> None:
        """Adds what another process has counted, as plain data."""
        for name, value in other.items():
            if isinstance(value, Mapping):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Outcome:
    """What became of a unit; one of the first three says it.

    Attributes:
        unit: of the plan.
        tables: what it wrote, to be stored.
        skipped: the reason for which its checkpoint cannot be used anywhere.
        failed: the reason for which it is given up.
        machine: name of the host that did it.
    """

    unit: Unit
    tables: Mapping[str, Any] | None = None
    skipped: str = ""
    failed: str = ""
    machine: str = field(default_factory=socket.gethostname)


class Executor:
    """Does the units that an engine wants done."""

    def connect(self) -> None:
        """Reaches whoever does the units, before anything is planned; ConfigError where nobody answers."""

    def check(self, engine: Engine) -> None:
        """Raises ConfigError where the units cannot be done there, before anything is written."""

    def close(self) -> None:
        """Lets go of whoever was reached."""

    def outcomes(self, engine: Engine) -> Iterator[Outcome | None]:
        """What became of each unit, when it is known; None while nothing new is.

        The engine stores a unit before it asks for the next. An executor hands out a unit when the engine
        wants it (`engine.wanted`) and all that it reads is stored or skipped (`engine.ready`), hands out
        nothing more once `engine.stopping()`, and ends when all that was begun is through.
        """
        raise NotImplementedError(f"{type(self).__name__}.outcomes")


class Local(Executor):
    """One process does the units one after the other, in the order of the plan.

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
                try:
                    outcome = Outcome(unit, engine.work(unit))
                except LoadError as error:
                    outcome = Outcome(unit, skipped=str(error))
                yield outcome
            if unit.checkpoint is not None and unit is last[unit.checkpoint]:
                engine.release(remove=engine.settings.models[unit.source].free_disk)
