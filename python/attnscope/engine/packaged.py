# SPDX-License-Identifier: MIT
"""Studies that come with the package: ready for the paper's models, whole or one analysis at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from attnscope.engine.discovery import find_study, studies


@dataclass(frozen=True)
class Packaged:
    """What a packaged study says about itself.

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
    """Names of the studies that come with the package."""
    return sorted(_files("configs"))


def is_packaged(name: str) -> bool:
    """Whether `packaged_text` knows the name."""
    study = find_study(name)
    return (study.name if study else name) in _files("configs")


def analyses() -> list[str]:
    """Names of the paper's analyses; `NAME:ANALYSIS` is a packaged study with its sentences and token cap."""
    return sorted(_files("configs/analyses"))


def packaged_text(name: str) -> str:
    """The YAML of a packaged study."""
    study = find_study(name)
    return _files("configs")[study.name if study else name].read_text("utf-8")


def analysis_keys(name: str) -> dict[str, Any]:
    """What an analysis sets: keys as `--set` takes them, with their values.

    Args:
        name: from `analyses()`.

    >>> analysis_keys("topology")["max_tokens"], analysis_keys("random_matrix")["texts.samples"]
    (48, 100)
    """
    keys: dict[str, Any] = yaml.safe_load(_files("configs/analyses")[name].read_text("utf-8"))
    return keys


def catalogue() -> list[Packaged]:
    """Every packaged study: those for any model first, then the models by name.

    >>> [one.models for one in catalogue() if one.name == "phi-2"]
    [('microsoft/phi-2',)]
    """
    found = []
    for name in packaged():
        text = packaged_text(name)
        keys = yaml.safe_load(text)
        models = keys.get("models") or []
        about = text.splitlines()[0].removeprefix("#").strip().partition(":")[0]
        revisions = tuple(str(revision) for model in models for revision in model.get("revisions", ()))
        found.append(Packaged(name, about, tuple(model["path"] for model in models), revisions))
    return sorted(found, key=lambda one: (bool(one.models), one.name))


def _files(folder: str) -> dict[str, Path]:
    """YAML files in this folder of every study by name: FILE, or FOLDER/FILE of one further down."""
    found = {}
    for one in studies().values():
        home = one.path / folder
        for file in sorted(home.rglob("*.yaml")):
            name = file.relative_to(home).with_suffix("").as_posix()
            if not name.startswith("analyses/"):
                found[name] = file
    return found
