# SPDX-License-Identifier: MIT
"""Every token of a text: its log-likelihood, its place among the model's guesses, and their entropy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.capture.likelihood.arguments import Texts, context_argument, texts_argument
from attnscope.metrics._named import shown_by_shape
from attnscope.models.head_rows import HeadPlan, LastStates, head_plan

#: Bytes of float64 logits that are alive at a time.
_LOGIT_BYTES = 2**26
#: Padded tokens of one pass in which texts stand more than once.
_PASS_TOKENS = 4096


@shown_by_shape
class TokenLikelihood(NamedTuple):
    """The expectations of a model at each token.

    Attributes:
        log_likelihood: log q of the token [B, n] float64, nats; NaN on padding and where nothing predicts it.
        entropy: of q [B, n] float64, nats, 0 … log V; NaN likewise.
        rank: ids that the model finds likelier [B, n] int64, 0 for its first guess; −1 where undefined.
    """

    log_likelihood: Tensor
    entropy: Tensor
    rank: Tensor


def token_likelihood(
    model: nn.Module, inputs: Any, *, tokenizer: Any = None, context: str = "auto"
) -> TokenLikelihood:
    """Compute the log-likelihood log q_t(x_t) of every token, q_t the softmax over the whole vocabulary, in
    float64.

    Args:
        model: of transformers with a vocabulary head; run in evaluation mode.
        inputs: a mapping of what the forward pass takes (input_ids [B, n] and, where texts differ in length,
            attention_mask, padded on the right; token_type_ids, position_ids, ... reach the model), or texts,
            pairs, a column of a table, as `analyze` reads them.
        tokenizer: of texts; names the mask token of a masked-language model.
        context: what q_t conditions on. "left": the tokens before t, from the logits at t − 1 (causal
            models). "masked": the text with t masked (masked-language models, n passes a text). "own": the
            whole text, nothing masked: how well a token is kept, not how well it is expected. "auto": "left"
            or "masked".

    Returns:
        `TokenLikelihood`. Position 0 has no likelihood from the left. Ties of logits go to the smaller id.

    Raises:
        TypeError: inputs without input_ids.
        ValueError: padding on the left, an unknown context or one that this kind of model does not have, a
            masked context without a mask token.
        NotImplementedError: an encoder-decoder, a model without a vocabulary head.

    Example:
        A model whose unembedding is 0 finds all of 16 tokens equally likely: −log 16, entropy log 16.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model = LlamaForCausalLM(config).eval()
        >>> _ = model.lm_head.weight.data.zero_()
        >>> found = asc.token_likelihood(model, {"input_ids": torch.tensor([[1, 5, 9]])})
        >>> (found.log_likelihood.exp() * 16).round(decimals=9), found.rank
        (tensor([[nan, 1., 1.]], dtype=torch.float64), tensor([[-1,  5,  9]]))
        >>> (found.entropy.exp() / 16).round(decimals=9)
        tensor([[nan, 1., 1.]], dtype=torch.float64)

    References:
        Kauf and Ivanova, A better way to do masked language model scoring, arXiv 2305.10588, 2023.
    """
    name = "token_likelihood"
    ids, real, extras = texts_argument(name, model, inputs, tokenizer)
    kind, mask_id = context_argument(name, context, model, tokenizer)
    shape = tuple(ids.shape)
    likelihood = TokenLikelihood(
        torch.full(shape, torch.nan, dtype=torch.float64, device="cpu"),
        torch.full(shape, torch.nan, dtype=torch.float64, device="cpu"),
        torch.full(shape, -1, dtype=torch.int64, device="cpu"),
    )
    if kind == "masked":
        _fill_masked(likelihood, model, Texts(ids, real, extras), mask_id, name)
        return likelihood
    states = LastStates(model, ids, real, name, extras)
    shift = int(kind == "left")
    for rows in row_blocks(shape[1] - shift, len(ids), states.plan.vocabulary):
        columns = rows + shift
        values = statistics(states.logits(rows), ids[:, columns])
        counted = real[:, columns]
        for column_values, part in zip(likelihood, values, strict=True):
            column_values[:, columns] = torch.where(counted, part, column_values[:, columns])
    return likelihood


def _fill_masked(
    likelihood: TokenLikelihood, model: nn.Module, read: Texts, mask_id: int, function: str
) -> None:
    ids, real, extras = read
    texts, columns = real.nonzero(as_tuple=True)
    size = texts_a_pass(head_plan(model, function), ids.shape[1])
    for start in range(0, len(texts), size):
        text, column = texts[start : start + size], columns[start : start + size]
        masked = ids[text]
        masked[torch.arange(len(text), device="cpu"), column] = mask_id
        rest = extras if extras.size == 1 and len(text) == 1 else extras.select(text)
        logits = LastStates(model, masked, real[text], function, rest).logits(column[:, None])
        for column_values, part in zip(
            likelihood, statistics(logits, ids[text, column][:, None]), strict=True
        ):
            column_values[text, column] = part[:, 0]


def texts_a_pass(plan: HeadPlan, n: int, versions: int = 1) -> int:
    """Return how many texts of `n` padded tokens one pass takes, each in that many versions of which one row
    of logits is read. Small texts go in few passes, whose cost is that of the calls; memory stays bounded.
    """
    logits = _LOGIT_BYTES // (8 * plan.vocabulary * (n if plan.body is None else 1))
    return max(1, min(_PASS_TOKENS // n, logits) // versions)


def row_blocks(rows: int, texts: int, vocabulary: int) -> Iterator[Tensor]:
    """Yield the rows 0 … rows − 1 in blocks whose logits fit in memory."""
    size = max(1, _LOGIT_BYTES // (8 * texts * vocabulary))
    for start in range(0, rows, size):
        yield torch.arange(start, min(rows, start + size), device="cpu")


def log_likelihood(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log softmax [...] float64 on the CPU of ids [...] under logits [..., V]."""
    wide = logits.double().cpu()
    return wide.gather(-1, ids[..., None]).squeeze(-1) - wide.logsumexp(-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy [...] float64 on the CPU, in nats, of the softmax of logits [..., V]."""
    log_q = logits.double().cpu().log_softmax(-1)
    return -(log_q.exp() * log_q.clamp_min(torch.finfo(torch.float64).min)).sum(-1)


def statistics(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-likelihood, entropy and rank [...] of ids [...] under logits [..., V]."""
    wide = logits.double().cpu()
    token_logits = wide.gather(-1, ids[..., None])
    before = torch.arange(wide.shape[-1], device="cpu") < ids[..., None]
    rank = ((wide > token_logits) | ((wide == token_logits) & before)).sum(-1)
    return log_likelihood(wide, ids), entropy(wide), rank
