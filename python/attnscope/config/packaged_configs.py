# SPDX-License-Identifier: MIT
"""Studies that come with the package: ready for the paper's models, whole or one analysis at a time."""

from __future__ import annotations

import copy
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from attnscope.config.study_folders import find_study, studies


@dataclass(frozen=True)
class Packaged:
    """A packaged study's description of itself.

    Attributes:
        name: `attnscope run NAME` takes it.
        about: the first sentence of its comment.
        models: the hub ids it measures; none when the model is yours to name.
        revisions: of a series of checkpoints.
    """

    name: str
    about: str
    models: tuple[str, ...]
    revisions: tuple[str, ...]


def packaged() -> list[str]:
    """Return names of the studies that come with the package."""
    return sorted({*_files(), *_entries("models")})


def is_packaged(name: str) -> bool:
    """Return True if `packaged_text` knows the name."""
    return _own_name(name) in packaged()


def analyses() -> dict[str, dict[str, Any]]:
    """Return the settings of each analysis of a paper, by its name: keys as `--set` takes them, and values.

    `NAME:ANALYSIS` is a packaged study with the sentences and the token cap of the analysis.

    >>> analyses()["topology"]["max_tokens"], analyses()["random_matrix"]["texts.samples"]
    (48, 100)
    """
    return copy.deepcopy(dict(sorted(_entries("analyses").items())))  # read once, and the caller's own


def packaged_text(name: str) -> str:
    """Return the YAML of a packaged study."""
    name = _own_name(name)
    if name in _files():
        return _files()[name].read_text("utf-8")
    keys = dict(_entries("models")[name])
    description = keys.pop("about", f"{keys['models'][0]['label']} in the study {keys['extends']}")
    first, dot, details = description.partition(". ")
    lines = [f"{first}: attnscope run {name}{dot.strip()}", *textwrap.wrap(details, 110)]
    text: str = yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return "".join(f"# {line}\n" for line in lines) + text


def catalogue() -> list[Packaged]:
    """Return every packaged study: those for any model first, then the models of each study by name.

    >>> [one.models for one in catalogue() if one.name == "phi-2"]
    [('microsoft/phi-2',)]
    """
    configs = []
    for name in packaged():
        text = packaged_text(name)
        models = yaml.safe_load(text).get("models") or []
        description = text.splitlines()[0].removeprefix("#").strip().partition(":")[0]
        revisions = tuple(str(revision) for model in models for revision in model.get("revisions", ()))
        configs.append(Packaged(name, description, tuple(model["path"] for model in models), revisions))
    homes = {
        name: study.name
        for study in studies().values()
        for file in (study.path / "configs" / "models.yaml",)
        if file.is_file()
        for name in _read(file)
    }
    return sorted(configs, key=lambda packed: (bool(packed.models), homes.get(packed.name, ""), packed.name))


def _own_name(name: str) -> str:
    study = find_study(name)
    return study.name if study else name


def _files() -> dict[str, Path]:
    """Return the files `configs/NAME.yaml` of every study by name."""
    files = [file for study in studies().values() for file in sorted((study.path / "configs").glob("*.yaml"))]
    return {file.stem: file for file in files if file.stem not in ("analyses", "models")}


def _entries(stem: str) -> dict[str, dict[str, Any]]:
    """Return the entries of `configs/STEM.yaml` of every study, by name."""
    homes = (study.path / "configs" / f"{stem}.yaml" for study in studies().values())
    return {name: keys for home in homes if home.is_file() for name, keys in _read(home).items()}


@cache
def _read(file: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(file.read_text("utf-8"))
