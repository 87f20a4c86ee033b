# SPDX-License-Identifier: MIT
"""Ctrl-C and SIGTERM: the first one finishes the unit of work, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM while inside; Python handles signals in its main thread alone.

    The second one interrupts in the way that Ctrl-C did before.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            if callable(interrupt):
                interrupt(number, frame)
                return
            raise KeyboardInterrupt
        received.append(number)
        say("stopping when the unit at work is stored; once more stops now and loses it")

    interrupt = signal.getsignal(signal.SIGINT)
    handled = (signal.SIGINT, signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, note) for number in handled if main}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
