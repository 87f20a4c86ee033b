# SPDX-License-Identifier: MIT
"""What the sink study concludes of models that have learned nothing, by verdict, of three architectures."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import statistics
from attnscope.studies.attention_sinks.shuffled_removal import removal_shares

README = Path(__file__).resolve().parents[2] / "README.md"
SEEDS, TEXTS, TOKENS, LAYERS, HEADS, CONTROLS = 12, 8, 40, 2, 4, 8


def untrained(architecture, seed):
    """A small model as its library initialises it."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = {
        "Llama": lambda: LlamaConfig(vocab_size=64, intermediate_size=64, num_key_value_heads=2, **sizes),
        "GPTNeoX": lambda: GPTNeoXConfig(vocab_size=64, intermediate_size=64, **sizes),
        "GPT2": lambda: GPT2Config(vocab_size=64, n_embd=32, n_layer=LAYERS, n_head=HEADS, n_positions=64),
    }[architecture]()
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def maps_of(architecture, seed):
    """Attention [layers, texts, heads, n, n] of texts of random tokens."""
    ids = torch.randint(64, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.stack(untrained(architecture, seed)(ids, output_attentions=True).attentions).double()


@functools.cache
def rates(architecture):
    """Return the share of initialisations, or of their layers, of which each verdict is yes."""
    frames, sinks, agree, differ = [], [], [], []
    entropies = {}
    for seed in range(SEEDS + CONTROLS):
        maps = maps_of(architecture, seed)
        entropies[seed] = asc.attention_entropy(maps).mean((0, 2, 3)).numpy()
        if seed >= SEEDS:
            continue
        positions = asc.sink_position(maps).transpose(0, 1)
        result = statistics.frames_of_sinks(positions, positions < -1, lengths=TOKENS, causal=True)
        frames.append(result.frame != "none")
        sinks.append(result.share)
        tests = []
        for layer in range(LAYERS):
            shares = removal_shares(maps[layer], torch.full((TEXTS,), TOKENS), range(TEXTS), layer, 0)
            tests.append(statistics.paired_test(shares["kl_share_90"], shares["kl_share_shuffled_90"]))
        adjusted = statistics.holm([test.p_value for test in tests])
        agree += [p <= 0.05 and test.difference > 0 for p, test in zip(adjusted, tests, strict=True)]
    for seed in range(SEEDS):
        controls = [entropies[other] for other in entropies if other != seed][: CONTROLS + 4]
        differ.append(statistics.control_test(entropies[seed], controls).p_value <= 0.05)
    return {
        "frame": float(np.mean(frames)),
        "heads with a sink": float(np.mean(sinks)),
        "heads agree more": float(np.mean(agree)),
        "differs from initialisations": float(np.mean(differ)),
    }


def rows():
    """Rates of the table: architecture and verdict -> rate."""
    text = README.read_text("utf-8").partition("## Levels\n")[2].partition("\n## ")[0]
    result = re.findall(r"^\| sink study, (\w+): ([^|]+?) \| (\d?\.?\d+) \|", text, re.M)
    return {(architecture, verdict): float(rate) for architecture, verdict, rate in result}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["Llama", "GPTNeoX", "GPT2"])
def test_an_untrained_model_supports_nothing(architecture):
    result, stored = rates(architecture), rows()
    for verdict, rate in result.items():
        print(f"| sink study, {architecture}: {verdict} | {rate:.3f} |")
        assert rate == pytest.approx(stored[architecture, verdict], abs=0.09)
    assert result["frame"] == 0
    assert result["heads with a sink"] <= 0.01
    # one of twelve
    assert result["differs from initialisations"] <= 0.09
