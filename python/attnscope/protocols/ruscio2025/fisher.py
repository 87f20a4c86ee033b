# SPDX-License-Identifier: MIT
"""Sensitivity of the loss to groups of parameters, as the Fisher notebook computes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.arguments import scalars
from attnscope.arguments.tokenizers import tokenizer_argument
from attnscope.metrics.information import fisher as exact

if TYPE_CHECKING:
    import pandas as pd

Texts = Sequence[str] | Sequence[Mapping[str, Tensor]]

LONGEST_TEXT = 500
LONGEST_INPUT = 128
# Of the real tokens of a text that a masked-language model reads.
MASK_SHARE = 0.15
# The first that occurs in a parameter's name wins; parameters without any are skipped.
SUBSTRINGS = (
    ("attention", ("attention", "attn", "self", "q_proj", "k_proj", "v_proj")),
    ("mlp", ("mlp", "feed_forward", "ffn", "dense", "fc")),
    ("embedding", ("embed", "token", "wte", "wpe")),
)


def fisher_trace(
    model: nn.Module,
    texts: Texts,
    *,
    tokenizer: Any = None,
    padded_to: int | None = None,
    seed: int = 0,
    per_sentence: bool = False,
) -> pd.DataFrame:
    """Squared gradient norms of the loss by group of parameters, the mean over sentences.

    Quirks of the Fisher notebook: all texts are padded to the longest of the list, and the labels are the
    input ids, padding included, so that a text's number depends on the others. For masked-language models
    15 % of a text's tokens are masked at random and all positions are scored, so that the loss is mostly that
    of copying. Texts are cut to 500 characters and 128 tokens. A parameter's group is the first of attention
    (attention, attn, self, q_proj, k_proj, v_proj), mlp (mlp, feed_forward, ffn, dense, fc) and embedding
    (embed, token, wte, wpe) of which a part occurs in its name, so that `post_attention_layernorm` is
    attention; all others, most norms among them, are skipped. Its layer is the number after `layers.` or
    `layer.`, so that GPT-2, whose blocks are called `h.0`, has none.

    Not reproduced: the notebook's float16, whose gradients under- and overflow.

    Args:
        model: with a language-model head, float32 or float64; left as it was.
        texts: sentences, or mappings with input_ids [1, n].
        tokenizer: for sentences, and for the mask token of masked-language models. Its padding token, else
            that of the end of a sequence, pads; without a tokenizer those of `model.config`, else id 0.
        padded_to: tokens of the longest text, where `texts` are a part of a list; at most 128 count.
        seed: of the masks; those of text number i are drawn with seed + i.
        per_sentence: one row for each sentence and group instead of the mean.

    Returns:
        A DataFrame like that of the exact `fisher_trace`: layer (−1 for names without a number), group,
        parameters, trace, trace_per_parameter and n, or sample with `per_sentence`. The notebook's norms
        per layer also count the parameters that are in no group.

    Raises:
        ValueError: as the exact `fisher_trace`.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from attnscope.protocols import ruscio2025
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> inputs = [{"input_ids": torch.arange(6)[None]}]
        >>> found = ruscio2025.fisher_trace(LlamaForCausalLM(config), inputs)
        >>> sorted(set(found.group)), sorted(set(found.layer))
        (['attention', 'embedding', 'mlp'], [-1, 0, 1])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Fisher notebook.
    """
    name = "ruscio2025.fisher_trace"
    tokenizer_argument(name, tokenizer)
    masked = "MaskedLM" in type(model).__name__
    mask_token: Any = getattr(tokenizer, "mask_token_id", None)
    if masked and mask_token is None:
        raise ValueError(f"{name}: a masked-language model needs a tokenizer with a mask token")
    seed = scalars.at_least(name, "seed", seed, 0)
    device = next(model.parameters()).device

    def losses() -> exact.Losses:
        for sample, (ids, real) in enumerate(_padded(name, model, texts, tokenizer, padded_to)):
            shown = ids
            if masked:
                generator = torch.Generator().manual_seed(seed + sample)
                chosen = torch.bernoulli(
                    torch.full(ids.shape, MASK_SHARE, device="cpu"), generator=generator
                ).bool()
                shown = torch.where(chosen & (real == 1), mask_token, ids)
            elif ids.shape[-1] < 2:
                continue
            logits = model(input_ids=shown.to(device), attention_mask=real.to(device)).logits
            labels = ids.to(device)
            if not masked:
                logits, labels = logits[:, :-1], labels[:, 1:]
            yield {"sample": sample}, nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), 1

    return exact.trace_table(name, losses(), model, group_parameters(model), per_sentence)


def group_parameters(model: nn.Module) -> dict[str, tuple[int, str]]:
    """Map parameter name -> (layer, group), by parts of the name; without skipped parameters."""
    places = {}
    for name, _ in model.named_parameters():
        low = name.lower()
        group = next((group for group, parts in SUBSTRINGS if any(part in low for part in parts)), None)
        if group is not None:
            # after the first `layers.`, otherwise after `layer.`
            layer_match = re.search(r"layers\.([^.]*)", name) or re.search(r"layer\.([^.]*)", name)
            places[name] = (int(layer_match[1]) if layer_match and layer_match[1].isdigit() else -1, group)
    return places


def _padded(
    function: str, model: nn.Module, texts: Texts, tokenizer: Any, padded_to: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and attention mask [1, n] of every text, all of the longest one's length."""
    encoded = []
    for text in texts:
        if isinstance(text, str):
            if tokenizer is None:
                raise ValueError(f"{function}: texts that are strings need a tokenizer")
            cut = text[:LONGEST_TEXT]
            text = tokenizer(cut, truncation=True, max_length=LONGEST_INPUT, return_tensors="pt")
        ids = text["input_ids"][:, :LONGEST_INPUT].long().cpu()
        real = text.get("attention_mask", torch.ones_like(ids))[:, :LONGEST_INPUT].cpu()
        encoded.append((ids, real))
    longest = max((ids.shape[-1] for ids, _ in encoded), default=0)
    longest = max(longest, min(padded_to or 0, LONGEST_INPUT))
    pad, left = _pad_id(model, tokenizer), getattr(tokenizer, "padding_side", "right") == "left"
    for ids, real in encoded:
        missing = longest - ids.shape[-1]
        sides = (missing, 0) if left else (0, missing)
        yield nn.functional.pad(ids, sides, value=pad), nn.functional.pad(real, sides, value=0)


def _pad_id(model: nn.Module, tokenizer: Any) -> int:
    for owner in (tokenizer, getattr(model, "config", None)):
        for name in ("pad_token_id", "eos_token_id"):
            token_id = getattr(owner, name, None)
            if token_id is not None:
                return int(token_id[0] if isinstance(token_id, (list, tuple)) else token_id)
    return 0
