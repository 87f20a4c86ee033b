# SPDX-License-Identifier: MIT
"""The number of processors that other people's work keeps busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Seconds over which processors are watched while this process sleeps.
WATCHED = 0.1
_STAT = Path("/proc/stat")


def load_of_others() -> float:
    """Return how many processors are busy while this process sleeps.

    The load average would count the benchmark itself, and what ended a minute ago. It is taken where the
    system does not tell the time of its processors.
    """
    if not _STAT.is_file():
        return os.getloadavg()[0]
    busy, began = _busy_seconds(), time.perf_counter()
    time.sleep(WATCHED)
    later, watched = _busy_seconds(), time.perf_counter() - began
    return max(0.0, later - busy) / watched


def _busy_seconds() -> float:
    """Return the seconds that all processors have worked since the system started."""
    ticks = [int(word) for word in _STAT.read_text("ascii").splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, hard, soft, stolen = ticks
    return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")
