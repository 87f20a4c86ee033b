# SPDX-License-Identifier: MIT
"""What made the numbers: versions, machine, weights, seeds, state of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attnscope.engine.config import Study
from attnscope.engine.schema import SCHEMA_VERSION

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pandas", "pyarrow")


def provenance(study: Study, digest: str) -> dict[str, Any]:
    """The facts known before a run begins.

    Args:
        study: the configuration.
        digest: of the plan.
    """
    import hashlib

    import attnscope
    from attnscope import _isa

    return {
        "schema_version": SCHEMA_VERSION,
        "attnscope": attnscope.__version__,
        "study": study.study,
        "config_hash": hashlib.sha256(study.to_yaml().encode()).hexdigest()[:16],
        "plan": digest,
        "seed": study.seed,
        # torch by its own word: the metadata of some wheels leave out which CUDA they were built for
        "packages": {name: _version(name) for name in _PACKAGES} | {"torch": str(torch.__version__)},
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "instructions": {"core": _isa.live(), "torch": torch.backends.cpu.get_cpu_capability()},
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "blas": _blas(),
        "git": git_state(Path.cwd()),
        "git_attnscope": _own_git_state(Path(attnscope.__file__)),
    }


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether anything was changed since, None outside of a repository.

    Args:
        folder: inside the repository.
    """
    quiet = {"capture_output": True, "text": True, "timeout": 10, "cwd": folder, "check": True}
    quiet["env"] = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **quiet).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run(["git", "status", "--porcelain"], **quiet).stdout  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changed.strip())}


def _own_git_state(file: Path) -> dict[str, Any] | None:
    """State of the repository that tracks the package, None for an installed one (in a repository or not)."""
    try:
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", file.name],
            cwd=file.parent,
            capture_output=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return git_state(file.parent)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    lines = torch.__config__.show().splitlines()
    return next(
        (line.strip(" -") for line in lines if "Math Kernel Library" in line or "BLAS_INFO" in line), ""
    )
