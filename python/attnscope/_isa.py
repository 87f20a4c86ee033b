# SPDX-License-Identifier: MIT
"""Loads the build of the compiled core that this processor runs best."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

# Best first. torch's own detection decides what the processor runs; its AVX512 level asks for the F, DQ,
# BW and VL subsets, which is what x86-64-v4 adds.
_RUNS_ON = {
    "x86_64_v4": ("AVX512", "AVX512_VNNI", "AMX"),
    "x86_64_v3": ("AVX512", "AVX512_VNNI", "AMX", "AVX2"),
    "x86_64_v2": None,
    # every 64-bit Arm processor, Linux and macOS
    "armv8_a": None,
    "portable": None,
}


def _capability() -> str:
    return str(torch.backends.cpu.get_cpu_capability())


def available() -> list[str]:
    """Return the names of the installed builds of the core, best first."""
    return [isa for isa in _RUNS_ON if importlib.util.find_spec(f"attnscope._core_{isa}") is not None]


def runnable() -> list[str]:
    """Return the names of the installed builds that this processor runs, best first."""
    capability = _capability()
    return [isa for isa in available() if (runs_on := _RUNS_ON[isa]) is None or capability in runs_on]


def choose() -> str:
    """Return the build to load: ATTNSCOPE_ISA where it is set (e.g. ``x86-64-v2``), else the best that
    runs.
    """
    usable = runnable()
    if not usable:
        raise ImportError(
            f"attnscope: no compiled core for this Python and processor (installed: {available() or 'none'}, "
            f"torch reports {_capability()}). Build it here: pip install --no-binary attnscope attnscope"
        )
    forced = os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_")
    if not forced:
        return usable[0]
    if forced not in usable:
        raise ImportError(
            f"attnscope: ATTNSCOPE_ISA={forced} is not one of the builds that run here: {usable}"
        )
    return forced


def load_core() -> ModuleType:
    """Return the module ``attnscope._core``, from the chosen build."""
    if "attnscope._core" in sys.modules:
        return sys.modules["attnscope._core"]
    if importlib.util.find_spec("attnscope._build") is None:
        raise ImportError(
            "attnscope: the compiled core is missing. Install a wheel, or build it: pip install ."
        )
    from attnscope import _build

    stub = Path(__file__).with_name("_core.pyi")
    if stub.is_file() and hashlib.sha256(stub.read_bytes()).hexdigest() != _build.STUB:
        raise ImportError(
            "attnscope: the compiled core is of another state of the sources than the Python files. "
            "Build it again: pip install -e ."
        )
    spec_of_build = importlib.util.find_spec(f"attnscope._core_{choose()}")
    assert spec_of_build is not None
    assert spec_of_build.origin is not None
    # The builds share one initialiser, so each is loaded under the name _core.
    loader = importlib.machinery.ExtensionFileLoader("attnscope._core", spec_of_build.origin)
    spec = importlib.util.spec_from_file_location("attnscope._core", spec_of_build.origin, loader=loader)
    assert spec is not None
    core = importlib.util.module_from_spec(spec)
    loader.exec_module(core)
    sys.modules["attnscope._core"] = core
    setattr(sys.modules["attnscope"], "_core", core)  # noqa: B010  as the import system does for submodules
    return core


def live() -> str:
    """Return the name of the build in use, e.g. ``x86_64_v3``."""
    origin = getattr(load_core(), "__file__", "")
    return next(isa for isa in _RUNS_ON if f"_core_{isa}." in origin)
