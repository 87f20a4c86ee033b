# SPDX-License-Identifier: MIT
"""The two precisions of metrics of maps, and the record of maps that "fast" could not hold.

A function of the core that has a fast way takes `precision="fast"` as its last keyword and then returns one
more count at the end: the maps that it measured exactly after all, because float32 does not hold its bound
there. `_calls.call_kernel` passes the keyword on and notes that count under the name of the public function.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

#: "exact" is the definition in float64; "fast" holds the bound that the function's docstring states.
Precision = Literal["exact", "fast"]
PRECISIONS = ("exact", "fast")

_COUNTERS: ContextVar[tuple[Counter[str], ...]] = ContextVar("maps measured exactly", default=())
_LOCK = threading.Lock()


@contextmanager
def count_fallbacks(counts: Counter[str]) -> Iterator[None]:
    """Count, by function, the maps inside the block that "fast" measured exactly.

    Blocks may stand inside each other and in several threads: every one of them counts.
    """
    token = _COUNTERS.set((*_COUNTERS.get(), counts))
    try:
        yield
    finally:
        _COUNTERS.reset(token)


def note_fallbacks(function: str, maps: int) -> None:
    """Note that `function`, asked for "fast", measured so many maps exactly."""
    if maps:
        with _LOCK:
            for counts in _COUNTERS.get():
                counts[function] += maps


@functools.cache
def fast_kernel(kernel: Callable[..., Any], function: str) -> Callable[..., Any]:
    """Return a function of the core as it computes "fast", with the results of "exact"."""

    @functools.wraps(kernel)
    def call(*arguments: Any) -> tuple[Any, ...]:
        *results, fallbacks = kernel(*arguments, precision="fast")
        note_fallbacks(function, fallbacks)
        return tuple(results)

    return call


def provenance_of(precision: str, fallbacks: Counter[str]) -> dict[str, Any]:
    """Return the precision that was asked for and the maps that fell back to exact, for provenance.

    >>> provenance_of("fast", Counter(fiedler_value=2))
    {'asked': 'fast', 'fell_back': {'fiedler_value': 2}}
    """
    return {"asked": precision, "fell_back": dict(sorted(fallbacks.items()))}
