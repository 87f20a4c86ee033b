# SPDX-License-Identifier: MIT
"""Is this installation sound? Build, instruction sets, threads, torch, and each kernel on a known answer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    ok: bool
    found: str


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
    import attnscope
    from attnscope import _build, _core, _isa
    from attnscope.studies.provenance import cpu_name

    cuda = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "attnscope": attnscope.__version__,
        "core": str(getattr(_core, "__file__", "")),
        "instruction set": f"{_isa.live()} (installed: {', '.join(_isa.available())})",
        "torch": f"{torch.__version__} (built against {_build.TORCH_VERSION})",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()}",
        "processor": f"{cpu_name()} ({torch.backends.cpu.get_cpu_capability()})",
        "cuda": f"{cuda} (kernels run on the CPU; tensors are brought over)" if cuda != "none" else cuda,
        **{
            name: _version(name)
            for name in ("transformers", "safetensors", "pandas", "pyarrow", "matplotlib")
        },
    }


def examine() -> list[Check]:
    """Runs every check of `attnscope doctor`."""
    from attnscope import _build, _isa

    built, here = _build.TORCH_VERSION.split("+")[0], torch.__version__.split("+")[0]
    live, best = _isa.live(), _isa.runnable()[0]
    checks = [
        Check("torch match", built.split(".")[:2] == here.split(".")[:2], f"built {built}, here {here}"),
        Check("instruction set", live == best, live if live == best else f"{live} is live, {best} would run"),
        Check("threads", torch.get_num_threads() > 0, f"{torch.get_num_threads()} of {os.cpu_count()}"),
    ]
    for name, (compute, expected) in KNOWN_ANSWERS.items():
        try:
            value = compute()
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            checks.append(Check(name, False, f"{type(error).__name__}: {error}"))
            continue
        ok = math.isclose(value, expected, rel_tol=1e-10, abs_tol=1e-12)
        checks.append(Check(name, ok, f"{value:.12g}" if ok else f"{value!r}, expected {expected!r}"))
    return checks


def _star(n: int) -> Tensor:
    maps = torch.zeros(n, n, dtype=torch.float64)
    maps[:, 0] = 1
    return maps


def _uniform(n: int) -> Tensor:
    maps = torch.ones(n, n, dtype=torch.float64).tril()
    return maps / maps.sum(-1, keepdim=True)


def _full(n: int) -> Tensor:
    return torch.full((n, n), 1 / n, dtype=torch.float64)


def _one(
    name: str, attention: Tensor, take: Callable[[Any], Any] = lambda found: found, **options: Any
) -> Callable[[], float]:
    def compute() -> float:
        from attnscope.metrics.measure import measure

        return float(take(measure(attention, {name: options})[name]))

    return compute


#: One closed form per metric: (how it is computed, what it must be).
KNOWN_ANSWERS: dict[str, tuple[Callable[[], float], float]] = {
    # the causal star under the mean has weights 1/2: L has the eigenvalues 0, 1/2 (n - 2 times), n/2
    "sink_share": (_one("sink_share", _star(6), lambda found: found.share), 1.0),
    "sink_rate": (_one("sink_rate", _star(6)), 1.0),
    "sink_position": (_one("sink_position", _star(6)), 0.0),
    "sink_tokens": (_one("sink_tokens", _star(6), lambda found: found.sum()), 1.0),
    "incoming_attention": (_one("incoming_attention", _uniform(4), lambda found: found[0]), 25 / 48),
    "top_mass": (_one("top_mass", _star(6), k=1), 1.0),
    "attention_entropy": (_one("attention_entropy", _full(4), lambda found: found.mean()), math.log(4)),
    "graph_statistics": (
        _one("graph_statistics", _star(6), lambda found: found.centralization[0], thresholds=[0.1]),
        1.0,
    ),
    "fiedler_value": (_one("fiedler_value", _star(6)), 0.5),
    "fiedler_vector": (_one("fiedler_vector", _full(4), lambda found: found.square().sum()), 1.0),
    "laplacian_eigenvalues": (_one("laplacian_eigenvalues", _star(6), lambda found: found[-1]), 3.0),
    "laplacian_gap": (_one("laplacian_gap", _star(3)), 1.0),
}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
