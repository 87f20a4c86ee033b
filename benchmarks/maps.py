# SPDX-License-Identifier: MIT
"""Attention maps for the benchmarks: a small trained model's, and seeded synthetic ones of known regimes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import Benchmark, sizes

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
CACHE = ROOT / "build" / "benchmark_maps"

# Trained models and the longest text that they read.
LONGEST = {"stories260K": 512, "llama2xs": 256}
MODELS = tuple(LONGEST)
REGIMES = ("sink", "local", "diffuse", "peaky", "bidirectional")


def model_maps(n: int, model: str = "stories260K") -> torch.Tensor | None:
    """All heads of a trained model on one text of `n` tokens, [layers·heads, n, n] float32, or None.

    Made once and kept under build/. stories260K is the hard case: no sink, thousands of loops.
    """
    file = CACHE / f"{model}_{n}.npy"
    if not file.is_file():
        folder = DATA / model / "hf"
        if not folder.is_dir():
            return None
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(file, _run(folder, n))
    return torch.from_numpy(np.load(file))


def synthetic_maps(regime: str, n: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Seeded softmax maps [count, n, n].

    sink: every query rests on key 0. local: near keys, and a weaker sink. diffuse: nearly uniform. peaky:
    sharp content heads without a sink. bidirectional: no causal mask, sharp, anchors at both ends.
    """
    rng = np.random.default_rng([REGIMES.index(regime), n])
    return torch.from_numpy(np.stack([_synthetic(regime, n, rng) for _ in range(count)])).to(dtype)


def usual_count(n: int) -> int:
    """Maps of one call: 40 like the heads of stories260K, so that a call is more than its overhead."""
    return 40 if n <= 128 else 16 if n <= 256 else 8 if n <= 512 else 2 if n <= 1024 else 1


def all_maps(
    n: int, count: int | None = None, regimes: Sequence[str] = REGIMES, *, models: Sequence[str] = MODELS
) -> dict[str, torch.Tensor]:
    """Every input of size `n` by name, the trained models' first where they are at hand.

    Models reach their own longest text, synthetic maps any size.
    """
    count = usual_count(n) if count is None else count
    inputs: dict[str, torch.Tensor] = {}
    for model in models:
        if n <= LONGEST[model] and (heads := model_maps(n, model)) is not None:
            inputs[f"{model} n={n}"] = heads if n <= 128 else heads[: max(count, 16)]
    for regime in regimes:
        inputs[f"{regime} n={n}"] = synthetic_maps(regime, n, count)
    return inputs


#: The regimes of which there are variants, one causal and one not.
WITH_VARIANTS = ("sink", "bidirectional")


def variants(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs, and synthetic ones in the other types and with their heads as the fastest axis."""
    result = dict(inputs)
    for name, maps in inputs.items():
        if name.split()[0] not in WITH_VARIANTS:
            continue
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            result[f"{name} {str(dtype).removeprefix('torch.')}"] = maps.to(dtype)
        result[f"{name} head-fastest"] = maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return result


def wanted_maps(
    benchmark: Benchmark,
    full: Sequence[int],
    quick: Sequence[int],
    *,
    with_variants: bool = False,
    **options: Any,
) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Size, name and maps of every input of these sizes that `--only` and `--quick` leave in."""
    for n in sizes(benchmark, full, quick):
        inputs = all_maps(n, **options)
        for name, attention in (variants(inputs) if with_variants else inputs).items():
            if benchmark.wants(name):
                yield n, name, attention


def model_states(n: int, model: str = "stories260K") -> torch.Tensor | None:
    """States of the middle block at the last token of `n` different lines, [n, d] float64, or None."""
    folder = DATA / model / "hf"
    if not folder.is_dir():
        return None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = (DATA / "text" / "tinyshakespeare.txt").read_text("ascii").splitlines()
    chosen = [line for line in dict.fromkeys(lines) if len(line) > 30][:n]
    states = []
    with torch.no_grad():
        for line in chosen:
            tokens = tokenizer(line, return_tensors="pt").input_ids
            hidden = network(tokens, output_hidden_states=True).hidden_states
            states.append(hidden[len(hidden) // 2][0, -1].double())
    return torch.stack(states)


def point_clouds(n: int, count: int = 1, widths: Sequence[int] = (64, 512)) -> dict[str, torch.Tensor]:
    """Gaussian clouds of several widths and states of a trained model where it is at hand, by name.

    Each [count, n, d] float64; the states are those of n times as many lines of text.
    """
    clouds = {}
    for d in widths:
        drawn = np.random.default_rng([n, d]).standard_normal((count, n, d))
        clouds[f"gaussian d={d} n={n}"] = torch.from_numpy(drawn)
    for model in MODELS:
        if (states := model_states(count * n, model)) is not None and len(states) == count * n:
            clouds[f"{model} states n={n}"] = states.reshape(count, n, -1)
    return clouds


def gpt2_maps() -> torch.Tensor | None:
    """The published maps of GPT-2 on prompts of six tokens, [maps, 6, 6] float32, or None."""
    files = sorted((DATA / "gpt2_attention_maps").glob("*.npz"))
    maps = [np.load(file)["attn_softmax"] for file in files]
    six = [m.reshape(-1, 6, 6) for m in maps if m.shape[-1] == 6]
    return torch.from_numpy(np.concatenate(six)) if six else None


def _run(folder: Path, n: int) -> np.ndarray:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = (DATA / "text" / "tinyshakespeare.txt").read_text("ascii")[: 12 * n]
    tokens = tokenizer(text, return_tensors="pt").input_ids[:, :n]
    with torch.no_grad():
        attention = model(tokens, output_attentions=True).attentions
    return torch.stack(attention).reshape(-1, n, n).float().numpy()


def _synthetic(regime: str, n: int, rng: np.random.Generator) -> np.ndarray:
    logits = rng.standard_normal((n, 64)) @ rng.standard_normal((n, 64)).T / 8.0
    query, key = np.indices((n, n))
    if regime == "sink":
        logits[:, 0] = np.log(max(n, 2)) + 2.0 + 0.5 * rng.standard_normal(n)
    elif regime == "local":
        logits -= 0.25 * np.abs(query - key)
        logits[:, 0] = 2.0 + rng.standard_normal(n)
    elif regime == "diffuse":
        logits *= 0.3
    elif regime == "peaky":
        logits *= 3.0
    else:
        logits *= 3.0
        logits[:, 0] += 1.5
        logits[:, -1] += 2.5 + 0.7 * rng.standard_normal(n)
    if regime != "bidirectional":
        logits = np.where(key <= query, logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
