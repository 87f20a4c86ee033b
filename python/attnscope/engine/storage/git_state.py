# SPDX-License-Identifier: MIT
"""Commit and state of a git repository, read without running what its configuration names.

A repository may come from anywhere, and its `.git/config` may name programs that `git status` starts: a
monitor of files, hooks, filters of contents, the server of a partial clone. None is needed for the answer.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

#: Settings under which git starts no program of the repository.
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder's repository and whether a file differs from it; None outside of one.

    Uncommitted files inside of submodules do not count.
    """
    commit = ask_git(folder, "rev-parse", "HEAD")
    changed = ask_git(folder, "status", "--porcelain", "--ignore-submodules=dirty")
    return None if commit is None or changed is None else {"commit": commit, "changed": bool(changed)}


def ask_git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints in a folder, None where it fails."""
    filters = _filters_off(folder)
    if filters is None:
        return None
    answer = _run(folder, filters, *arguments)
    return None if answer is None else answer.strip()


def _filters_off(folder: Path) -> dict[str, str] | None:
    """Return the environment that switches off the filters of a repository, but not the user's own."""
    listed = _run(folder, {}, "config", "--show-scope", "--null", "--name-only", "--list")
    if listed is None:
        return None
    words = listed.split("\0")
    names = {
        key for scope, key in zip(words[::2], words[1::2], strict=False) if scope in ("local", "worktree")
    }
    filters = {key.rpartition(".")[0] for key in names if key.startswith("filter.")}
    settings = {
        f"{name}.{key}": "false" if key == "required" else ""
        for name in sorted(filters)
        for key in ("clean", "smudge", "process", "required")
    }
    environment = {"GIT_CONFIG_COUNT": str(len(settings))} if settings else {}
    for place, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
    return environment


def _run(folder: Path, environment: dict[str, str], *arguments: str) -> str | None:
    # no transport is allowed: a partial clone would start the program that serves its missing objects
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none"}
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=folder,
            env={**os.environ, **quiet, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
