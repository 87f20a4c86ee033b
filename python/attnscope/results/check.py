# SPDX-License-Identifier: MIT
"""Is a run folder what its run has written? Hashes of units and tables, links, what is missing.

Nothing in the folder is executed, changed or followed: files are opened as data, within the bounds of
`attnscope.untrusted.limits`, and links are reported.

Example:
    >>> import tempfile
    >>> import pandas as pd
    >>> from attnscope.results.results import Results
    >>> from attnscope.results.check import check_folder
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> _ = Results({"heads": pd.DataFrame({"head": [0]})}, study={"seed": 7}).save(folder)
    >>> report = check_folder(folder)
    >>> report.tables, report.damaged
    ({'heads': 'ok'}, [])
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.errors import DocumentError
from attnscope.results.files import WRITTEN, hash_file
from attnscope.results.schema import FINISHED, SAVED, check_provenance, newer_version
from attnscope.results.store import SET_ASIDE, damage
from attnscope.untrusted.documents import read_json, read_yaml


@dataclass
class FolderCheck:
    """The state of a run folder.

    Attributes:
        folder: of the run, or of a shard.
        state: as provenance.json says: running, interrupted, failed, finished, shard finished, or saved for
            results that have no units; "" unknown.
        stored: units that are as they were written.
        planned: units of the plan, None where provenance.json does not say.
        missing: units that a finished run had and the folder lacks, or that are still to be computed.
        tables: of every table "ok", "no hash is stored", or what is wrong with it.
        damaged: a line for everything that is not as it was written, and for every link.
        notes: what else to know.
        shards: the same of every shard in `parts/`.
    """

    folder: Path
    state: str = ""
    stored: int = 0
    planned: int | None = None
    missing: int = 0
    tables: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shards: list[FolderCheck] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if nothing is damaged, in the folder and in its shards."""
        return not self.damaged and all(shard.is_whole for shard in self.shards)

    @property
    def is_repairable(self) -> bool:
        """True if `resume` sets aside or writes again what is damaged; it refuses links and damaged facts."""
        return all(line.startswith(("units/", "tables/")) for line in self.damaged)

    @property
    def is_complete(self) -> bool:
        """True if the run is finished, or its results are saved, and nothing is missing."""
        return self.state in (FINISHED, SAVED) and not self.missing

    def __str__(self) -> str:
        count = "" if self.planned is None else f" of {self.planned} planned"
        has_units = self.state != SAVED
        lines = [
            f"{self.folder}: {self.state or 'no provenance'}",
            *((f"  units: {self.stored}{count} stored and as written, {self.missing} missing",) * has_units),
            *(f"  table {name}: {verdict}" for name, verdict in self.tables.items()),
            *(f"  damaged: {line}" for line in self.damaged),
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join([*lines, *map(str, self.shards)])


def check_folder(folder: str | Path) -> FolderCheck:
    """Check every file of a run that has a hash, and find what is missing.

    Args:
        folder: a run folder, finished or not, or a shard.

    Returns:
        What was found; `is_whole` and `is_complete` sum it up.

    Raises:
        FileNotFoundError: no such folder, or none that a run has written.
    """
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"check: there is no folder {path}")
    names = ("study.yaml", "provenance.json", "units", "tables", "parts")
    if not any(os.path.lexists(path / name) for name in names):
        raise FileNotFoundError(f"check: {path} holds no run: none of {', '.join(names)}")
    report = FolderCheck(path)
    for name in WRITTEN:
        if (path / name).is_symlink():
            report.damaged.append(f"{name} is a link to {os.readlink(path / name)}")
    facts = _read_facts(path, report)
    _check_units(path, report)
    _check_tables(path, facts.get("tables", {}), report)
    _count_missing(facts, report)
    parts = path / "parts"
    if parts.is_dir() and not parts.is_symlink():
        shards = [part for part in sorted(parts.iterdir()) if re.fullmatch(r"\d+-of-\d+", part.name)]
        report.shards = [check_folder(part) for part in shards if (part / "study.yaml").is_file()]
    return report


def _read_facts(path: Path, report: FolderCheck) -> dict[str, Any]:
    """Read study.yaml and provenance.json; return what provenance says, as far as it can be read."""
    facts: dict[str, Any] = {}
    for name, read in (("study.yaml", read_yaml), ("provenance.json", read_json)):
        if not os.path.lexists(path / name):
            report.notes.append(f"{name} is missing")
            continue
        try:
            content = read(path / name)
            if not isinstance(content, dict):
                raise DocumentError(f"expected keys and values, got {type(content).__name__}")
            if name == "provenance.json":
                check_provenance(content)
                facts = content
                continue
            models = _entries(content, "models")
            if remote := [source for source in models if source.get("trust_remote_code")]:
                places = ", ".join(str(source.get("path", "?"))[:200] for source in remote)
                report.notes.append(f"study.yaml wants code to be run that comes with a model: {places}")
        except (DocumentError, OSError) as error:
            report.damaged.append(f"{name}: {error}")
    if newer := newer_version(facts):
        report.notes.append(f"written by attnscope {newer}, a later version than this one: it is not read")
    report.state = str(facts.get("state", ""))[:40]
    return facts


def _entries(study: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the entries of a list in a study that are mappings."""
    entries = study.get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _check_units(path: Path, report: FolderCheck) -> None:
    """Hash the files of every stored unit."""
    units = path / "units"
    if not units.is_dir():
        return
    for unit in sorted(units.iterdir()):
        if unit.name == SET_ASIDE:
            aside = sum(1 for _ in unit.iterdir()) if unit.is_dir() else 0
            report.notes.append(f"{aside} folders are set aside in {unit}")
        elif unit.match(".*.tmp"):
            report.notes.append(f"{unit.name} was being written by a process that was killed, or is now")
        elif why := damage(unit):
            report.damaged.append(f"units/{unit.name}: {why}")
        else:
            report.stored += 1


def _check_tables(path: Path, hashes: dict[str, Any], report: FolderCheck) -> None:
    """Hash the tables, and name those that are missing or of unknown origin."""
    files = {file.stem: file for file in sorted((path / "tables").glob("*.parquet"))}
    for name in sorted({*files, *hashes}):
        stored = hashes.get(name, {}).get("sha256")
        try:
            if name not in files:
                verdict = "missing"
            elif files[name].is_symlink():
                verdict = f"a link to {os.readlink(files[name])}"
            elif stored is None:
                verdict = "no hash is stored"
            else:
                verdict = "ok" if hash_file(files[name]) == stored else "not as it was written"
        except OSError as error:
            verdict = f"cannot be read: {error.strerror}"
        report.tables[name] = verdict
        if verdict not in ("ok", "no hash is stored"):
            report.damaged.append(f"tables/{name}.parquet: {verdict}")


def _count_missing(facts: dict[str, Any], report: FolderCheck) -> None:
    """Count the units that a run had stored, or, of one that is not finished, those of its plan."""
    if report.state == SAVED:
        return
    counts = facts.get("units")
    counts = counts if isinstance(counts, dict) else {}
    planned, stored = counts.get("planned"), counts.get("stored")
    report.planned = planned if type(planned) is int else None
    expected = stored if report.state in (FINISHED, "shard finished") else planned
    if type(expected) is int:
        report.missing = max(0, expected - report.stored)
