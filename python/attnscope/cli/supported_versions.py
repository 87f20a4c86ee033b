# SPDX-License-Identifier: MIT
"""Versions and systems that are supported; the page Install says of each how it was tried."""

from __future__ import annotations

import re

#: The oldest and the newest version of the table on the page Install.
SUPPORTED_VERSIONS = {
    "Python": ("3.10", "3.13"),
    "NumPy": ("1.25", "2.4"),
    "torch": ("2.6", "2.15"),
    "transformers": ("4.56.2", "5.24"),
}

#: What was tried on a system and a processor other than Linux with glibc on x86-64, where all tests were run.
PARTLY_TRIED_SYSTEMS = {
    ("Linux", "glibc", "aarch64"): "tests of the kernels and the answers below were run in an emulator",
    ("Linux", "", "x86_64"): "wheels for musl were not run",
    ("Linux", "", "aarch64"): "wheels for musl were not run",
    ("Darwin", "", "arm64"): "the kernels were parsed for it, and not run",
    ("Darwin", "", "x86_64"): "the kernels were parsed for it, and not run",
}


def describe_partly_tried(system: str, c_library: str, processor: str) -> str:
    """Return what was not run on a system, "" where all tests were.

    Args:
        system: as `platform.system` says.
        c_library: as `platform.libc_ver` says, "" for others than glibc.
        processor: as `platform.machine` says.

    >>> describe_partly_tried("Linux", "glibc", "x86_64")
    ''
    >>> describe_partly_tried("Darwin", "", "arm64")
    'Darwin on arm64: the kernels were parsed for it, and not run'
    """
    if (system, c_library, processor) == ("Linux", "glibc", "x86_64"):
        return ""
    outcome = PARTLY_TRIED_SYSTEMS.get((system, c_library if c_library == "glibc" else "", processor))
    return f"{system} on {processor}: {outcome or 'nothing was run there'}"


def describe_range(name: str, version: str) -> str:
    """Return whether a version is among those that are supported, in the words of one line.

    >>> describe_range("torch", "2.13.0+cpu")
    'supported: 2.6 to 2.15'
    >>> describe_range("torch", "2.16.0")
    'newer than 2.15, the newest that is supported'
    """
    oldest, newest = SUPPORTED_VERSIONS[name]
    return describe_unsupported(name, version).partition(" is ")[2] or f"supported: {oldest} to {newest}"


def describe_unsupported(name: str, version: str) -> str:
    """Return the reason why a version is outside of those that are supported, "" where it is among them.

    >>> describe_unsupported("torch", "2.13.0+cpu")
    ''
    >>> describe_unsupported("torch", "2.5.1")
    'torch 2.5.1 is older than 2.6, the oldest that is supported'
    """
    oldest, newest = SUPPORTED_VERSIONS[name]
    number = _numbers(version)
    if number < _numbers(oldest):
        return f"{name} {version} is older than {oldest}, the oldest that is supported"
    if number[: len(_numbers(newest))] > _numbers(newest):
        return f"{name} {version} is newer than {newest}, the newest that is supported"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: those of a release, without what follows it."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
