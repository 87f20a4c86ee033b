# SPDX-License-Identifier: MIT
"""Is this installation sound? Build, instruction sets, threads, torch, and each kernel on a known answer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor


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


REBUILD = "build it again: pip install --no-build-isolation --force-reinstall --no-deps attnscope"
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
    import attnscope
    from attnscope import _build, _core, _isa
    from attnscope.engine.provenance import cpu_name

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
    from attnscope.commands.catalogue import first_lines

    built, here = _build.TORCH_VERSION.split("+")[0], torch.__version__.split("+")[0]
    same = built.split(".")[:2] == here.split(".")[:2]
    checks = [
        Check("torch match", same, f"built {built}, here {here}", remedy=REBUILD),
        _instruction_set(_isa.live(), _isa.runnable()[0]),
        Check("threads", torch.get_num_threads() > 0, f"{torch.get_num_threads()} of {os.cpu_count()}"),
    ]
    for name in first_lines():
        compute, expected = KNOWN_ANSWERS[name]
        try:
            value = compute()
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            checks.append(Check(name, False, f"{type(error).__name__}: {error}", remedy=WRONG_NUMBERS))
            continue
        ok = math.isclose(value, expected, rel_tol=1e-10, abs_tol=1e-12)
        found = f"{value:.12g}" if ok else f"{value!r}, expected {expected!r}"
        checks.append(Check(name, ok, found, remedy=WRONG_NUMBERS))
    return checks


def verdict(checks: Sequence[Check]) -> str:
    """What the checks come to: how many faults there are, and what to do about them.

    Args:
        checks: of `examine`.

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


def _instruction_set(live: str, best: str) -> Check:
    """Whether the best build that runs here is live; one that ATTNSCOPE_ISA chooses is a note."""
    name = "instruction set"
    if live == best:
        return Check(name, True, live)
    if os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_") == live:
        return Check(name, True, f"{live}, chosen by ATTNSCOPE_ISA; {best} would run too", note=True)
    return Check(name, False, f"{live} is live, {best} would run", remedy="start a new Python process")


def _star(n: int) -> Tensor:
    """Every query on key 0."""
    maps = torch.zeros(n, n, dtype=torch.float64)
    maps[:, 0] = 1
    return maps


def _causal(n: int) -> Tensor:
    """Uniform among the keys up to the query."""
    maps = torch.ones(n, n, dtype=torch.float64).tril()
    return maps / maps.sum(-1, keepdim=True)


def _full(n: int) -> Tensor:
    """Uniform among all keys."""
    return torch.full((n, n), 1 / n, dtype=torch.float64)


def _cycle() -> Tensor:
    """Four tokens in a ring, each attending to its two neighbours."""
    ring = torch.eye(4, dtype=torch.float64).roll(1, 0)
    return (ring + ring.T) / 2


def _hadamard() -> Tensor:
    """Rows 1 to 7 standardise to orthogonal signs, so that all seven eigenvalues are 1; row 0 is constant."""
    signs = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(3):
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return 0.125 + 0.0625 * signs


def _aligned() -> tuple[Tensor, Tensor]:
    """Attention that grows linearly with the cosine of the states."""
    angles = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    return 0.3 + 0.1 * torch.cos(angles[:, None] - angles), torch.stack([angles.cos(), angles.sin()], -1)


def _two_heads() -> Tensor:
    """Row 1 of one head on key 0, of the other on key 1: each diverges from their mean by log 2 there."""
    return torch.tensor([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], dtype=torch.float64)


def _known(
    name: str,
    expected: float,
    attention: Tensor,
    take: Callable[[Any], Any] = lambda found: found,
    **options: Any,
) -> tuple[Callable[[], float], float]:
    def compute() -> float:
        from attnscope.metrics.measure import measure

        return float(take(measure(attention, {name: options})[name]))

    return compute, expected


