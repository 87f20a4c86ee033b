# SPDX-License-Identifier: MIT
"""A file system of which one operation fails, and what is left of its operations after a loss of power.

`Operations` counts what is done below a folder: folders made, files created, written, synced and renamed. One
of them may fail once. It also keeps a log, from which `crash` builds a folder as a file system may leave it:
only what was synced is sure to be there; the rest may be there wholly, in part or not at all, in any order.
"""

import builtins
import io
import os
from pathlib import Path


class CountedFile(io.FileIO):
    """An open file whose writes are operations."""

    def __init__(self, path, mode, operations):
        super().__init__(path, mode)
        self._path, self._operations = Path(path), operations

    def write(self, data):
        self._operations.note("write", self._path, bytes(data))
        return super().write(data)


class Operations:
    """Every operation below a folder; the operation number `fail_at` raises an error of the system."""

    def __init__(self, folder, monkeypatch, fail_at=None, error=0):
        self.folder, self.fail_at, self.error = Path(folder), fail_at, error
        self.log, self.failed = [], None
        self._open = builtins.open
        for name in ("replace", "mkdir", "link", "fsync", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._opened)
        monkeypatch.setattr(io, "open", self._opened)

    def note(self, kind, *operands):
        """Count an operation, let it fail if it is its turn, and write it down."""
        if kind not in ("unlink", "rmdir"):  # what is removed leaves room
            self.count = getattr(self, "count", 0) + 1
            if self.count == self.fail_at:
                self.failed = (kind, operands[-1] if kind == "replace" else operands[0])
                raise OSError(self.error, os.strerror(self.error), *self._named(kind, operands))
        self.log.append((kind, *operands))

    def _named(self, kind, operands):
        """Names that the system gives with an error: none with those of open files."""
        return () if kind in ("write", "fsync") else (str(operands[0]),)

    def _inside(self, path):
        return isinstance(path, (str, os.PathLike)) and Path(path).is_relative_to(self.folder)

    def _wrapped(self, name, function):
        def operation(*args, **options):
            paths = [args[0]] if name != "fsync" else [os.readlink(f"/proc/self/fd/{args[0]}")]
            paths += args[1:2] if name in ("replace", "link") else []
            if options.get("dir_fd") is not None:
                paths[0] = Path(os.readlink(f"/proc/self/fd/{options['dir_fd']}")) / paths[0]
            refused = name == "mkdir" and os.path.lexists(paths[0])
            if self._inside(paths[0]) and not refused:
                self.note(name, *map(Path, paths))
            return function(*args, **options)

        return operation

    def _opened(self, path, mode="r", *args, **options):
        writes = set(mode) & set("wxa")
        if not writes or not self._inside(path):
            return self._open(path, mode, *args, **options)
        if "x" in mode and os.path.lexists(path):
            return self._open(path, mode, *args, **options)
        self.note("create", Path(path))
        file = io.BufferedWriter(CountedFile(path, mode.replace("b", "").replace("t", ""), self))
        if "b" in mode:
            return file
        return io.TextIOWrapper(
            file, **{name: options.get(name) for name in ("encoding", "errors", "newline")}
        )


class _Folder:
    """Names that are sure to be there, and operations that may be lost."""

    def __init__(self):
        self.names, self.pending = {}, []

    def now(self):
        """Names as a running process sees them."""
        return _applied(self.names, self.pending)


class _File:
    """Content that is sure to be there, and writes that may be lost."""

    def __init__(self):
        self.synced, self.pending = b"", []


def _applied(names, operations):
    """Names after some operations; a rename whose source was lost still brings its file."""
    nodes = dict(names)
    for kind, name, node in operations:
        if kind == "set":
            nodes[name] = node
        elif nodes.get(name) is node:
            del nodes[name]
    return nodes


def crash(log, root, target, draw):
    """Build in `target` what may be left below `root` after the operations of a log.

    Args:
        log: of `Operations`.
        root: the folder in which they were done; it existed and was empty.
        target: an empty folder.
        draw: a `random.Random`, which decides what was lost.
    """
    top = _Folder()

    def node(path):
        folder = top
        for part in path.relative_to(root).parts:
            folder = folder.now()[part]
        return folder

    for kind, path, *operands in log:
        if kind in ("mkdir", "create"):
            parent, created = node(path.parent), (_Folder if kind == "mkdir" else _File)()
            parent.pending.append(("set", path.name, created))
        elif kind == "write":
            node(path).pending.append(operands[0])
        elif kind == "fsync":
            synced = node(path)
            if isinstance(synced, _File):
                synced.synced, synced.pending = synced.synced + b"".join(synced.pending), []
            else:
                synced.names, synced.pending = synced.now(), []
        elif kind in ("unlink", "rmdir"):
            node(path.parent).pending.append(("drop", path.name, node(path)))
        elif kind in ("replace", "link"):
            moved = node(path)
            node(operands[0].parent).pending.append(("set", operands[0].name, moved))
            if kind == "replace":
                node(path.parent).pending.append(("drop", path.name, moved))
    _leave(top, target, draw)


def _leave(folder, target, draw):
    """Write what is left of a folder: any of its operations, and any beginning of what was written."""
    survivors = [operation for operation in folder.pending if draw.random() < 0.5]
    for name, node in _applied(folder.names, survivors).items():
        if isinstance(node, _Folder):
            (target / name).mkdir()
            _leave(node, target / name, draw)
            continue
        late = b"".join(node.pending)
        late = late[: draw.randrange(len(late) + 1)]
        if late and draw.random() < 0.3:
            late = bytes(len(late))  # the length was stored, the blocks were not
        (target / name).write_bytes(node.synced + late)
