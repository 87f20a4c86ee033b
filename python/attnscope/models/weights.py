# SPDX-License-Identifier: MIT
"""The tensors of a model folder, read from its safetensors files in blocks of rows.

Files are read, not mapped into memory: pages of a mapped file count as the process's own, so that walking
through two mapped models would look, and on a small machine act, like holding both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.models.json_files import read_json_object
from attnscope.models.safetensors_header import read_header

#: Names of dtypes in safetensors files; a dtype that is not here keeps the format's name.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"
#: Entries of a block: 8 MB in the widest dtype. Blocks of two files then have the same rows in any dtypes.
_BLOCK = 1 << 20


class _Stored(NamedTuple):
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


def _files_of_index(index: Path) -> list[str]:
    """Return the names of the files that an index divides the tensors among, sorted.

    Raises:
        ValueError: an index of another form, or the name of a file outside of its folder.
    """
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} must map the names of tensors to names of files under 'weight_map'")
    files = sorted(set(names.values()))
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise ValueError(f"{index} names {name!r}, which is no file of its folder")
    return files


class WeightFolder:
    """A folder of config.json and safetensors files, of which only headers are kept in memory.

    Args:
        path: the folder.

    Attributes:
        path: the folder.
        config: what config.json says, an empty mapping without one.
        shapes: by tensor.
        dtypes: by tensor, in torch's words; formats that torch cannot compute with by their own name.

    Raises:
        TypeError: what is no path, such as a model.
        ValueError: not a folder, no safetensors file, one that breaks a rule of the format, a tensor in two
            files, a configuration or index that is no JSON object.
    """

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"weights are read from a folder, got {type(path).__name__}")
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise ValueError(f"{path} is not a folder of config.json and *.safetensors")
        config = self.path / "config.json"
        self.config: Mapping[str, Any] = read_json_object(config) if config.exists() else {}
        self._tensors: dict[str, _Stored] = {}
        for file in self._files():
            for name, dtype, shape, start in read_header(file):
                if name in self._tensors:
                    raise ValueError(f"{name} is both in {self._tensors[name].file.name} and in {file.name}")
                self._tensors[name] = _Stored(file, _DTYPES.get(dtype, dtype), shape, start)
        self.shapes = {name: stored.shape for name, stored in self._tensors.items()}
        self.dtypes = {name: stored.dtype for name, stored in self._tensors.items()}

    def _files(self) -> list[Path]:
        index = self.path / _INDEX
        if index.exists():
            names = _files_of_index(index)
            if missing := [name for name in names if not (self.path / name).is_file()]:
                raise ValueError(f"{self.path} lacks {missing[0]}, which {_INDEX} names")
            return [self.path / name for name in names]
        for name in ("model.safetensors", _ADAPTER):
            if (self.path / name).is_file():
                return [self.path / name]
        files = sorted(file for file in self.path.glob("*.safetensors") if file.is_file())
        if not files:
            others = sorted(
                file.name for pattern in ("*.bin", "*.pt", "*.gguf") for file in self.path.glob(pattern)
            )
            hint = f"; {others[0]} is of a format that is not read" if others else ""
            raise ValueError(f"{self.path} holds no *.safetensors file{hint}")
        return files

    def blocks(
        self, name: str, index: int | None = None, start: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield blocks of rows of a matrix, at most 8 MB each: (first row, rows)."""
        rows, columns = self.shapes[name][-2:]
        step = max(1, _BLOCK // max(1, columns))
        before = 0 if index is None else index * rows
        end = rows if end is None else end
        for row in range(start, end, step):
            count = min(step, end - row)
            values = self._values(name, (before + row) * columns, count * columns)
            yield row, values.view(count, columns)

    def read(self, name: str) -> Tensor:
        """Return a whole tensor in its stored dtype."""
        shape = self.shapes[name]
        return self._values(name, 0, int(torch.Size(shape).numel())).view(shape)

    def _dtype(self, name: str) -> torch.dtype:
        dtype = getattr(torch, self.dtypes[name], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{self.path}: {name} has the format {self.dtypes[name]}, which is not read")
        return dtype

    def _values(self, name: str, first: int, count: int) -> Tensor:
        stored, dtype = self._tensors[name], self._dtype(name)
        buffer = bytearray(count * dtype.itemsize)
        with open(stored.file, "rb", buffering=0) as file:
            file.seek(stored.start + first * dtype.itemsize)
            view = memoryview(buffer)
            while view:
                got = file.readinto(view)
                if not got:
                    raise OSError(f"{stored.file} ends inside {name}: it was cut while being read")
                view = view[got:]
        return torch.frombuffer(buffer, dtype=dtype) if count else torch.empty(0, dtype=dtype, device="cpu")
