# SPDX-License-Identifier: MIT
"""Questions to the operating system about memory and processors, each with a second way to ask.

Linux describes the machine and the process in files of `/proc`. Elsewhere POSIX's `sysconf` and `getrusage`
answer, less exactly; `resource`, `mallopt` and `malloc_trim` are parts of some systems and C libraries only.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:  # no POSIX system
    resource = None

PROC = Path("/proc")


def machine_free_bytes() -> int:
    """Return the memory of the machine that new blocks can have; all of it where the free part is unknown.

    `sys.maxsize` where the system tells nothing, so that nobody is warned.
    """
    try:
        text = (PROC / "meminfo").read_text("ascii")
    except OSError:
        text = ""
    if available := re.search(r"MemAvailable:\s+(\d+)", text):
        return int(available[1]) * 1024
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            count = os.sysconf(pages)
        except (AttributeError, ValueError, OSError):
            continue
        if count > 0:
            return count * page_bytes()
    return sys.maxsize


def page_bytes() -> int:
    """Return the bytes of a page of memory."""
    try:
        return int(os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 4096


def address_space_limit() -> int | None:
    """Return the bytes that this process may ask for, None without a limit."""
    if resource is None:
        return None
    limit = int(resource.getrlimit(resource.RLIMIT_AS)[0])
    return None if limit == resource.RLIM_INFINITY else limit


def requested_bytes() -> int:
    """Return the bytes that this process has asked for, or at least has had in memory."""
    pages = _statm(0)
    return peak_resident_bytes() if pages is None else pages * page_bytes()


def resident_bytes() -> int:
    """Return the memory of this process now; the most that it has had where that is unknown."""
    pages = _statm(1)
    return peak_resident_bytes() if pages is None else pages * page_bytes()


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had so far, 0 where the system does not tell."""
    if resource is None:
        return 0
    # kibibytes, but bytes on a Mac
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _statm(column: int) -> int | None:
    """Return a number of pages from the process's own file, None where there is no such file."""
    try:
        return int((PROC / "self" / "statm").read_text("ascii").split()[column])
    except (OSError, ValueError, IndexError):
        return None


def c_function(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of the C library, None where this one lacks it."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # no library of the whole process
        return None


def processor_count() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
