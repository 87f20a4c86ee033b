# SPDX-License-Identifier: MIT
"""Studies that come with the package: ready for the paper's models, whole or one analysis at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_CONFIGS = Path(__file__).resolve().parent.parent / "configs"
#: The folder of configs whose files are parts of a study, not studies.
_ANALYSES = "analyses"


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
    return sorted(entry.name.removesuffix(".yaml") for entry in _files())


def analyses() -> list[str]:
    """Names of the paper's analyses; `NAME:ANALYSIS` is a packaged study with its sentences and token cap."""
    return sorted(_names(_CONFIGS / _ANALYSES))


def packaged_text(name: str) -> str:
    """The YAML of a packaged study.

    Args:
        name: from `packaged()`.

    Raises:
        KeyError: there is none.
    """
    for entry in _files():
        if entry.name == f"{name}.yaml":
            return entry.read_text("utf-8")
    raise KeyError(name)


def analysis_keys(name: str) -> dict[str, Any]:
    """What an analysis sets: keys as `--set` takes them, with their values.

    Args:
        name: from `analyses()`.

    >>> analysis_keys("topology")["max_tokens"], analysis_keys("random_matrix")["texts.samples"]
    (48, 100)
    """
    keys: dict[str, Any] = yaml.safe_load((_CONFIGS / _ANALYSES / f"{name}.yaml").read_text("utf-8"))
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


def _files() -> Iterator[Path]:
    for entry in _CONFIGS.iterdir():
        if entry.is_dir() and entry.name != _ANALYSES:
            yield from (file for file in entry.iterdir() if file.name.endswith(".yaml"))
        elif entry.name.endswith(".yaml"):
            yield entry


def _names(folder: Path) -> Iterator[str]:
    return (entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
