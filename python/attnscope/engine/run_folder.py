# SPDX-License-Identifier: MIT
"""The folder of a run: its name, and whether a run may write or go on there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnscope.config.memory_texts import INPUTS
from attnscope.config.run_config import RunConfig
from attnscope.engine.planning import checkpoints_of
from attnscope.engine.provenance import incompatibility, read_provenance
from attnscope.errors import ConfigError, OtherModel, command
from attnscope.study_api.plan import Plan
from attnscope.untrusted.limits import MAX_FILE_NAME_BYTES, MAX_NAME_CHARACTERS
from attnscope.untrusted.names import file_name_fault

#: Where the shards of a job array lie inside the run folder.
SHARDS = "parts"


def run_folder(settings: RunConfig) -> Path:
    """Return the folder of a run, named by the settings or after the study and its models."""
    return Path(settings.output).expanduser() / (settings.name or default_name(settings))


def refuse_existing(folder: Path, settings: RunConfig) -> None:
    """Raise FileExistsError if a folder holds something; the message names the way on."""
    if not os.path.lexists(folder) or (folder.is_dir() and not has_content(folder)):
        return
    if (folder / SHARDS).is_dir() and not (folder / "study.yaml").is_file():
        raise FileExistsError(f"{folder} holds shards of a run: {command('gather', folder)}")
    refuse_another(folder, settings)
    raise FileExistsError(
        f"{folder} exists and holds this very study: {command('resume', folder)}, in Python "
        f"attnscope.resume({str(folder)!r}) or run(..., exist_ok=True)"
    )


def refuse_another(folder: Path, settings: RunConfig) -> None:
    """Raise FileExistsError if a folder holds another study."""
    if not (folder / "study.yaml").is_file():
        raise FileExistsError(f"{folder} exists and is no run folder; choose another --name")
    try:
        stored_settings = read_settings(folder)
    except ConfigError as error:
        raise FileExistsError(f"{folder} exists, and its study cannot be read: {error}") from error
    if changed := changes(with_stored_texts(stored_settings, folder), with_stored_texts(settings)):
        raise FileExistsError(f"{folder} exists and holds another study ({changed}); choose another --name")


def refuse_other_study(folder: Path, settings: RunConfig) -> None:
    """Refuse a folder with another study in it, or with anything that no run and no shard has written."""
    if (folder / "study.yaml").is_file():
        refuse_another(folder, settings)
        return
    foreign = [path.name for path in _content(folder) if path.name not in (SHARDS, INPUTS)]
    if foreign:
        raise FileExistsError(
            f"{folder} exists, holds {foreign[0]!r:.80} and is no run folder; choose another folder"
        )


def changes(stored_settings: RunConfig, settings: RunConfig) -> str:
    """Return the keys in which two studies differ, "" if they are the same up to their names."""
    return "; ".join(
        f"{key}: {old} there, {new} here"
        for key, old, new in differences(stored_settings.to_dict(), settings.to_dict())
        if key not in ("name", "output", "max_disk") and not key.startswith("workers")
    )


def refuse_changed(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if a run that goes on would mix numbers."""
    before = read_provenance(folder)
    if other := incompatibility(before, facts):
        raise ConfigError(
            f"{folder} was begun elsewhere: {other}; one table would hold numbers of both "
            "(ATTNSCOPE_ISA and ATEN_CPU_CAPABILITY choose the instruction set)"
        )
    if before.get("plan", facts["plan"]) != facts["plan"]:
        raise ConfigError(
            f"{folder}: the settings, the texts or the weights have changed since the run began; "
            "run the study under another name"
        )


def refuse_other_models(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]], plan: Plan
) -> None:
    """Raise OtherModel if models are others than those of the same titles that a run has measured, or on a
    device of another kind.

    A plan knows a model of the hub by its name and revision, which may move, and "auto" for a device.

    Args:
        before: a provenance's entries of the models that the run has measured, by title.
        now: entries, or parts of them, of those to be measured.
        plan: of the run, in which the checkpoints of a model share their device.
    """
    series = {checkpoint.title: position for position, of in plan.series.items() for checkpoint in of}
    for title, facts in now.items():
        for other, stored in before.items():
            same_model = title == other or series.get(title, title) == series.get(other, other)
            device, measured_on = (
                str(entry.get("device", "")).partition(":")[0] for entry in (facts, stored)
            )
            if same_model and device and measured_on and device != measured_on:
                raise OtherModel(
                    f"{title}: this run has measured {other} on {measured_on}, and the device here is "
                    f"{device}; one table would hold numbers of both: go on where there is {measured_on}"
                    f"{' (CUDA_VISIBLE_DEVICES= hides a GPU)' if measured_on == 'cpu' else ''}"
                )
        commit, measured = (str(of.get(title, {}).get("commit") or "") for of in (now, before))
        if commit and measured and commit != measured:
            raise OtherModel(
                f"{title}: the hub has commit {commit:.40} now, and this run has measured commit "
                f"{measured:.40}; run the study under another name, with that commit as the revision for the "
                "weights of before"
            )


