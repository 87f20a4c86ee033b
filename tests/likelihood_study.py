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

    word_tokenizer = tokenizer()
    if mask:
        word_tokenizer.add_special_tokens({"mask_token": "<mask>"})
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    model = (BertForMaskedLM if head else BertModel)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(path)
    word_tokenizer.save_pretrained(path)
    return Path(path)


def trained_series(path, steps=(0, 16, 96)):
    """Trains the demo's recipe on pieces of words and saves some of its steps; returns the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from attnscope.demo.encoder import pieces_tokenizer
    from attnscope.demo.texts import documentation
    from attnscope.demo.training import Recipe, config_values

    recipe, encoder_tokenizer = Recipe(steps=max(steps)), pieces_tokenizer()
    corpus = torch.tensor(
        encoder_tokenizer(documentation()[0], add_special_tokens=False, verbose=False)["input_ids"]
    )
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(
        LlamaConfig(**{**config_values(recipe), "vocab_size": len(encoder_tokenizer)})
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    for step in range(recipe.steps + 1):
        if step in steps:
            for part in (model, encoder_tokenizer):
                part.save_pretrained(Path(path) / f"step{step}")
        starts = torch.randint(0, len(corpus) - 47, (recipe.batch, 1))
        ids = torch.cat(
            [
                torch.full((recipe.batch, 1), encoder_tokenizer.bos_token_id),
                corpus[starts + torch.arange(47)],
            ],
            1,
        )
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return Path(path)


def loops():
    """The study as one would write it at first, from the benchmarks."""
    file = ROOT / "benchmarks" / "likelihood_loops.py"
    spec = importlib.util.spec_from_file_location("likelihood_loops", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["likelihood_loops"] = module
    spec.loader.exec_module(module)
    return module
