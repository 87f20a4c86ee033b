# SPDX-License-Identifier: MIT
"""Derivatives along 20 directions behind every block: steps on the prompt's cache, against whole prompts.

Whole prompts are run for the first prompt alone, and its time counts for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnscope.capture.directions.sensitivity import sensitivity_of
from attnscope.capture.directions.steps import PromptSteps
from harness import Benchmark, sizes

TARGET = 10.0
DIRECTIONS, LAYERS, WIDTH = 20, 12, 512


def equal(peer: str, ours: Any, theirs: Any) -> None:
    del peer
    np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=1e-2, atol=1e-8)


def main() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    benchmark = Benchmark("sensitivity", __doc__ or "", peers_compete=False)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=WIDTH,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    directions = torch.randn(DIRECTIONS, WIDTH)
    prompts = sizes(benchmark, (12,), (1,))[0]
    for tokens in sizes(benchmark, (16, 64), (64,)):
        texts = [torch.randint(8192, (tokens,)) for _ in range(prompts)]

        def fisher(cached: bool, texts: Any = texts) -> Any:
            result = []
            for text in texts:
                steps = PromptSteps(model, text, cached=cached)
                for layer in range(LAYERS):
                    our_sensitivity = sensitivity_of(steps, layer, directions, depth=LAYERS, curved=False)
                    result.append(our_sensitivity.directional_fisher.numpy())
            return np.stack(result)

        benchmark.compare(
            f"{prompts} prompts of {tokens} tokens",
            prompts,
            lambda fisher=fisher: fisher(True),
            {"whole prompts": lambda fisher=fisher, texts=texts: fisher(False, texts[:1])},
            peer_maps={"whole prompts": 1},
            agree=equal,
            target=TARGET if tokens >= 64 else None,
            facts={"tokens": tokens, "directions": DIRECTIONS, "layers": LAYERS},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
