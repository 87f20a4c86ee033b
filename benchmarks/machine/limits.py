# SPDX-License-Identifier: MIT
"""The limit of a call, from its profile: the machine's rates, or the time around the core.

A call is profiled by a clock around each function of the core that it calls; the rest is Python and torch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attnscope import _core

#: A rate of which a call takes this share is what limits it.
LIMITING = 0.5
_TURNS = 20


def share_in_core(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Return which share of a call's time functions of the core take: the median of some calls."""
    shares = []
    with _clocks(clock) as inside:
        for _ in range(_TURNS):
            inside[0] = 0.0
            began = clock()
            call()
            total = clock() - began
            shares.append(inside[0] / total if total > 0 else 0.0)
            if total > 0.5:
                break
    return min(1.0, sorted(shares)[len(shares) // 2])


def limit_in_words(in_core: float, of_reading: float | None, of_multiplying: float | None) -> str:
    """Return what limits a call in a few words, with the shares that say so."""
    measured = [f"core {in_core:.0%} of the call"]
    if of_reading is not None:
        measured.append(f"{of_reading:.0%} of the read rate")
    if of_multiplying is not None:
        measured.append(f"{of_multiplying:.0%} of the multiply-add rate")
    if in_core < LIMITING:
        limit = "Python around the core"
    elif (of_multiplying or 0.0) >= max(LIMITING, of_reading or 0.0):
        limit = "multiply-adds"
    elif (of_reading or 0.0) >= LIMITING:
        limit = "reading the maps"
    else:
        limit = "the kernel's other instructions"
    return f"{limit} ({', '.join(measured)})"


@contextmanager
def _clocks(clock: Callable[[], float]) -> Iterator[list[float]]:
    """Put a clock around every function of the core, whose seconds are added to the list's entry.

    A function that the core calls while another runs is part of that one's time.
    """
    inside, running = [0.0], [False]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if running[0]:
                return function(*arguments, **options)
            running[0] = True
            began = clock()
            try:
                return function(*arguments, **options)
            finally:
                inside[0] += clock() - began
                running[0] = False

        return call

    functions = {name: value for name, value in vars(_core).items() if callable(value)}
    functions = {name: value for name, value in functions.items() if not isinstance(value, type)}
    for name, function in functions.items():
        setattr(_core, name, timed(function))
    try:
        yield inside
    finally:
        for name, function in functions.items():
            setattr(_core, name, function)
