# SPDX-License-Identifier: MIT
"""Available memory, and a warning before a call that needs more.

Bars and distances of long texts grow with the square and the cube of the tokens. The need of a call is
estimated first, and one that cannot fit ends with both numbers instead of the process.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

import torch

from attnscope import _core
from attnscope._system import address_space_limit, c_function, machine_free_bytes, requested_bytes
from attnscope._warn import warn

#: Blocks from here on are given back to the system when they are freed: an attention map of 1024 tokens.
LARGE_BLOCK = 4 * 1024**2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: n x n matrices of float64 that one thread of the greediest kernel works on at a time, as measured.
WORKSPACE_MATRICES = 3
#: Tokens of a map below which no machine that runs torch is exceeded, and nobody pays for the question.
SMALLEST_MAP = 2048
#: Maps of which a float64 number each is a result of `_core.large_result` bytes.
SMALLEST_COUNT = _core.large_result // 8
#: Entries of a batch below which `warn_if_too_large` has nothing to say.
SMALLEST_BATCH = min(SMALLEST_MAP**2, SMALLEST_COUNT)
# They read the matrix row by row where it lies.
_ROW_BY_ROW = frozenset(
    {
        "attention_entropy",
        "incoming_attention",
        "local_global_ratio",
        "sink_excess",
        "sink_position",
        "sink_rate",
        "sink_share",
        "sink_test",
        "sink_tokens",
        "top_mass",
    }
)


P = ParamSpec("P")
R = TypeVar("R")


def free_bytes() -> int:
    """Return the memory that this process can still get: the machine's free memory, within the process's
    limit.
    """
    free, limit = machine_free_bytes(), address_space_limit()
    return free if limit is None else min(free, max(0, limit - requested_bytes()))


def workspace_bytes(n: int, count: int = 1) -> int:
    """Return the largest workspace of any kernel for `count` maps of `n` tokens, without the maps
    themselves.
    """
    return min(count, torch.get_num_threads()) * WORKSPACE_MATRICES * 8 * n * n


def warn_if_too_large(function: str, n: int, count: int) -> None:
    """Warn before a call whose workspace, or the least of whose results, would exceed the available
    memory.
    """
    # A number for every map is the least that a metric keeps of it.
    if 8 * count >= _core.large_result:
        _warn_beyond(8 * count, f"{function}: what is kept of {count} maps needs at least")
    if n >= SMALLEST_MAP and function.rpartition(".")[2] not in _ROW_BY_ROW:
        _warn_beyond(
            workspace_bytes(n, count),
            f"{function}: {count} maps of {n} tokens may need about",
            f" on {min(count, torch.get_num_threads())} threads",
            "; torch.set_num_threads(1) needs the least",
        )


def announce_results(need: float, shape: str) -> None:
    """Warn before results are made that would exceed the available memory; the core calls it for large
    ones.
    """
    frame: FrameType | None = sys._getframe(1)
    function = ""
    package = Path(__file__).parent
    while frame is not None and frame.f_code.co_filename.startswith(str(package)):
        # decorators call under a name of their own
        if not frame.f_code.co_filename.startswith((str(package / "gradients"), __file__)):
            function = frame.f_code.co_name
        frame = frame.f_back
    _warn_beyond(need, f"{function}: results of shape ({shape}) need about")


def _warn_beyond(need: float, words: str, where: str = "", hint: str = "") -> None:
    """Warn where so many bytes are not available."""
    if need > (free := free_bytes()):
        gigabytes = f"{need / 1024**3:.1f} GB of memory{where}, {free / 1024**3:.1f} GB are free{hint}"
        warn(f"{words} {gigabytes}", UserWarning)


def give_back_large_blocks() -> bool:
    """Ask the C library to return freed maps to the system at once, in this process from now on.

    glibc raises its thresholds with every large block that is freed, up to 32 MiB a block and 64 MiB a
    thread's heap: the threads of a study then keep several layers' worth of memory that nobody uses.
    """
    mallopt = c_function("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BLOCK))


class FreePages:
    """Gives memory that was freed back to the system, a few times a second at most.

    Blocks below `LARGE_BLOCK` are freed in the middle of a heap, where the C library keeps their pages: maps
    of many lengths leave a study half as large again as what it holds, by chance more or less.
    """

    #: Seconds between two times; a walk through the heaps takes some milliseconds.
    interval = 0.25

    def __init__(self) -> None:
        self._trim = c_function("malloc_trim")
        self._last = 0.0

    def give_back(self) -> None:
        """Return free pages to the system, unless that was done just now."""
        if self._trim is not None and time.monotonic() - self._last > self.interval:
            self._trim(0)
            self._last = time.monotonic()


def peak_bytes(layer_bytes: int, heads: int, longest: int) -> int:
    """Return the memory that measuring adds to a loaded model at the peak.

    Two layers of attention (one is measured while the next one is computed), the mean over heads in float64,
    the kernels' workspaces, and the working memory of capture.
    """
    mean = 2 * layer_bytes // max(1, heads)
    return 2 * layer_bytes + mean + workspace_bytes(longest, heads) + 8 * LARGE_BLOCK


def is_out_of_memory(error: Exception) -> bool:
    """Return True for the error of torch that says that memory runs out."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def named_memory_error(function: str, error: MemoryError, shape: Sequence[int] | None = None) -> MemoryError:
    """Return an error that begins with a function's name; the core's allocator says std::bad_alloc alone."""
    words = str(error)
    if re.match(r"[\w.]+: ", words):
        return error
    if words in ("", "std::bad_alloc"):
        words = "memory ran out" if shape is None else f"memory ran out on a tensor of shape {tuple(shape)}"
    return MemoryError(f"{function}: {words}")


def memory_errors(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function in which torch allocates: where memory runs out, MemoryError with its name.

    The core raises MemoryError by itself, without a name; torch raises RuntimeError.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return function(*arguments, **options)
            try:
                return function(*arguments, **options)
            except MemoryError as error:
                raise named_memory_error(name, error) from None
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise MemoryError(f"{name}: {error}") from None
                raise

        return call

    return decorate


@contextmanager
def system_arrow_pool() -> Iterator[None]:
    """Let Arrow take memory from the C library inside the block; its own allocator keeps what tables once
    took.
    """
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Exclude existing objects from garbage collection inside the block; imported libraries hold a
    million.
    """
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()
