# SPDX-License-Identifier: MIT
"""How much a second thread helps on a batch of heads: ours, and torch.linalg.eigvalsh beside it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

import attnscope as asc
from harness import Benchmark, sizes
from kernels.fiedler import laplacians
from maps import synthetic_maps

TARGET = 1.9
#: Of a batch for which no second thread is woken: what the clock makes of two equal times.
FEWEST = 0.95
# Calls in a row with one number of threads, as a study makes them: another number wakes or ends a thread.
CALLS = 8


def with_threads(count: int, call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        torch.set_num_threads(count)
        for _ in range(CALLS - 1):
            call()
        return call()

    return run


def equal(peer: str, ours: Any, theirs: Any) -> None:
    if not torch.equal(ours, theirs):
        raise AssertionError(f"{peer}: the number of threads changed a result")


def compare_nothing(peer: str, ours: Any, theirs: Any) -> None:
    del peer, ours, theirs


def small_batches(benchmark: Benchmark) -> None:
    """Compare batches of few small maps, for which no thread may be woken that costs more than it gives."""
    metrics: dict[str, Callable[[torch.Tensor], Any]] = {
        "incoming_attention": asc.incoming_attention,
        "attention_entropy": asc.attention_entropy,
        "sink_share": lambda a: asc.sink_share(a).share,
        "local_global_ratio": asc.local_global_ratio,
        "graph_statistics": lambda a: asc.graph_statistics(a, 0.05).density,
    }
    for n in sizes(benchmark, (16, 64, 128, 256), (16, 64)):
        for count in sizes(benchmark, (1, 4, 16, 64), (1, 16)):
            attention = synthetic_maps("peaky", n, count)
            for name, metric in metrics.items():
                call = functools.partial(metric, attention)
                benchmark.compare(
                    f"{name} of {count} n={n}",
                    CALLS * count,
                    with_threads(2, call),
                    {"one thread": with_threads(1, call)},
                    agree=equal,
                    target=FEWEST,
                    facts={"n": n, "maps": count},
                    peers_compete=False,
                )


def main() -> None:
    benchmark = Benchmark("threads", __doc__ or "", wall=True)
    print(
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}: a busy machine hides what threads gain"
    )
    for n in sizes(benchmark, (32, 64, 128, 256), (64,)):
        attention = synthetic_maps("peaky", n, 1000)
        dense = laplacians(attention[:40])
        # a map takes microseconds: as many as a cache holds (16 MB), so that starting is little
        again = attention.repeat(max(1, 128 // n), 1, 1)[: 2**22 // n**2]
        scores = again.clamp_min(torch.finfo(again.dtype).tiny).log()
        calls: dict[str, Callable[[], Any]] = {
            "fiedler_value": lambda attention=attention: asc.fiedler_value(attention),
            "graph_statistics": lambda attention=attention: asc.graph_statistics(attention, 0.05).density,
            "attention_entropy": lambda attention=attention: asc.attention_entropy(attention),
            "toeplitz_split": lambda scores=scores: asc.toeplitz_split(scores).variance.nan_to_num(),
            "mask_only": lambda scores=scores: asc.mask_only(scores).attention,
        }
        for name, call in calls.items():
            benchmark.compare(
                f"{name} n={n}",
                CALLS * len(scores if name in ("toeplitz_split", "mask_only") else attention),
                with_threads(2, call),
                {"one thread": with_threads(1, call)},
                agree=equal,
                target=TARGET,
                limit=2,
                facts={"n": n},
            )
        solver = lambda dense=dense: torch.linalg.eigvalsh(dense)  # noqa: E731
        benchmark.compare(
            f"torch eigvalsh n={n}",
            CALLS * len(dense),
            with_threads(2, solver),
            {"one thread": with_threads(1, solver)},
            agree=compare_nothing,
            facts={"n": n, "ours": "two threads of torch itself"},
            peers_compete=False,
        )
    shape = (1024, 2752) if benchmark.quick else (4096, 11008)
    draw = torch.Generator().manual_seed(0)
    before, after = (torch.randn(shape, generator=draw).bfloat16() for _ in range(2))
    statistics = lambda: torch.stack(list(asc.delta_statistics(before, after)))  # noqa: E731
    benchmark.compare(
        f"delta_statistics bfloat16 n={shape[0]}",
        CALLS,
        with_threads(2, statistics),
        {"one thread": with_threads(1, statistics)},
        agree=equal,
        target=1.8,
        limit=2,
        facts={"n": shape[0], "bytes": 4 * before.numel()},
    )
    small_batches(benchmark)
    benchmark.finish()


if __name__ == "__main__":
    main()
