# SPDX-License-Identifier: MIT
"""Warnings that point at the line of whoever called the package, however deep the call went."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

# Frames of a `with` statement's machinery stand between a context manager and its user.
_INSIDE = (str(Path(__file__).parent), contextlib.__file__)


class CountedWarning(RuntimeWarning):
    """Some of what a function was given has no value; says of how many beside the words.

    Attributes:
        function: that was called.
        count: of maps, layers or tokens.
    """

    def __init__(self, message: str, function: str, count: int) -> None:
        super().__init__(message)
        self.function, self.count = function, count


class NonFiniteWarning(CountedWarning):
    """Their entries are NaN or infinite."""


class UndefinedWarning(CountedWarning):
    """They are finite, but too small or too even for the question."""


def warn(message: str | CountedWarning, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the first line outside of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def called_from_outside() -> bool:
    """Whether the function that asks was called by a line outside of this package."""
    frame = sys._getframe(2)
    return not frame.f_code.co_filename.startswith(_INSIDE)
