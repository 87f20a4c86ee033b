# SPDX-License-Identifier: MIT
"""The sentence about results of a run that is not finished."""

from __future__ import annotations

from attnscope.config.study_folders import study_of
from attnscope.errors import command
from attnscope.results.results import Results
from attnscope.study_api.study import study_class


def unfinished(results: Results) -> str:
    """Return what is missing of results that are read from the units of a run, "" of others."""
    if results.path is None or not results.files:
        return ""
    study = study_of(results)
    declared = [table.name for table in study_class(study.name).tables] if study else []
    missing = [name for name in declared if name not in results.files]
    units = len({file.parent for files in results.files.values() for file in files})
    without = f"; no unit has written {', '.join(missing)}" if missing else ""
    return (
        f"this run is not finished: what is shown is of the {units} units that are stored{without}. "
        f"To go on: {command('resume', results.path)}"
    )
