# SPDX-License-Identifier: MIT
"""Warnings that point at the line of whoever called the package, however deep the call went."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

# Frames of a `with` statement's machinery stand between a context manager and its user.
_INSIDE = (str(Path(__file__).parent), contextlib.__file__)


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the first line outside of this package.

    Args:
        message: what a person should know.
        category: of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
