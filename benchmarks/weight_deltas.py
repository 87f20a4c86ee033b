# SPDX-License-Identifier: MIT
"""Changes of all matrices between two folders: time and peak memory against loading both models."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import attnscope as asc
from harness import Benchmark

#: In a process of its own, so that its peak is its own: bytes above what imports and threads take.
PEAK = """
import re, sys, torch, attnscope as asc
from transformers import LlamaForCausalLM
asc.weight_deltas, asc.delta_statistics(torch.ones(2, 2), torch.zeros(2, 2))
torch.set_num_threads(1)
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
if sys.argv[1] == "attnscope":
    for found in asc.weight_deltas(*sys.argv[2:]):
        del found
else:
    one, other = (LlamaForCausalLM.from_pretrained(one, dtype=torch.bfloat16) for one in sys.argv[2:])
    for (name, before_weight), after in zip(one.state_dict().items(), other.state_dict().values()):
        delta = after.float() - before_weight.float()
        del delta
print("peak", peak() - before)
"""


def loaded(*folders: Path) -> float:
    """The sum of squares of all changes, from two loaded models."""
    from transformers import LlamaForCausalLM

    first, other = (LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16) for folder in folders)
    states = first.state_dict().items(), other.state_dict().values()
    return sum(
        float((after.float() - before.float()).double().square().sum())
        for (_, before), after in zip(*states, strict=True)
        if before.ndim == 2
    )


def streamed(*folders: Path) -> float:
    """The same from the folders."""
    return sum(float(weight_delta.statistics().energy) for weight_delta in asc.weight_deltas(*folders))


def agree(peer: str, ours: Any, theirs: Any) -> None:
    if abs(ours - theirs) > 1e-9 * theirs:
        raise AssertionError(f"{peer}: {ours} and {theirs}")


def saved(home: Path, quick: bool) -> tuple[Path, Path, int]:
    """Two folders of bfloat16 shards, and the bytes of their largest matrix as it is stored."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, inner, layers = (512, 1376, 2) if quick else (2048, 5504, 4)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(home / "before", max_shard_size="200MB")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    model.save_pretrained(home / "after", max_shard_size="200MB")
    largest = max(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return home / "before", home / "after", largest


def peak_of(who: str, folders: tuple[Path, Path]) -> int:
    """Bytes of memory that a process needs beyond its interpreter and libraries."""
    command = [sys.executable, "-c", PEAK, who, *map(str, folders)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"peak (\d+)", answer)
    assert match is not None
    return int(match[1])


def main() -> None:
    benchmark = Benchmark("weight_deltas", __doc__ or "")
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        before, after, largest = saved(Path(place), benchmark.quick)
        stored = sum(file.stat().st_size for file in Path(place).rglob("*.safetensors"))
        our_peak, theirs = (peak_of(who, (before, after)) for who in ("attnscope", "two models"))
        facts = {
            "bytes": stored,
            "largest_bytes": largest,
            "peak_bytes": our_peak,
            "peak_of_largest": round(our_peak / largest, 2),
            "peak_ratio": round(theirs / our_peak, 2),
        }
        print(
            f"peak memory: {our_peak / largest:.2f} of the largest matrix; two models take "
            f"{theirs / our_peak:.1f}x"
        )
        benchmark.compare(
            f"bfloat16 pair of {stored / 1e6:.0f} MB",
            1,
            lambda: streamed(before, after),
            {"two models": lambda: loaded(before, after)},
            agree=agree,
            facts=facts,
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
