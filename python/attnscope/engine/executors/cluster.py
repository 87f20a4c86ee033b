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

from attnscope.config.run_config import Settings
from attnscope.engine.executors.executor import Executor, Outcome, RunState
from attnscope.engine.executors.schedule import ATTEMPTS, Schedule
from attnscope.engine.executors.shards import refuse_free_disk
from attnscope.engine.executors.worker import as_text
from attnscope.engine.model_cache import needed_bytes
from attnscope.engine.provenance import machine, other_numbers
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
        """Whether a node can take a worker."""
        refuse_free_disk(engine.settings)
        needs = self._needs(engine)
        if not self._count(needs):
            whole = max(
                (dict(one) for one in self._nodes()), key=lambda one: one.get("memory", 0.0), default={}
            )
            raise ConfigError(
                f"--ray {self.address}: one worker of this study needs {_words(needs)}, and no node of the "
                f"cluster has that; the largest has {_words({key: whole.get(key, 0.0) for key in needs})}. "
                "workers.cpus, workers.gpus and max_memory say what a worker takes"
            )

    def outcomes(self, engine: RunState) -> Iterator[Outcome | None]:
        """What became of each unit, as the workers come through."""
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
        """How many workers fit."""
        fits = [min(int(node.get(key, 0.0) / need) for key, need in needs.items()) for node in self._nodes()]
        return sum(fits)

    def _needs(self, engine: RunState) -> dict[str, float]:
        """What one worker takes: processors, GPUs, memory for the largest checkpoint and its measuring."""
        settings = engine.settings
        gpus = settings.workers.gpus
        if gpus is None:
            there = any(node.get("GPU") for node in self._nodes())
            gpus = 1.0 if there and any(one.device != "cpu" for one in settings.models) else 0.0
        needs = {"CPU": float(_threads(settings)), "GPU": gpus, "memory": float(needed_bytes(engine.plan))}
        return {key: need for key, need in needs.items() if need}


