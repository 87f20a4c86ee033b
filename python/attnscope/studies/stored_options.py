# SPDX-License-Identifier: MIT
"""The options of a run, for reports and figures, which read stored results only."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Options = TypeVar("Options", bound=BaseModel)


def stored_options(results: Any, options: type[Options]) -> Options:
    """Return a run's options; the defaults for tables that came without a run.

    Args:
        results: of a run, or tables in memory.
        options: the study's class of options.
    """
    study = getattr(results, "study", None) or {}
    return options(**(study.get("options") or {}))
