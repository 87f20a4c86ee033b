# SPDX-License-Identifier: MIT
"""Files and folders that appear whole and on disk, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class DiskFull(OSError):
    """A write did not fit; everything written before it is intact."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name complete and on disk, or not at all."""
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


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name with all files on disk, or not at all; `.NAME.tmp` until then."""
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        sync_folder(temporary)
        os.rename(temporary, path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError):
            raise disk_error(error, path) from error
        raise
    sync_folder(path.parent)


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


def disk_error(error: OSError, path: Path) -> OSError:
    """`DiskFull` where the error says that there was no room, else the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(
            error.errno, f"no room for {path.name} ({os.strerror(error.errno)})", str(path.parent)
        )
    return error


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder survive a power cut."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
