# SPDX-License-Identifier: MIT
"""Row and key measures of attention from queries and keys in torch operations, some queries at a time.

For devices that have no Triton kernels of them, and for what those do not know: weights in float64, and
lengths that differ between the heads of a text. A tile holds some queries with all keys, so that log Z of its
rows is known at once and what keys receive needs no second visit; its memory is bounded whatever the tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope._evaluation import full_precision
from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import arithmetic_type

#: Pairs of a tile, of all heads together.
PAIRS = 1 << 23
#: Results of every query, of the name and option that `LazyAttention` asks for.
OF_QUERIES = ("log_z", "mass", "entropy", "collision", "largest", "distance", "first")
#: Results of every key.
OF_KEYS = ("incoming", "squares")

Key = tuple[str, Any]


class Queries(NamedTuple):
    """Queries and keys of one shape with everything that makes their scores.

    Attributes:
        query: [..., h, q, d]; key: [..., kv, k, d], where kv divides h.
        positions: the key at which each query stands, int64 [..., h, q].
        lengths: keys that are no padding, int64 [..., h].
        scaling, softcap, slopes, sink_logits, causal, window, after: as `LazyAttention` takes them.
        is_exact: whether products and weights are float64 too, and not their sums alone.
    """

    query: Tensor
    key: Tensor
    positions: Tensor
    lengths: Tensor
    scaling: float
    softcap: float | None
    slopes: Tensor | None
    sink_logits: Tensor | None
    causal: bool
    window: int | None
    after: int | None
    is_exact: bool


def measure_in_tiles(queries: Queries, keys: Collection[Key]) -> dict[Key, Tensor]:
    """Return those results among `keys` that tiles give, [..., h, q] of queries and [..., h, k] of keys.

    They are NaN behind the lengths, float64 or the arithmetic of the device, where they lie.
    """
    asked_keys = [key for key in keys if key[0] in (*OF_QUERIES, *OF_KEYS)]
    products = torch.float64 if queries.is_exact else torch.float32
    queries = queries._replace(query=queries.query.to(products), key=queries.key.to(products))
    *leading, count, _ = queries.query.shape
    key_count = queries.key.shape[-2]
    rows = max(1, PAIRS // max(1, queries.query[..., 0, 0].numel() * key_count))
    blocks: dict[Key, list[Tensor]] = {key: [] for key in asked_keys if key[0] in OF_QUERIES}
    shape, sums = (*leading, key_count), arithmetic_type(queries.query.device)
    received = {
        key: torch.zeros(shape, dtype=sums, device=queries.query.device)
        for key in asked_keys
        if key[0] in OF_KEYS
    }
    for begin in range(0, count, rows):
        tile = _Tile(queries, begin, min(count, begin + rows))
        for key, values in blocks.items():
            values.append(tile.undefined_behind(tile.of_queries(*key)))
        for key in received:
            received[key] += tile.of_keys(key[0])
    is_inside = torch.arange(key_count, device=queries.query.device) < queries.lengths[..., None]
    results = {key: torch.cat(values, -1) for key, values in blocks.items()}
    return results | {key: torch.where(is_inside, sum_, torch.nan) for key, sum_ in received.items()}


def sinks_in_range(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return logits of learned sinks in a type that may not hold them: finite ones stay finite."""
    limit = torch.finfo(dtype).max / 2  # logarithms to base 2 are larger
    return torch.where(logits.isfinite(), logits.clamp(-limit, limit), logits).to(dtype)


class _Tile:
    """Weights of queries [begin, end) on all keys, relative to the largest of each query."""

    def __init__(self, queries: Queries, begin: int, end: int) -> None:
        self._queries = queries
        device = queries.query.device
        self._sums = arithmetic_type(device)
        position = queries.positions[..., begin:end]
        self._is_real = position < queries.lengths[..., None]
        key_position = torch.arange(queries.key.shape[-2], device=device)
        self._offset = position[..., None] - key_position
        seen = (key_position < queries.lengths[..., None, None]) & self._is_real[..., None]
        if queries.causal:
            seen = seen & (self._offset >= 0)
        if queries.window is not None:
            seen = seen & (self._offset < queries.window)
        if queries.after is not None:
            seen = seen & (self._offset >= -queries.after)
        scores = self._scores(begin, end)
        top = scores.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
        sink = None
        if queries.sink_logits is not None:
            sink = queries.sink_logits.to(device, self._sums)[:, None, None]
            top = torch.maximum(top, sinks_in_range(sink, scores.dtype))
        # a query that sees nothing has no largest score
        top = torch.where(top == -torch.inf, 0.0, top)
        #: Scores relative to the largest, 0 where they are not seen, and their exponentials.
        self._relative = torch.where(seen, scores - top, 0.0)
        self._weights = torch.where(seen, self._relative.exp(), 0.0)
        self._mass = self._sum(self._weights)
        self._total = self._mass
        self._log_z = top[..., 0].to(self._sums) + self._mass.log()
        if sink is not None:
            self._total = self._mass + (sink - top.to(self._sums))[..., 0].exp()
            self._log_z = torch.logaddexp(self._log_z, sink[..., 0])
        #: What weights are divided by: a query that sees nothing has none.
        self._divisor = torch.where(self._total == 0, 1.0, self._total)
        self._top = top[..., 0].to(self._sums)

    def of_queries(self, name: str, option: Any) -> Tensor:
        """Return a result of every query."""
        weights, total = self._weights, self._divisor
        if name == "log_z":
            return self._log_z
        if name == "mass":
            return self._mass / total
        if name == "entropy":
            log_total = torch.where(self._total == 0, 0.0, self._log_z - self._top)
            return (self._mass * log_total - self._sum(weights * self._relative)) / total
        if name == "collision":
            return self._sum(weights.square()) / total.square()
        if name == "largest":
            return weights.amax(-1).to(self._sums) / total
        if name == "distance":
            return self._sum(weights * self._offset.abs()) / total
        return self._sum(weights[..., :option]) / total

    def of_keys(self, name: str) -> Tensor:
        """Return what every key receives of these queries: weights, or their squares."""
        return sum_along(self._shares if name == "incoming" else self._shares.square(), -2)

    @functools.cached_property
    def _shares(self) -> Tensor:
        """Weights over the sum of their query's, 0 for queries that are padding."""
        return torch.where(self._is_real[..., None], self._weights / self._divisor[..., None], 0.0)

    def undefined_behind(self, values: Tensor) -> Tensor:
        """Return values that are NaN for queries that are padding."""
        return torch.where(self._is_real, values, torch.nan)

    def _scores(self, begin: int, end: int) -> Tensor:
        """Return the scores of all pairs, those that are not seen too."""
        queries = self._queries
        query, key = queries.query[..., begin:end, :], queries.key
        groups = key.shape[-3]
        grouped = query.unflatten(-3, (groups, query.shape[-3] // groups))
        with full_precision(query.device.type):
            products = grouped @ key[..., None, :, :].mT
        scores = products.flatten(-4, -3) * queries.scaling
        if queries.softcap is not None:
            scores = queries.softcap * (scores / queries.softcap).tanh()
        if queries.slopes is not None:
            slopes = queries.slopes.to(scores.device, scores.dtype)
            scores = scores - slopes[:, None, None] * self._offset.abs()
        return scores

    def _sum(self, values: Tensor) -> Tensor:
        return sum_along(values.to(self._sums))
