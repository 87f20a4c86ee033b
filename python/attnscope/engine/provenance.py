# SPDX-License-Identifier: MIT
"""The provenance of a run folder's numbers - versions, machine, weights, seeds, state of the code - and the
test that another run may write there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attnscope._documents import read_json
from attnscope._limits import MAX_FILE_NAME_BYTES, MAX_NAME_CHARACTERS
from attnscope._names import file_name_fault
from attnscope.config.memory_texts import INPUTS
from attnscope.config.run_config import Settings
from attnscope.engine.git_state import ask_git, git_state
from attnscope.errors import ConfigError, DocumentError, ResultsError, command
from attnscope.results.schema import check_provenance

#: Where the shards of a job array lie inside the run folder.
SHARDS = "parts"
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pandas", "pyarrow")


def provenance(study: Settings, digest: str) -> dict[str, Any]:
    """Return the facts that are known before a run begins."""
    import attnscope

    machine_facts = machine()
    return {
        "attnscope": machine_facts["attnscope"],
        "study": study.study,
        "config_hash": hashlib.sha256(study.to_yaml().encode()).hexdigest()[:16],
        "plan": digest,
        "seed": study.seed,
        # torch by its own word: the metadata of some wheels leave out which CUDA they were built for
        "packages": {name: installed(name) for name in _PACKAGES} | {"torch": str(torch.__version__)},
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: machine_facts[name] for name in ("cpu", "instructions", "threads", "cuda")},
        "blas": _blas(),
        "git": git_state(Path.cwd()),
        "git_attnscope": _own_git_state(Path(attnscope.__file__)),
    }


def machine() -> dict[str, Any]:
    """Return the facts of this machine that decide the last bits of a number."""
    import attnscope
    from attnscope import _isa

    return {
        "host": socket.gethostname(),
        "attnscope": attnscope.__version__,
        "torch": str(torch.__version__),
        "instructions": {"core": _isa.live(), "torch": torch.backends.cpu.get_cpu_capability()},
        "cpu": cpu_name(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def incompatibility(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return why numbers of two machines, or runs' provenances, do not go into one table, "" where they do.

    >>> incompatibility({"attnscope": "1", "instructions": {"core": "v4"}}, {"attnscope": "2"})
    'attnscope is 1 there, 2 here'
    """
    words = {"attnscope": "attnscope", "torch": "torch", "instructions": "the instruction set"}
    return "; ".join(
        f"{word} is {_plain(first[key])} there, {_plain(second[key])} here"
        for key, word in words.items()
        if key in first and key in second and first[key] != second[key]
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " with ".join(f"{name} {item}" for name, item in value.items())
    return str(value)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the provenance that a folder holds, empty where it holds none.

    Raises:
        ResultsError: the file is damaged.
    """
    file = folder / "provenance.json"
    if not os.path.lexists(file):
        return {}
    try:
        facts = read_json(file)
        check_provenance(facts)
    except (DocumentError, OSError) as error:
        raise ResultsError(f"{file} is damaged: {error}") from error
    return facts if isinstance(facts, dict) else {}


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _own_git_state(file: Path) -> dict[str, Any] | None:
    """State of the repository that tracks the package, None for an installed one (in a repository or not)."""
    tracked = ask_git(file.parent, "ls-files", "--error-unmatch", file.name)
    return None if tracked is None else git_state(file.parent)


@cache
def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    lines = torch.__config__.show().splitlines()
    named = (line.strip(" -") for line in lines if "Math Kernel Library" in line or "BLAS_INFO" in line)
    return next(named, "")


def refuse_existing(folder: Path, settings: Settings) -> None:
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


def refuse_another(folder: Path, settings: Settings) -> None:
    """Raise FileExistsError if a folder holds another study."""
    if not (folder / "study.yaml").is_file():
        raise FileExistsError(f"{folder} exists and is no run folder; choose another --name")
    try:
        stored_settings = Settings.from_yaml(folder / "study.yaml")
    except ConfigError as error:
        raise FileExistsError(f"{folder} exists, and its study cannot be read: {error}") from error
    if changed := changes(stored_settings, with_stored_texts(settings)):
        raise FileExistsError(f"{folder} exists and holds another study ({changed}); choose another --name")


def refuse_other_study(folder: Path, settings: Settings) -> None:
    """Refuse a folder with another study in it, or with anything that no run and no shard has written."""
    if (folder / "study.yaml").is_file():
        refuse_another(folder, settings)
        return
    foreign = [path.name for path in _content(folder) if path.name not in (SHARDS, INPUTS)]
    if foreign:
        raise FileExistsError(
            f"{folder} exists, holds {foreign[0]!r:.80} and is no run folder; choose another folder"
        )


def changes(stored_settings: Settings, settings: Settings) -> str:
    """Return the keys in which two studies differ, "" if they are the same up to their names."""
    return "; ".join(
        f"{key}: {old} there, {new} here"
        for key, old, new in differences(stored_settings.to_dict(), settings.to_dict())
        if key not in ("name", "output", "max_disk") and not key.startswith("workers")
    )


def refuse_changed(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if a run that goes on would mix numbers."""
    before = read_provenance(folder)
    if (folder / "shards").is_dir():
        raise ConfigError(
            f"{folder} was begun by an older attnscope, whose units are stored in another way: its "
            "tables can be read, drawn and compared; run the study under another name to go on"
        )
    if other := incompatibility(before, facts):
        raise ConfigError(
            f"{folder} was begun elsewhere: {other}; one table would hold numbers of both "
            "(ATTNSCOPE_ISA and ATEN_CPU_CAPABILITY choose the instruction set)"
        )
    if before.get("plan", facts["plan"]) != facts["plan"]:
        raise ConfigError(
            f"{folder}: the texts or the weights have changed since the run began; "
            "run the study under another name"
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


def default_name(study: Settings) -> str:
    """Return the run's name when the settings give none: the study's and its models'."""
    from attnscope.engine.planning import checkpoints_of

    models = [checkpoints_of(study, position)[0].model for position in range(len(study.models))]
    name = "-".join([study.study, *(re.sub(r"[/\\]", "--", model) for model in models[:3])])
    if len(name.encode()) > MAX_FILE_NAME_BYTES or len(name) > MAX_NAME_CHARACTERS:
        # three labels may be longer together than a folder's name can be
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name.encode()[: MAX_NAME_CHARACTERS // 2].decode('utf-8', 'ignore')}-{digest}"
    if fault := file_name_fault(name):
        raise ConfigError(f"the run's name {fault}; choose another --name")
    return name


def with_stored_texts(settings: Settings) -> Settings:
    """Return the settings with the files of the run folder in the place of texts in memory."""
    if all(source.rows is None for source in settings.texts):
        return settings
    folder = (Path(settings.output) / (settings.name or default_name(settings))).resolve() / INPUTS
    texts = [
        source
        if source.rows is None
        else source.model_copy(update={"rows": None, "path": str(folder / source.path)})
        for source in settings.texts
    ]
    return settings.model_copy(update={"texts": texts})


def resolved(settings: Settings) -> Settings:
    """Return the settings with absolute paths, so that a run can be resumed from any folder.

    Settings were checked when they were made, and a path is as good when it is absolute.
    """
    models = [
        source.model_copy(update={"path": _absolute(source.path), "tokenizer": _absolute(source.tokenizer)})
        for source in settings.models
    ]
    texts = [source.model_copy(update={"path": _absolute(source.path)}) for source in settings.texts]
    return settings.model_copy(update={"models": models, "texts": texts})


def _absolute(path: str) -> str:
    """Return the absolute path of what exists and of a pattern; another text, such as a hub id, as it is."""
    place = Path(path).expanduser()
    if path and place.exists():
        return str(place.resolve())
    if any(mark in path for mark in "*?[") and not place.is_absolute():
        return str(Path.cwd() / place)
    return path


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


def settings_of(config: str | Path | Settings, **overrides: Any) -> Settings:
    """Return the settings that `run` takes, with absolute paths."""
    if isinstance(config, Settings):
        return resolved(Settings(**{**config.to_dict(), **overrides}) if overrides else config)
    return resolved(Settings.from_yaml(config, **overrides))
