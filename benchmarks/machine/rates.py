# SPDX-License-Identifier: MIT
"""Measured rates of the machine: multiply-adds of float64 numbers, and bytes read, a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_WIDTH = 512
_TURNS = 12


def multiply_adds_per_second(threads: int) -> float:
    """Return the rate of a product of two float64 matrices that stay in the cache, the best of some."""
    return _multiply_adds(threads)


def bytes_per_second(size: int, threads: int) -> float:
    """Return the rate at which torch adds up float32 numbers of `size` bytes: from the cache that holds them.

    Sizes are rounded to powers of two, so that rows of one size share a measurement.
    """
    return _bytes(1 << max(16, min(30, size.bit_length())), threads)


@cache
def _multiply_adds(threads: int) -> float:
    left, right = torch.randn(2, _WIDTH, _WIDTH, dtype=torch.float64)
    out = torch.empty_like(left)
    return _WIDTH**3 / _fastest(lambda: torch.mm(left, right, out=out), threads)


@cache
def _bytes(size: int, threads: int) -> float:
    numbers = torch.zeros(size // 4)
    often = max(1, (1 << 24) // size)

    def read() -> None:
        for _ in range(often):
            numbers.sum()

    return size * often / _fastest(read, threads)


def _fastest(call: Callable[[], Any], threads: int) -> float:
    """Return the least seconds of some calls: of processor time for one thread."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = []
    for _ in range(_TURNS):
        began = clock()
        call()
        seconds.append(clock() - began)
    return max(min(seconds), 1e-9)
