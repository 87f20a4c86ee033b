# SPDX-License-Identifier: MIT
"""The real ablation: keys masked before the softmax inside the model, in every layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._checks import as_tensor
from attnscope._evaluation import evaluating
from attnscope.arguments.modules import module_argument
from attnscope.capture.edits import HideKeys
from attnscope.capture.forward import Forward, forward
from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class OutputKl(NamedTuple):
    """The effect of hidden keys on the model's output, each [B] float64.

    kl: mean over real positions of KL(P‖P') in nats. loss_before, loss_after: mean next-token loss in nats
    over the real tokens of a sentence but its first; NaN for models that predict no next token.
    """

    kl: Tensor
    loss_before: Tensor
    loss_after: Tensor

    @property
    def loss_change(self) -> Tensor:
        """loss_after − loss_before."""
        return self.loss_after - self.loss_before


def output_kl(model: nn.Module, inputs: Mapping[str, Any], keys: Tensor | Sequence[int]) -> OutputKl:
    """Compute how much the model's predictions change when no query may attend to some keys.

    The keys get the mask's value before the softmax in every layer and head, so what follows is what the
    model computes without them, unlike `sink_removal`, which edits maps after the fact. A query that would
    see no key keeps what it sees: under a causal mask the first token still attends to itself.

    Args:
        model: a Hugging Face model with a language-model head, float32 or lower, on any device.
        inputs: what the model takes: input_ids [B, n], attention_mask for padded batches, ….
        keys: boolean [B, n], or positions counted from the first real token of every sentence, negative ones
            from its end.

    Returns:
        OutputKl, and its loss_change. kl >= 0, 0 where nothing was attended to.

    Raises:
        TypeError: the model gives no logits.
        ValueError: keys of another shape, or positions outside the shortest sentence.
        NotImplementedError: a model whose attention does not go through transformers' interface.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> found = asc.output_kl(model, {"input_ids": torch.arange(6).reshape(1, 6)}, [0])
        >>> found
        OutputKl(kl=float64[1], loss_before=float64[1], loss_after=float64[1])

    References:
        Xiao et al., Efficient streaming language models with attention sinks, arXiv 2309.17453, 2023.
    """
    return output_kl_of_sets(model, inputs, {"keys": keys})["keys"]


def output_kl_of_sets(
    model: nn.Module, inputs: Mapping[str, Any], sets: Mapping[str, Tensor | Sequence[int]]
) -> dict[str, OutputKl]:
    """Compute `output_kl` for several sets of keys, with one run of the whole model for all of them."""
    model = module_argument("output_kl", model)
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if real.ndim != 2:
        raise ValueError(f"output_kl: attention_mask must have shape [B, n], got {tuple(real.shape)}")
    hides_keys: dict[str, bool] = {}
    for name, keys in sets.items():
        flags = as_tensor("output_kl", "keys", keys)
        hides_keys[name] = bool(flags.any()) if flags.dtype == torch.bool else flags.numel() > 0
        if flags.dtype == torch.bool and flags.shape != real.shape:
            raise ValueError(f"output_kl: keys must have shape {tuple(real.shape)}, got {tuple(flags.shape)}")
    results: dict[str, OutputKl] = {}
    with evaluating(model), torch.no_grad():
        # All runs go through the same attention function, so that they differ by the keys alone.
        p = _logits(model, inputs, ()).log_softmax(-1)
        for name, keys in sets.items():
            q = _logits(model, inputs, keys).log_softmax(-1) if hides_keys[name] else p
            results[name] = _compared(model, p, q, ids.cpu(), real.cpu())
    return results


def _compared(model: nn.Module, p: Tensor, q: Tensor, ids: Tensor, real: Tensor) -> OutputKl:
    kl = torch.where(real, (p.exp() * (p - q)).sum(-1).clamp(min=0), 0.0).sum(-1) / real.sum(-1)
    name = type(model).__name__
    if "MaskedLM" in name or not ("CausalLM" in name or "LMHead" in name):
        undefined = torch.full_like(kl, torch.nan)
        return OutputKl(kl, undefined, undefined)
    return OutputKl(kl, _loss(p, ids, real), _loss(q, ids, real))


def _logits(model: nn.Module, inputs: Mapping[str, Any], keys: Tensor | Sequence[int]) -> Tensor:
    """Return the logits of a run without some keys, in float64. Without any key to hide the same function
    computes.
    """
    declaration = Forward(sites=("logits",), edits=(HideKeys(keys),))
    try:
        with forward(model, inputs, declaration) as run:
            return run.outputs.logits.double().cpu()
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).removeprefix("HideKeys: ").removeprefix("forward: ")
        raise type(error)(f"output_kl: {reason}") from None


def _loss(log_p: Tensor, ids: Tensor, real: Tensor) -> Tensor:
    """Return the mean −log p of every real token but the first of a sentence."""
    scored = real[:, 1:] & real[:, :-1]
    token = log_p[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return -torch.where(scored, token, 0.0).sum(-1) / scored.sum(-1)
