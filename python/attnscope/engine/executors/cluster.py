# SPDX-License-Identifier: MIT
"""A Ray cluster does the units: one actor holds one model, results come back as Arrow tables.

Ray is given no code of ours and no pickled function: workers import `Worker` from the attnscope that is
installed where they run, and get the study's YAML and numbers of units.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnscope.config.run_config import RunConfig
from attnscope.engine.executors.executor import Executor, Outcome, RunState
from attnscope.engine.executors.schedule import ATTEMPTS, Schedule
from attnscope.engine.executors.shards import refuse_free_disk
from attnscope.engine.executors.worker import checkpoints_to_json
from attnscope.engine.model_cache import needed_bytes
from attnscope.engine.provenance import incompatibility, machine
from attnscope.errors import ConfigError, UnitsFailed
from attnscope.study_api.plan import megabytes
from attnscope.study_api.units import Unit

#: Seconds within which a cluster must answer, and between two looks at who is done.
ANSWER, LOOK = 5.0, 0.5
#: Seconds without a worker after which a person is asked for patience.
PATIENCE = 30.0


@dataclass(eq=False)
class _Remote:
    """A worker as the driver sees it."""

    actor: Any
    node: str = ""
    name: str = "a worker that has not started"
    host: str = ""
    gpu: bool = False
    has: set[str] = field(default_factory=set)


class Cluster(Executor):
    """The executor of a Ray cluster.

    Args:
        address: `auto` (the cluster of this machine), `local` (one is started for the run), `HOST:PORT` or
            `ray://HOST:PORT`.

    Raises:
        ConfigError: when a run begins: not an address, Ray is not installed, no cluster answers, or none of
            its nodes can take a worker.

    Example:
        >>> from attnscope.engine.executors.cluster import Cluster
        >>> Cluster("ray://head:10001").address
        'ray://head:10001'
    """

    def __init__(self, address: str = "auto") -> None:
        self.address = address
        self._ray: Any = None
        self._ours = False
        self._asks_for_token = False

    def connect(self) -> None:
        """Reach the cluster; one that is started for the run answers only who knows its token."""
        # Ray's processes listen on every interface, and older versions ask for no token unless they are told
        self._asks_for_token = self.address == "local" and "RAY_AUTH_MODE" not in os.environ
        if self._asks_for_token:
            os.environ["RAY_AUTH_MODE"] = "token"
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        try:
            import ray
            from ray.job_config import JobConfig
        except ImportError as error:
            raise ConfigError(f"--ray needs Ray ({error}): pip install 'attnscope[ray]'") from None
        self._ray = ray
        if ray.is_initialized():
            return
        _knock(self.address)
        options: dict[str, Any] = {}
        if not self.address.startswith("ray://"):
            # with a search path Ray has workers import what they run by its name, and exports no class
            options["job_config"] = JobConfig(code_search_path=[str(Path(__file__).parents[3])])
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options["include_dashboard"] = False
        try:
            ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"--ray {self.address}: {' '.join(str(error).split())[:300]}") from None
        self._ours = True

    def check(self, engine: RunState) -> None:
        """Raise ConfigError if no node can take a worker."""
        refuse_free_disk(engine.settings)
        needs = self._needs(engine)
        if not self._count(needs):
            largest = max(
                (dict(node) for node in self._nodes()), key=lambda node: node.get("memory", 0.0), default={}
            )
            available = _describe_resources({key: largest.get(key, 0.0) for key in needs})
            raise ConfigError(
                f"--ray {self.address}: one worker of this study needs {_describe_resources(needs)}, and no "
                f"node of the cluster has that; the largest has {available}. "
                "workers.cpus, workers.gpus and max_memory say what a worker takes"
            )

    def outcomes(self, engine: RunState) -> Iterator[Outcome | None]:
        """Yield the outcome of each unit, as workers finish them."""
        needs = self._needs(engine)
        yield from _Driver(self._ray, engine, needs, self._count(needs)).outcomes()

    def close(self) -> None:
        """Leave the cluster, unless somebody else had joined it; end one that was started for the run."""
        if self._ours:
            self._ours = False
            self._ray.shutdown()
        if self._asks_for_token:
            self._asks_for_token = False
            os.environ.pop("RAY_AUTH_MODE", None)

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _count(self, needs: dict[str, float]) -> int:
        """Return how many workers the nodes have room for."""
        fits = [min(int(node.get(key, 0.0) / need) for key, need in needs.items()) for node in self._nodes()]
        return sum(fits)

    def _needs(self, engine: RunState) -> dict[str, float]:
        """Return the resources of one worker: processors, GPUs, memory for the largest checkpoint."""
        settings = engine.settings
        gpus = settings.workers.gpus
        if gpus is None:
            has_gpus = any(node.get("GPU") for node in self._nodes())
            uses_gpus = any(source.device != "cpu" for source in settings.models)
            gpus = 1.0 if has_gpus and uses_gpus else 0.0
        needs = {"CPU": float(_threads(settings)), "GPU": gpus, "memory": float(needed_bytes(engine.plan))}
        return {key: need for key, need in needs.items() if need}


class _Driver:
    """The loop that hands units to workers and collects their results."""

    def __init__(self, ray: Any, engine: RunState, needs: dict[str, float], count: int) -> None:
        self._ray, self._engine = ray, engine
        self._schedule = Schedule(engine)
        self._numbers = {unit.id: number for number, unit in enumerate(engine.plan.units)}
        self._count = min(count, engine.settings.workers.most or count, len(engine.plan.units))
        self._driver_machine = machine()
        self._needs = needs
        self._pending: dict[Any, _Remote] = {}
        self._workers: list[_Remote] = []
        self._turned_away: list[str] = []
        self._lost_at_start = 0
        self._sent: dict[str, Any] = {}
        reads = {name for stage in engine.plan.stages.values() for name in stage.reads}
        self._tables = reads | {f"reduced-{name}" for name in reads}

    def outcomes(self) -> Iterator[Outcome | None]:
        """Yield outcomes until no unit is left, or no worker that could do one."""
        if self._schedule.finished:
            return
        for _ in range(self._count):
            self._start()
        began = time.monotonic()
        while not self._schedule.finished:
            if self._engine.stopping():
                if not self._schedule.at_work:
                    break
            else:
                self._hand_out()
            waited = time.monotonic() - began > PATIENCE and not self._schedule.at_work
            if not self._pending and not self._schedule.left:
                continue
            if not self._pending or (waited and self._workers):
                # no node of the workers can load the checkpoints that are left
                stranded = list(self._schedule.stranded({worker.node for worker in self._workers}))
                yield from stranded
                if not stranded and not self._pending:
                    raise UnitsFailed(f"no worker is left: {'; '.join(dict.fromkeys(self._turned_away))}")
                began = time.monotonic()
                continue
            done, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=LOOK)
            if done:
                began = time.monotonic()
                yield self._collect(done[0])
                continue
            if waited:
                began = time.monotonic()
                self._engine.say(
                    f"waiting for the cluster: no worker with {_describe_resources(self._needs)} yet"
                )
            yield None
        if ends := [worker.actor.end.remote() for worker in self._workers]:
            self._ray.wait(ends, num_returns=len(ends), timeout=ANSWER)

    def _start(self) -> None:
        """Start one more worker, as soon as the cluster has room for it."""
        from attnscope.engine.executors.worker import RemoteWorker

        needs = self._needs
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "memory": int(needs["memory"])}
        remote = self._ray.remote(max_restarts=0, max_task_retries=0)(RemoteWorker)
        actor = remote.options(**options, scheduling_strategy="SPREAD").remote(
            self._engine.settings.to_yaml(),
            checkpoints_to_json(self._engine.plan.checkpoints_by_model),
            _threads(self._engine.settings),
        )
        self._pending[actor.begin.remote()] = _Remote(actor)

    def _hand_out(self) -> None:
        """Give a unit to every worker that has none."""
        for worker in self._workers:
            if worker in self._schedule.at_work:
                continue
            unit = self._schedule.next(worker, worker.node)
            if unit is not None:
                reads = self._reads(worker, unit)
                answer = worker.actor.do.remote(self._numbers[unit.id], self._engine.plan.skipped, reads)
                self._pending[answer] = worker
                hosts = len({peer.host for peer in self._workers})
                self._engine.show(f"{len(self._workers)} workers on {hosts} hosts, {unit.title}")

    def _reads(self, worker: _Remote, unit: Unit) -> dict[int, Any]:
        """Return references to the tables that a unit reads and its worker lacks, by number of their unit."""
        store, references = self._engine.store, {}
        for read in self._engine.plan.reads(unit):
            if self._engine.counts(read) and read.id not in worker.has:
                if read.id not in self._sent:
                    names = self._tables & set(store.rows(read.id))
                    self._sent[read.id] = self._ray.put({name: store.read(read.id, name) for name in names})
                references[self._numbers[read.id]] = self._sent[read.id]
                worker.has.add(read.id)
        return references

    def _collect(self, reference: Any) -> Outcome | None:
        """Fetch a worker's result, or the reason it failed."""
        worker = self._pending.pop(reference)
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause if error.cause is not None else error
            return self._failed(worker, f"{type(cause).__name__}: {' '.join(str(cause).split())[-300:]}")
        except errors.RayError as error:
            return self._lost(worker, " ".join(str(error).split()))
        if worker not in self._schedule.at_work:
            self._welcome(worker, answer)
            return None
        unit = self._schedule.done(worker)
        if "skipped" in answer:
            # a worker that has not started yet may be where it can be loaded
            starting = {"" for peer in self._pending.values() if peer not in self._schedule.at_work}
            nodes = {peer.node for peer in self._workers} | starting
            return self._schedule.refused(unit, worker.node, answer["skipped"], nodes)
        return Outcome(
            unit, answer["tables"], machine=worker.host, tally=answer["tally"], notes=answer["notes"]
        )

    def _welcome(self, worker: _Remote, introduction: dict[str, Any]) -> None:
        """Accept a worker that has started, or refuse it."""
        facts = introduction["machine"]
        worker.host, worker.node = facts["host"], introduction["node"]
        worker.name = f"the worker on {worker.host} (process {introduction['process']})"
        reason = incompatibility(facts, self._driver_machine) or introduction["error"]
        if not reason and introduction["plan"] != self._engine.plan.digest:
            reason = "the texts or the models that it reads make another plan"
        if not reason and any(peer.gpu != bool(facts["cuda"]) for peer in self._workers):
            reason = f"it has {facts['cuda'] or 'no GPU'}, unlike the workers before it"
        if reason:
            self._turn_away(f"{worker.name} is refused: {reason}")
            self._ray.kill(worker.actor)
            return
        worker.gpu = bool(facts["cuda"])
        self._engine.machines[worker.host] = facts
        self._workers.append(worker)

    def _turn_away(self, words: str) -> None:
        self._turned_away.append(words)
        self._engine.say(words)

    def _failed(self, worker: _Remote, reason: str) -> Outcome | None:
        """Retry the unit in whose code a worker failed, or refuse a worker that failed at its start."""
        if worker not in self._schedule.at_work:
            self._turn_away(f"{worker.name}: {reason}")
            self._ray.kill(worker.actor)
            return None
        return self._retry(self._schedule.done(worker), f"{reason}, in {worker.name}")

    def _lost(self, worker: _Remote, reason: str) -> Outcome | None:
        """Replace a worker that died, and retry its unit."""
        at_work = worker in self._schedule.at_work
        unit = self._schedule.done(worker) if at_work else None
        self._schedule.drop_worker(worker)
        if worker in self._workers:
            self._workers.remove(worker)
        self._lost_at_start += unit is None
        if self._lost_at_start < ATTEMPTS:
            self._start()
        if unit is None:
            self._turn_away(f"{worker.name}: {reason[-300:]}")
            return None
        return self._retry(unit, f"{worker.name} died")

    def _retry(self, unit: Unit, reason: str) -> Outcome | None:
        outcome = self._schedule.retry(unit, reason)
        if outcome is None:
            self._engine.say(f"unit {unit.folder} ({unit.title}): {reason}; it is done again elsewhere")
        return outcome


def _knock(address: str) -> None:
    """Raise ConfigError if no cluster answers at an address; Ray itself would try for minutes."""
    from ray._private.services import get_ray_address_from_environment

    if address == "auto":
        address = get_ray_address_from_environment(address, None)
    if address in ("local", "auto", None):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"--ray: expected auto, local, HOST:PORT or ray://HOST:PORT, got {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as connection:
            # who speaks gRPC answers the greeting of HTTP/2 with its settings, a frame of type 4
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            speaks = connection.recv(9)[3:4] == b"\x04" or bool(os.environ.get("RAY_USE_TLS"))
    except OSError as error:
        raise ConfigError(f"--ray {address}: no cluster answers there ({error})") from None
    if not speaks:
        raise ConfigError(f"--ray {address}: what answers there is no Ray cluster")


def _threads(settings: RunConfig) -> int:
    return settings.workers.cpus or torch.get_num_threads()


def _describe_resources(needs: dict[str, float]) -> str:
    """Return resources in words."""
    return ", ".join(
        f"{megabytes(int(amount))} of memory" if key == "memory" else f"{amount:g} {key}"
        for key, amount in needs.items()
    )
