# SPDX-License-Identifier: MIT
"""A process of a cluster that does units for a driver elsewhere.

It is given the study's YAML, the checkpoints that the driver found, and numbers of units, all of it text and
numbers; it makes the plan for itself from the texts and models that it can read. What it runs is what is
installed where it runs.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnscope._documents import parse_yaml
from attnscope.config.run_config import Settings
from attnscope.engine.engine import Engine
from attnscope.engine.provenance import machine
from attnscope.errors import ConfigError
from attnscope.models import Checkpoint, LoadError
from attnscope.models.checkpoints import fingerprint
from attnscope.study_api.plan import CheckpointsByModel
from attnscope.study_api.tally import Tally
from attnscope.study_api.units import Unit


def as_text(found: CheckpointsByModel) -> str:
    """The checkpoints of a plan as JSON.

    >>> place = Checkpoint("m", "step2", 2, "/models/step2", True)
    >>> as_found(as_text({0: [(place, "abc")]})) == {0: [(place, "abc")]}
    True
    """
    return json.dumps([[at, [[asdict(one), weights] for one, weights in own]] for at, own in found.items()])


def as_found(text: str) -> CheckpointsByModel:
    """The checkpoints that `as_text` wrote."""
    return {at: [(Checkpoint(**one), weights) for one, weights in own] for at, own in json.loads(text)}


class Worker:
    """Does units of one study.

    Args:
        study: the settings as YAML.
        found: the driver's checkpoints, from `as_text`.
        threads: of torch and of the kernels.
    """

    def __init__(self, study: str, found: str, threads: int) -> None:
        self._study, self._found = study, as_found(found)
        self._verified: set[Checkpoint] = set()
        torch.set_num_threads(threads)

    def begin(self) -> dict[str, Any]:
        """Makes the plan.

        Returns:
            what this machine is, and the plan's digest or the error that there is none.
        """
        about = {"machine": machine(), "process": os.getpid(), "plan": "", "error": ""}
        try:
            settings = Settings(**parse_yaml(self._study))
            self._scratch = tempfile.TemporaryDirectory(prefix="attnscope-")
            folder = Path(self._scratch.name)
            self._engine = Engine(settings, progress=False, say=lambda text: None, folder=folder)
            plan = self._engine.prepare(self._found)
            self._engine.store.open({unit.id: unit.folder for unit in plan.units})
            about["plan"] = plan.digest
        except (ConfigError, LoadError, OSError) as error:
            about["error"] = str(error)
        return about

    def fetch(self, reads: Any) -> Any:
        """The tables that a value of `do`'s reads stands for."""
        return reads

    def do(self, number: int, skipped: Sequence[tuple[str, str]], reads: Mapping[int, Any]) -> dict[str, Any]:
        """Does one unit.

        Args:
            number: of the unit in the plan.
            skipped: title and reason of the checkpoints that the run skips.
            reads: what the unit reads and this worker does not have yet, by the number of the unit it is of.

        Returns:
            `tables`, or the reason why a checkpoint cannot be loaded here as `skipped`; counts and notes.
        """
        engine = self._engine
        units = engine.plan.units
        for at, tables in reads.items():
            if units[at].id not in engine.store:
                engine.store.write(units[at].id, self.fetch(tables))
        engine.plan.skipped[:] = [(title, reason) for title, reason in skipped]
        engine.tally, engine.notes = Tally(), []
        try:
            self._verify(units[number])
            answer: dict[str, Any] = {"tables": engine.work(units[number])}
        except LoadError as error:
            answer = {"skipped": str(error)}
        tally = {key: dict(one) if isinstance(one, dict) else one for key, one in vars(engine.tally).items()}
        return {**answer, "tally": tally, "notes": engine.notes}

    def end(self) -> None:
        """Removes what was fetched."""
        self._scratch.cleanup()

    def _verify(self, unit: Unit) -> None:
        """Raises LoadError where other files lie here than the driver found."""
        weights = dict(pair for own in self._found.values() for pair in own)
        for one in (unit.checkpoint, unit.other):
            if one is None or one in self._verified or not one.local:
                continue
            if not Path(one.path).is_dir():
                raise LoadError(f"{one.title}: there is no folder {one.path} on {socket.gethostname()}")
            if fingerprint(one) != weights[one]:
                where = f"{one.path} on {socket.gethostname()}"
                raise LoadError(f"{one.title}: in {where} lie other weights than the driver found")
            self._verified.add(one)


class RemoteWorker(Worker):
    """A worker whose reads come through the object store."""

    def begin(self) -> dict[str, Any]:
        """Makes the plan; says what this machine is, and which node of the cluster."""
        import ray

        return {**super().begin(), "node": ray.get_runtime_context().get_node_id()}

    def fetch(self, reads: Any) -> Any:
        """The tables of a unit that the driver has put there."""
        import ray

        return ray.get(reads)
