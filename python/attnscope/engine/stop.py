# SPDX-License-Identifier: MIT
"""Ctrl-C and SIGTERM: the first one finishes the unit of work, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from attnscope.engine.results import resume_command


class Interrupted(KeyboardInterrupt):
    """A run was asked by `signal` to stop, and did between two units; a shell sees 128 + it as exit code."""

    def __init__(self, number: int, folder: str) -> None:
        super().__init__(f"interrupted; everything done so far is stored: {resume_command(folder)}")
        self.signal = number
        self.folder = folder


class StopSignals:
    """While inside, SIGINT and SIGTERM are noted; Python handles signals in its main thread alone."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        self.say("stopping when the unit at work is stored; once more stops now and loses it")
