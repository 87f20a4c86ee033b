# SPDX-License-Identifier: MIT
"""Measuring attention of long texts from queries and keys, against the attention itself.

Peer `sdpa` is torch's scaled dot product attention of the same float32 queries and keys, causal. Its time is
what a layer takes anyway. A row below its target says what limits it: `of_multiply_adds` is the share of the
machine's rate that the products of queries and keys alone take. Rows at the end: measures of a map at hand
against vectorised torch, memory above inputs and results, and a small Llama-like model of 32,768 tokens
against its own forward pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnscope as asc
from harness import Benchmark

#: Tokens of each comparison, with the number of heads that makes a call long enough to time.
SIZES = {512: 16, 1024: 8, 4096: 2, 16384: 1, 32768: 1}
#: Share of the time of `sdpa` that a call may take; at 32,768 tokens there is a margin.
SHARES = {
    "row measures": 0.45,
    "rows and incoming attention": 0.5,
    "top 8 keys": 0.5,
    "entries of .01 and more": 0.5,
    "A x, 8 columns": 0.5,
    "A^T x, 8 columns": 0.5,
    "bfloat16, rows and incoming attention": 0.3,
    "exact, rows and incoming attention": 0.95,
}
MARGIN = 0.15
FROM_ONE_PASS = [("entropy", None), ("collision", None), ("incoming", None), ("squares", None)]


def calls_of(query: Tensor, key: Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is timed for these queries and keys, by name."""
    lazy = asc.LazyAttention(query, key)
    exact = asc.LazyAttention(query, key, precision="exact")
    half = asc.LazyAttention(query.bfloat16(), key.bfloat16())
    x = torch.ones(query.shape[-2], 8)
    return {
        "row measures": lazy.row_measures,
        "rows and incoming attention": lambda: lazy.take(FROM_ONE_PASS),
        "top 8 keys": lambda: lazy.top(8),
        "entries of .01 and more": lambda: lazy.at_least(0.01),
        "A x, 8 columns": lambda: lazy @ x,
        "A^T x, 8 columns": lambda: lazy.T @ x,
        "bfloat16, rows and incoming attention": lambda: half.take(FROM_ONE_PASS),
        "exact, rows and incoming attention": lambda: exact.take(FROM_ONE_PASS),
    }


def compare_with_attention(benchmark: Benchmark) -> None:
    """Time each call against torch's attention of the same queries and keys."""
    generator = torch.Generator().manual_seed(0)
    for n, heads in SIZES.items():
        if benchmark.quick and n > 4096:
            continue
        for width in (64, 128):
            query, key, value = (torch.randn(1, heads, n, width, generator=generator) for _ in range(3))
            for name, call in calls_of(query, key).items():
                benchmark.compare(
                    f"{name} n={n} d={width}",
                    heads,
                    call,
                    {
                        "sdpa": lambda q=query, k=key, v=value: scaled_dot_product_attention(
                            q, k, v, is_causal=True
                        )
                    },
                    agree=accept,
                    target=1 / (SHARES[name] + MARGIN * (n >= 32768)),
                    facts={"n": n, "width": width, "heads": heads},
                    multiply_adds=multiply_adds_of(name, n, width, heads),
                )


def multiply_adds_of(name: str, n: int, width: int, heads: int) -> float:
    """Return what the products of visible queries and keys take, in multiply-adds of float64 numbers.

    A vector holds two float32 numbers for each float64 number, and an instruction for pairs of bfloat16 adds
    up four.
    """
    numbers_per_float64 = {"bfloat16": 4, "exact": 1}.get(name.partition(",")[0], 2)
    columns = 8 if "8 columns" in name else 0
    return heads * n * (n + 1) / 2 * (width + columns) / numbers_per_float64


def compare_with_maps(benchmark: Benchmark) -> None:
    """Time entropy and incoming attention from queries and keys against those of a map at hand."""
    generator = torch.Generator().manual_seed(1)
    for n in (64, 128, 256, 512, 1024, 2048, 4096):
        heads = max(1, min(32, 4096 // n))
        query, key = (torch.randn(1, heads, n, 64, generator=generator) for _ in range(2))
        lazy = asc.LazyAttention(query, key)
        maps = lazy.dense().float()
        benchmark.compare(
            f"from queries and keys, not from a map n={n}",
            heads,
            lambda a=lazy: a.take([("entropy", None), ("incoming", None)]),
            {
                "torch, map at hand": lambda a=maps: (torch.special.entr(a).sum(-1), a.sum(-2)),
                "dense kernel": lambda a=maps: asc.measure(a, ["attention_entropy", "incoming_attention"]),
            },
            agree=accept,
            target=1.0 if n < 512 else 3.0,
            against="torch, map at hand",
            facts={"n": n, "width": 64, "heads": heads},
            multiply_adds=multiply_adds_of("", n, 64, heads),
        )


def accept(peer: str, ours: Any, theirs: Any) -> None:
    """Accept any answer: torch's attention gives an output, and `lazy_attention.py` compares the measures."""


MEMORY = """
import pathlib, torch, attnscope as asc
def megabytes(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
torch.set_num_threads(1)
small = asc.LazyAttention(torch.randn(1, 1, 64, 64), torch.randn(1, 1, 64, 64))
asc.measure(small, ["attention_entropy", "incoming_attention"])
query, key = torch.randn(1, 1, {n}, 64), torch.randn(1, 1, {n}, 64)
lazy = asc.LazyAttention(query, key)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = megabytes("VmRSS")
lazy.take([("entropy", None), ("incoming", None), ("squares", None)])
print(megabytes("VmHWM") - before)
"""


def measure_memory(benchmark: Benchmark) -> None:
    """Add rows with the memory of one pass on one thread above queries and keys, by tokens."""
    for n in (4096, 16384, 32768, 65536):
        command = [sys.executable, "-c", MEMORY.format(n=n)]
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
        megabytes = float(finished.stdout)
        row: dict[str, Any] = {
            "name": f"memory n={n}",
            "n": n,
            "target": None,
            "against": None,
            "limit": None,
        }
        row |= {"best_ms": {}, "median_ms": {}, "ratio": {}}
        benchmark.rows.append({**row, "megabytes": megabytes, "megabytes_of_map": 4 * n * n / 2**20})
        print(
            f"memory n={n}    {megabytes:.1f} MB, of a map {4 * n * n / 2**20:.0f} MB | target 16 MB",
            flush=True,
        )


def compare_capture(benchmark: Benchmark) -> None:
    """Time a forward pass with lazy capture and three measures of every head against the pass alone."""
    from transformers import LlamaConfig, LlamaModel

    tokens = 4096 if benchmark.quick else 32768
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=tokens,
    )
    model = LlamaModel(config).eval()
    ids = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(2))

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    def captured() -> None:
        with asc.capture(model, lazy=True) as recording:
            for layer in recording.run(input_ids=ids):
                layer.measure(["attention_entropy", "incoming_attention", "sink_share"])

    captured()  # the first run enters the functions in transformers' tables
    benchmark.compare(
        f"capture of a text n={tokens}",
        config.num_hidden_layers * config.num_attention_heads,
        captured,
        {"forward pass": forward},
        agree=accept,
        target=1 / 1.5,
        facts={"n": tokens},
    )


def main() -> None:
    """Run all comparisons."""
    benchmark = Benchmark("long_context", __doc__ or "", peers_compete=False)
    compare_with_attention(benchmark)
    compare_with_maps(benchmark)
    compare_capture(benchmark)
    if not benchmark.options.only:
        measure_memory(benchmark)
    benchmark.finish()


if __name__ == "__main__":
    main()
