# SPDX-License-Identifier: MIT
"""A table of features against `analyze` with the same metrics, of texts of 64 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark

METRICS = ("lookback", "prompt_divergence", "causal_spectrum", "pattern_share", "stable_rank")
#: At most 1.15 times the time of `analyze`.
TARGET = 1 / 1.15
TOKENS, ANSWER = 64, 24


def equal_heads(peer: str, ours: Any, theirs: Any) -> None:
    """Assert that both have the same number for every text and head."""
    del peer
    heads = theirs.heads.sort_values(["sample", "layer", "head"])["stable_rank"].to_numpy()
    columns = [name for name in ours.X.columns if name.startswith("stable_rank") and "mean" not in name]
    np.testing.assert_allclose(ours.X[sorted(columns)].to_numpy().ravel(), heads, rtol=1e-9)


def main() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    benchmark = Benchmark("features_cost", __doc__ or "", peers_compete=False)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(config).eval()
    texts = 20 if benchmark.quick else 200
    ids = np.random.default_rng(0).integers(3, 256, (texts, TOKENS)).tolist()
    spans = [(TOKENS - ANSWER, TOKENS)] * texts
    benchmark.compare(
        f"{len(METRICS)} metrics n={TOKENS}",
        texts,
        lambda: asc.features(model, ids, list(METRICS), answers=spans),
        {"analyze": lambda: asc.analyze(model, ids, list(METRICS), answer=spans)},
        agree=equal_heads,
        target=TARGET,
        facts={"tokens": TOKENS, "metrics": METRICS},
    )
    benchmark.finish()


if __name__ == "__main__":
    main()
