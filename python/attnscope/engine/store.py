# SPDX-License-Identifier: MIT
"""A run folder on disk: files that are there whole or not at all, one writer, stored units.

A unit is a folder with a Parquet file per table. It is written into `.NAME.tmp/` and renamed, so what bears
its name is complete. Its `unit.json` holds the hash and the rows of every file: a folder that is damaged or
of another plan is set aside and computed again.

Example:
    >>> import pyarrow as pa, tempfile
    >>> from pathlib import Path
    >>> from attnscope.engine.store import FolderLock, Store
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = Store(folder)
    >>> with FolderLock(folder):
    ...     store.open({"u1": "000000-u1"})
    ...     store.write("u1", {"heads": pa.table({"head": [0, 1]})})
    ...     store.rows("u1"), store.open({"u1": "000000-u1"})
    []
    ({'heads': 2}, ['u1'])
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a row group of a gathered table.
ROW_GROUP = 65536
#: Seconds without a sign of life after which a lock left by another machine counts as stale.
STALE_AFTER = 600.0
# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_ABOUT = "unit.json"


class DiskFull(OSError):
    """A write did not fit; everything written before it is intact."""


class FolderLocked(RuntimeError):
    """Another process writes to the folder; the message names it."""


@contextmanager
def _appearing(path: Path, writer: str = "") -> Iterator[Path]:
    """A name to write under, which becomes `path` when what it holds is on disk; else nothing is left."""
    temporary = path.with_name(f".{path.name}{writer}.tmp")
    remove(temporary)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError):
            raise disk_error(error, path) from error
        raise
    sync(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name complete and on disk, or not at all."""
    with _appearing(path, f".{os.getpid()}") as temporary, open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name with all files on disk, or not at all; `.NAME.tmp` until then."""
    with _appearing(path) as temporary:
        temporary.mkdir()
        yield temporary
        for written in (*temporary.iterdir(), temporary):
            sync(written)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file by `atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that were killed left behind; the caller holds the lock of the run."""
    for leftover in folder.glob(".*.tmp"):
        remove(leftover)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it, where it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def disk_error(error: OSError, path: Path, more: str = "") -> OSError:
    """`DiskFull`, which says `more`, where the error says that there was no room, else the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = f"no room for {path.name} ({os.strerror(error.errno)}){more}"
        return DiskFull(error.errno, why, str(path.parent))
    return error


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderLock:
    """Holds a run folder for this process, as a context manager.

    The system releases the lock on `FOLDER/.lock` when its owner ends, however it ends, so on one machine it
    is never stale. On network file systems whose locks do not reach other machines the owner named in
    `FOLDER/.owner` decides: one on another machine that gave no sign of life (`beat`) for `STALE_AFTER`
    seconds is gone.

    Args:
        folder: an existing folder.

    Raises:
        FolderLocked: on entering, when another process holds the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = folder / ".owner"
        self._lock = FileLock(folder / ".lock")

    def __enter__(self) -> FolderLock:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FolderLocked(f"{self.folder} is in use by {_words(self._owner())}") from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            raise FolderLocked(
                f"{self.folder} lies on a disk without file locks ({error}), where two processes could write "
                "into one folder; choose another --output"
            ) from None
        owner = self._owner()
        if owner and owner.get("host") != socket.gethostname():
            quiet = time.time() - self.owner.stat().st_mtime
            if quiet < STALE_AFTER:
                self._lock.release()
                raise FolderLocked(
                    f"{self.folder} is in use by {_words(owner)}, last heard of {quiet:.0f} s ago; "
                    f"after {STALE_AFTER:.0f} s of silence its lock counts as stale"
                )
        self._beaten = 0.0
        self.beat()
        return self

    def beat(self) -> None:
        """Gives a sign of life, at most every 30 seconds."""
        now = time.time()
        if now - self._beaten >= 30.0:
            self._beaten = now
            about = {"pid": os.getpid(), "host": socket.gethostname(), "beat": round(now)}
            self.owner.write_text(json.dumps(about), "utf-8")

    def __exit__(self, *_: object) -> None:
        self.owner.unlink(missing_ok=True)
        self._lock.release()

    def _owner(self) -> dict[str, Any]:
        try:
            owner = json.loads(self.owner.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}


def _words(owner: dict[str, Any]) -> str:
    known = {"pid", "host"} <= set(owner)
    return f"process {owner['pid']} on {owner['host']}" if known else "another process"


