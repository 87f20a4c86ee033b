# SPDX-License-Identifier: MIT
"""A model's way from its last block to logits, and how much of what it reads a direction is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._checks import as_tensor
from attnscope.models.unembedding import effective_unembedding


class ReadoutShare(NamedTuple):
    """The share of a direction's squared length in k main directions of the readout, the mean share of a
    random direction, and how often a random direction has as much (exact: Beta law).
    """

    share: float
    chance: float
    p_value: float


class Readout:
    """The map from the last block's output to logits.

    Args:
        model: of transformers.
        function: its final norm, unembedding, factors and bounds.
    """

    def __init__(self, model: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._function = function

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits [..., V] of states [..., D]."""
        return self._function(states)

    @cached_property
    def gram(self) -> Tensor:
        """W̃ᵀW̃ [D, D] of the effective unembedding, float64."""
        return effective_unembedding(self._model).gram

    @cached_property
    def axes(self) -> Tensor:
        """Main directions [D, D] of the Gram matrix as columns, that of the largest gain first."""
        return torch.linalg.eigh(self.gram)[1].flip(1)

    def gain(self, direction: Tensor) -> Tensor:
        """Return uᵀGu/(‖u‖²·tr G/D): 1 where the logits read a direction as much as any; range [0, D].

        Args:
            direction: [..., D].

        Raises:
            ValueError: a direction of another width, of norm 0 or not finite.
        """
        unit = self._unit(direction)
        mean = self.gram.trace() / len(self.gram)
        return (unit * (unit @ self.gram)).sum(-1) / mean

    def share(self, direction: Tensor, k: int, which: Literal["top", "bottom"] = "top") -> ReadoutShare:
        """Return the share of a direction's squared length in the k directions that the logits read most, or
        least.

        Args:
            direction: [D].
            k: number of directions, 1 to D.
            which: "top" or "bottom".

        Raises:
            ValueError: k or `which` out of range, a direction as for `gain`.
        """
        from scipy.special import betainc

        width = len(self.gram)
        if not 1 <= k <= width:
            raise ValueError(f"readout: k must lie in 1 .. {width}, got {k}")
        if which not in ("top", "bottom"):
            raise ValueError(f"readout: which must be 'top' or 'bottom', got {which!r}")
        columns = self.axes[:, :k] if which == "top" else self.axes[:, width - k :]
        share = float((self._unit(direction) @ columns).square().sum())
        p_value = 1.0 if k == width else float(betainc((width - k) / 2, k / 2, 1 - min(share, 1.0)))
        return ReadoutShare(min(share, 1.0), k / width, p_value)

    def _unit(self, direction: Tensor) -> Tensor:
        wide = as_tensor("readout", "direction", direction).double().cpu()
        if wide.shape[-1:] != (len(self.gram),):
            raise ValueError(f"readout: a direction must be [..., {len(self.gram)}], got {tuple(wide.shape)}")
        length = wide.norm(dim=-1, keepdim=True)
        if not bool(length.isfinite().all()) or bool((length == 0).any()):
            bad = length[(length == 0) | ~length.isfinite()]
            raise ValueError(f"readout: a direction must be finite and not 0, got norm {float(bad[0])}")
        return wide / length
