# SPDX-License-Identifier: MIT
"""The interface of a map that is not in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Unmaterialized:
    """A map that is not in memory and computes functions of the core itself: `attnscope.LazyAttention`."""

    __slots__ = ()

    @property
    def shape(self) -> torch.Size:
        """Shape of the map."""
        raise NotImplementedError

    @property
    def precision(self) -> str:
        """Precision in which the functions are computed."""
        raise NotImplementedError

    @property
    def visibility(self) -> Any:
        """The keys that each query sees, and which queries are no padding."""
        raise NotImplementedError

    @property
    def followed(self) -> Tensor | None:
        """A tensor that the map is made of and that requires a gradient, None where there is none."""
        raise NotImplementedError

    def with_lengths(self, lengths: Any) -> Any:
        """Return the same maps with other lengths."""
        raise NotImplementedError

    def select_heads(self, heads: Sequence[int]) -> Any:
        """Return the maps of some heads of each layer."""
        raise NotImplementedError

    def diagonal(self) -> Tensor:
        """Return the attention of every token to itself, [..., n]."""
        raise NotImplementedError

    def measure(self, function: str) -> Callable[..., Any] | None:
        """Return what computes a function of the core for such a map, None where nothing does."""
        raise NotImplementedError
