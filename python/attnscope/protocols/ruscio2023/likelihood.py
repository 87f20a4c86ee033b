# SPDX-License-Identifier: MIT
"""Probabilities of one unmasked pass, and the words that take a word's place by their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating
from attnscope._nearest import nearest
from attnscope.metrics._named import shown_by_shape

#: Parts of the ranks of all V ids.
MODES = ("lowest", "low", "mid", "high", "highest")
#: Of the generator, for every text and mode anew.
SEED = 42
_MASKED = ("MaskedLM", "ForPreTraining", "XLMWithLMHeadModel")


@shown_by_shape
class TokenProbability(NamedTuple):
    """Probabilities at their own position, each [B] float32; NaN for a text without a word.

    Attributes:
        probability: of every token [B, n]; NaN on padding.
        inner_mean: of the word's tokens.
        inner_std: of the word's tokens, with n − 1; NaN for one.
        inner_product: of the word's tokens.
        outer_mean: of all other tokens, special ones included.
        outer_std: likewise.
    """

    probability: Tensor
    inner_mean: Tensor
    inner_std: Tensor
    inner_product: Tensor
    outer_mean: Tensor
    outer_std: Tensor


def unmasked_logits(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Logits [B, n, V] of a masked-language model for a text with nothing masked.

    Args:
        model: of transformers.
        inputs: input_ids [B, n] and attention_mask.

    Raises:
        NotImplementedError: a causal model, whose logits at a position are the next token's.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2023
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
        >>> try:
        ...     ruscio2023.unmasked_logits(model, {"input_ids": torch.ones(1, 3, dtype=torch.int64)})
        ... except NotImplementedError as error:
        ...     print(str(error)[28:71])
        GPT2LMHeadModel is no masked-language model
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    if not any(kind in name for kind in _MASKED) or getattr(config, "is_decoder", False):
        raise NotImplementedError(
            f"ruscio2023.unmasked_logits: {name} is no masked-language model; what a causal model says at a "
            "position is the next token"
        )
    with evaluating(model), torch.no_grad():
        output = model(**inputs)
    return output.logits if hasattr(output, "logits") else output.prediction_logits


def token_probability(logits: Tensor, inputs: Mapping[str, Any], spans: Any) -> TokenProbability:
    """Return the float32 softmax at each position of the token at that position.

    Differs from the exact `token_likelihood` with a masked context: the model sees the token that it is
    asked for, so a high value says that the token is copied, not that it is expected. The product over
    pieces is no chain.

    Args:
        logits: of one unmasked pass [B, n, V].
        inputs: input_ids [B, n] and attention_mask.
        spans: first token of each text's word and one past its last [B, 2]; (−1, −1) for none.

    Example:
        Of two equally likely tokens.

        >>> import torch
        >>> from attnscope.protocols import ruscio2023
        >>> inputs = {"input_ids": torch.tensor([[0, 1, 1]])}
        >>> result = ruscio2023.token_probability(torch.zeros(1, 3, 2), inputs, [[1, 3]])
        >>> result.inner_mean.item(), result.inner_product.item(), result.outer_mean.item()
        (0.5, 0.25, 0.5)
    """
    ids, real, span = _texts(inputs, spans)
    probability = torch.softmax(logits.detach().cpu().float(), -1).gather(-1, ids[..., None])[..., 0]
    columns = torch.arange(ids.shape[1], device="cpu")
    inside = (columns >= span[:, :1]) & (columns < span[:, 1:])
    outside = real & ~inside
    has_word = span[:, 0] >= 0
    numbers = [
        _mean(probability, inside),
        _std(probability, inside),
        torch.where(inside, probability, 1.0).prod(1),
        _mean(probability, outside),
        _std(probability, outside),
    ]
    fields = [torch.where(has_word, numbers_of_texts, torch.nan) for numbers_of_texts in numbers]
    return TokenProbability(probability.masked_fill(~real, torch.nan), *fields)


def replacements(
    logits: Tensor, inputs: Mapping[str, Any], spans: Any, modes: Sequence[str] = MODES
) -> Tensor:
    """Variants [B, M, n] of the texts with each token of a word replaced by one of a drawn rank.

    All V ids are ranked by their probability at the token's own position, the least likely first, and a mode
    is a part of the ranks: [0, 1), [1, ⌊V/3⌋), [⌊V/3⌋, 2⌊V/3⌋), [2⌊V/3⌋, V − 1), [V − 1, V).

    Differs from the exact `replacements`: every id counts, special, unused and continuing ones; no token
    knows of the ones before it; and the generator is seeded with 42 for every text and mode, so that every
    word of one token gets the same rank. Ties go by id; the code's sort leaves their order open.

    Args:
        logits: of one unmasked pass [B, n, V].
        inputs: input_ids [B, n] and attention_mask.
        spans: first token of each text's word and one past its last [B, 2]; (−1, −1) leaves a text as it is.
        modes: of `MODES`.

    Raises:
        ValueError: an unknown mode.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2023
        >>> inputs = {"input_ids": torch.tensor([[7, 8, 7]])}
        >>> logits = torch.arange(9.0).expand(1, 3, 9)
        >>> ruscio2023.replacements(logits, inputs, [[1, 2]], ["lowest", "highest"]).tolist()
        [[[7, 0, 7], [7, 8, 7]]]
    """
    ids, _, span = _texts(inputs, spans)
    size = int(logits.shape[-1])
    variants = ids[:, None].repeat(1, len(modes), 1)
    for text, (start, stop) in enumerate(span.tolist()):
        if start < 0:
            continue
        probability = torch.softmax(logits[text, start:stop].detach().cpu().float(), -1)
        order = probability.argsort(dim=-1, stable=True)
        for m, mode in enumerate(modes):
            ranks = drawn_ranks(size, mode, stop - start)
            variants[text, m, start:stop] = order.gather(1, ranks[:, None])[:, 0]
    return variants


def drawn_ranks(vocabulary: int, mode: str, tokens: int) -> Tensor:
    """Return the ranks [tokens] that a mode gives a word.

    >>> drawn_ranks(30522, "low", 1).tolist()
    [1399]
    """
    third = vocabulary // 3
    bounds = {
        "lowest": (0, 1),
        "low": (1, third),
        "mid": (third, 2 * third),
        "high": (2 * third, vocabulary - 1),
        "highest": (vocabulary - 1, vocabulary),
    }
    if mode not in bounds:
        raise ValueError(f"ruscio2023.replacements: unknown mode {mode!r}{nearest(str(mode), bounds)}")
    return torch.randint(
        *bounds[mode], (tokens,), generator=torch.Generator().manual_seed(SEED), device="cpu"
    )


def _texts(inputs: Mapping[str, Any], spans: Any) -> tuple[Tensor, Tensor, Tensor]:
    ids = inputs["input_ids"].detach().cpu()
    mask = inputs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.cpu().bool()
    return ids, real, torch.as_tensor(spans, device="cpu")


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen, values, 0.0).sum(1) / chosen.sum(1)


def _std(values: Tensor, chosen: Tensor) -> Tensor:
    rest = torch.where(chosen, values - _mean(values, chosen)[:, None], 0.0)
    count = chosen.sum(1)
    return torch.where(count > 1, (rest.square().sum(1) / (count - 1)).sqrt(), torch.nan)
