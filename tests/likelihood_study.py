# SPDX-License-Identifier: MIT
"""Settings, texts and models of small runs of the likelihood study, and the loops that it is held against."""

import importlib.util
import sys
from pathlib import Path

import torch

import attnscope as asc
from folders import WORDS, tokenizer
from models import VOCABULARY

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
QUICK = {"bootstrap": 50, "permutations": 999, "modes": ["lowest", "mid", "highest", "nats:3"]}


def settings(
    folder, texts, output, *, name="a", block=4, protocols="exact", models=None, max_tokens=32, **options
):
    return asc.Study(
        study="attention_likelihood",
        models=models or str(folder),
        texts=texts if isinstance(texts, dict) else {"path": str(texts)},
        max_tokens=max_tokens,
        block=block,
        output=str(output),
        name=name,
        protocols=protocols,
        options={**QUICK, **options},
    )


def texts_of(path, count=12, least=10):
    """Sentences of 10 to 15 different words, each beginning at another word; returns the file."""
    lines = []
    for at in range(count):
        words = list(dict.fromkeys(WORDS[(5 * at + k) % len(WORDS)] for k in range(least + at % 6)))
        lines.append(" ".join(words) + " .")
    Path(path).write_text("\n".join(lines) + "\n", "utf-8")
    return Path(path)


def encoder_folder(path, *, head=True, mask=True, seed=0):
    """Saves a tiny BERT and its tokenizer, with a head and a token that masks; returns the folder."""
    from transformers import BertConfig, BertForMaskedLM, BertModel

    made = tokenizer()
    if mask:
        made.add_special_tokens({"mask_token": "<mask>"})
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    model = (BertForMaskedLM if head else BertModel)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(path)
    made.save_pretrained(path)
    return Path(path)


def loops():
    """The study as one would write it at first, from the benchmarks."""
    file = ROOT / "benchmarks" / "likelihood_loops.py"
    spec = importlib.util.spec_from_file_location("likelihood_loops", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["likelihood_loops"] = module
    spec.loader.exec_module(module)
    return module