class _Driver:
    """Hands units to workers and takes what they bring."""

    def __init__(self, ray: Any, engine: RunState, needs: dict[str, float], count: int) -> None:
        self._ray, self._engine = ray, engine
        self._schedule = Schedule(engine)
        self._place = {unit.id: at for at, unit in enumerate(engine.plan.units)}
        self._count = min(count, engine.settings.workers.most or count, len(engine.plan.units))
        self._own = machine()
        self._needs = needs
        self._pending: dict[Any, _Remote] = {}
        self._workers: list[_Remote] = []
        self._turned_away: list[str] = []
        self._lost_at_start = 0
        self._sent: dict[str, Any] = {}
        reads = {name for stage in engine.plan.stages.values() for name in stage.reads}
        self._tables = reads | {f"reduced-{name}" for name in reads}

    def outcomes(self) -> Iterator[Outcome | None]:
        """Until nothing is left, or nobody is left to do it."""
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
                # what is left, nobody who is there can load
                stranded = list(self._schedule.stranded({one.node for one in self._workers}))
                yield from stranded
                if not stranded and not self._pending:
                    raise UnitsFailed(f"no worker is left: {'; '.join(dict.fromkeys(self._turned_away))}")
                began = time.monotonic()
                continue
            done, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=LOOK)
            if done:
                began = time.monotonic()
                yield self._through(done[0])
                continue
            if waited:
                began = time.monotonic()
                self._engine.say(f"waiting for the cluster: no worker with {_words(self._needs)} yet")
            yield None
        if ends := [worker.actor.end.remote() for worker in self._workers]:
            self._ray.wait(ends, num_returns=len(ends), timeout=ANSWER)

    def _start(self) -> None:
        """One more worker, where the cluster has room for it."""
        from attnscope.engine.executors.worker import RemoteWorker

        needs = self._needs
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "memory": int(needs["memory"])}
        remote = self._ray.remote(max_restarts=0, max_task_retries=0)(RemoteWorker)
        actor = remote.options(**options, scheduling_strategy="SPREAD").remote(
            self._engine.settings.to_yaml(), as_text(self._engine.plan.found), _threads(self._engine.settings)
        )
        self._pending[actor.begin.remote()] = _Remote(actor)

    def _hand_out(self) -> None:
        """A unit for every worker that has none."""
        for worker in self._workers:
            if worker in self._schedule.at_work:
                continue
            unit = self._schedule.next(worker, worker.node)
            if unit is not None:
                reads = self._reads(worker, unit)
                answer = worker.actor.do.remote(self._place[unit.id], self._engine.plan.skipped, reads)
                self._pending[answer] = worker
                hosts = len({one.host for one in self._workers})
                self._engine.show(f"{len(self._workers)} workers on {hosts} hosts, {unit.title}")

    def _reads(self, worker: _Remote, unit: Unit) -> dict[int, Any]:
        """References to the tables that a unit reads and its worker lacks, by the unit they are of."""
        store, found = self._engine.store, {}
        for one in self._engine.plan.reads(unit):
            if one.id in store and one.id not in worker.has:
                if one.id not in self._sent:
                    names = self._tables & set(store.rows(one.id))
                    self._sent[one.id] = self._ray.put({name: store.read(one.id, name) for name in names})
                found[self._place[one.id]] = self._sent[one.id]
                worker.has.add(one.id)
        return found

    def _through(self, reference: Any) -> Outcome | None:
        """What a worker has brought, or what became of it."""
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
            starting = {"" for one in self._pending.values() if one not in self._schedule.at_work}
            nodes = {one.node for one in self._workers} | starting
            return self._schedule.refused(unit, worker.node, answer["skipped"], nodes)
        self._engine.tally.add(answer["tally"])
        self._engine.notes += [note for note in answer["notes"] if note not in self._engine.notes]
        return Outcome(unit, answer["tables"], machine=worker.host)

    def _welcome(self, worker: _Remote, about: dict[str, Any]) -> None:
        """Takes a worker that has started, or turns it away."""
        own, there = self._own, about["machine"]
        worker.host, worker.node = there["host"], about["node"]
        worker.name = f"the worker on {worker.host} (process {about['process']})"
        reason = other_numbers(there, own) or about["error"]
        if not reason and about["plan"] != self._engine.plan.digest:
            reason = "the texts or the models that it reads make another plan"
        if not reason and any(one.gpu != bool(there["cuda"]) for one in self._workers):
            reason = f"it has {there['cuda'] or 'no GPU'}, unlike the workers before it"
        if reason:
            self._turn_away(f"{worker.name} is refused: {reason}")
            self._ray.kill(worker.actor)
            return
        worker.gpu = bool(there["cuda"])
        self._engine.machines[worker.host] = there
        self._workers.append(worker)

    def _turn_away(self, words: str) -> None:
        self._turned_away.append(words)
        self._engine.say(words)

    def _failed(self, worker: _Remote, reason: str) -> Outcome | None:
        """An error in the code that a worker ran."""
        if worker not in self._schedule.at_work:
            self._turn_away(f"{worker.name}: {reason}")
            self._ray.kill(worker.actor)
            return None
        return self._again(self._schedule.done(worker), f"{reason}, in {worker.name}")

    def _lost(self, worker: _Remote, reason: str) -> Outcome | None:
        """A worker that is no more; another one takes its place."""
        at_work = worker in self._schedule.at_work
        unit = self._schedule.done(worker) if at_work else None
        self._schedule.gone(worker)
        if worker in self._workers:
            self._workers.remove(worker)
        self._lost_at_start += unit is None
        if self._lost_at_start < ATTEMPTS:
            self._start()
        if unit is None:
            self._turn_away(f"{worker.name}: {reason[-300:]}")
            return None
        return self._again(unit, f"{worker.name} died")

    def _again(self, unit: Unit, reason: str) -> Outcome | None:
        outcome = self._schedule.again(unit, reason)
        if outcome is None:
            self._engine.say(f"unit {unit.folder} ({unit.title}): {reason}; it is done again elsewhere")
        return outcome


def _knock(address: str) -> None:
    """Raises ConfigError where no cluster answers at an address; Ray itself would try for minutes."""
    from ray._private.services import get_ray_address_from_environment

    found = get_ray_address_from_environment(address, None) if address == "auto" else address
    if found in ("local", "auto", None):
        return
    host, colon, port = found.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"--ray: expected auto, local, HOST:PORT or ray://HOST:PORT, got {found!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as there:
            # who speaks gRPC answers the greeting of HTTP/2 with its settings, a frame of type 4
            there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            speaks = there.recv(9)[3:4] == b"\x04" or bool(os.environ.get("RAY_USE_TLS"))
    except OSError as error:
        raise ConfigError(f"--ray {found}: no cluster answers there ({error})") from None
    if not speaks:
        raise ConfigError(f"--ray {found}: what answers there is no Ray cluster")


def _threads(settings: Settings) -> int:
    return settings.workers.cpus or torch.get_num_threads()


def _words(needs: dict[str, float]) -> str:
    """Resources for people."""
    return ", ".join(
        f"{megabytes(int(one))} of memory" if key == "memory" else f"{one:g} {key}"
        for key, one in needs.items()
    )
