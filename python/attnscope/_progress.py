# SPDX-License-Identifier: MIT
"""Progress of long operations: a bar in terminals and notebooks, otherwise a line every ten seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any

from attnscope.untrusted.safe_text import escape_controls

#: Seconds between two lines where there is no terminal.
LINE_SECONDS = 10.0


class Lines:
    """The interface of tqdm's bar, as lines for a pipe or a log; the first comes after `LINE_SECONDS`
    seconds.

    Args:
        total: how much there is to do.
        label: what is done.
        initial: how much of it is done already.

    Example:
        >>> with Lines(3, "training") as lines:
        ...     lines.update()
        ...     str(lines).startswith("training 1/3, about ")
        True
    """

    def __init__(self, total: int, label: str, initial: int = 0) -> None:
        self.total, self.label, self.n = total, label, initial
        self._initial, self._note = initial, ""
        self._began = self._latest = time.monotonic()
        self._ended = threading.Event()
        # A single step may take longer than the time between two lines.
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Lines:
        self._ticker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._ticker.join()

    def update(self, count: int = 1) -> None:
        """Count finished items."""
        self.n += count
        self._latest = time.monotonic()

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Set the text behind the count: the item in progress; `refresh` is for bars."""
        self._note = text

    def __str__(self) -> str:
        done, passed = self.n - self._initial, time.monotonic() - self._latest
        left = (self._latest - self._began) / done * (self.total - self.n) - passed if done > 0 else 0.0
        # an item that takes longer than all that were left is of another kind
        line = f"{self.label} {self.n}/{self.total}{f', about {duration(left)} left' if left > 0 else ''}"
        return f"{line}, {self._note}" if self._note else line

    def _tick(self) -> None:
        while not self._ended.wait(LINE_SECONDS):
            # a log on a full disk, or a terminal that was closed, is no reason to stop
            with contextlib.suppress(OSError):
                print(f"attnscope: {escape_controls(str(self))}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds in words for people.

    >>> duration(40.2), duration(130), duration(9000)
    ('40 s', '2 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def progress_bar(
    total: int,
    label: str,
    initial: int = 0,
    *,
    show: bool = True,
    inner: bool = False,
    delay: float = 0.0,
    unit: str = "it",
) -> Any:
    """Return a context manager with `update`, `n` and `set_postfix_str`.

    Args:
        inner: part of what another one counts: gone when it ends, and no lines of its own.
        delay: seconds before a bar is shown.
        unit: name of what is counted.
    """
    from tqdm.auto import tqdm

    seen = sys.stderr.isatty() or any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
    if show and not inner and not seen:
        return Lines(total, label, initial)
    disable = not (show and seen)
    return tqdm(
        total=total, initial=initial, desc=label, disable=disable, leave=not inner, delay=delay, unit=unit
    )
