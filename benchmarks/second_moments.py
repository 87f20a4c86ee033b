# SPDX-License-Identifier: MIT
"""Second moments of what all matrices read, against the same texts through the model alone."""

from __future__ import annotations

from typing import Any

import torch

import attnscope as asc
from harness import Benchmark, sizes

#: At most one and a half times the forward pass.
TARGET = 1 / 1.5
TEXTS = 8


def compare_nothing(peer: str, ours: Any, theirs: Any) -> None:
    del peer, ours, theirs


def main() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    benchmark = Benchmark("second_moments", __doc__ or "", peers_compete=False)
    for width in sizes(benchmark, (512, 1024), (256,)):
        config = LlamaConfig(
            vocab_size=8192,
            hidden_size=width,
            intermediate_size=-(-width * 8 // 3 // 64) * 64,
            num_hidden_layers=4,
            num_attention_heads=8,
        )
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        texts = [torch.randint(8192, (256,)) for _ in range(TEXTS)]

        def plain(model: Any = model, texts: Any = texts) -> None:
            with torch.no_grad():
                for text in texts:
                    model(input_ids=text[None])

        for name, rank in (("whole", None), ("sketch of 128", 128)):
            benchmark.compare(
                f"{name} d={width}",
                TEXTS,
                lambda model=model, texts=texts, rank=rank: asc.second_moments(model, texts, rank=rank),
                {"forward pass": plain},
                agree=compare_nothing,
                target=TARGET,
                facts={"width": width, "tokens": 256},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
