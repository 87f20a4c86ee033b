# SPDX-License-Identifier: MIT
"""The likelihood of words of several pieces, by the chain rule."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.capture.likelihood.arguments import context_argument, spans_argument, texts_argument
from attnscope.capture.likelihood.tokens import entropy, log_likelihood, row_blocks
from attnscope.metrics._named import shown_by_shape
from attnscope.models.head_rows import LastStates
from attnscope.models.inputs.forward_inputs import ForwardInputs


@shown_by_shape
class WordLikelihood(NamedTuple):
    """The likelihood of a word in its text.

    Attributes:
        log_likelihood: L = Σ_k log q_k of its pieces [B] float64, nats; NaN for a text without a word.
        per_piece: L over the number of pieces [B].
        two_sided: L from the left and the log-likelihood of all that follows the word [B]; its differences
            between words in one place are log odds given both sides. NaN for masked-language models.
    """

    log_likelihood: Tensor
    per_piece: Tensor
    two_sided: Tensor


def word_likelihood(
    model: nn.Module, inputs: Any, spans: Any, *, tokenizer: Any = None, context: str = "auto"
) -> WordLikelihood:
    """Compute the log-likelihood of one word a text, piece by piece.

    Args:
        model: of transformers with a vocabulary head; run in evaluation mode.
        inputs: as `token_likelihood` takes them.
        spans: first piece and one past the last of each text's word [B, 2]; (−1, −1) where there is none.
        tokenizer: names the mask token of a masked-language model.
        context: "left" for causal models; "masked": the pieces k and later are masked while piece k is
            predicted, those before it stand; "own": nothing is masked. "auto": "left" or "masked".

    Returns:
        `WordLikelihood`. From the left, a word at position 0 has none.

    Raises:
        TypeError: inputs without input_ids.
        ValueError: as `token_likelihood`; spans of another shape or dtype, or outside their text.
        NotImplementedError: an encoder-decoder, a model without a vocabulary head.

    Example:
        Two pieces of 16 equally likely tokens.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model = LlamaForCausalLM(config).eval()
        >>> _ = model.lm_head.weight.data.zero_()
        >>> inputs = {"input_ids": torch.tensor([[1, 5, 9, 2]])}
        >>> found = asc.word_likelihood(model, inputs, torch.tensor([[1, 3]]))
        >>> [round(field.exp().item() * 16**power, 9) for field, power in zip(found, (2, 1, 3))]
        [1.0, 1.0, 1.0]

    References:
        Kauf and Ivanova, A better way to do masked language model scoring, arXiv 2305.10588, 2023.
    """
    name = "word_likelihood"
    ids, real, extras = texts_argument(name, model, inputs, tokenizer)
    span = spans_argument(name, spans, real)
    kind, mask_id = context_argument(name, context, model, tokenizer)
    return scored(model, ids, real, span, kind, mask_id, name, extras)[0]


def scored(
    model: nn.Module,
    ids: Tensor,
    real: Tensor,
    span: Tensor,
    kind: str,
    mask_id: int,
    function: str,
    extras: ForwardInputs | None = None,
) -> tuple[WordLikelihood, Tensor]:
    """Compute `word_likelihood` of checked arguments, and the entropy of q_0 [B] in nats from the same
    passes.

    Args:
        ids: [B, n].
        real: which of them are tokens [B, n].
        span: of the words [B, 2].
        extras: what else the forward pass takes for these texts.
    """
    pieces = (span[:, 1] - span[:, 0]).double()
    total, rest, uncertain = torch.full((3, len(ids)), torch.nan, dtype=torch.float64, device="cpu")
    has_word = span[:, 0] >= 0
    if kind == "left":
        total, rest, uncertain = _left(model, ids, real, span, function, extras)
    elif bool(has_word.any()):
        read = _masked if kind == "masked" else _keep_word
        part = some_texts(extras, has_word.nonzero()[:, 0])
        total[has_word], uncertain[has_word] = read(
            model, ids[has_word], real[has_word], span[has_word], mask_id, function, part
        )
    return WordLikelihood(total, total / pieces, total + rest), uncertain


def some_texts(extras: ForwardInputs | None, texts: Tensor) -> ForwardInputs | None:
    """Return the inputs of some texts, in that order."""
    return extras if extras is None or (extras.size == 1 and len(texts) == 1) else extras.select(texts)


def _left(
    model: nn.Module, ids: Tensor, real: Tensor, span: Tensor, function: str, extras: ForwardInputs | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return L of the word and of what follows it, and the entropy of the first piece [B]."""
    columns = torch.arange(ids.shape[1], device="cpu")
    start, stop = span[:, :1], span[:, 1:]
    inside = (columns >= start) & (columns < stop)
    behind = (columns >= stop) & (start >= 0) & real
    scores = torch.zeros(ids.shape, dtype=torch.float64, device="cpu")
    uncertain = torch.full((len(ids),), torch.nan, dtype=torch.float64, device="cpu")
    word_columns = (inside | behind)[:, 1:].any(0).nonzero()[:, 0]
    none = span[:, 0] <= 0
    if len(word_columns):
        states = LastStates(model, ids, real, function, extras)
        for block in row_blocks(len(word_columns), len(ids), states.plan.vocabulary):
            rows = word_columns[block]
            scores[:, rows + 1] = log_likelihood(states.logits(rows), ids[:, rows + 1])
        uncertain = entropy(states.logits((start - 1).clamp_min(0)))[:, 0].masked_fill(none, torch.nan)
    word = torch.where(inside, scores, 0.0).sum(1).masked_fill(none, torch.nan)
    return word, torch.where(behind, scores, 0.0).sum(1), uncertain


