# SPDX-License-Identifier: MIT
"""A process of a cluster that does units for a driver elsewhere.

It is given the study's YAML, the checkpoints that the driver found, and numbers of units, all of it text and
numbers; it makes the plan for itself from the texts and models that it can read. It runs the
packages that are installed on its machine.
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

from attnscope.config.run_config import RunConfig
from attnscope.engine.engine import Engine
from attnscope.engine.prepared_run import prepare
from attnscope.engine.provenance import machine
from attnscope.errors import ConfigError
from attnscope.models import Checkpoint, LoadError
from attnscope.models.checkpoints import fingerprint
from attnscope.study_api.plan import CheckpointsByModel
from attnscope.study_api.units import Unit
from attnscope.untrusted.documents import parse_yaml


def checkpoints_to_json(checkpoints: CheckpointsByModel) -> str:
    """Return the checkpoints of a plan as JSON.

    >>> place = Checkpoint("m", "step2", 2, "/models/step2", True)
    >>> checkpoints_from_json(checkpoints_to_json({0: [(place, "abc")]})) == {0: [(place, "abc")]}
    True
    """
    pairs_by_model = (
        [model, [[asdict(checkpoint), weights] for checkpoint, weights in pairs]]
        for model, pairs in checkpoints.items()
    )
    return json.dumps(list(pairs_by_model))


def checkpoints_from_json(text: str) -> CheckpointsByModel:
    """Return the checkpoints that `checkpoints_to_json` wrote."""
    return {
        model: [(Checkpoint(**fields), weights) for fields, weights in pairs]
        for model, pairs in json.loads(text)
    }


class Worker:
    """A process that computes units of one study.

    Args:
        study: the settings as YAML.
        checkpoints: the driver's, from `checkpoints_to_json`.
        threads: of torch and of the kernels.
    """

    def __init__(self, study: str, checkpoints: str, threads: int) -> None:
        self._study, self._checkpoints = study, checkpoints_from_json(checkpoints)
        self._verified: set[Checkpoint] = set()
        torch.set_num_threads(threads)

    def begin(self) -> dict[str, Any]:
        """Make the plan.

        Returns:
            facts of this machine, and the plan's digest or the error instead.
        """
        introduction = {"machine": machine(), "process": os.getpid(), "plan": "", "error": ""}
        try:
            settings = RunConfig(**parse_yaml(self._study))
            self._scratch = tempfile.TemporaryDirectory(prefix="attnscope-")
            folder = Path(self._scratch.name)
            prepared = prepare(settings, folder=folder, checkpoints=self._checkpoints)
            plan = prepared.plan
            self._engine = Engine(prepared, progress=False, say=lambda text: None)
            self._engine.store.open({unit.id: unit.folder for unit in plan.units})
            introduction["plan"] = plan.digest
        except (ConfigError, LoadError, OSError) as error:
            introduction["error"] = str(error)
        return introduction

    def fetch(self, reads: Any) -> Any:
        """Return the tables that a value of the argument `reads` of `do` stands for."""
        return reads

    def do(self, number: int, skipped: Sequence[tuple[str, str]], reads: Mapping[int, Any]) -> dict[str, Any]:
        """Compute one unit.

        Args:
            number: of the unit in the plan.
            skipped: title and reason of the checkpoints that the run skips.
            reads: what the unit reads and this worker does not have yet, by the number of the unit it is of.

        Returns:
            `tables`, `tally` and `notes`, or the reason why a checkpoint cannot be loaded here as `skipped`.
        """
        engine = self._engine
        units = engine.plan.units
        for place, tables in reads.items():
            if units[place].id not in engine.store:
                engine.store.write(units[place].id, self.fetch(tables))
        engine.plan.skipped[:] = [(title, reason) for title, reason in skipped]
        try:
            self._verify(units[number])
            outcome = engine.work(units[number])
        except LoadError as error:
            return {"skipped": str(error)}
        return {"tables": outcome.tables, "tally": outcome.tally, "notes": outcome.notes}

    def end(self) -> None:
        """Remove the tables that were fetched."""
        self._scratch.cleanup()

    def _verify(self, unit: Unit) -> None:
        """Raise LoadError if this machine has other files than the driver."""
        weights = {
            checkpoint: (digest, len(series))
            for series in self._checkpoints.values()
            for checkpoint, digest in series
        }
        for checkpoint in (unit.checkpoint, unit.other):
            if checkpoint is None or checkpoint in self._verified or not checkpoint.local:
                continue
            title, path, host = checkpoint.title, checkpoint.path, socket.gethostname()
            if not Path(path).is_dir():
                raise LoadError(f"{title}: there is no folder {path} on {host}")
            digest, series = weights[checkpoint]
            if fingerprint(checkpoint, series) != digest:
                raise LoadError(f"{title}: in {path} on {host} lie other weights than the driver found")
            self._verified.add(checkpoint)


class RemoteWorker(Worker):
    """A worker whose reads come through the object store."""

    def begin(self) -> dict[str, Any]:
        """Make the plan; return facts of this machine and its node in the cluster."""
        import ray

        return {**super().begin(), "node": ray.get_runtime_context().get_node_id()}

    def fetch(self, reads: Any) -> Any:
        """Return the tables of a unit that the driver has put into the object store."""
        import ray

        return ray.get(reads)
