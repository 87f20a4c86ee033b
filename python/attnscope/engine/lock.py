# SPDX-License-Identifier: MIT
"""One writer per run folder: a kernel lock, with the owner's name in it for whoever comes second."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

#: Seconds without a sign of life after which a lock left by another machine counts as stale.
STALE_AFTER = 600.0


class FolderLocked(RuntimeError):
    """Another process writes to the folder; the message names it."""


class FolderLock:
    """Holds a run folder for this process, as a context manager.

    The lock is a kernel lock (`flock`) on `FOLDER/.lock`: the kernel releases it when its owner ends, however
    it ends, so on one machine it is never stale. On network file systems whose locks do not reach other
    machines the owner written inside decides: an owner on another machine that gave no sign of life
    (`beat`) for `STALE_AFTER` seconds is gone.

    Args:
        folder: an existing folder.

    Raises:
        FolderLocked: on entering, when another process holds the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._handle: int | None = None
        self._beaten = 0.0

    def __enter__(self) -> FolderLock:
        while self._handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._claim(handle)
            except BaseException:
                os.close(handle)
                raise
        self.beat(force=True)
        return self

    def _claim(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise FolderLocked(f"{self.path.parent} is in use by {_words(_owner(handle))}") from None
        # the file may have been removed by its last owner between opening and locking it
        if not _same_file(handle, self.path):
            os.close(handle)
            return
        owner = _owner(handle)
        quiet = time.time() - os.fstat(handle).st_mtime
        if owner and owner.get("host") != socket.gethostname() and quiet < STALE_AFTER:
            raise FolderLocked(
                f"{self.path.parent} is in use by {_words(owner)}, last heard of {quiet:.0f} s ago; "
                f"after {STALE_AFTER:.0f} s of silence its lock counts as stale"
            )
        self._handle = handle

    def beat(self, *, force: bool = False) -> None:
        """Gives a sign of life, at most every 30 seconds.

        Args:
            force: now, whenever the last one was.
        """
        now = time.time()
        if self._handle is None or (not force and now - self._beaten < 30.0):
            return
        self._beaten = now
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "beat": round(now)}
        os.pwrite(self._handle, json.dumps(owner).ljust(256).encode(), 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def _same_file(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _owner(handle: int) -> dict[str, Any]:
    text = os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
    try:
        owner = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _words(owner: dict[str, Any]) -> str:
    return (
        f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= set(owner) else "another process"
    )