class Store:
    """The stored units of a run.

    Args:
        folder: the run folder; `units/` is made when missing.
        beside: folders of the same plan that other processes write into; their units are read, never changed.
    """

    def __init__(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        self.folder = folder / "units"
        self.beside = [one / "units" for one in beside]
        self._names: dict[str, str] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._elsewhere: dict[str, Path] = {}

    def open(self, units: Mapping[str, str], say: Callable[[str], None] = print) -> list[str]:
        """Checks the units of a plan (folder names by id), and sets aside what cannot be trusted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        self._names, self._known, self._elsewhere = dict(units), {}, {}
        ids = {name: unit for unit, name in units.items()}
        for path in sorted(self.folder.iterdir()):
            about = checked(path, ids[path.name]) if path.name in ids else None
            if about is not None:
                self._known[about["unit"]] = about
            elif path.name != "set-aside":
                self._set_aside(path, say)
        for folder in self.beside:
            for name in os.listdir(folder) if folder.is_dir() else ():
                if name in ids and ids[name] not in self._known:
                    self._elsewhere[ids[name]] = folder / name
        return [unit for unit in units if unit in self._known]

    def write(
        self, unit: str, tables: Mapping[str, pa.Table], about: Mapping[str, Any] | None = None
    ) -> None:
        """Stores the tables of one unit; when this returns they survive a power cut."""
        import pyarrow.parquet as pq

        whole: dict[str, Any] = {"unit": unit, **(about or {}), "files": {}}
        with atomic_folder(self.folder / self._names[unit]) as folder:
            for name, table in tables.items():
                file = folder / f"{name}.parquet"
                with open(file, "wb") as out:
                    pq.write_table(table, out, compression="zstd", use_dictionary=repeating(table.schema))
                whole["files"][name] = {"sha256": _hash(file), "rows": len(table)}
            (folder / _ABOUT).write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
        self._known[unit] = whole

    def adopt(self, unit: str, source: Path) -> bool:
        """Takes in a unit that another process has stored: a link to its files, a copy on another disk."""
        about = checked(source, unit)
        if about is None:
            return False
        with atomic_folder(self.folder / self._names[unit]) as folder:
            for file in source.iterdir():
                try:
                    os.link(file, folder / file.name)
                except OSError:
                    shutil.copyfile(file, folder / file.name)
        self._known[unit] = about
        return True

    def drop(self, unit: str) -> None:
        """Forgets a unit whose inputs have changed, and sets its folder aside."""
        del self._known[unit]
        self._set_aside(self.folder / self._names[unit], lambda _: None)

    def __contains__(self, unit: str) -> bool:
        return unit in self._known or unit in self._elsewhere

    def own(self, unit: str) -> bool:
        """Whether a stored unit lies in this folder, not beside it."""
        return unit in self._known

    def count(self) -> int:
        """How many units are stored now, in this folder and by other processes beside it."""
        beside = {name for folder in self.beside if folder.is_dir() for name in os.listdir(folder)}
        return len({self._names[unit] for unit in self._known} | (beside & set(self._names.values())))

    def about(self, unit: str) -> dict[str, Any]:
        """What `unit.json` of a stored unit holds."""
        if unit in self._known:
            return self._known[unit]
        return json.loads((self._elsewhere[unit] / _ABOUT).read_text("utf-8"))

    def rows(self, unit: str) -> dict[str, int]:
        """Number of rows of each table of a stored unit."""
        return {name: one["rows"] for name, one in self.about(unit)["files"].items()}

    def files(self, units: Iterable[str], table: str) -> list[Path]:
        """The files of one table, in the order of the units."""
        return [
            self._elsewhere.get(unit, self.folder / self._names[unit]) / f"{table}.parquet"
            for unit in units
            if unit in self and table in self.about(unit)["files"]
        ]

    def read(self, unit: str, table: str) -> pa.Table:
        """One table of one stored unit."""
        import pyarrow.parquet as pq

        return pq.read_table(self.files([unit], table)[0])

    def gather(self, units: Sequence[str], table: str, path: Path) -> None:
        """Writes one table over the stored units that have it, in their order, a few row groups at a time."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files(units, table)
        if len(files) == 1 and pq.read_metadata(files[0]).num_rows <= ROW_GROUP:
            with atomic_file(path) as file:
                file.write(files[0].read_bytes())  # written as it would be here
            return
        whole = dataset(files)
        how: dict[str, Any] = {"compression": "zstd", "use_dictionary": repeating(whole.schema)}
        with atomic_file(path) as file, pq.ParquetWriter(file, whole.schema, **how) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in whole.to_batches(use_threads=False, batch_size=ROW_GROUP, fragment_readahead=1):
                waiting.append(batch)
                if sum(map(len, waiting)) >= ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(waiting, whole.schema).combine_chunks())
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, whole.schema).combine_chunks())

    def _set_aside(self, path: Path, say: Callable[[str], None]) -> None:
        aside = self.folder / "set-aside"
        aside.mkdir(exist_ok=True)
        target, count = aside / path.name, 1
        while target.exists():
            target, count = aside / f"{path.name}.{count}", count + 1
        os.replace(path, target)
        say(f"{path.name} is damaged or not of this study: set aside as {target}, its unit is computed again")


def repeating(schema: pa.Schema) -> list[str]:
    """Columns worth a dictionary of their values: all but measured numbers, whose table is mostly memory."""
    import pyarrow as pa

    def measured(kind: Any) -> bool:
        nested = hasattr(kind, "value_type") and not pa.types.is_dictionary(kind)
        return measured(kind.value_type) if nested else pa.types.is_floating(kind)

    return [one.name for one in schema if not measured(one.type)]


def dataset(files: Sequence[Path]) -> Any:
    """Parquet files as one table in their order; a column that some of them lack is null there."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(file) for file in files]
    schema = schemas[0]
    if any(not one.equals(schema) for one in schemas):
        schema = pa.unify_schemas(schemas).with_metadata(schema.metadata)
    return ds.dataset([str(file) for file in files], schema=schema, format="parquet")


def checked(folder: Path, unit: str) -> dict[str, Any] | None:
    """What a unit's folder says of itself, None where a file of it is not as it was written."""
    try:
        about = json.loads((folder / _ABOUT).read_text("utf-8"))
        hashes = {f"{name}.parquet": one["sha256"] for name, one in about["files"].items()}
        whole = about["unit"] == unit and {path.name for path in folder.iterdir()} == {_ABOUT, *hashes}
        whole = whole and all(_hash(folder / name) == own for name, own in hashes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return about if whole else None


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