def _masked(
    model: nn.Module,
    ids: Tensor,
    real: Tensor,
    span: Tensor,
    mask_id: int,
    function: str,
    extras: ForwardInputs | None,
) -> tuple[Tensor, Tensor]:
    total, uncertain = torch.zeros(2, len(ids), dtype=torch.float64, device="cpu")
    columns = torch.arange(ids.shape[1], device="cpu")
    pieces = span[:, 1] - span[:, 0]
    for k in range(int(pieces.max())):
        text = (pieces > k).nonzero()[:, 0]
        place = span[text, :1] + k
        masked = masked_from(ids[text], place, span[text, 1:], columns, mask_id)
        part = some_texts(extras, text)
        logits = LastStates(model, masked, real[text], function, part).logits(place)
        total[text] += log_likelihood(logits, ids[text].gather(1, place))[:, 0]
        if k == 0:
            uncertain = entropy(logits)[:, 0]
    return total, uncertain


def masked_from(ids: Tensor, place: Tensor, stop: Tensor, columns: Tensor, mask_id: int) -> Tensor:
    """Return texts [B, n] with the tokens from `place` [B, 1] to before `stop` [B, 1] masked."""
    return torch.where((columns >= place) & (columns < stop), mask_id, ids)


def _keep_word(
    model: nn.Module,
    ids: Tensor,
    real: Tensor,
    span: Tensor,
    _mask_id: int,
    function: str,
    extras: ForwardInputs | None,
) -> tuple[Tensor, Tensor]:
    states = LastStates(model, ids, real, function, extras)
    total, uncertain = torch.zeros(2, len(ids), dtype=torch.float64, device="cpu")
    pieces = span[:, 1] - span[:, 0]
    for k in range(int(pieces.max())):
        inside = pieces > k
        place = torch.where(inside, span[:, 0] + k, span[:, 0])[:, None]
        logits = states.logits(place)
        total += torch.where(inside, log_likelihood(logits, ids.gather(1, place))[:, 0], 0.0)
        if k == 0:
            uncertain = entropy(logits)[:, 0]
    return total, uncertain
