# SPDX-License-Identifier: MIT
"""The tables of the units that a stopped run has stored, to be looked at before the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.engine.results import Results


def tables_of_units(folder: Path) -> dict[str, list[Path]]:
    """The files of each table over the stored units of a run, in their order.

    Sums that a later stage reads are no tables and are left out.
    """
    from attnscope.engine.results import resume_command

    found: dict[str, list[Path]] = {}
    for about in sorted((folder / "units").glob("[!.]*/unit.json")):
        for file in sorted(about.parent.glob("*.parquet")):
            if not file.name.startswith("reduced-"):
                found.setdefault(file.stem, []).append(file)
    if not found:
        begun = (folder / "units").is_dir()
        hint = f"; the run is not finished: {resume_command(folder)}" if begun else ""
        raise FileNotFoundError(f"load: {folder} holds no tables/*.parquet{hint}")
    return found


def unfinished(results: Results) -> str:
    """What is missing of results that are read from the units of a run, "" of others."""
    from attnscope.engine.discovery import study_class, study_of
    from attnscope.engine.results import resume_command

    if results.path is None or not results.files:
        return ""
    study = study_of(results)
    declared = [table.name for table in study_class(study.name).tables] if study else []
    missing = [name for name in declared if name not in results.files]
    units = len({file.parent for files in results.files.values() for file in files})
    without = f"; no unit has written {', '.join(missing)}" if missing else ""
    return (
        f"this run is not finished: what is shown is of the {units} units that are stored{without}. "
        f"To go on: {resume_command(results.path)}"
    )
