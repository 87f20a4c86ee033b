# SPDX-License-Identifier: MIT
"""The provenance of a run folder's numbers: versions, machine, weights, seeds, state of the code."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attnscope.config.run_config import RunConfig
from attnscope.engine.git_state import ask_git, git_state
from attnscope.errors import DocumentError, ResultsError
from attnscope.results.files import fault_of
from attnscope.results.schema import check_provenance
from attnscope.untrusted.documents import read_json

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pandas", "pyarrow")


def provenance(study: RunConfig, digest: str) -> dict[str, Any]:
    """Return the facts that are known before a run begins."""
    import attnscope

    machine_facts = machine()
    return {
        "attnscope": machine_facts["attnscope"],
        "study": study.study,
        "config_hash": hashlib.sha256(study.to_yaml().encode()).hexdigest()[:16],
        "plan": digest,
        "seed": study.seed,
        # torch by its own word: the metadata of some wheels leave out which CUDA they were built for
        "packages": {name: installed(name) for name in _PACKAGES} | {"torch": str(torch.__version__)},
        "python": platform.python_version(),
        "system": platform.platform(),
        **{
            name: machine_facts[name]
            for name in ("torch", "transformers", "cpu", "instructions", "threads", "cuda")
        },
        "blas": _blas(),
        "git": git_state(Path.cwd()),
        "git_attnscope": _own_git_state(Path(attnscope.__file__)),
    }


def machine() -> dict[str, Any]:
    """Return the facts of this machine that decide the last bits of a number."""
    import attnscope
    from attnscope import _isa

    return {
        "host": socket.gethostname(),
        "attnscope": attnscope.__version__,
        "torch": str(torch.__version__),
        "transformers": installed("transformers"),
        "instructions": {"core": _isa.live(), "torch": torch.backends.cpu.get_cpu_capability()},
        "cpu": cpu_name(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def incompatibility(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return why numbers of two machines, or runs' provenances, do not go into one table, "" where they do.

    >>> incompatibility({"attnscope": "1", "instructions": {"core": "v4"}}, {"attnscope": "2"})
    'attnscope is 1 there, 2 here'
    """
    reasons = []
    for key in ("attnscope", "torch", "transformers", "instructions"):
        # runs of before name the version of transformers among all packages alone
        former, latter = (facts.get(key, facts.get("packages", {}).get(key)) for facts in (first, second))
        if former is not None and latter is not None and former != latter:
            word = "the instruction set" if key == "instructions" else key
            reasons.append(f"{word} is {_plain(former)} there, {_plain(latter)} here")
    return "; ".join(reasons)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " with ".join(f"{name} {item}" for name, item in value.items())
    return str(value)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the provenance that a folder holds, empty where it holds none.

    Raises:
        ResultsError: the file is damaged, or cannot be read; the message names the way on.
    """
    file = folder / "provenance.json"
    if not os.path.lexists(file):
        return {}
    try:
        facts = read_json(file)
        if not isinstance(facts, dict):
            raise DocumentError(f"expected keys and values, got {type(facts).__name__}")
        check_provenance(facts)
    except DocumentError as error:
        raise ResultsError(
            f"{file} {fault_of(error)}; once it is removed a run goes on with the stored units, which have "
            "hashes of their own, and the versions and machines that did them are not compared"
        ) from error
    except OSError as error:
        raise ResultsError(f"{file} {fault_of(error)}") from error
    return facts


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _own_git_state(file: Path) -> dict[str, Any] | None:
    """Return the state of the repository that tracks the package, None for an installed one (in a
    repository or not).
    """
    tracked = ask_git(file.parent, "ls-files", "--error-unmatch", file.name)
    return None if tracked is None else git_state(file.parent)


@cache
def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    lines = torch.__config__.show().splitlines()
    named = (line.strip(" -") for line in lines if "Math Kernel Library" in line or "BLAS_INFO" in line)
    return next(named, "")
