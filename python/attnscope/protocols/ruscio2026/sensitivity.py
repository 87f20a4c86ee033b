# SPDX-License-Identifier: MIT
"""The notebooks' measures along a boundary by finite steps of the state.

All of them read the last column of a batch. A tokenizer that pads on the right puts a padding token there
in every row but the longest, so those rows' numbers are of a padding token.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.arguments.scalars import flag
from attnscope.protocols.ruscio2026._batches import batches, direction_argument, hooked, last_logits, moved


def fisher(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    *,
    epsilon: float = 0.05,
    batch: int = 4,
    one_sided: bool = False,
) -> float:
    """Divergence of the next token over ε² when ε times the direction is added behind a block.

    F̂ = ½[KL(p‖q) + KL(q‖p)]/ε², mean over a batch, at least 0, mean over batches. Differs from
    `directional_fisher` of `asc.sensitivity`: in the limit it is **half** of it; the step is added and all
    is computed in the model's dtype, so that in bfloat16 most of the step is rounded away and the rounding of
    logits is divided by ε² too; and the last column is read whatever token is there.

    Args:
        model: a decoder with its vocabulary head, any dtype.
        inputs: `input_ids` [B, n] and `attention_mask`; each batch is cut to its longest prompt.
        block: the module of the model whose output moves.
        direction: [D].
        epsilon: length of the step, as a multiple of the direction.
        batch: rows at a time.
        one_sided: KL(p‖q)/ε² instead, as in the notebook `checkpoints`.

    Returns:
        Nats per squared unit, at least 0.

    Raises:
        ValueError: inputs without a mask, a direction of another shape or not finite, a step that is not
            above 0.

    Example:
        A direction of length 0 moves nothing.

        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4,
        ...                                      num_hidden_layers=1, num_attention_heads=1)).eval()
        >>> inputs = {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 2)}
        >>> ruscio2026.fisher(model, inputs, model.model.layers[0], torch.zeros(4))
        0.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, `checkpoints`.
    """
    name = "fisher"
    along, step = direction_argument(name, direction), _step(name, epsilon)
    one_sided = flag(name, "one_sided", one_sided)
    divergences = []
    with torch.no_grad():
        for batch_inputs in batches(name, inputs, batch):
            p = last_logits(model, batch_inputs).log_softmax(-1)
            with hooked(block, moved(step * along)):
                q = last_logits(model, batch_inputs).log_softmax(-1)
            value = (p.exp() * (p - q)).sum(-1)
            if not one_sided:
                value = 0.5 * (value + (q.exp() * (q - p)).sum(-1))
            divergences.append(max(0.0, float(value.mean()) / step**2))
    return float(np.mean(divergences))


def hessian(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    *,
    epsilon: float = 3.0,
    batch: int = 4,
) -> float:
    """Second difference of −max log p over ε² when ±ε times the direction is added behind a block.

    Differs from `curvature` of `asc.sensitivity`: the step is large, and the likeliest token is looked for
    anew at each of the three points, so that where it changes the number mixes losses of two tokens. A
    maximum is never above the log p of the token that is likeliest without a step, so that a change of
    token can only lower the number.

    Args:
        model: a decoder with its vocabulary head, any dtype.
        inputs: as for `fisher`.
        block: likewise.
        direction: [D].
        epsilon: length of the step, as a multiple of the direction.
        batch: rows at a time.

    Returns:
        Nats per squared unit, mean over a batch, then over batches.

    Raises:
        ValueError: as for `fisher`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4,
        ...                                      num_hidden_layers=1, num_attention_heads=1)).eval()
        >>> inputs = {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 2)}
        >>> ruscio2026.hessian(model, inputs, model.model.layers[0], torch.zeros(4))
        0.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    name = "hessian"
    along, step = direction_argument(name, direction), _step(name, epsilon)

    def loss(batch_inputs: Mapping[str, Tensor]) -> float:
        return float(-last_logits(model, batch_inputs).log_softmax(-1).amax(-1).mean())

    second_differences = []
    with torch.no_grad():
        for batch_inputs in batches(name, inputs, batch):
            sides = []
            for sign in (1, -1):
                with hooked(block, moved(sign * step * along)):
                    sides.append(loss(batch_inputs))
            second_differences.append((sides[0] - 2 * loss(batch_inputs) + sides[1]) / step**2)
    return float(np.mean(second_differences))


def jacobian(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    block: nn.Module,
    direction: Tensor,
    *,
    epsilon: float = 0.5,
    batch: int = 4,
) -> float:
    """‖f(h + εb) − f(h)‖/ε of one block, the step added to what **enters** it.

    Differs from `amplification` of `asc.sensitivity`: the notebook adds the boundary of a block's *output* to
    the same block's *input*, a space one block earlier; the step is finite, in the model's dtype, at the last
    column. One side of the difference is inferred.

    Args:
        model: as for `fisher`.
        inputs: likewise.
        block: the module whose input moves and whose output is read.
        direction: [D].
        epsilon: length of the step, as a multiple of the direction.
        batch: rows at a time.

    Returns:
        At least 0, mean over rows; 1 of a direction of length 1 that passes unchanged.

    Raises:
        ValueError: as for `fisher`.

    Example:
        A block that adds nothing hands the step on.

        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4,
        ...                                      num_hidden_layers=1, num_attention_heads=1)).eval()
        >>> block = model.model.layers[0]
        >>> _ = block.self_attn.o_proj.weight.data.zero_(), block.mlp.down_proj.weight.data.zero_()
        >>> inputs = {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 2)}
        >>> round(ruscio2026.jacobian(model, inputs, block, torch.eye(4)[0]), 5)
        1.0

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    name = "jacobian"
    along, step = direction_argument(name, direction), _step(name, epsilon)
    ratios = []
    with torch.no_grad():
        for batch_inputs in batches(name, inputs, batch):
            plain = _behind(model, batch_inputs, block)
            with hooked(block, moved(step * along), entering=True):
                shifted = _behind(model, batch_inputs, block)
            ratios.append((shifted - plain).norm(dim=-1).float() / step)
    return float(torch.cat(ratios).mean())


def _behind(model: nn.Module, batch_inputs: Mapping[str, Tensor], block: nn.Module) -> Tensor:
    """Return the states [B, D] of the last column behind a block."""
    last_states: list[Tensor] = []

    def keep(states: Tensor) -> None:
        last_states.append(states[:, -1].clone())

    with hooked(block, keep):
        last_logits(model, batch_inputs)
    return last_states[0]


def _step(function: str, epsilon: float) -> float:
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"{function}: epsilon must be above 0, got {epsilon}")
    return float(epsilon)
