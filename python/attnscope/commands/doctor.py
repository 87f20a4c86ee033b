# SPDX-License-Identifier: MIT
"""Is this installation sound? Build, instruction sets, threads, torch, and each kernel on a known answer."""

from __future__ import annotations

import doctest
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnscope._warn import warned_once
from attnscope.commands.catalogue import first_lines
from attnscope.metrics.discovery import found, metric_of
from attnscope.metrics.quantity import Quantity


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    Attributes:
        name: what was looked at.
        ok: whether it is as it should be.
        found: what it is.
        note: whether a person should know of it although it is no fault.
        remedy: what to do where it is a fault.
    """

    name: str
    ok: bool
    found: str
    note: bool = False
    remedy: str = ""


REBUILD = "install it again: pip install --force-reinstall --no-deps attnscope"
WRONG_NUMBERS = (
    f"do not use the numbers of what is BAD; {REBUILD}; where that does not help, report this page, and "
    "until then try another instruction set, e.g. ATTNSCOPE_ISA=x86-64-v2"
)


def show_config() -> str:
    """What attnscope runs on: build, instruction sets, threads, versions, devices.

    Returns:
        the text, one fact per line, for a bug report.

    >>> import attnscope as asc
    >>> "instruction set" in asc.show_config()
    True
    """
    width = max(map(len, facts()))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts().items())


def facts() -> dict[str, str]:
    """The facts of `show_config`, by name."""
    from attnscope import _core, _isa
    from attnscope.engine.run_folder import installed, machine

    here = machine()
    cuda = "kernels run on the CPU; tensors are brought over"
    return {
        "attnscope": here["attnscope"],
        "core": str(getattr(_core, "__file__", "")),
        "instruction set": f"{here['instructions']['core']} (installed: {', '.join(_isa.available())})",
        "torch": _torch_interfaces(),
        "threads": f"{here['threads']} of {os.cpu_count()}",
        "processor": f"{here['cpu']} ({here['instructions']['torch']})",
        "cuda": f"{here['cuda']} ({cuda})" if here["cuda"] else "none",
        **{
            name: installed(name) or "not installed"
            for name in ("transformers", "safetensors", "pandas", "pyarrow", "matplotlib")
        },
    }


def examine() -> list[Check]:
    """Runs every check of `attnscope doctor`."""
    from attnscope import _isa

    checks = [
        Check("torch", True, _torch_interfaces()),
        _instruction_set(_isa.live(), _isa.runnable()[0]),
        Check("threads", torch.get_num_threads() > 0, f"{torch.get_num_threads()} of {os.cpu_count()}"),
    ]
    numbers = _by_metric()
    with warned_once("maps"):
        for name, quantities in numbers.items():
            checks.append(_holds(name, quantities))
        checks += [_example_holds(name) for name in first_lines() if name not in numbers]
    return checks


def verdict(checks: Sequence[Check]) -> str:
    """What the checks come to: how many faults there are, and what to do about them.

    >>> verdict([Check("threads", True, "2 of 2")])
    '0 faults: this installation is sound'
    >>> print(verdict([Check("top_mass", False, "0.5, expected 1.0", remedy="build it again")]))
    1 fault: top_mass
    build it again
    """
    faults = [check for check in checks if not check.ok]
    if not faults:
        return "0 faults: this installation is sound"
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
    remedies = dict.fromkeys(check.remedy for check in faults if check.remedy)
    return "\n".join([f"{count}: {', '.join(check.name for check in faults)}", *remedies])


def _torch_interfaces() -> str:
    """The torch in use, and the interfaces that the core meets it by."""
    from attnscope import _core

    tensors, threads = _core.interfaces()
    return f"{torch.__version__} (tensors: {tensors}; threads: {threads})"


def _instruction_set(live: str, best: str) -> Check:
    """Whether the best build that runs here is live; one that ATTNSCOPE_ISA chooses is a note."""
    name = "instruction set"
    if live == best:
        return Check(name, True, live)
    if os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_") == live:
        return Check(name, True, f"{live}, chosen by ATTNSCOPE_ISA; {best} would run too", note=True)
    return Check(name, False, f"{live} is live, {best} would run", remedy="start a new Python process")


def _by_metric() -> dict[str, list[Quantity]]:
    """Every quantity under the public function that gives it."""
    groups: dict[str, list[Quantity]] = {}
    for one in found().quantities:
        name = metric_of(one)
        name = one.name if name.startswith("_") else name
        groups.setdefault(name if one.protocol == "exact" else f"{one.protocol}.{name}", []).append(one)
    return groups


def _example_holds(name: str) -> Check:
    """Whether a function that gives more than numbers answers as its docstring says."""
    import attnscope

    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    failed = sum(
        runner.run(test, out=lambda text: None).failed for test in finder.find(getattr(attnscope, name), name)
    )
    answer = "as in its example" if not failed else f"{failed} lines of its example differ"
    return Check(name, not failed, answer, remedy=REBUILD)


def _holds(name: str, quantities: list[Quantity]) -> Check:
    """Whether the closed forms of a metric come out."""
    values_found = []
    for one in quantities:
        try:
            value, expected = one.example()
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            return Check(name, False, f"{one.name}: {type(error).__name__}: {error}", remedy=WRONG_NUMBERS)
        if not math.isclose(value, expected, rel_tol=1e-10, abs_tol=1e-12):
            return Check(name, False, f"{one.name}: {value!r}, expected {expected!r}", remedy=WRONG_NUMBERS)
        values_found.append(f"{value:.12g}")
    return Check(name, True, ", ".join(values_found))
