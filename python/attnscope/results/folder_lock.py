# SPDX-License-Identifier: MIT
"""One writer for a run folder, on this machine and on others.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.results.folder_lock import FolderLock
    >>> folder = Path(tempfile.mkdtemp())
    >>> with FolderLock(folder) as lock:
    ...     lock.owner.name
    '.owner'
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attnscope.errors import DocumentError, FolderLocked
from attnscope.results.files import naming, refuse_links, remove
from attnscope.untrusted.documents import read_json

#: Seconds between two looks after which an owner on another machine that gave no sign of life is gone.
STALE_AFTER = 600.0
#: Seconds between two signs of life.
BEAT_EVERY = 30.0
# The answers of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLock:
    """A run folder held for this process, as a context manager.

    The system releases the lock on `FOLDER/.lock` when its owner ends, however it ends, so on one machine it
    is never stale. On network file systems whose locks do not reach other machines `FOLDER/.owner` decides:
    its owner counts a number up every `BEAT_EVERY` seconds, from a thread, so that a long unit is no silence.
    A process on another machine that finds an owner looks twice, at least `STALE_AFTER` seconds apart by its
    own monotonic clock: it is refused both times unless the number is the same. No two clocks are compared.

    Args:
        folder: an existing folder.

    Raises:
        FolderLocked: on entering, when another process holds the folder.
        LinkRefused: `.lock` or `.owner` is a link.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = folder / ".owner"
        self._looks = folder / ".looks"
        self._lock = FileLock(folder / ".lock")
        self._facts = {"pid": os.getpid(), "host": socket.gethostname(), "began": time.time_ns()}
        self._count = 0
        self._taken_over = ""
        self._ended = threading.Event()

    def __enter__(self) -> FolderLock:
        refuse_links(self.folder, ".lock", ".owner", ".looks")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FolderLocked(f"{self.folder} is in use by {_describe_owner(_read(self.owner))}") from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            raise FolderLocked(
                f"{self.folder} lies on a disk without file locks ({error}), where two processes could write "
                "into one folder; choose another --output"
            ) from None
        try:
            self._refuse_live_owner()
            self._write()
        except BaseException:
            self._lock.release()
            raise
        self._ended.clear()
        self._beats = threading.Thread(target=self._keep_beating, daemon=True)
        self._beats.start()
        return self

    def check(self) -> None:
        """Raise FolderLocked where a process on another machine has taken the folder over."""
        if self._taken_over:
            raise FolderLocked(f"{self.folder} was taken over by {self._taken_over}")

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beats.join()
        if not self._taken_over:
            with suppress(OSError):  # the error that ended the run says more
                self.owner.unlink(missing_ok=True)
        self._lock.release()

    def _refuse_live_owner(self) -> None:
        """Refuse an owner on another machine until two looks have seen the same sign of life."""
        owner = _read(self.owner)
        if not owner or owner.get("host") == socket.gethostname():
            remove(self._looks)
            return
        boot, now = _boot(), time.monotonic()
        look = _read(self._looks)
        is_same = look.get("owner") == owner and look.get("by") == socket.gethostname()
        first = look.get("at") if is_same and look.get("boot") == boot else None
        first = first if isinstance(first, (int, float)) and 0 <= first <= now else None
        if first is not None and now - first >= STALE_AFTER:
            remove(self._looks)
            return
        if first is None:
            _write(self._looks, {"owner": owner, "by": socket.gethostname(), "boot": boot, "at": now})
        left = STALE_AFTER - (now - first if first is not None else 0.0)
        raise FolderLocked(
            f"{self.folder} is in use by {_describe_owner(owner)}, or was left by it: start again in "
            f"{left:.0f} s; it counts as gone if it has given no sign of life by then"
        )

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT_EVERY):
            with suppress(OSError):  # a full disk stops the run where it writes its results
                self._beat()

    def _beat(self) -> None:
        """Give a sign of life, unless the folder belongs to somebody else by now."""
        owner = _read(self.owner)
        if owner and {**owner, "beat": 0} != {**self._facts, "beat": 0}:
            self._taken_over = _describe_owner(owner)
            self._ended.set()
            return
        self._write()

    def _write(self) -> None:
        self._count += 1
        with naming(self.owner):
            _write(self.owner, {**self._facts, "beat": self._count})


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Replace a small file, so that no reader meets half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    remove(temporary)
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(json.dumps(facts))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the error at hand says more
            remove(temporary)
        raise


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a small file, {} where there is none."""
    try:
        facts = read_json(path)
    except (OSError, DocumentError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _boot() -> str:
    """Return a name of the time since this machine was started, in which its monotonic clock counts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


def _describe_owner(owner: dict[str, Any]) -> str:
    """Return the owner of a lock in words."""
    is_complete = {"pid", "host"} <= set(owner)
    return f"process {owner['pid']!s:.20} on {owner['host']!s:.80}" if is_complete else "another process"
