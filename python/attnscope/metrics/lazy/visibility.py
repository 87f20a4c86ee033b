# SPDX-License-Identifier: MIT
"""Counts of the keys that a query sees and of the queries that see a key, by formulas where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: Pairs of a mask that are looked at together.
_PAIRS = 1 << 24


class Visibility(NamedTuple):
    """The keys of each query: key j is visible at i if j < length, j <= i, i − j < window, and by the mask.

    positions: int64 [..., q]. lengths: int64 [...]. mask: bool [..., q, k] or None.
    """

    positions: Tensor
    lengths: Tensor
    keys: int
    causal: bool
    window: int | None
    mask: Tensor | None

    @property
    def real(self) -> Tensor:
        """Queries that are no padding, bool [..., q]."""
        return self.positions < self.lengths[..., None]

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the first key and the one behind the last that each query may see, int64 [..., q]."""
        lengths = self.lengths[..., None].expand(self.positions.shape)
        first = torch.zeros_like(self.positions)
        if self.window is not None:
            first = (self.positions - self.window + 1).clamp(min=0)
        last = torch.minimum(lengths, self.positions + 1) if self.causal else lengths
        last = torch.where(self.real, last, 0)
        return torch.minimum(first, last), last

    def rows(self, begin: int, end: int) -> Tensor:
        """Return which keys queries [begin, end) see, bool [..., end − begin, k]."""
        first, last = (bound[..., begin:end, None] for bound in self.bounds())
        key = torch.arange(self.keys, device="cpu")
        seen = (key >= first) & (key < last)
        return seen if self.mask is None else seen & self.mask[..., begin:end, :]

    def key_counts(self, first: int | None = None) -> Tensor:
        """Return how many keys each query sees, int64 [..., q], among the leading `first` keys if given."""
        if self.mask is None:
            start, stop = self.bounds()
            if first is not None:
                start, stop = start.clamp(max=first), stop.clamp(max=first)
            return stop - start
        return torch.cat([seen[..., :first].sum(-1) for _, seen in self._blocks()], -1)

    def query_counts(self) -> Tensor:
        """Return how many queries see each key, int64 [..., k]."""
        if self.mask is None:
            start, stop = self.bounds()
            return self._add_between(start, stop, torch.ones_like(start))
        counts = torch.zeros((*self.lengths.shape, self.keys), dtype=torch.int64, device="cpu")
        for _, seen in self._blocks():
            counts += seen.sum(-2)
        return counts

    def far_counts(self, distances: Tensor) -> Tensor:
        """Return how many keys at least `distances` [...] away each query sees, int64 [..., q]."""
        border = distances[..., None]
        if self.mask is None:
            start, stop = self.bounds()
            near_start = torch.maximum(start, self.positions - border + 1)
            near_stop = torch.minimum(stop, self.positions + border)
            return stop - start - (near_stop - near_start).clamp(min=0)
        return torch.cat([self._far(begin, seen, border).sum(-1) for begin, seen in self._blocks()], -1)

    def far_sums(self, distances: Tensor, values: Tensor) -> Tensor:
        """Return the sum of `values` [..., q] over the queries that see each key from afar, [..., k]."""
        border = distances[..., None]
        if self.mask is None:
            start, stop = self.bounds()
            near_start = torch.maximum(start, torch.minimum(stop, self.positions - border + 1))
            near_stop = torch.minimum(stop, torch.maximum(start, self.positions + border))
            near_stop = torch.maximum(near_start, near_stop)
            return self._add_between(start, near_start, values) + self._add_between(near_stop, stop, values)
        total = torch.zeros((*self.positions.shape[:-1], self.keys), dtype=values.dtype, device="cpu")
        for begin, seen in self._blocks():
            far = self._far(begin, seen, border)
            total += torch.where(far, values[..., begin : begin + seen.shape[-2], None], 0).sum(-2)
        return total

    def far_maxima(self, distances: Tensor, values: Tensor) -> Tensor:
        """Return the largest of `values` [..., q] over a key's far queries, 0 of none, [..., k]."""
        if self.mask is None and bool((self.positions.diff(dim=-1) >= 0).all()):
            return self._range_maxima(distances[..., None], values)
        largest = torch.zeros((*self.positions.shape[:-1], self.keys), dtype=torch.float64, device="cpu")
        for begin, seen in self._blocks():
            far = self._far(begin, seen, distances[..., None])
            column = values[..., begin : begin + seen.shape[-2], None]
            largest = torch.maximum(largest, torch.where(far, column, 0.0).amax(-2))
        return largest

    def _range_maxima(self, border: Tensor, values: Tensor) -> Tensor:
        """Return the same where positions ascend: far queries of a key are one range on either side."""
        key = torch.arange(self.keys, device="cpu").expand(*border.shape[:-1], -1).contiguous()
        positions = self.positions.contiguous()
        queries = self.real.sum(-1, keepdim=True)
        later = torch.searchsorted(positions, key + border)
        end = queries.expand_as(key)
        if self.window is not None:
            end = torch.minimum(end, torch.searchsorted(positions, key + self.window))
        largest = _largest_between(values, later, end)
        if not self.causal:
            earlier = torch.minimum(torch.searchsorted(positions, key - border, right=True), queries)
            largest = torch.maximum(largest, _largest_between(values, torch.zeros_like(key), earlier))
        return torch.where(key < self.lengths[..., None], largest, 0.0)

    def _add_between(self, start: Tensor, stop: Tensor, values: Tensor) -> Tensor:
        """Return, for each key, the sum of the values of the queries with start <= key < stop."""
        steps = torch.zeros((*self.positions.shape[:-1], self.keys + 1), dtype=values.dtype, device="cpu")
        steps.scatter_add_(-1, start, values)
        steps.scatter_add_(-1, stop, -values)
        return steps.cumsum(-1)[..., :-1]

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        queries = self.positions.shape[-1]
        maps = max(1, self.lengths.numel())
        size = max(1, _PAIRS // (maps * max(1, self.keys)))
        for begin in range(0, queries, size):
            yield begin, self.rows(begin, min(begin + size, queries)).expand(*self.lengths.shape, -1, -1)

    def _far(self, begin: int, seen: Tensor, border: Tensor) -> Tensor:
        position = self.positions[..., begin : begin + seen.shape[-2], None]
        distance = (position - torch.arange(self.keys, device="cpu")).abs()
        return seen & (distance >= border[..., None])


def _largest_between(values: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Return the largest of values [start, stop) for each pair of bounds, 0 of none, from doubled windows."""
    size = values.shape[-1]
    largest = torch.zeros(start.shape, dtype=values.dtype, device="cpu")
    window, width = values, 1
    length = stop - start
    while width <= size:
        chosen = (length >= width) & (length < 2 * width)
        left = window.gather(-1, torch.where(chosen, start, 0))
        right = window.gather(-1, torch.where(chosen, stop - width, 0))
        largest = torch.where(chosen, torch.maximum(left, right), largest)
        if 2 * width <= size:
            window = torch.maximum(window[..., :-width], window[..., width:])
        width *= 2
    return largest
