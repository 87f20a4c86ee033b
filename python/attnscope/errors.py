# SPDX-License-Identifier: MIT
"""The errors that runs, settings and stored results raise, for whoever catches them.

This module imports nothing of the package, so that every folder can raise and catch the same classes.
"""

from __future__ import annotations

import shlex
from pathlib import Path


class ConfigError(ValueError):
    """A study cannot be understood; the message says where, what was expected and what was given."""


class ResultsError(ValueError):
    """Stored results cannot be read, or do not hold what was asked of them."""


class MissingError(KeyError):
    """No table, column or metric of this name; the message carries the nearest right one."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DiskFull(OSError):
    """A write did not fit; everything written before it is intact."""


class FolderLocked(RuntimeError):
    """Another process writes to the folder; the message names it."""


class UnitsFailed(RuntimeError):
    """Units were tried as often as allowed and given up; the message names them, all others are stored."""


class Interrupted(KeyboardInterrupt):
    """A run was asked by `signal` to stop, and did between two units; a shell sees 128 + it as exit code."""

    def __init__(self, number: int, folder: str) -> None:
        super().__init__(f"interrupted; everything done so far is stored: {command('resume', folder)}")
        self.signal = number
        self.folder = folder


def command(name: str, folder: str | Path) -> str:
    """Return the command that does something with a run.

    >>> command("resume", "runs/my run")
    "attnscope resume 'runs/my run'"
    """
    return f"attnscope {name} {shlex.quote(str(folder))}"
