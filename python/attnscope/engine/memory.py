# SPDX-License-Identifier: MIT
"""What a study takes of the machine's memory: what is there, what is taken, what a layer will need."""

from __future__ import annotations

import ctypes
from pathlib import Path

from attnscope._memory import free_bytes, workspace_bytes

__all__ = ["free_bytes", "give_back_large_blocks", "peak_bytes", "resident_bytes"]

#: Blocks from here on are given back to the system when they are freed: an attention map of 1024 tokens.
LARGE_BLOCK = 4 * 1024**2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


def give_back_large_blocks() -> bool:
    """Asks the C library to return freed maps to the system at once, in this process from now on.

    glibc raises its thresholds with every large block that is freed, up to 32 MiB a block and 64 MiB a
    thread's heap: the threads of a study then keep several layers' worth of memory that nobody uses.

    Returns:
        Whether the C library takes such wishes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BLOCK))


def peak_bytes(layer_bytes: int, heads: int, longest: int) -> int:
    """Memory that measuring adds to a loaded model at the peak.

    Two layers of attention (one is measured while the next one is computed), the mean over heads in float64,
    the kernels' workspaces, and the working memory of capture.

    Args:
        layer_bytes: attention of one layer in the largest batch.
        heads: attention heads of a layer.
        longest: tokens of the longest sentence.
    """
    mean = 2 * layer_bytes // max(1, heads)
    return 2 * layer_bytes + mean + workspace_bytes(longest, heads) + 8 * LARGE_BLOCK
