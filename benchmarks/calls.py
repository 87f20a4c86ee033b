# SPDX-License-Identifier: MIT
"""What a call costs beside its work: the core and the package on one map of four tokens.

OTHER_CORE=FILE puts another build of the core beside this one, e.g. that of another commit.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

import attnscope as asc
from attnscope import _core
from attnscope.gradients import dispatch
from harness import Benchmark

CALLS = 1000  # to a turn, and a "map" of the table is one of them


def other_core(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("other._core", path)
    spec = importlib.util.spec_from_file_location("other._core", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def calls_of(core: Any, attention: torch.Tensor, lengths: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """By result: none, one tensor, one with lengths, six, seven."""
    return {
        "is_plain_batch": lambda: core.is_plain_batch(attention),
        "participation_ratio": lambda: core.participation_ratio(attention, None, "singular"),
        "participation_ratio, lengths": lambda: core.participation_ratio(attention, lengths, "singular"),
        "persistence": lambda: core.persistence(attention, None, 1, "max", "attention"),
        "marchenko_pastur": lambda: core.marchenko_pastur(attention, None, "full", "full", 0, 0, False),
    }


def often(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        for _ in range(CALLS):
            answer = call()
        return answer

    return run


def with_core(other: Any, names: tuple[str, ...], call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call of the package with these functions of the other core in the place of ours."""
    ours = {name: getattr(_core, name) for name in names}

    def run() -> Any:
        for name in names:
            setattr(_core, name, getattr(other, name))
        try:
            return call()
        finally:
            for name, function in ours.items():
                setattr(_core, name, function)

    return run


def without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return the same call of the package that does not ask whether a tensor requires a gradient."""
    asking = dispatch.needs_operator

    def run() -> Any:
        dispatch.needs_operator = lambda *_: False  # type: ignore[assignment]
        try:
            return call()
        finally:
            dispatch.needs_operator = asking

    return run


def check_same(peer: str, ours: Any, theirs: Any) -> None:
    if peer != "torch.linalg.svdvals" and str(ours) != str(theirs):
        raise AssertionError(f"{peer}: another answer, {theirs} for {ours}")


def main() -> None:
    benchmark = Benchmark("calls", __doc__ or "", peers_compete=False)
    attention = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    inputs = (attention, torch.tensor([3]))
    path = os.environ.get("OTHER_CORE")
    others = calls_of(other_core(path), *inputs) if path else {}
    for name, call in calls_of(_core, *inputs).items():
        peers = {"torch.linalg.svdvals": often(lambda: torch.linalg.svdvals(attention))}
        if name in others:
            peers["other core"] = often(others[name])
        benchmark.compare(
            f"core {name}",
            CALLS,
            often(call),
            peers,
            agree=check_same,
            target=1.0 if others else None,
            against="other core" if others else None,
        )
    package = often(lambda: asc.participation_ratio(attention))
    peers = {"torch.linalg.svdvals": often(lambda: torch.linalg.svdvals(attention))}
    peers["without asking for gradients"] = without_gradients(package)
    if path:
        peers["other core"] = with_core(other_core(path), ("is_plain_batch", "participation_ratio"), package)
    benchmark.compare(
        "package participation_ratio",
        CALLS,
        package,
        peers,
        agree=check_same,
        target=1.0 if path else None,
        against="other core" if path else None,
    )
    benchmark.finish()


if __name__ == "__main__":
    main()