def has_content(folder: Path) -> bool:
    """Return True if a folder holds more than a process leaves that is killed before its first file."""
    return bool(_content(folder))


def _content(folder: Path) -> list[Path]:
    """Return what is in a folder besides the files of its lock and of writers that were killed."""
    if not folder.is_dir():
        return []
    lock = (".lock", ".owner", ".looks")
    return [path for path in folder.iterdir() if not (path.name in lock or path.match(".*.tmp"))]


def default_name(study: RunConfig) -> str:
    """Return the run's name when the settings give none: the study's and its models'."""
    models = [checkpoints_of(study, position)[0].model for position in range(len(study.models))]
    name = "-".join([study.study, *(re.sub(r"[/\\]", "--", model) for model in models[:3])])
    if len(name.encode()) > MAX_FILE_NAME_BYTES or len(name) > MAX_NAME_CHARACTERS:
        # three labels may be longer together than a folder's name can be
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name.encode()[: MAX_NAME_CHARACTERS // 2].decode('utf-8', 'ignore')}-{digest}"
    if fault := file_name_fault(name):
        raise ConfigError(f"the run's name {fault}; choose another --name")
    return name


def read_settings(folder: Path, **values: Any) -> RunConfig:
    """Return the settings that a run folder or a shard holds, with stored texts where the folder is now.

    Args:
        folder: with a `study.yaml`.
        values: keys that replace those of the file.

    Raises:
        ConfigError: the file cannot be understood.
    """
    settings = RunConfig.from_yaml(folder / "study.yaml", **values)
    inputs = folder_of_run(folder) / INPUTS
    texts = []
    for source in settings.texts:
        file = inputs / Path(source.path).name
        # older runs name the file by the place where they began
        is_stored = source.path == f"{INPUTS}/{file.name}" or not os.path.lexists(source.path)
        is_stored = is_stored and file.is_file()
        texts.append(source.model_copy(update={"path": str(file)}) if is_stored else source)
    return settings.model_copy(update={"texts": texts})


def folder_of_run(folder: Path) -> Path:
    """Return the absolute folder of the run that a folder is, or that it is a shard of."""
    place = folder.resolve()
    return place.parents[1] if place.parent.name == SHARDS else place


def with_stored_texts(settings: RunConfig, folder: Path | None = None) -> RunConfig:
    """Return the settings as a run stores them: its texts in memory by their files, relative to its folder.

    Args:
        settings: of the run.
        folder: of the run or of a shard; None is the one that the settings name.
    """
    inputs = folder_of_run(run_folder(settings) if folder is None else folder) / INPUTS
    texts = [
        source.model_copy(update={"rows": None, "path": f"{INPUTS}/{Path(source.path).name}"})
        if source.rows is not None or Path(source.path).parent == inputs
        else source
        for source in settings.texts
    ]
    return settings.model_copy(update={"texts": texts})


def differences(first: Any, second: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the differences of two studies, as plain data: the key and the value of each, 60 letters of it.

    >>> list(differences({"texts": [{"column": "a"}]}, {"texts": [{"column": "b"}]}))
    [('texts[0].column', "'a'", "'b'")]
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for name in {**first, **second}:
            yield from differences(first.get(name), second.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for place, pair in enumerate(zip(first, second, strict=True)):
            yield from differences(*pair, f"{key}[{place}]")
    elif first != second:
        words = [repr(first), repr(second)]
        pairs = enumerate(zip(*words, strict=False))
        shared = next((place for place, (old, new) in pairs if old != new), 0) - 10
        start = shared if shared > 0 and max(map(len, words)) > 60 else 0
        shown = [("…" if start else "") + word[start : start + 60] for word in words]
        yield key, shown[0], shown[1]
