# SPDX-License-Identifier: MIT
"""The number of processors that other people's work keeps busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Seconds over which processors are watched while this process sleeps.
WATCHED = 0.1
#: Seconds until a busy machine is looked at again.
PAUSE = 1.0
_STAT = Path("/proc/stat")


def load_of_others() -> float:
    """Return how many processors others keep busy while this process sleeps.

    What threads of its own still spin, as OpenMP's do for a while after their last work, is taken off.

    The load average would count the benchmark itself, and what ended a minute ago. It is taken where the
    system does not tell the time of its processors.
    """
    if not _STAT.is_file():
        return os.getloadavg()[0]
    busy, spun, began = _busy_seconds(), time.process_time(), time.perf_counter()
    time.sleep(WATCHED)
    watched = time.perf_counter() - began
    of_others = _busy_seconds() - busy - (time.process_time() - spun)
    return max(0.0, of_others) / watched


def wait_for_quiet(most: float, seconds: float) -> float:
    """Return the load of others once it is at most `most`, or what it still is after `seconds`."""
    end = time.monotonic() + seconds
    while (load := load_of_others()) > most and time.monotonic() < end:
        time.sleep(PAUSE)
    return load


def _busy_seconds() -> float:
    """Return the seconds that all processors have worked since the system started."""
    ticks = [int(word) for word in _STAT.read_text("ascii").splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, hard, soft, stolen = ticks
    return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")
