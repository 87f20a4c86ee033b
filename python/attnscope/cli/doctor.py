# SPDX-License-Identifier: MIT
"""The installed package: every metric in the words of its docstring, and a check of each against known
answers.

`attnscope metrics` prints the first; `attnscope doctor` the second, with build, instruction sets and threads.
"""

from __future__ import annotations

import doctest
import inspect
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

import torch

from attnscope._extras import EXTRA_OF
from attnscope._nearest import nearest
from attnscope._warn import aggregate_warnings
from attnscope.cli.supported_versions import (
    SUPPORTED_VERSIONS,
    describe_partly_tried,
    describe_range,
    describe_unsupported,
)
from attnscope.errors import MissingError
from attnscope.metrics.discovery import columns_of, metric_of, registry
from attnscope.metrics.measured import check_closed_form
from attnscope.metrics.quantity import Quantity


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    ok: bool
    result: str
    note: bool = False  # whether a person should know of it although it is no fault
    remedy: str = ""


REBUILD = "install it again: pip install --force-reinstall --no-deps attnscope"
WRONG_NUMBERS = (
    f"do not use the numbers of what is BAD; {REBUILD}; where that does not help, report this page, and "
    "until then try another of the installed instruction sets by ATTNSCOPE_ISA"
)


def show_config() -> str:
    """Return the facts of the installation in ten lines.

    Build, instruction set, system, processor, versions with those that are supported, threads, devices, and
    the libraries that are not installed.

    Returns:
        the text, one fact per line, for a bug report.

    >>> import attnscope as asc
    >>> "instruction set" in asc.show_config()
    True
    """
    installation = facts()
    width = max(map(len, installation))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in installation.items())


def facts() -> dict[str, str]:
    """Return the facts of `show_config`, by name."""
    from attnscope import _core, _isa
    from attnscope._system import processor_count
    from attnscope.engine.provenance import cpu_name, installed

    tensors, threads = _core.interfaces()
    capability = torch.backends.cpu.get_cpu_capability()
    builds = f"instruction set {_isa.live()} (installed: {', '.join(_isa.available())})"
    return {
        "attnscope": f"{installed('attnscope')} ({_compiler()})",
        "core": f"{builds}, {getattr(_core, '__file__', '')}",
        "system": f"{platform.system()} {platform.release()}, {_c_library()}"
        f" ({describe_partly_tried(*_system()) or 'all tests were run on such a system'})",
        "processor": f"{cpu_name()} ({platform.machine()}; torch: {capability})",
        "python": f"{_version('Python')} with numpy {_version('NumPy')}, {_versions('scipy')}",
        "torch": f"{_version('torch')}, tensors: {tensors}; threads: {threads}",
        "transformers": f"{_version('transformers')} with "
        f"{_versions('safetensors', 'pandas', 'pyarrow', 'matplotlib')}",
        "threads": f"{torch.get_num_threads()} of {processor_count()} processors",
        "devices": _devices(),
        "missing": _missing(),
    }


def _system() -> tuple[str, str, str]:
    """Return system, C library and processor."""
    return platform.system(), platform.libc_ver()[0], platform.machine()


def _version(name: str) -> str:
    """Return the version of Python or of a library, with whether it is among those that are supported."""
    from attnscope.engine.provenance import installed

    version = platform.python_version() if name == "Python" else installed(name.lower())
    return "not installed" if version is None else f"{version} ({describe_range(name, version)})"


def _missing() -> str:
    """Return the libraries that are not installed, with the command that installs them."""
    # the finders of the import system would raise for what attnscope asks and nobody has
    missing = [name for name in EXTRA_OF if PathFinder.find_spec(name) is None]
    if not missing:
        return "nothing: all libraries of attnscope[models,studies,sklearn] are installed"
    extras = ",".join(dict.fromkeys(EXTRA_OF[name] for name in missing))
    return f"{', '.join(sorted(missing))}: pip install 'attnscope[{extras}]'"


def _c_library() -> str:
    """Return the C library of the interpreter, where it says its version."""
    return " ".join(platform.libc_ver()).strip() or "a C library that does not say its version"


def _compiler() -> str:
    """Return the compiler of the core."""
    from attnscope import _build

    return f"{_build.BUILD_TYPE} by {_build.COMPILER}"


def _versions(*names: str) -> str:
    """Return packages with their versions."""
    from attnscope.engine.provenance import installed

    return ", ".join(f"{name} {installed(name) or 'not installed'}" for name in names)


def _devices() -> str:
    """Return the accelerators that torch reaches, and where their tensors are measured."""
    copied = "other measures copy the tensor to the CPU once"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)} (reductions and dense linear algebra run there; {copied})"
    if torch.backends.mps.is_available():
        return f"mps (sums and products run there in compensated float32; {copied})"
    return "no accelerator"


def _versions_supported() -> Check:
    """Check that Python and the libraries are among the supported versions; another one is a note."""
    from attnscope.engine.provenance import installed

    versions = {name: installed(name.lower()) for name in SUPPORTED_VERSIONS}
    versions["Python"] = platform.python_version()
    unsupported = [
        reason
        for name, version in versions.items()
        if version is not None and (reason := describe_unsupported(name, version))
    ]
    words = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return Check("versions", True, "; ".join(unsupported) or words, note=bool(unsupported))


