# SPDX-License-Identifier: MIT
"""Which folder a run goes to, and whether it may."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.engine.config import ConfigError, Settings
from attnscope.engine.mistakes import differences
from attnscope.engine.results import resume_command


def refuse_existing(folder: Path, settings: Settings) -> None:
    """Refuses a folder that holds something, with the way on.

    Raises:
        FileExistsError: it holds a run, or something else.
    """
    if not folder.exists() or (folder.is_dir() and not _begun(folder)):
        return
    stored = folder / "study.yaml"
    if not folder.is_dir() or not stored.is_file():
        raise FileExistsError(f"{folder} exists and is no run folder; choose another --name")
    try:
        there = Settings.from_yaml(stored)
    except ConfigError as error:
        raise FileExistsError(f"{folder} exists, and its study cannot be read: {error}") from error
    changed = [
        f"{key}: {old} there, {new} here"
        for key, old, new in differences(there.to_dict(), settings.to_dict())
        if key not in ("name", "output")
    ]
    if changed:
        raise FileExistsError(
            f"{folder} exists and holds another study ({'; '.join(changed)}); choose another --name"
        )
    raise FileExistsError(f"{folder} exists and holds this very study: {resume_command(folder)}")


def refuse_changed(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuses to go on with a run that would mix numbers.

    Args:
        folder: of the run.
        facts: its provenance, as it would be now.

    Raises:
        ConfigError: the texts, the weights or attnscope itself changed since the run began.
    """
    stored = folder / "provenance.json"
    before = json.loads(stored.read_text("utf-8")) if stored.is_file() else {}
    if (folder / "shards").is_dir():
        raise ConfigError(
            f"{folder} was begun by an older attnscope, whose units are stored in another way: its "
            "tables can be read, drawn and compared; run the study under another name to go on"
        )
    if before.get("attnscope", facts["attnscope"]) != facts["attnscope"]:
        raise ConfigError(
            f"{folder} was begun by attnscope {before['attnscope']}, this is {facts['attnscope']}: "
            "one table would hold numbers of both"
        )
    if before.get("plan", facts["plan"]) != facts["plan"]:
        raise ConfigError(
            f"{folder}: the texts or the weights have changed since the run began; "
            "run the study under another name"
        )


def _begun(folder: Path) -> bool:
    """Whether a folder holds more than a process leaves that is killed before its first file."""
    return any(not (one.name in (".lock", ".owner") or one.match(".*.tmp")) for one in folder.iterdir())


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
