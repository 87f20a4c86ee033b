# SPDX-License-Identifier: MIT
"""Cost of a table of features over that of `analyze` with the same metrics: 200 texts of 64 tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnscope as asc

METRICS = ("lookback", "prompt_divergence", "causal_spectrum", "pattern_share", "stable_rank")
ROUNDS = 3


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(config).eval()
    ids = np.random.default_rng(0).integers(3, 256, (200, 64)).tolist()
    spans = [(40, 64)] * len(ids)

    def analyze() -> Any:
        return asc.analyze(model, ids, list(METRICS), answer=spans)

    def features() -> Any:
        return asc.features(model, ids, list(METRICS), answers=spans)

    rounds = [(seconds(analyze), seconds(features)) for _ in range(ROUNDS)]
    ratio = statistics.median(other / first for first, other in rounds)
    print(
        f"analyze {min(pair[0] for pair in rounds):.2f} s, features {min(pair[1] for pair in rounds):.2f} s"
    )
    print(f"features / analyze: {ratio:.3f} (target: at most 1.15)")


if __name__ == "__main__":
    main()
