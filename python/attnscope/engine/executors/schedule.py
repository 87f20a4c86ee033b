# SPDX-License-Identifier: MIT
"""Which worker gets which unit next: a worker keeps its checkpoint, and long checkpoints are divided.

A phase of the plan begins when the one before is through. A unit that a worker could not finish goes to
whoever is free, `ATTEMPTS` times at most; a checkpoint that one node cannot load is tried on every other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from attnscope.engine.executors.executor import Outcome, RunState

if TYPE_CHECKING:
    from attnscope.study_api.units import Unit

#: How often a unit is begun before it is given up.
ATTEMPTS = 3


class Schedule:
    """The units of a run that are not done yet."""

    def __init__(self, engine: RunState) -> None:
        self._engine = engine
        self._phases = sorted(set(engine.plan.phases.values()))
        self._groups: dict[Any, deque[Unit]] = {}
        self._attempts: Counter[str] = Counter()
        self._refused: dict[Any, dict[str, str]] = {}
        self._given_up: set[str] = set()
        #: The unit that each worker has at hand, and what it holds in memory.
        self.at_work: dict[Any, Unit] = {}
        self._holds: dict[Any, Any] = {}

    @property
    def finished(self) -> bool:
        """Whether nothing is left to hand out or to wait for; looks for the next phase first."""
        while not self.at_work and not self._groups and self._phases and not self._given_up:
            phase = self._phases.pop(0)
            for unit in self._engine.plan.units:
                if self._engine.plan.phases[unit.stage] == phase and self._engine.wanted(unit):
                    self._groups.setdefault(unit.model, deque()).append(unit)
        return not self.at_work and not self._groups

    @property
    def left(self) -> bool:
        """Whether units of this phase are still to be handed out."""
        return bool(self._groups)

    def next(self, worker: Any, node: str) -> Unit | None:
        """A unit for a free worker, None where there is none for it now."""
        if self.finished:
            return None
        for key in self._order(worker):
            group = self._groups[key]
            while group and self._engine.ready(group[0]) and not self._engine.wanted(group[0]):
                group.popleft()
            if not group:
                del self._groups[key]
            elif node not in self._refused.get(group[0].checkpoint, ()) and self._engine.ready(group[0]):
                self.at_work[worker] = group.popleft()
                self._holds[worker] = key
                if not group:
                    del self._groups[key]
                return self.at_work[worker]
        return None

    def done(self, worker: Any) -> Unit:
        """The unit that a worker has finished."""
        return self.at_work.pop(worker)

    def gone(self, worker: Any) -> None:
        """Forgets what a worker held."""
        self._holds.pop(worker, None)

    def again(self, unit: Unit, reason: str) -> Outcome | None:
        """A unit that was begun and not finished: the outcome where it is given up."""
        self._attempts[unit.id] += 1
        if self._attempts[unit.id] < ATTEMPTS:
            self._back(unit)
            return None
        self._give_up(unit)
        return Outcome(unit, failed=f"{reason}, at attempt {ATTEMPTS} of {ATTEMPTS}")

    def refused(self, unit: Unit, node: str, reason: str, nodes: Collection[str]) -> Outcome | None:
        """A unit whose checkpoint a node cannot load: the outcome where no node is left to try."""
        refused = self._refused.setdefault(unit.checkpoint, {})
        refused[node] = reason
        if set(nodes) <= set(refused):
            return Outcome(unit, skipped=reason)
        self._back(unit)
        return None

    def stranded(self, nodes: Collection[str]) -> Iterator[Outcome]:
        """Checkpoints that none of the nodes that are left can load."""
        for group in list(self._groups.values()):
            refused = self._refused.get(group[0].checkpoint, {})
            if refused and set(nodes) <= set(refused):
                yield Outcome(group[0], skipped=next(reversed(refused.values())))

    def _give_up(self, unit: Unit) -> None:
        """Leaves out what reads a unit that there will not be; later phases do not begin."""
        self._given_up.add(unit.id)
        for key, group in list(self._groups.items()):
            kept: deque[Unit] = deque()
            for one in group:
                if any(read.id in self._given_up for read in self._engine.plan.reads(one)):
                    self._given_up.add(one.id)
                else:
                    kept.append(one)
            self._groups[key] = kept
            if not kept:
                del self._groups[key]

    def _back(self, unit: Unit) -> None:
        self._groups.setdefault(unit.model, deque()).appendleft(unit)

    def _order(self, worker: Any) -> list[Any]:
        """What a worker holds, then what nobody holds, then the longest."""
        held = set(self._holds.values())
        mine = self._holds.get(worker)
        free = [key for key in self._groups if key not in held]
        rest = sorted((key for key in self._groups if key in held), key=lambda key: -len(self._groups[key]))
        return [*([mine] if mine in self._groups else []), *free, *(key for key in rest if key != mine)]
