# SPDX-License-Identifier: MIT
"""The checkpoints that a model source names: one folder, a series of folders, or revisions on the hub.

`step1000`, `checkpoint-500` and revisions on the hub are training steps; they are ordered as integers, never
as words, and a name that holds no step has step -1.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from attnscope.errors import ConfigError
from attnscope.models.hub import hub_answers
from attnscope.models.safetensors_header import read_header

_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)[-_]?(\d+)", re.IGNORECASE)
# Of whole numbers that 64 bits hold.
_DIGITS = 18
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
#: Bytes of weights in a series up to which a fingerprint reads all of them, which takes about a second.
READ_IN_FULL = 1024**3
#: Pieces of a tensor that stand for one that is longer than all of them, and bytes of each.
_PIECES, _PIECE = 16, 4096
_BUFFER = 1024**2
#: Folder names that say nothing about the model: the label then comes from the folder above.
_PLAIN = frozenset({"hf", "model", "final", "checkpoints", "checkpoint", "main", "latest"})


@dataclass(frozen=True)
class Checkpoint:
    """A set of weights.

    Attributes:
        model: label of the model, the same for all its checkpoints.
        revision: name of the checkpoint inside the model, "" when there is only one.
        step: training step, -1 when the name does not say one.
        path: folder, or hub id.
        local: whether `path` is a folder.
    """

    model: str
    revision: str
    step: int
    path: str
    local: bool

    @property
    def title(self) -> str:
        """For people: model and revision."""
        return f"{self.model} {self.revision}".strip()


def step_of(name: str) -> int:
    """Return the training step in a revision or folder name, -1 when the name has none.

    Raises:
        ConfigError: a step that no column of whole numbers holds.

    >>> step_of("step512"), step_of("checkpoint-1000"), step_of("main")
    (512, 1000, -1)
    """
    match = _STEP.search(name)
    if match and len(match[1].lstrip("0")) > _DIGITS:
        raise ConfigError(f"a training step has at most {_DIGITS} digits, got {name!r:.80}")
    return int(match[1]) if match else -1


def find_checkpoints(path: str, revisions: Sequence[str] = (), label: str = "") -> list[Checkpoint]:
    """Return the checkpoints that a path and its revisions name, in the order of their training steps.

    A folder with `config.json` is one model; a folder of such folders, or a pattern with `*`, is a series;
    anything else that looks like a hub id is one, with its revisions.

    Args:
        revisions: of a hub id, or names of folders inside a series; empty takes what is there.

    Raises:
        FileNotFoundError: no model lies there.
        ConfigError: a name with a step that no table holds.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if _is_model(folder) and not revisions:
            refuse_special_files(folder)
            return [Checkpoint(label or _label(folder), "", -1, str(folder), True)]
        inside = [folder / name for name in revisions] or list(filter(_is_model, folder.iterdir()))
        if not inside:
            raise FileNotFoundError(
                f"the folder {folder} holds no model: no config.json, and none in the folders inside it"
            )
        return _series(inside, label or _label(folder))
    if glob.has_magic(path):
        folders = list(filter(_is_model, map(Path, glob.glob(str(folder)))))
        if not folders:
            raise FileNotFoundError(f"no folder with a config.json matches {path}")
        return _series(folders, label or _label(folders[0].parent))
    if folder.is_file():
        raise FileNotFoundError(f"{path} is a file; a model is a folder with config.json and *.safetensors")
    if path.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(path):
        raise FileNotFoundError(f"there is no model folder {path}")
    hub = [Checkpoint(label or path, name, step_of(name), path, False) for name in revisions or [""]]
    return (
        sorted(hub, key=lambda checkpoint: checkpoint.step)
        if all(checkpoint.step >= 0 for checkpoint in hub)
        else hub
    )


def fingerprint(checkpoint: Checkpoint, series: int = 1) -> str:
    """Return a digest that tells two sets of weights apart without reading gigabytes.

    A folder counts by names, sizes and contents of its configs and weight files; a hub id by the id and its
    revision. Pieces of every tensor stand for the weights of a series of more than `READ_IN_FULL` bytes: a
    change of few rows of a large matrix can go unnoticed there.

    Args:
        series: how many checkpoints share those bytes, each an equal part.
    """
    if not checkpoint.local:
        return hashlib.sha256(f"{checkpoint.path}@{checkpoint.revision}".encode()).hexdigest()[:16]
    files = [
        file
        for file in sorted(Path(checkpoint.path).glob("*"))
        if file.name in ("config.json", "adapter_config.json") or file.suffix == ".safetensors"
    ]
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.sha256()
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{file.name}:{size}".encode())
        is_long = sum(sizes) > READ_IN_FULL // series and file.suffix == ".safetensors"
        with open(file, "rb") as data:
            for begin, end in _pieces(file, size) if is_long else [(0, size)]:
                data.seek(begin)
                for offset in range(begin, end, _BUFFER):
                    digest.update(data.read(min(_BUFFER, end - offset)))
    return digest.hexdigest()[:16]


def _pieces(file: Path, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of bytes of a weight file that stand for all of it: the header, and of every tensor
    the beginning, the end and evenly spaced pieces between them.
    """
    try:
        starts = sorted({tensor.start for tensor in read_header(file)})
    except ValueError:
        starts = []  # who loads the file says what is wrong with it
    header = min(starts[0] if starts else _PIECE, size)
    yield 0, header
    for start, end in pairwise([*(starts or [header]), size]):
        if end - start <= _PIECES * _PIECE:
            yield start, end
            continue
        for piece in range(_PIECES):
            begin = start + (end - start - _PIECE) * piece // (_PIECES - 1)
            yield begin, begin + _PIECE


def folder_of(checkpoint: Checkpoint) -> Path:
    """Return the folder of a checkpoint's files; of a hub id the one in the cache, fetched where it is
    missing.
    """
    if checkpoint.local:
        return Path(checkpoint.path)
    from huggingface_hub import snapshot_download

    path = snapshot_download(
        checkpoint.path,
        revision=checkpoint.revision or None,
        allow_patterns=["*.json", "*.safetensors"],
        local_files_only=not hub_answers(),
    )
    return Path(path)


def _is_model(folder: Path) -> bool:
    """Return True if the folder holds a model, or an adapter of one."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def refuse_special_files(folder: Path, kind: str = "a model") -> None:
    """Raise FileNotFoundError for a pipe, socket or device, whose reading may take for ever.

    Looked at is what loading reads: the folder itself and its chat templates.
    """
    for file in (*sorted(folder.iterdir()), *sorted(folder.glob("additional_chat_templates/*"))):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise FileNotFoundError(f"{file} is no regular file; {kind} is a folder of files")


def _series(folders: Sequence[Path], label: str) -> list[Checkpoint]:
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise FileNotFoundError(f"there is no checkpoint folder {', '.join(missing)}")
    for folder in folders:
        refuse_special_files(folder)
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    series = [
        Checkpoint(label, name, step_of(folder.name), str(folder), True)
        for name, folder in zip(names, folders, strict=True)
    ]
    return sorted(series, key=lambda checkpoint: (checkpoint.step, checkpoint.revision))


def _label(folder: Path) -> str:
    folder = folder.resolve()
    while folder.name.lower() in _PLAIN and folder.parent != folder:
        folder = folder.parent
    return folder.name or "model"
