# SPDX-License-Identifier: MIT
"""The installed studies: a folder of `attnscope.studies` each, or a package that an entry point names.

A study is a package with these parts, each optional but the first:

* `study.py`: `STUDY`, a subclass of `attnscope.study_api.study.Study`;
* `figures`: `FIGURES`, its figures by name;
* `sections`: `SECTIONS`, what its report says, and `findings`, from results to sentences;
* `published/PAPER.csv` and its `compare`: published numbers and how a run is held against them;
* `configs/NAME.yaml`, and the entries of `configs/models.yaml` by name: studies ready to run; the entries of
  `configs/analyses.yaml`: parts of them;
* `ALIASES` in its `__init__`: other names that it answers to.

Another distribution adds a study by the entry point `attnscope.studies`, whose value is the package's name.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnscope._nearest import nearest

_PARTS = "attnscope.studies"


@dataclass(frozen=True)
class StudyFolder:
    """A study: its name and the package that holds its parts."""

    name: str
    package: str

    def part(self, name: str) -> ModuleType | None:
        """Return a module of the study, None if it has none of this name."""
        full = f"{self.package}.{name}"
        return importlib.import_module(full) if importlib.util.find_spec(full) else None

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(str(importlib.import_module(self.package).__file__)).parent

    @property
    def papers(self) -> dict[str, Path]:
        """Files of published numbers by the name of their paper."""
        return {file.stem: file for file in sorted(self.path.glob("published/*.csv"))}


@cache
def studies() -> Mapping[str, StudyFolder]:
    """Return every study by its name: those of this package, then those of entry points."""
    home = importlib.import_module(_PARTS)
    folders = {
        module.name: StudyFolder(module.name, f"{_PARTS}.{module.name}")
        for module in pkgutil.iter_modules(home.__path__)
        if module.ispkg
    }
    for entry in entry_points(group=_PARTS):
        folders.setdefault(entry.name, StudyFolder(entry.name, entry.value))
    return folders


def find_study(name: str) -> StudyFolder | None:
    """Return the study of a name, None where there is none.

    >>> find_study(default_study()).name == default_study(), find_study("no such study")
    (True, None)
    """
    return studies().get(name)


def unknown_study(name: str) -> str:
    """Return the message on a study that is not installed, with the nearest names that are."""
    return f"study: there is no study {name!r}{nearest(name, list(studies()))}"


def default_study() -> str:
    """Return the study that is meant where none is named, as the package of studies says; it may be empty."""
    return str(getattr(importlib.import_module(_PARTS), "DEFAULT", ""))


def study_of(results: Any) -> StudyFolder | None:
    """Return the study that made some results, None if they name none that is installed."""
    return find_study(str(dict(getattr(results, "study", None) or {}).get("study", "")))


def load_study(name: str) -> Any:
    """Return the class that a study declares as `STUDY`, None where there is no such study.

    `attnscope.study_api.study.study_class` says what is wrong where that is no class of a study.
    """
    folder = find_study(name)
    return getattr(folder.part("study"), "STUDY", None) if folder else None
