# SPDX-License-Identifier: MIT
"""A model's scores over many texts, summed by offset and by group: from a model to a `PositionProfile`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._warn import UndefinedWarning, warn
from attnscope.capture.first_token import require_causal
from attnscope.capture.forward import Forward, forward
from attnscope.metrics.positions.position_profile import PositionProfile

#: Texts of one forward pass.
BATCH = 16


def position_profile(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    n: int = 64,
    groups: int = 16,
    layers: Sequence[int] | None = None,
) -> PositionProfile:
    """The sums of `PositionProfile` over texts; inside `asc.edit(model, ...)`, those of the edited model.

    Texts should be windows that begin anywhere: where all begin at their beginning, content depends on
    position. Text r of N belongs to group r·groups // N.

    Args:
        model: a causal transformers model in evaluation mode whose softmax can be captured.
        inputs: input_ids [N, n or more], and attention_mask of the same shape where texts are padded on the
            right; of each text the first n tokens are read.
        n: tokens of a text; shorter ones are left out and counted in a warning.
        groups: of texts.
        layers: numbers of the layers; None takes all.

    Returns:
        PositionProfile, for `residual_size` and `removed`.

    Raises:
        ValueError: no texts of n tokens, another shape.
        NotImplementedError: a model that sees later tokens, or whose softmax cannot be captured.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> ids = torch.randint(16, (16, 8), generator=torch.Generator().manual_seed(0))
        >>> profile = asc.position_profile(model, {"input_ids": ids}, n=8, groups=4)
        >>> profile.layers, profile.texts, asc.residual_size(profile).estimate.shape
        ([0, 1], 16, (2, 2))

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026.
    """
    name = "position_profile"
    made = PositionProfile(n, groups=groups)
    ids = _texts(name, inputs, n)
    require_causal(name, model, ids)
    sites = Forward(("scores",), layers=layers)
    for start in range(0, len(ids), BATCH):
        own = ids[start : start + BATCH]
        group = [rank * groups // len(ids) for rank in range(start, start + len(own))]
        try:
            with forward(model, {"input_ids": own, "attention_mask": torch.ones_like(own)}, sites) as found:
                for layer in found:
                    made.add(layer.scores, group, layer=layer.index, sink_logit=layer.sink_logits)
        except RuntimeError as error:
            if start or isinstance(error, NotImplementedError):
                raise
            raise NotImplementedError(f"{name}: {error}") from None
    return made


def _texts(function: str, inputs: Mapping[str, Any], n: int) -> Tensor:
    """The first n tokens of every text that has as many."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not torch.is_tensor(ids) or ids.ndim != 2:
        raise ValueError(f"{function}: inputs must hold input_ids [N, n], got {sorted(inputs)}")
    enough = torch.full((len(ids),), ids.shape[1] >= n)
    if mask is not None and ids.shape[1] >= n:
        enough = mask[:, :n].bool().all(-1).cpu()
    if not bool(enough.any()):
        raise ValueError(f"{function}: none of {len(ids)} texts has {n} tokens, the longest {ids.shape[1]}")
    if short := int((~enough).sum()):
        message = f"{function}: {short} of {len(ids)} texts have fewer than {n} tokens and are left out"
        warn(UndefinedWarning(message, function, short))
    return ids[enough.to(ids.device)][:, :n]
