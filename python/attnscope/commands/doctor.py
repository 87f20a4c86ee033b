# SPDX-License-Identifier: MIT
"""What is installed: every metric in its own docstring's words, and whether each gives a known answer.

`attnscope metrics` prints the first; `attnscope doctor` the second, with build, instruction sets and threads.
"""

from __future__ import annotations

import doctest
import inspect
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnscope._nearest import nearest
from attnscope._warn import warned_once
from attnscope.errors import MissingError
from attnscope.metrics.discovery import columns_of, metric_of, registry
from attnscope.metrics.measure import check_closed_form
from attnscope.metrics.quantity import Quantity


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    ok: bool
    found: str
    note: bool = False  # whether a person should know of it although it is no fault
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
    here = facts()
    width = max(map(len, here))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in here.items())


def facts() -> dict[str, str]:
    """Return the facts of `show_config`, by name."""
    from attnscope import _core, _isa
    from attnscope.engine.run_folder import installed, machine

    here = machine()
    beside = ("transformers", "safetensors", "pandas", "pyarrow", "matplotlib")
    cuda = "reductions and dense linear algebra run there; other measures copy the tensor to the CPU once"
    return {
        "attnscope": here["attnscope"],
        "core": str(getattr(_core, "__file__", "")),
        "instruction set": f"{here['instructions']['core']} (installed: {', '.join(_isa.available())})",
        "torch": _torch_interfaces(),
        "threads": f"{here['threads']} of {os.cpu_count()}",
        "processor": f"{here['cpu']} ({here['instructions']['torch']})",
        "cuda": f"{here['cuda']} ({cuda})" if here["cuda"] else "none",
        **{name: installed(name) or "not installed" for name in beside},
    }


def examine() -> list[Check]:
    """Run every check of `attnscope doctor`."""
    from attnscope import _isa

    checks = [
        Check("torch", True, _torch_interfaces()),
        _instruction_set(_isa.live(), _isa.runnable()[0]),
        Check("threads", torch.get_num_threads() > 0, f"{torch.get_num_threads()} of {os.cpu_count()}"),
    ]
    numbers = _by_metric()
    with warned_once():
        checks += [_holds(name, quantities) for name, quantities in numbers.items()]
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
    faults = {check.name: check.remedy for check in checks if not check.ok}
    if not faults:
        return "0 faults: this installation is sound"
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}: {', '.join(faults)}"
    return "\n".join(dict.fromkeys([count, *filter(None, faults.values())]))


def _torch_interfaces() -> str:
    """Return the torch in use, and the interfaces that the core meets it by."""
    from attnscope import _core

    tensors, threads = _core.interfaces()
    return f"{torch.__version__} (tensors: {tensors}; threads: {threads})"


def _instruction_set(live: str, best: str) -> Check:
    """Return True if the best build that runs here is live; one that ATTNSCOPE_ISA chooses is a note."""
    name = "instruction set"
    if live == best:
        return Check(name, True, live)
    if os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_") == live:
        return Check(name, True, f"{live}, chosen by ATTNSCOPE_ISA; {best} would run too", note=True)
    return Check(name, False, f"{live} is live, {best} would run", remedy="start a new Python process")


def _by_metric() -> dict[str, list[Quantity]]:
    """Every quantity under the public function that gives it."""
    groups: dict[str, list[Quantity]] = {}
    for one in registry().quantities:
        name = metric_of(one)
        name = one.name if name.startswith("_") else name
        groups.setdefault(name if one.protocol == "exact" else f"{one.protocol}.{name}", []).append(one)
    return groups


def _example_holds(name: str) -> Check:
    """Return True if a function that gives more than numbers answers as its docstring says."""
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    examples = finder.find(_public()[name], name)
    failed = sum(runner.run(example, out=lambda text: None).failed for example in examples)
    answer = "as in its example" if not failed else f"{failed} lines of its example differ"
    return Check(name, not failed, answer, remedy=REBUILD)


def _holds(name: str, quantities: list[Quantity]) -> Check:
    """Return True if the closed forms of a metric come out."""
    values = []
    for one in quantities:
        try:
            value, expected = check_closed_form(one)
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            return Check(name, False, f"{one.name}: {type(error).__name__}: {error}", remedy=WRONG_NUMBERS)
        if not math.isclose(value, expected, rel_tol=1e-10, abs_tol=1e-12):
            return Check(name, False, f"{one.name}: {value!r}, expected {expected!r}", remedy=WRONG_NUMBERS)
        values.append(f"{value:.12g}")
    return Check(name, True, ", ".join(values))


def first_lines() -> dict[str, str]:
    """Every public metric with the sentence that defines it."""
    return {name: (inspect.getdoc(metric) or "").partition("\n")[0] for name, metric in _public().items()}


def describe(name: str) -> str:
    """Return the whole definition of a metric, or of a column's; of a column that no metric gives, its
    sentence.
    """
    public = _public()
    exact = [one for one in registry().quantities if one.protocol == "exact"]
    columns = {one.name: one for one in exact}
    if name not in public and name not in columns:
        raise MissingError(f"there is no metric or column {name!r}{nearest(name, (*public, *columns))}")
    called = name if name in public else metric_of(columns[name])
    if called not in public:
        return "\n".join(["Column:", *(_line(one) for one in exact if one.name == name)])
    metric = public[called]
    signature = inspect.signature(metric)
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    call = signature.replace(parameters=bare, return_annotation=signature.empty)
    home = "attnscope" if metric.__module__.startswith("attnscope.") else metric.__module__
    about = f"{home}.{called}{call}\n\n{inspect.getdoc(metric) or ''}"
    lines = [_line(one) for one in columns_of(called)]
    return "\n".join([about, "", "Columns:", *lines] if lines else [about])


def _line(one: Quantity) -> str:
    return f"    {one.name}: {one.label}. {one.meaning}"


def _public() -> dict[str, Callable[..., Any]]:
    """Return the public metrics: those of attnscope under its names, what others declare."""
    import attnscope

    here = registry()
    declared = {**{identity: made for identity, (_, made) in here.derived.items()}, **here.functions}
    return {name: getattr(attnscope, name, None) or declared["exact", name] for name in here.names()}