#: One closed form per metric: (how it is computed, what it must be).
KNOWN_ANSWERS: dict[str, tuple[Callable[[], float], float]] = {
    "sink_share": _known("sink_share", 1.0, _star(6), lambda found: found.share),
    "sink_rate": _known("sink_rate", 1.0, _star(6)),
    "sink_position": _known("sink_position", 0.0, _star(6)),
    "sink_tokens": _known("sink_tokens", 1.0, _star(6), lambda found: found.sum()),
    "incoming_attention": _known("incoming_attention", 25 / 48, _causal(4), lambda found: found[0]),
    "top_mass": _known("top_mass", 1.0, _star(6), k=1),
    "attention_entropy": _known("attention_entropy", math.log(4), _full(4), lambda found: found.mean()),
    # the star under the mean has weights 1/2: its Laplacian has 0, 1/2 (n - 2 times) and n/2
    "fiedler_value": _known("fiedler_value", 0.5, _star(6)),
    "fiedler_vector": _known("fiedler_vector", 1.0, _full(4), lambda found: found.square().sum()),
    "laplacian_eigenvalues": _known("laplacian_eigenvalues", 3.0, _star(6), lambda found: found[-1]),
    "laplacian_gap": _known("laplacian_gap", 1.0, _star(3)),
    "graph_statistics": _known(
        "graph_statistics", 1.0, _star(6), lambda found: found.centralization[0], thresholds=[0.1]
    ),
    "singular_values": _known("singular_values", 1.0, _full(4), lambda found: found[0]),
    "participation_ratio": _known("participation_ratio", 4.0, torch.eye(4, dtype=torch.float64)),
    "stable_rank": _known("stable_rank", 4.0, torch.eye(4, dtype=torch.float64)),
    "effective_rank": _known("effective_rank", 4.0, torch.eye(4, dtype=torch.float64)),
    "spectral_gap": _known("spectral_gap", 1.0, _full(4)),
    "spectral_ratio": _known("spectral_ratio", 2.0, torch.diag(torch.tensor([1.0, 0.5, 0.5]).double())),
    "marchenko_pastur": _known(
        "marchenko_pastur", (1 + math.sqrt(7 / 8)) ** 2, _hadamard(), lambda found: found.edge
    ),
    # all eigenvalues at 1: the larger of F(1) and 1 - F(1) for the law of aspect 7/8
    "marchenko_pastur_deviation": _known("marchenko_pastur_deviation", 0.6015919507048966, _hadamard()),
    "persistence": _known("persistence", 1.0, _cycle(), lambda found: (found.dimension == 1).sum()),
    "betti_numbers": _known("betti_numbers", 1.0, _cycle(), lambda found: found[0, 1], thresholds=[0.4]),
    "betti_curve": _known("betti_curve", 1.0, _cycle(), lambda found: found[0, 1], scales=[0.6]),
    "bar_count": _known("bar_count", 4.0, _full(4), lambda found: found[0]),
    "total_persistence": _known("total_persistence", 2.25, _full(4), lambda found: found[0]),
    "max_persistence": _known("max_persistence", 0.75, _full(4), lambda found: found[0]),
    "persistent_entropy": _known("persistent_entropy", math.log(3), _full(4), lambda found: found[0]),
    "head_divergence": _known("head_divergence", math.log(2) / 2, _two_heads(), lambda found: found[0]),
    "sink_removal": _known(
        "sink_removal", 0.0, _full(3).expand(2, 3, 3), lambda found: found.kl_reduction, keys=[0]
    ),
    "geometric_semantic_alignment": _known(
        "geometric_semantic_alignment", 1.0, _aligned()[0], states=_aligned()[1]
    ),
    "reference_influence": _known(
        "reference_influence",
        0.5,
        _full(2),
        lambda found: found.relative_magnitude[1],
        states=torch.ones(2, 3, dtype=torch.float64),
        reference=torch.tensor([True, False]),
    ),
    # of four keys the last query gives 2/4 to those two or more away, the one before it 1/3
    "local_global_ratio": _known("local_global_ratio", 3.8, _causal(4), window=1),
    "power_spectrum": _known("power_spectrum", 2 / 3, _full(32), lambda found: found.selectivity[-1]),
    "spectral_uncertainty": _known(
        "spectral_uncertainty",
        math.log(32),
        torch.eye(32, dtype=torch.float64),
        lambda found: found.spectral_entropy[-1],
        support="full",
    ),
    "wavelet_transform": _known("wavelet_transform", 1.0, _full(32), lambda found: found.energy[-1, 0]),
    "morlet_scalogram": _known(
        "morlet_scalogram", 1 / (4 * math.sqrt(math.pi)), _star(32), lambda found: found[0, 0], scales=[4.0]
    ),
}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
