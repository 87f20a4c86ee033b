# SPDX-License-Identifier: MIT
"""The errors and warnings of the package beside Python's own, for whoever catches them.

This module imports nothing of the package, so that every folder can raise and catch the same classes.
"""

from __future__ import annotations

import shlex
from pathlib import Path


class ConfigError(ValueError):
    """A study cannot be understood; the message says where, what was expected and what was given."""


class OtherModel(ConfigError):
    """A model, or its device, is another than the one that a run has measured under the same name."""


class ResultsError(ValueError):
    """Stored results cannot be read, or do not hold what was asked of them."""


class MissingError(KeyError, ValueError):
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


class NotDrawable(LookupError):
    """Raised when the stored tables lack data that a figure shows; the message names it."""


class WeightMapError(ValueError):
    """The structure of a model is not understood, or is not what the map says of it."""


class LoadError(RuntimeError):
    """A checkpoint cannot be loaded; the message names it and the reason in one line."""


class SitesRefused(LoadError):
    """A model lets its attention be captured, and not the sites that a metric reads next to it."""


class LinkRefused(OSError):
    """A link in a run folder leads to another place, where nothing may be written."""


class DocumentError(ValueError):
    """A document is no regular file, too large, too deep, or not of its format."""


class CountedWarning(RuntimeWarning):
    """A warning that some inputs of a function have no value, with their number.

    Attributes:
        function: that was called.
        count: of maps, layers or tokens.
    """

    def __init__(self, message: str, function: str, count: int) -> None:
        super().__init__(message)
        self.function, self.count = function, count


class NonFiniteWarning(CountedWarning):
    """Inputs have entries that are NaN or infinite."""


class UndefinedWarning(CountedWarning):
    """Inputs are finite, but too small or too uniform for the metric."""


class NotAttentionWarning(CountedWarning):
    """Rows of maps do not sum to 1."""


class EqualEigenvaluesWarning(UserWarning):
    """An eigenvalue or singular value with a gradient is equal to its neighbour: its gradient is a mean."""


def command(name: str, folder: str | Path) -> str:
    """Return the command that does something with a run.

    >>> command("resume", "runs/my run")
    "attnscope resume 'runs/my run'"
    """
    return f"attnscope {name} {shlex.quote(str(folder))}"
