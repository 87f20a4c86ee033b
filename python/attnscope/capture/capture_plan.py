# SPDX-License-Identifier: MIT
"""The plan of a capture, and the call of an attention function that is captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.models.architecture import Parts


class AttentionCall(NamedTuple):
    """The arguments that a model passes to its attention function."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float | None
    softcap: float | None = None
    s_aux: Tensor | None = None
    position_bias: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(torch.float32, self.query.dtype)

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.scaling is None else self.scaling

    @property
    def sink(self) -> Tensor | None:
        """The learned logit of each head without a value, [1, h, 1, 1]."""
        return None if self.s_aux is None else self.s_aux.to(self.dtype).reshape(1, -1, 1, 1)


@dataclass
class CapturePlan:
    """The way in which one model is captured.

    Attributes:
        tier: 1 own attention function, 2 hooks on eager attention, 3 ``output_attentions=True``.
        stacks: number of layers of each stack of attention modules.
        indices: which of them have attention (a hybrid model has other layers between).
        heads: number of heads of each stack (the smallest over its layers).
        parts: where the block of each attention module keeps what, by name of that module.
        weights: second tier: position of the weights in the output of each attention module, by name.
        ask: pass ``output_attentions=True``, without which some old models return no weights.
        forced: second tier: modules that must be asked for their weights, because their blocks do not.
        unmasked: causal stacks that run without a mask even in eager attention.
        reasons: why a lower tier was not taken.
        caution: what sets the captured forward pass apart from the usual one; empty when nothing does.
        missing: attention modules that ran and gave no map.
        settings: what the passes changed in the model, see `Effects`; all of it was undone.
        tokens_first: modules whose states are [q, B, D].
    """

    tier: int
    stacks: dict[str, int] = field(default_factory=dict)
    indices: dict[str, set[int]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    ask: bool = False
    forced: frozenset[str] = frozenset()
    unmasked: set[str] = field(default_factory=set)
    reasons: tuple[str, ...] = ()
    caution: str = ""
    missing: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    tokens_first: frozenset[str] = frozenset()
