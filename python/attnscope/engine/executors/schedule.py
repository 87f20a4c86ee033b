# SPDX-License-Identifier: MIT
"""Assignment of units to workers: a worker keeps its checkpoint, and long checkpoints are divided.

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
        """True if nothing is left to hand out or to wait for; the next phase is begun first."""
        while not self.at_work and not self._groups and self._phases and not self._given_up:
            phase = self._phases.pop(0)
            for unit in self._engine.plan.units:
                if self._engine.plan.phases[unit.stage] == phase and self._engine.is_pending(unit):
                    self._groups.setdefault(unit.model, deque()).append(unit)
        return not self.at_work and not self._groups

    @property
    def left(self) -> bool:
        """True if units of this phase are still to be handed out."""
        return bool(self._groups)

    def next(self, worker: Any, node: str) -> Unit | None:
        """Return a unit for a free worker, None if there is none for it now."""
        if self.finished:
            return None
        for key in self._order(worker):
            group = self._groups[key]
            while group and self._engine.is_ready(group[0]) and not self._engine.is_pending(group[0]):
                group.popleft()
            if not group:
                del self._groups[key]
            elif node not in self._refused.get(group[0].checkpoint, ()) and self._engine.is_ready(group[0]):
                self.at_work[worker] = group.popleft()
                self._holds[worker] = key
                if not group:
                    del self._groups[key]
                return self.at_work[worker]
        return None

    def done(self, worker: Any) -> Unit:
        """Return the unit that a worker has finished, and forget that it was at work."""
        return self.at_work.pop(worker)

    def drop_worker(self, worker: Any) -> None:
        """Forget which checkpoint a worker held."""
        self._holds.pop(worker, None)

    def retry(self, unit: Unit, reason: str) -> Outcome | None:
        """Queue a unit again that was not finished; return its outcome if it was tried often enough."""
        self._attempts[unit.id] += 1
        if self._attempts[unit.id] < ATTEMPTS:
            self._requeue(unit)
            return None
        self._give_up(unit)
        return Outcome(unit, failed=f"{reason}, at attempt {ATTEMPTS} of {ATTEMPTS}")

    def refused(self, unit: Unit, node: str, reason: str, nodes: Collection[str]) -> Outcome | None:
        """Queue a unit for another node than one that cannot load it; return its outcome if none is left."""
        refused = self._refused.setdefault(unit.checkpoint, {})
        refused[node] = reason
        if set(nodes) <= set(refused):
            return Outcome(unit, skipped=reason)
        self._requeue(unit)
        return None

    def stranded(self, nodes: Collection[str]) -> Iterator[Outcome]:
        """Yield outcomes of units whose checkpoints none of these nodes can load."""
        for group in list(self._groups.values()):
            refused = self._refused.get(group[0].checkpoint, {})
            if refused and set(nodes) <= set(refused) and self._engine.is_pending(group[0]):
                yield Outcome(group[0], skipped=next(reversed(refused.values())))

    def _give_up(self, unit: Unit) -> None:
        """Remove the units that read a failed unit; later phases do not begin."""
        self._given_up.add(unit.id)
        for key, group in list(self._groups.items()):
            possible: deque[Unit] = deque()
            for reader in group:
                if any(read.id in self._given_up for read in self._engine.plan.reads(reader)):
                    self._given_up.add(reader.id)
                else:
                    possible.append(reader)
            self._groups[key] = possible
            if not possible:
                del self._groups[key]

    def _requeue(self, unit: Unit) -> None:
        self._groups.setdefault(unit.model, deque()).appendleft(unit)

    def _order(self, worker: Any) -> list[Any]:
        """Return models in the order of a worker: the one it holds, those nobody holds, longest queues."""
        held = set(self._holds.values())
        loaded = self._holds.get(worker)
        free = [key for key in self._groups if key not in held]
        rest = sorted((key for key in self._groups if key in held), key=lambda key: -len(self._groups[key]))
        return [*([loaded] if loaded in self._groups else []), *free, *(key for key in rest if key != loaded)]
