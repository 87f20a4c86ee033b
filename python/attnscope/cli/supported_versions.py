# SPDX-License-Identifier: MIT
"""Versions of Python and of libraries that the tests were run with; the page Install has the whole table."""

from __future__ import annotations

import re

#: The oldest and the newest version that was tried.
TRIED_VERSIONS = {
    "Python": ("3.10", "3.13"),
    "NumPy": ("1.25", "2.4"),
    "torch": ("2.6", "2.15"),
    "transformers": ("4.56.2", "5.24"),
}


def describe_untried(name: str, version: str) -> str:
    """Return the reason why a version is outside of those that were tried, "" where it is among them.

    >>> describe_untried("torch", "2.13.0+cpu")
    ''
    >>> describe_untried("torch", "2.5.1")
    'torch 2.5.1 is older than 2.6, the oldest that was tried'
    """
    oldest, newest = TRIED_VERSIONS[name]
    number = _numbers(version)
    if number < _numbers(oldest):
        return f"{name} {version} is older than {oldest}, the oldest that was tried"
    if number[: len(_numbers(newest))] > _numbers(newest):
        return f"{name} {version} is newer than {newest}, the newest that was tried"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: those of a release, without what follows it."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
