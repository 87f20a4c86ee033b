# SPDX-License-Identifier: MIT
"""Which folder a run goes to, and whether it may."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.engine.config import ConfigError, Settings
from attnscope.engine.mistakes import differences
from attnscope.engine.provenance import other_numbers, stored
from attnscope.engine.results import resume_command

#: Where the shards of a job array lie inside the run folder.
SHARDS = "parts"


def refuse_existing(folder: Path, settings: Settings) -> None:
    """Refuses a folder that holds something, with the way on."""
    if not folder.exists() or (folder.is_dir() and not begun(folder)):
        return
    if (folder / SHARDS).is_dir() and not (folder / "study.yaml").is_file():
        raise FileExistsError(f"{folder} holds shards of a run: attnscope gather {shlex.quote(str(folder))}")
    refuse_another(folder, settings)
    raise FileExistsError(f"{folder} exists and holds this very study: {resume_command(folder)}")


def refuse_another(folder: Path, settings: Settings) -> None:
    """Refuses a folder that holds another study."""
    if not (folder / "study.yaml").is_file():
        raise FileExistsError(f"{folder} exists and is no run folder; choose another --name")
    try:
        there = Settings.from_yaml(folder / "study.yaml")
    except ConfigError as error:
        raise FileExistsError(f"{folder} exists, and its study cannot be read: {error}") from error
    if changed := changes(there, settings):
        raise FileExistsError(f"{folder} exists and holds another study ({changed}); choose another --name")


def changes(there: Settings, here: Settings) -> str:
    """Keys in which two studies differ, "" where they are the same whatever they are called."""
    return "; ".join(
        f"{key}: {old} there, {new} here"
        for key, old, new in differences(there.to_dict(), here.to_dict())
        if key not in ("name", "output") and not key.startswith("workers")
    )


def refuse_changed(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuses to go on with a run that would mix numbers."""
    before = stored(folder)
    if (folder / "shards").is_dir():
        raise ConfigError(
            f"{folder} was begun by an older attnscope, whose units are stored in another way: its "
            "tables can be read, drawn and compared; run the study under another name to go on"
        )
    if other := other_numbers(before, facts):
        raise ConfigError(
            f"{folder} was begun elsewhere: {other}; one table would hold numbers of both "
            "(ATTNSCOPE_ISA and ATEN_CPU_CAPABILITY choose the instruction set)"
        )
    if before.get("plan", facts["plan"]) != facts["plan"]:
        raise ConfigError(
            f"{folder}: the texts or the weights have changed since the run began; "
            "run the study under another name"
        )


def begun(folder: Path) -> bool:
    """Whether a folder holds more than a process leaves that is killed before its first file."""
    return folder.is_dir() and any(
        not (one.name in (".lock", ".owner") or one.match(".*.tmp")) for one in folder.iterdir()
    )


def default_name(study: Settings) -> str:
    """The run's name when the settings give none: the study's and its models'."""
    from attnscope.models import find_checkpoints

    labels = []
    for position, model in enumerate(study.models):
        try:
            found = find_checkpoints(model.path, model.revisions, model.label)
        except FileNotFoundError as error:
            raise ConfigError(f"models[{position}]: {error}") from None
        labels.append(found[0].model.replace("/", "--"))
    return "-".join([study.study, *labels[:3]])


def resolved(study: Settings) -> Settings:
    """The same study with absolute paths, so that a run can be resumed from any folder."""
    values = study.to_dict()
    for entry in (*values["models"], *values["texts"]):
        for key in ("path", "tokenizer"):
            if entry.get(key) and Path(entry[key]).expanduser().exists():
                entry[key] = str(Path(entry[key]).expanduser().resolve())
    for entry in values["models"]:
        folder = Path(entry["path"]).expanduser()
        if any(mark in entry["path"] for mark in "*?[") and not folder.is_absolute():
            entry["path"] = str(Path.cwd() / folder)
    return Settings(**values)
