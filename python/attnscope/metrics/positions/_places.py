# SPDX-License-Identifier: MIT
"""Lists of positions."""

from __future__ import annotations

from typing import Any

from attnscope import _checks


def places_argument(function: str, name: str, value: Any) -> list[int]:
    """`value` as a list of whole numbers.

    Raises:
        TypeError: it is none.
    """
    try:
        entries = list(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a list of whole numbers, got {value!r}") from None
    return [_checks.whole(function, name, entry) for entry in entries]
