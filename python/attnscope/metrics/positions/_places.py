# SPDX-License-Identifier: MIT
"""Lists and ranges of positions."""

from __future__ import annotations

from typing import Any

from attnscope import _checks

# Queries whose attention is kept: all of few, otherwise the first and the ends of octaves.
_ALL_QUERIES = 32


def places_argument(function: str, name: str, value: Any) -> list[int]:
    """`value` as a list of whole numbers."""
    try:
        entries = list(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a list of whole numbers, got {value!r}") from None
    return [_checks.whole(function, name, entry) for entry in entries]


def range_argument(queries: Any) -> tuple[int, int]:
    """The first and the last query of a range."""
    if not isinstance(queries, (tuple, list)) or len(queries) != 2:
        raise ValueError(f"PositionProfile: queries must be the first and the last, got {queries!r}")
    low, high = (_checks.whole("PositionProfile", "queries", one) for one in queries)
    return low, high


def default_queries(m: int) -> list[int]:
    """Queries whose attention a profile keeps."""
    if m <= _ALL_QUERIES:
        return list(range(1, m))
    ends = [2**power for power in range(4, m.bit_length()) if 2**power < m]
    return sorted({*range(2, 9), *ends, m - 1})
