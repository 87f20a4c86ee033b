# SPDX-License-Identifier: MIT
"""The tensors of a model folder, read from its safetensors files in blocks of rows.

Files are read, not mapped into memory: pages of a mapped file count as the process's own, so that walking
through two mapped models would look, and on a small machine act, like holding both.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Names of dtypes in safetensors files; what is not here is left to the caller as its own name.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"
#: Entries of a block: 8 MB in the widest dtype. Blocks of two files then have the same rows in any dtypes.
_BLOCK = 1 << 20


class _Stored(NamedTuple):
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


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
        ValueError: not a folder, no safetensors file, a broken one, a tensor in two files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise ValueError(f"{path} is not a folder of config.json and *.safetensors")
        config = self.path / "config.json"
        self.config: Mapping[str, Any] = json.loads(config.read_text("utf-8")) if config.is_file() else {}
        self._tensors: dict[str, _Stored] = {}
        for file in self._files():
            for name, stored in _header(file):
                if name in self._tensors:
                    raise ValueError(f"{name} is both in {self._tensors[name].file.name} and in {file.name}")
                self._tensors[name] = stored
        self.shapes = {name: stored.shape for name, stored in self._tensors.items()}
        self.dtypes = {name: stored.dtype for name, stored in self._tensors.items()}

    def _files(self) -> list[Path]:
        index = self.path / _INDEX
        if index.is_file():
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            if missing := [name for name in names if not (self.path / name).is_file()]:
                raise ValueError(f"{self.path} lacks {missing[0]}, which {_INDEX} names")
            return [self.path / name for name in names]
        for name in ("model.safetensors", _ADAPTER):
            if (self.path / name).is_file():
                return [self.path / name]
        files = sorted(self.path.glob("*.safetensors"))
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
        """Blocks of rows of a matrix, at most 8 MB each: (first row, rows)."""
        rows, columns = self.shapes[name][-2:]
        step = max(1, _BLOCK // max(1, columns))
        before = 0 if index is None else index * rows
        end = rows if end is None else end
        for row in range(start, end, step):
            count = min(step, end - row)
            values = self._values(name, (before + row) * columns, count * columns)
            yield row, values.view(count, columns)

    def read(self, name: str) -> Tensor:
        """A whole tensor in its stored dtype."""
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
        return torch.frombuffer(buffer, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _header(file: Path) -> Iterator[tuple[str, _Stored]]:
    """The tensors of a safetensors file: 8 bytes of length, JSON, data."""
    with open(file, "rb") as data:
        start = data.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= file.stat().st_size - 8:
            raise ValueError(f"{file} is not a safetensors file, or not all of it is there")
        try:
            header = json.loads(data.read(length))
        except ValueError as error:
            raise ValueError(f"{file} is not a safetensors file: its header is no JSON") from error
    tensors = {name: one for name, one in header.items() if name != "__metadata__"}
    end = 8 + length + max((one["data_offsets"][1] for one in tensors.values()), default=0)
    if end > file.stat().st_size:
        raise ValueError(f"{file} has {file.stat().st_size} bytes of {end}: not all of it is there")
    for name, one in tensors.items():
        dtype = _DTYPES.get(one["dtype"], one["dtype"])
        yield name, _Stored(file, dtype, tuple(one["shape"]), 8 + length + one["data_offsets"][0])
