# SPDX-License-Identifier: MIT
"""The record of which measures ran on which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WHERE: dict[str, set[str]] = {}
# Inside `count_calls`, the calls of functions of the core that did not run in the core, by device and name.
_CALLS: ContextVar[Counter[str] | None] = ContextVar("calls by device", default=None)


def count_call(name: str, device: str) -> None:
    """Count a call of a function of the core on a device."""
    _WHERE.setdefault(device, set()).add(name)
    calls = _CALLS.get()
    if calls is not None:
        calls[f"{device}: {name}"] += 1


def measured_where() -> dict[str, list[str]]:
    """Return the measures of this process so far, by device: "cuda", "cpu (copied)" and so on."""
    return {device: sorted(names) for device, names in sorted(_WHERE.items())}


@contextmanager
def count_calls(calls: Counter[str]) -> Iterator[None]:
    """Count the measures that tensors on an accelerator get inside the block.

    Args:
        calls: gets a count for each "device: measure", such as "cuda: attention_entropy" and "cpu (copied):
            persistence". What the core measures of tensors on the CPU is not counted.
    """
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)
