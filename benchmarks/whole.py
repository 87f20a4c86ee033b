# SPDX-License-Identifier: MIT
"""The whole exact analysis of every head against the forward pass that makes the heads.

The forward pass is GPT-2's of 124 million parameters (12 layers of 12 heads, eager, random weights: its cost
does not depend on them). The heads are as many of stories260K's, which are harder than a random model's, and
the random model's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed, sizes
from maps import model_maps

LAYERS, HEADS = 12, 12
THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
METRICS = {
    "attention_entropy": {},
    "incoming_attention": {},
    "sink_share": {},
    "sink_rate": {},
    "sink_position": {},
    "top_mass": {},
    "head_divergence": {},
    "fiedler_value": {},
    "graph_statistics": {"thresholds": THRESHOLDS},
    "betti_numbers": {"thresholds": (0.025, 0.05, 0.1, 0.2, 0.3, 0.5)},
    "participation_ratio": {},
    "stable_rank": {},
    "effective_rank": {},
    "marchenko_pastur": {},
    "bar_count": {},
    "total_persistence": {},
    "persistent_entropy": {},
}
# The analysis may take this share of the forward pass.
SHARES = {33: 0.04, 64: 0.08, 128: 0.2, 512: 1.0}
FAST_SHARES = {33: 0.04, 64: 0.08, 128: 0.2, 512: 1.5}
# Passes of single texts in the time of `analyze`, which reads several texts in one pass.
TABLES = {1: 0.7, 16: 1.3}


def gpt2(longest: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_positions=longest, attn_implementation="eager")
    return GPT2LMHeadModel(config).eval()


def forward(model: Any, n: int) -> torch.Tensor:
    """The maps [layers, heads, n, n] of n tokens."""
    tokens = torch.arange(n).unsqueeze(0) % 50000
    with torch.no_grad():
        return torch.cat(model(tokens, output_attentions=True, use_cache=False).attentions)


def agree(peer: str, ours: dict[str, Any], heads: torch.Tensor) -> None:
    """The forward pass knows no answers: entropy and λ2 of its heads are compared with torch's."""
    if ours["attention_entropy"].shape != heads.shape[:-1]:
        raise AssertionError(f"{peer}: {tuple(ours['attention_entropy'].shape)} rows")
    entropy = -torch.xlogy(heads.double(), heads.double()).sum(-1)
    if peer == "forward pass":
        np.testing.assert_allclose(ours["attention_entropy"], entropy, rtol=0, atol=1e-10)


def agree_fast(peer: str, ours: dict[str, Any], theirs: Any) -> None:
    """Row entropies and λ2 are held to the bounds of fast; the forward pass knows neither."""
    if peer != "ours exact":
        return
    for name, bound in (("attention_entropy", 1e-5), ("fiedler_value", 1e-6)):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=bound, atol=1e-12, err_msg=name)


def single_passes(model: Any, texts: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(ids[None], use_cache=False).logits for ids in texts]


def agree_in_rows(peer: str, ours: asc.Results, theirs: list[torch.Tensor]) -> None:
    """Tables have a row for each head of each text; the forward pass knows no numbers."""
    rows = len(ours["heads"])
    assert rows == LAYERS * HEADS * len(theirs), f"{peer}: {rows} rows of {len(theirs)} texts"


def compare_tables(benchmark: Benchmark, model: Any, count: int, n: int) -> None:
    """`analyze` of some texts of up to n tokens, to tables, against passes of single texts."""
    texts = [torch.arange(n - k % 9) * (k + 3) % 50000 for k in range(count)]
    benchmark.compare(
        f"tables of {count} text(s) n={n}",
        count,
        lambda: asc.analyze(model, texts, METRICS, progress=False),
        {"forward passes": lambda: single_passes(model, texts)},
        agree=agree_in_rows,
        target=TABLES[count],
        facts={"n": n, "texts": count},
    )


def main() -> None:
    benchmark = Benchmark("whole", __doc__ or "", peers_compete=False)
    if not installed("transformers"):
        return
    model = gpt2(512)
    for n in sizes(benchmark, (33, 64, 128, 512), (33,)):
        # A long one takes ten seconds a call: one input is enough.
        inputs = {f"own heads n={n}": forward(model, n)} if n < 512 else {}
        if (trained := model_maps(n)) is not None:
            count = LAYERS * HEADS
            repeated = trained.repeat(-(-count // len(trained)), 1, 1)[:count]
            inputs[f"stories260K n={n}"] = repeated.reshape(LAYERS, HEADS, n, n)
        for name, heads in inputs.items():
            peer = "forward pass" if name.startswith("own") else "forward pass of as many heads"
            benchmark.compare(
                name,
                1,
                lambda a=heads: asc.measure(a, METRICS),
                {peer: lambda n=n: forward(model, n)},
                agree=agree,
                target=1 / SHARES[n],
                facts={"n": n, "share": SHARES[n], "heads": LAYERS * HEADS},
            )
            benchmark.compare(
                f"{name} fast",
                1,
                lambda a=heads: asc.measure(a, METRICS, precision="fast"),
                {
                    peer: lambda n=n: forward(model, n),
                    "ours exact": lambda a=heads: asc.measure(a, METRICS),
                },
                agree=agree_fast,
                target=1 / FAST_SHARES[n],
                against=peer,
                facts={"n": n, "share": FAST_SHARES[n], "heads": LAYERS * HEADS, "precision": "fast"},
            )
    for count in TABLES:
        compare_tables(benchmark, model, count, 33)
    benchmark.finish()


if __name__ == "__main__":
    main()
