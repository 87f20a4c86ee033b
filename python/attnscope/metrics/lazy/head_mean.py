# SPDX-License-Identifier: MIT
"""The mean of the heads of a layer, measured from their queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.passes import HEAD_MEAN, Key

_NAME = "HeadMeanAttention"


class HeadMeanAttention(LazyAttention):
    """The mean over the heads of lazy attention, [..., 1, q, k].

    A pass takes a tile of every head at once, which needs log Z of the heads: where they are measured too,
    the pass that measures them has it. A query sees what it sees in any head.

    Args:
        attention: of the heads, [..., h, q, k]; all heads of a text have one length.

    Raises:
        ValueError: heads of several lengths.

    Example:
        One head attends to the first key alone, the other evenly.

        >>> import torch, attnscope as asc
        >>> from attnscope.metrics.lazy.head_mean import HeadMeanAttention
        >>> key = torch.zeros(2, 4, 1); key[0, 0] = 100
        >>> mean = HeadMeanAttention(asc.LazyAttention(torch.ones(2, 4, 1), key))
        >>> mean.dense()[0, 3].round(decimals=6).tolist()
        [0.625, 0.125, 0.125, 0.125]
    """

    __slots__ = ("of_heads",)

    of_heads: LazyAttention

    def __init__(self, attention: LazyAttention) -> None:
        seen = attention.visibility
        if bool((seen.lengths != seen.lengths[..., :1]).any()):
            raise ValueError(f"{_NAME}: heads must have one length, got {seen.lengths.tolist()}")
        visibility = seen.of_any_head()
        copied = ("query", "key", "causal", "window", "after", "scaling", "softcap", "precision", "_bias")
        fields: dict[str, Any] = {name: getattr(attention, name) for name in copied}
        fields |= {
            "of_heads": attention,
            "followed": attention.followed,
            "heads": 1,
            "lengths": None if attention.lengths is None else visibility.lengths,
            "query_positions": None if attention.query_positions is None else visibility.positions,
            "sink_logits": None,
            "_slopes": attention.slopes,
            "_mask": visibility.mask,
            "_visibility": visibility,
            "_log_z": None,
            "_host_views": None,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> torch.Size:
        """Shape of the map: [..., 1, q, k]."""
        *leading, _, queries, keys = self.of_heads.shape
        return torch.Size((*leading, 1, queries, keys))

    @property
    def sink_mass(self) -> Tensor:
        """Mean of the mass that learned sinks take of each row, float64 [..., 1, q]; 0 without them."""
        return self.of_heads.sink_mass.mean(-2, keepdim=True)

    def take(self, keys: Sequence[Key]) -> list[Tensor]:
        """Return results of passes over all heads by name and option, [..., 1, ...]."""
        return self.of_heads.take([(HEAD_MEAN, key) for key in keys])

    def tile(self, queries: slice | int, keys: slice | int) -> Tensor:
        """Return a part of the map, float64 [..., 1, queries, keys]."""
        return self.of_heads.tile(queries, keys).mean(-3, keepdim=True)

    def row_slabs(self) -> Iterator[tuple[int, Tensor]]:
        """Yield rows of the map, float64 [..., 1, r, k], with the number of the first query."""
        for begin, maps in self.of_heads.row_slabs():
            yield begin, maps.mean(-3, keepdim=True)

    def with_lengths(self, lengths: _checks.Lengths) -> HeadMeanAttention:
        """Return the same attention with other lengths."""
        return HeadMeanAttention(self.of_heads.with_lengths(lengths))

    def with_log_z(self, log_z: Tensor) -> HeadMeanAttention:
        """Return the attention as it is: tiles need log Z of the heads."""
        return self

    def select_texts(self, texts: Sequence[int]) -> HeadMeanAttention:
        """Return the attention of some texts of a batch [batch, 1, q, k]."""
        return HeadMeanAttention(self.of_heads.select_texts(texts))

    def uniform(self) -> HeadMeanAttention:
        """Return attention with the same visibility and equal weights."""
        return HeadMeanAttention(self.of_heads.uniform())

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        """Return the product with a checked x [..., 1, rows, c], float64."""
        heads = x.expand(*self.of_heads.shape[:-2], *x.shape[-2:])
        return self.of_heads.multiply(heads, transposed).mean(-3, keepdim=True)

    def multiply_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of the map and of its transpose with x [..., 1, n, c], in one pass."""
        heads = x.expand(*self.of_heads.shape[:-2], *x.shape[-2:])
        product, transposed = self.of_heads.multiply_both(heads)
        return product.mean(-3, keepdim=True), transposed.mean(-3, keepdim=True)

    def select_map(self, index: Sequence[int], length: int) -> LazyAttention:
        """Refuse: one map of the mean is a map of all heads."""
        raise ValueError(f"{_NAME}: the mean over heads has no queries and keys; dense() makes its map")

    def _replaced(self, **changes: Any) -> LazyAttention:
        raise ValueError(f"{_NAME}: the mean over heads has no {', '.join(changes)}; change its heads")
