# SPDX-License-Identifier: MIT
"""The worker as Ray runs it, imported by its name where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.engine.executors.worker import Worker


class RemoteWorker:
    """A worker whose reads come through the object store."""

    def __init__(self, study: str, found: str, threads: int) -> None:
        self._worker = Worker(study, found, threads)

    def begin(self) -> dict[str, Any]:
        """Makes the plan; says what this machine is, and which node of the cluster."""
        import ray

        return {**self._worker.begin(), "node": ray.get_runtime_context().get_node_id()}

    def do(self, number: int, skipped: Sequence[tuple[str, str]], reads: Mapping[int, Any]) -> dict[str, Any]:
        """Does one unit, as `Worker.do`."""
        import ray

        return self._worker.do(number, skipped, reads, ray.get)

    def end(self) -> None:
        """Removes what was fetched."""
        self._worker.end()
