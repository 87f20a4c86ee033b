# SPDX-License-Identifier: MIT
"""Files and folders that appear under their names complete and on disk, or not at all.

A file is written next to its place, synced and renamed, so that a process that is killed, a full disk or a
loss of power leaves the old content or the new one. Errors name the file. Links in a run folder are refused
where something is written: a folder that somebody else has made must not lead a run out of itself.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.results.files import write_bytes
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_bytes(folder / "table.csv", b"head")
    >>> [path.name for path in folder.iterdir()]
    ['table.csv']
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from attnscope.errors import DiskFull, LinkRefused

#: Errors that say that there is no room: a full disk, a quota, a limit on the size of files.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Seconds after its last write after which an unfinished file has no writer any more, here or elsewhere.
ABANDONED = 600.0
#: Names in a run folder under which a run writes.
WRITTEN = (
    *("units", "tables", "parts", "figures", ".owner", ".lock", ".looks"),
    *("study.yaml", "provenance.json", "report.html", "view.html"),
)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make errors of the system name the file, and raise DiskFull where there is no room for it.

    Args:
        path: the file as a user knows it.
        temporary: the name under which it is written.
    """
    try:
        yield
    except (DiskFull, LinkRefused):
        raise
    except OSError as error:
        number = error.errno
        if number in NO_ROOM:
            why = f"no room for {path.name} ({os.strerror(number)})"
            raise DiskFull(number, why, str(path.parent)) from error
        unnamed = error.filename is None or (temporary and str(error.filename).startswith(str(temporary)))
        if number is not None and unnamed:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextmanager
def _appearing(path: Path, writer: str = "") -> Iterator[Path]:
    """Give a name to write under; what it holds becomes `path` at the end, and is removed after an error."""
    temporary = path.with_name(f".{path.name}{writer}.tmp")
    try:
        with naming(path, temporary):
            remove(temporary)
            yield temporary
            os.replace(temporary, path)
            sync(path.parent)
    except BaseException:
        # the error at hand says more than a second of the same disk
        with suppress(OSError):
            remove(temporary)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name complete and on disk, or not at all.

    Unfinished files of this name that killed writers have left go when nobody has written to them for
    `ABANDONED` seconds. A device and an open file, such as `/dev/stdout`, are written at once.

    Raises:
        IsADirectoryError: a folder has the name.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    number = descriptor_of(path)
    if number is not None or (path.is_absolute() and path.parts[1:2] == ("dev",) and _is_device(path)):
        # a file that is opened anew would be written from its beginning, over what others have written there
        with naming(path), open(path if number is None else os.dup(number), "wb") as stream:
            yield stream
        return
    with _appearing(path, f".{os.getpid()}") as temporary, open(temporary, "xb") as file:
        _remove_abandoned(path, os.fstat(file.fileno()).st_mtime)
        yield file
        file.flush()
        os.fsync(file.fileno())


def descriptor_of(path: Path) -> int | None:
    """Return the number of the open file of this process that a path such as `/dev/stdout` stands for, None
    of others.

    >>> descriptor_of(Path("/dev/fd/2")), descriptor_of(Path("/dev/null")), descriptor_of(Path("2"))
    (2, None, None)
    """
    if path.parent == Path("/dev") and path.is_symlink():
        path = path.parent / os.readlink(path)
    lies_there = path.is_absolute() and os.path.realpath(path.parent) == os.path.realpath("/dev/fd")
    return int(path.name) if lies_there and path.name.isdecimal() else None


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _remove_abandoned(path: Path, now: float) -> None:
    """Remove unfinished files of a name that have no writer any more; `now` is by the clock of their disk."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # it is nothing that the file at hand needs
            if now - leftover.lstat().st_mtime > ABANDONED:
                leftover.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears under its name with all files on disk, or not at all; `.NAME.tmp` before."""
    with _appearing(path) as temporary:
        temporary.mkdir()
        yield temporary
        for written in (*sorted(temporary.iterdir()), temporary):
            with naming(path / written.name if written != temporary else path):
                sync(written)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file by `atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def make_folder(path: Path) -> bool:
    """Make a folder whose name survives a loss of power; return False where it existed already."""
    with naming(path):
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
        sync(path.parent)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of writers that were killed; the caller holds the lock of the run."""
    for leftover in folder.glob(".*.tmp"):
        remove(leftover)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content; nothing where there is none."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_links(folder: Path, *names: str) -> None:
    """Refuse a folder in which a name that would be written under is a link.

    Args:
        folder: a run folder, or a folder of it.
        names: inside the folder; none given: `WRITTEN`.

    Raises:
        LinkRefused: the message names the link and its target.
    """
    for name in names or WRITTEN:
        path = folder / name
        if path.is_symlink():
            why = f"is a link to {os.readlink(path)}, and a run writes into its own folder only"
            raise LinkRefused(errno.ELOOP, why, str(path))


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fault_of(error: Exception) -> str:
    """Return what an error says of a file: that the system does not give it, or that its content is damaged.

    >>> fault_of(PermissionError(13, "Permission denied")), fault_of(ValueError("no keys"))
    ('cannot be read: Permission denied', 'is damaged: no keys')
    """
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror}"
    return f"is damaged: {error}"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a regular file, read a megabyte at a time.

    Raises:
        OSError: no regular file, or it cannot be read.
    """
    digest = hashlib.sha256()
    # a pipe without a writer would block a plain open for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        while block := file.read(1024**2):
            digest.update(block)
    return digest.hexdigest()
