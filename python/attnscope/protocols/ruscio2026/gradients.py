# SPDX-License-Identifier: MIT
"""Cosines of gradients with a boundary, as the notebooks compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.arguments.scalars import flag
from attnscope.arguments.tokenizers import tokenizer_argument
from attnscope.protocols.ruscio2026._batches import batches, direction_argument, hooked, logits_of

#: Phrases whose last sub-tokens represent uncertainty.
UNCERTAIN = (" I", " not", " unsure", " maybe", " depends", " unknown")


def uncertain_tokens(tokenizer: Any, words: Sequence[str] = UNCERTAIN) -> list[int]:
    """Ids of the **last** sub-token of each word, so that of " unsure" may be that of "ure".

    Args:
        tokenizer: of transformers.
        words: as they are written inside a text.

    Example:
        >>> from attnscope.protocols import ruscio2026
        >>> letters = lambda word, add_special_tokens: {"input_ids": [ord(one) for one in word]}
        >>> ruscio2026.uncertain_tokens(letters, [" not"]) == [ord("t")]
        True

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, gradient blockage.
    """
    tokenizer_argument("ruscio2026.uncertain_tokens", tokenizer, is_needed=True)
    return [int(tokenizer(word, add_special_tokens=False)["input_ids"][-1]) for word in words]


def grad_blockage(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    tokens: Sequence[int],
    *,
    batch: int = 4,
) -> float:
    """Cosine of a direction with the gradient of the summed logits of some tokens, last column.

    Differs from `refusal_slope` of `asc.sensitivity`: logits instead of the odds of their probability, so
    that a direction that raises all logits alike counts; words of no refusal among them (" I", " not"); and
    the last column whatever token is there.

    Args:
        model: as for `fisher`.
        inputs: likewise.
        block: the module behind which the gradient is taken.
        direction: [D].
        tokens: their ids; `uncertain_tokens` gives the notebook's.
        batch: rows at a time.

    Returns:
        In [−1, 1], mean over rows.

    Raises:
        ValueError: as for `fisher`; no token.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4,
        ...                                      num_hidden_layers=1, num_attention_heads=1)).eval()
        >>> inputs = {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 2)}
        >>> ruscio2026.grad_blockage(model, inputs, model.model.layers[0], torch.zeros(4), [2])
        0.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    name = "grad_blockage"
    if not len(tokens):
        raise ValueError(f"{name}: tokens must name at least one, got none")

    def summed(logits: Tensor, _: Mapping[str, Tensor]) -> Tensor:
        return logits[:, -1, list(tokens)].sum()

    return _cosine(name, model, inputs, block, direction, summed, batch, true_last=False)


def grad_alignment(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    *,
    batch: int = 4,
    language_model_loss: bool = False,
) -> float:
    """Cosine of a direction with the gradient of the cross-entropy to the model's own likeliest token.

    At each prompt's true last token. With `language_model_loss`, as in the notebook `checkpoints`, the
    loss is that of the whole prompt and the gradient is read in the last column, whose state no scored token
    depends on: it is 0 for any model, and so is its cosine here.

    Args:
        model: as for `fisher`.
        inputs: likewise.
        block: the module behind which the gradient is taken.
        direction: [D].
        batch: rows at a time.
        language_model_loss: as above.

    Returns:
        In [−1, 1], mean over rows.

    Raises:
        ValueError: as for `fisher`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4,
        ...                                      num_hidden_layers=1, num_attention_heads=1)).eval()
        >>> inputs = {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 2)}
        >>> ruscio2026.grad_alignment(model, inputs, model.model.layers[0], torch.zeros(4))
        0.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, `checkpoints`.
    """

    def last_token_loss(logits: Tensor, batch_inputs: Mapping[str, Tensor]) -> Tensor:
        rows = torch.arange(len(logits), device=logits.device)
        last = logits[rows, batch_inputs["attention_mask"].long().sum(-1) - 1]
        return torch.nn.functional.cross_entropy(last, last.argmax(-1), reduction="sum")

    def sequence_loss(logits: Tensor, batch_inputs: Mapping[str, Tensor]) -> Tensor:
        labels = batch_inputs["input_ids"].masked_fill(~batch_inputs["attention_mask"].bool(), -100)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    language_model_loss = flag("grad_alignment", "language_model_loss", language_model_loss)
    loss = sequence_loss if language_model_loss else last_token_loss
    return _cosine(
        "grad_alignment", model, inputs, block, direction, loss, batch, true_last=not language_model_loss
    )


def _cosine(
    function: str,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    of: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    batch: int,
    *,
    true_last: bool,
) -> float:
    along = direction_argument(function, direction)
    cosines = []
    for batch_inputs in batches(function, inputs, batch):
        leaves: list[Tensor] = []

        def keep(states: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
            leaf = states.detach().requires_grad_()
            leaves.append(leaf)
            return leaf

        with torch.enable_grad(), hooked(block, keep):
            value = of(logits_of(model, batch_inputs), batch_inputs)
            (gradient,) = torch.autograd.grad(value, leaves[0])
        rows = torch.arange(len(gradient), device=gradient.device)
        at = batch_inputs["attention_mask"].long().sum(-1) - 1 if true_last else -1
        last_gradient = gradient[rows, at].double()
        u = along.to(last_gradient)
        cosines.append((last_gradient @ u) / (last_gradient.norm(dim=-1) * u.norm()).clamp_min(1e-300))
    return float(torch.cat(cosines).mean())
