# SPDX-License-Identifier: MIT
"""Shards: the tables of one unit of work in one Parquet file, written whole or not at all.

A shard has one row; each table is one column, a list of structs. So a unit is one file and one rename, and
a table of many shards is read without touching the others. The manifest, one JSON line per shard, holds the
hash of its bytes: what is damaged or foreign is set aside and computed again. A shard also carries its unit
and the hash of its own bytes, so that one whose line was never written is known as well.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnscope.engine.schema import stamped

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows gathered before a row group of a final table is written.
ROW_GROUP = 65536
#: Keys of a shard's own metadata, and what stands for its hash while that is computed.
UNIT, HASH, NO_HASH = b"attnscope_unit", b"attnscope_sha256", b"0" * 64


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of writers that were killed; the caller holds the lock of the run."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()


class DiskFull(OSError):
    """A write did not fit; everything written before it is intact."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name complete and on disk, or not at all.

    Args:
        path: the final name; the temporary one lies beside it.

    Raises:
        DiskFull: no space, quota or file size left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise disk_error(error, path) from error
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file by `atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def disk_error(error: OSError, path: Path) -> OSError:
    """`DiskFull` where the error says that there was no room, else the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(
            error.errno, f"no room for {path.name} ({os.strerror(error.errno)})", str(path.parent)
        )
    return error


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Shards:
    """The shards of a run folder and their manifest.

    Args:
        folder: the run folder; `shards/` is made when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shards"
        self.manifest = self.folder / "manifest.jsonl"
        self._known: dict[str, dict[str, Any]] = {}

    def open(self, units: Mapping[str, str], say: Callable[[str], None] = print) -> list[str]:
        """Reads the manifest, checks every shard against it, and sets aside what cannot be trusted.

        Args:
            units: file name of every unit of the present plan, by unit id.
            say: told about every file that is set aside.

        Returns:
            ids of the units that are done.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        listed = {entry["unit"]: entry for entry in self._read_manifest(say)}
        self._known = {}
        for unit, name in units.items():
            entry = listed.get(unit)
            path = self.folder / name
            if not path.is_file():
                continue
            if entry is None:
                # its writer was killed between the rename and the line
                if own := _own_entry(path, unit):
                    self._known[unit] = own
                    say(f"{name} is whole and of this study, though the manifest does not list it: kept")
            elif entry["file"] == name and _sha256(path.read_bytes()) == entry["sha256"]:
                self._known[unit] = entry
        trusted = {entry["file"] for entry in self._known.values()}
        for path in sorted(self.folder.glob("*.parquet")):
            if path.name not in trusted:
                self._set_aside(path, say)
        self._write_manifest()
        return list(self._known)

    def write(self, unit: str, name: str, tables: Mapping[str, pa.Table]) -> None:
        """Stores the tables of one unit; when this returns they survive a power cut.

        Args:
            unit: id of the unit.
            name: file name of its shard.
            tables: by name.

        Raises:
            DiskFull: no room; nothing of the unit is left behind.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            table: pa.ListArray.from_arrays(
                pa.array([0, len(rows)], pa.int32()), rows.combine_chunks().to_struct_array().combine_chunks()
            )
            for table, rows in tables.items()
        }
        whole = stamped(pa.table(columns))
        buffer = io.BytesIO()
        own = {**whole.schema.metadata, UNIT: unit.encode(), HASH: NO_HASH}
        pq.write_table(whole.replace_schema_metadata(own), buffer, compression="zstd")
        blank = buffer.getvalue()
        data = _with_hash(blank, NO_HASH, _sha256(blank).encode())
        write_bytes(self.folder / name, data)
        entry = _entry(unit, name, data, {table: len(rows) for table, rows in tables.items()})
        try:
            with open(self.manifest, "ab") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(error, self.manifest) from error
        self._known[unit] = entry

    def read(self, unit: str, table: str) -> pa.Table:
        """One table of one stored unit.

        Args:
            unit: id of the unit.
            table: its name.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        stored = pq.read_table(self.folder / self._known[unit]["file"], columns=[table])
        return pa.Table.from_struct_array(stored.column(table).combine_chunks().flatten())

    def rows(self, unit: str) -> dict[str, int]:
        """Number of rows of each table of a stored unit."""
        return dict(self._known[unit]["rows"])

    def gather(self, units: Sequence[str], table: str, path: Path) -> None:
        """Writes one table over the units that have it, in their order, a few row groups at a time.

        Args:
            units: ids of stored units.
            table: its name.
            path: the Parquet file.

        Raises:
            DiskFull: no room; a file of that name from before is untouched.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        units = [unit for unit in units if table in self._known[unit]["rows"]]
        with atomic_file(path) as file:
            writer: Any = None
            waiting: list[pa.Table] = []
            for position, unit in enumerate(units):
                waiting.append(stamped(self.read(unit, table)))
                writer = writer or pq.ParquetWriter(file, waiting[0].schema, compression="zstd")
                if sum(map(len, waiting)) >= ROW_GROUP or position == len(units) - 1:
                    writer.write_table(pa.concat_tables(waiting).combine_chunks())
                    waiting = []
            if writer is not None:
                writer.close()

    def _read_manifest(self, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        if not self.manifest.is_file():
            return
        for number, line in enumerate(self.manifest.read_bytes().split(b"\n")):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                if not {"unit", "file", "sha256", "rows"} <= set(entry):
                    raise ValueError("keys are missing")
            except (ValueError, TypeError) as error:
                say(
                    f"{self.manifest}, line {number + 1} cannot be read ({error}): its unit is computed again"
                )
                continue
            yield entry

    def _write_manifest(self) -> None:
        write_bytes(self.manifest, b"".join(_line(entry) for entry in self._known.values()))

    def _set_aside(self, path: Path, say: Callable[[str], None]) -> None:
        aside = self.folder / "set-aside"
        aside.mkdir(exist_ok=True)
        target, count = aside / path.name, 1
        while target.exists():
            target, count = aside / f"{path.stem}.{count}{path.suffix}", count + 1
        os.replace(path, target)
        say(f"{path.name} is damaged or not of this study: set aside as {target}, its unit is computed again")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _entry(unit: str, name: str, data: bytes, rows: Mapping[str, int]) -> dict[str, Any]:
    """What the manifest says of a shard."""
    return {"unit": unit, "file": name, "bytes": len(data), "sha256": _sha256(data), "rows": dict(rows)}


def _with_hash(data: bytes, old: bytes, new: bytes) -> bytes:
    """A shard's bytes with another hash, of equal length, in its metadata, which stand at the end."""
    before, _, behind = data.rpartition(old)
    return before + new + behind


def _own_entry(path: Path, unit: str) -> dict[str, Any] | None:
    """The manifest's entry of a shard by what it says itself; None where unit or hash do not fit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = path.read_bytes()
    try:
        said = pq.read_metadata(pa.BufferReader(data)).metadata or {}
        if said.get(UNIT) != unit.encode():
            return None
        if _sha256(_with_hash(data, said[HASH], NO_HASH)).encode() != said[HASH]:
            return None
        stored = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    rows = {name: len(stored.column(name).combine_chunks().flatten()) for name in stored.column_names}
    return _entry(unit, path.name, data, rows)


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