def _system_supported() -> Check:
    """Check that the tests were run on such a system; another one is a note."""
    words = describe_partly_tried(*_system())
    return Check("system", True, words or " ".join(_system()), note=bool(words))


def examine() -> list[Check]:
    """Run every check of `attnscope doctor`."""
    from attnscope import _isa

    checks = [
        Check("torch", True, _torch_interfaces()),
        _versions_supported(),
        _system_supported(),
        _instruction_set(_isa.live(), _isa.runnable()[0]),
        Check("threads", torch.get_num_threads() > 0, str(torch.get_num_threads())),
    ]
    numbers = _by_metric()
    with aggregate_warnings():
        checks += [_holds(name, quantities) for name, quantities in numbers.items()]
        checks += [_example_holds(name) for name in first_lines() if name not in numbers]
        checks.append(_lazy_attention())
    return checks


def verdict(checks: Sequence[Check]) -> str:
    """Summarise the checks: the number of faults, and their remedies.

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
    """Check that the best build that runs here is live; a build that ATTNSCOPE_ISA chooses is a note."""
    name = "instruction set"
    if live == best:
        return Check(name, True, live)
    if os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_") == live:
        return Check(name, True, f"{live}, chosen by ATTNSCOPE_ISA; {best} would run too", note=True)
    return Check(name, False, f"{live} is live, {best} would run", remedy="start a new Python process")


def _by_metric() -> dict[str, list[Quantity]]:
    """Return every quantity under the public function that gives it."""
    groups: dict[str, list[Quantity]] = {}
    for quantity in registry().quantities:
        name = metric_of(quantity)
        name = quantity.name if name.startswith("_") else name
        groups.setdefault(name if quantity.protocol == "exact" else f"{quantity.protocol}.{name}", []).append(
            quantity
        )
    return groups


def _example_holds(name: str) -> Check:
    """Check that a function with results other than numbers answers as its docstring says."""
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    examples = finder.find(_public()[name], name)
    failed = sum(runner.run(example, out=lambda text: None).failed for example in examples)
    answer = "as in its example" if not failed else f"{failed} lines of its example differ"
    return Check(name, not failed, answer, remedy=REBUILD)


def _holds(name: str, quantities: list[Quantity]) -> Check:
    """Check that the closed forms of a metric come out."""
    values = []
    for quantity in quantities:
        try:
            value, expected = check_closed_form(quantity)
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            return Check(
                name, False, f"{quantity.name}: {type(error).__name__}: {error}", remedy=WRONG_NUMBERS
            )
        if not math.isclose(value, expected, rel_tol=1e-10, abs_tol=1e-12):
            return Check(
                name, False, f"{quantity.name}: {value!r}, expected {expected!r}", remedy=WRONG_NUMBERS
            )
        values.append(f"{value:.12g}")
    return Check(name, True, ", ".join(values))


def _lazy_attention() -> Check:
    """Check that queries and equal keys, of which no map is made, give uniform causal attention."""
    from attnscope.metrics.lazy.lazy_attention import LazyAttention

    lazy = LazyAttention(torch.ones(1, 4, 8, device="cpu"), torch.zeros(1, 4, 8, device="cpu"))
    keys = torch.arange(1, 5, dtype=torch.float64, device="cpu")
    entropy = float((lazy.row_measures("entropy")["entropy"][0] - keys.log()).abs().max())
    weights = float((lazy.dense()[0, :, 0] - 1 / keys).abs().max())
    answer = f"entropies and weights of equal keys {max(entropy, weights):.1g} off"
    return Check("LazyAttention", max(entropy, weights) < 1e-6, answer, remedy=WRONG_NUMBERS)


def first_lines() -> dict[str, str]:
    """Return every public metric with the sentence that defines it."""
    return {name: (inspect.getdoc(metric) or "").partition("\n")[0] for name, metric in _public().items()}


def describe(name: str) -> str:
    """Return the full definition of a metric, or of a column's; of a column that no metric gives, its
    sentence.
    """
    public = _public()
    exact = [quantity for quantity in registry().quantities if quantity.protocol == "exact"]
    columns = {quantity.name: quantity for quantity in exact}
    if name not in public and name not in columns:
        raise MissingError(f"there is no metric or column {name!r}{nearest(name, (*public, *columns))}")
    called = name if name in public else metric_of(columns[name])
    if called not in public:
        return "\n".join(["Column:", *(_line(quantity) for quantity in exact if quantity.name == name)])
    metric = public[called]
    signature = inspect.signature(metric)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    call = signature.replace(parameters=bare, return_annotation=signature.empty)
    home = "attnscope" if metric.__module__.startswith("attnscope.") else metric.__module__
    definition = f"{home}.{called}{call}\n\n{inspect.getdoc(metric) or ''}"
    lines = [_line(quantity) for quantity in columns_of(called)]
    return "\n".join([definition, "", "Columns:", *lines] if lines else [definition])


def _line(quantity: Quantity) -> str:
    return f"    {quantity.name}: {quantity.label}. {quantity.meaning}"


def _public() -> dict[str, Callable[..., Any]]:
    """Return the public metrics: those of attnscope under its names, what others declare."""
    import attnscope

    declared_metrics = registry()
    declared = {
        **{identity: derivation for identity, (_, derivation) in declared_metrics.derived.items()},
        **declared_metrics.functions,
    }
    return {
        name: getattr(attnscope, name, None) or declared["exact", name] for name in declared_metrics.names()
    }
