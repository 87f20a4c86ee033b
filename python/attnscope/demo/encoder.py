# SPDX-License-Identifier: MIT
"""A small masked-language model, trained here: the encoder that the study of likelihood needs.

python -m attnscope.demo.encoder [DIRECTORY] [--steps N] [--tokenizer FOLDER --texts FILE] trains it on the
language reference that Python carries, in two minutes on one core, or on lines of a file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscope._progress import progress_bar
from attnscope.arguments.scalars import at_least, flag
from attnscope.demo.texts import documentation
from attnscope.demo.training import descend, has_recipe, save_model

BOS, PAD, MASK, UNKNOWN = "<s>", "[PAD]", "[MASK]", "<unk>"
PIECES = 512
#: Share of the tokens that are predicted; of these, masked, and replaced by any token. The rest is unchanged.
PREDICTED, MASKED, REPLACED = 0.15, 0.8, 0.1
_NOT_PREDICTED = -100


@dataclass(frozen=True)
class EncoderRecipe:
    """All settings that determine the training; two trainings of one recipe on one machine are bit-equal."""

    steps: int = 1200
    layers: int = 4
    heads: int = 4
    width: int = 96
    inner_width: int = 256
    batch: int = 32
    tokens: int = 48
    longest: int = 256
    learning_rate: float = 2e-3
    seed: int = 0


def pieces_tokenizer() -> Any:
    """Return a tokenizer of 512 pieces of words, made from the language reference: BOS in front, and a mask
    token.

    >>> tokenizer = pieces_tokenizer()
    >>> len(tokenizer), tokenizer.convert_ids_to_tokens(tokenizer("the object")["input_ids"])
    (515, ['<s>', '▁the', '▁object'])
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = [UNKNOWN, BOS, PAD]
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    # pieces are counted in order of first appearance, so that equal counts are broken alike in every process
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES + 2, special_tokens=special, show_progress=False, limit_alphabet=PIECES // 2
    )
    tokenizer.train_from_iterator(documentation()[0].split("\n"), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, special.index(BOS))]
    )
    return with_mask(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=BOS,
            pad_token=PAD,
            unk_token=UNKNOWN,
            clean_up_tokenization_spaces=False,
        )
    )


def with_mask(tokenizer: Any) -> Any:
    """Return the tokenizer with a mask token, and one for padding, as its last entries where it has none."""
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.unk_token or tokenizer.mask_token
    return tokenizer


def masked_batch(
    corpus: Tensor, recipe: EncoderRecipe, step: int, *, bos: int, mask: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Return windows of a corpus behind BOS [batch, tokens], some tokens hidden, and what is to be
    predicted.

    15 % of the tokens are predicted: 80 % of them are masked, 10 % replaced by any token, 10 % left. The
    others are −100 in the second tensor.
    """
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    length = recipe.tokens - 1
    starts = torch.randint(0, len(corpus) - length, (recipe.batch, 1), generator=generator, device="cpu")
    ids = torch.cat(
        [
            torch.full((recipe.batch, 1), bos, device="cpu"),
            corpus[starts + torch.arange(length, device="cpu")],
        ],
        1,
    )
    chosen = torch.rand(ids.shape, generator=generator, dtype=torch.float32, device="cpu") < PREDICTED
    chosen[:, 0] = False
    kind = torch.rand(ids.shape, generator=generator, dtype=torch.float32, device="cpu")
    other = torch.randint(0, vocabulary, ids.shape, generator=generator, device="cpu")
    hidden = torch.where(chosen & (kind < MASKED), mask, ids)
    replaced = chosen & (kind >= MASKED) & (kind < MASKED + REPLACED)
    return torch.where(replaced, other, hidden), torch.where(chosen, ids, _NOT_PREDICTED)


def build_encoder(recipe: EncoderRecipe, tokenizer: Any) -> Any:
    """Return an untrained `BertForMaskedLM` of the recipe's size, from its seed."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=recipe.inner_width,
        max_position_embeddings=recipe.longest,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return BertForMaskedLM(config).train()


def train_encoder(
    directory: str | os.PathLike[str],
    recipe: EncoderRecipe | None = None,
    *,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    progress: bool = True,
) -> Path:
    """Train the recipe and write a Hugging Face folder; an existing one is kept.

    Args:
        tokenizer: of transformers, to which a mask token is added; None makes `pieces_tokenizer`.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.
    """
    progress = flag("train_encoder", "progress", progress)
    recipe = recipe or EncoderRecipe()
    at_least("train_encoder", "steps", recipe.steps, 1)
    folder = Path(directory)
    tokenizer = pieces_tokenizer() if tokenizer is None else with_mask(tokenizer)
    texts = documentation()[0].split("\n") if texts is None else list(texts)
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    corpus = torch.tensor([token for text in ids for token in text], dtype=torch.int64, device="cpu")
    if len(corpus) <= recipe.tokens:
        raise ValueError(
            f"train_encoder: texts must hold more than {recipe.tokens} tokens, got {len(corpus)}"
        )
    digest = hashlib.sha256(corpus.numpy().tobytes() + str(len(tokenizer)).encode()).hexdigest()[:16]
    stored_recipe = asdict(recipe) | {"corpus": digest}
    if has_recipe(folder, stored_recipe, f"train_encoder: {folder} holds an encoder"):
        return folder
    model = _trained(build_encoder(recipe, tokenizer), corpus, recipe, tokenizer, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.model_max_length = recipe.longest
    save_model(folder, model, tokenizer, recipe=stored_recipe)
    return folder


def _trained(model: Any, corpus: Tensor, recipe: EncoderRecipe, tokenizer: Any, progress: bool) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    warmup = max(1, recipe.steps // 20)
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    ids = {"bos": int(bos), "mask": int(tokenizer.mask_token_id), "vocabulary": len(tokenizer)}
    with progress_bar(recipe.steps, "training", show=progress) as bar:
        for step in range(recipe.steps):
            rate = min((step + 1) / warmup, (recipe.steps - step) / (recipe.steps - warmup + 1))
            optimizer.param_groups[0]["lr"] = recipe.learning_rate * rate
            masked_ids, targets = masked_batch(corpus, recipe, step, **ids)
            loss = masked_loss(model, masked_ids, targets)
            descend(model, optimizer, loss)
            bar.update()
            if step % 50 == 0:
                bar.set_postfix_str(f"loss {loss.item():.2f}")
    return model.eval()


def masked_loss(model: Any, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the tokens that are to be predicted."""
    return functional.cross_entropy(
        model(input_ids=input_ids).logits.flatten(0, 1), targets.flatten(), ignore_index=_NOT_PREDICTED
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m attnscope.demo.encoder")
    parser.add_argument("directory", nargs="?", default="runs/encoder")
    parser.add_argument("--steps", type=int, default=EncoderRecipe.steps)
    parser.add_argument("--tokenizer", default="", help="folder of a tokenizer, to which a mask is added")
    parser.add_argument("--texts", default="", help="file of a text a line")
    chosen = parser.parse_args(arguments)
    tokenizer = None
    if chosen.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(chosen.tokenizer)
    texts = Path(chosen.texts).read_text("utf-8").splitlines() if chosen.texts else None
    recipe = EncoderRecipe(steps=chosen.steps)
    print(train_encoder(chosen.directory, recipe, tokenizer=tokenizer, texts=texts))


if __name__ == "__main__":
    main()
