# SPDX-License-Identifier: MIT
"""One writer per run folder: a file lock, with the owner's name beside it for whoever comes second.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.engine.disk.lock import FolderLock
    >>> with FolderLock(Path(tempfile.mkdtemp())) as lock:
    ...     lock.owner.is_file()
    True
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

#: Seconds without a sign of life after which a lock left by another machine counts as stale.
STALE_AFTER = 600.0
# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLocked(RuntimeError):
    """Another process writes to the folder; the message names it."""


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
        self._beaten = 0.0

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
        self.beat(force=True)
        return self

    def beat(self, *, force: bool = False) -> None:
        """Gives a sign of life, at most every 30 seconds."""
        now = time.time()
        if force or now - self._beaten >= 30.0:
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
    return (
        f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= set(owner) else "another process"
    )
