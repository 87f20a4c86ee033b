# SPDX-License-Identifier: MIT
"""Counts of the keys that a query sees and of the queries that see a key, by formulas where there are any."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.metrics.lazy.passes import Border

#: Queries of all maps up to which what is counted of a visibility stays for the next attention alike.
_FEW_QUERIES = 1 << 16
#: Pairs of a mask that are looked at together.
_PAIRS = 1 << 24


class FarPairs(NamedTuple):
    """Counts of keys far from their queries, and what equal weights would give them.

    distances: int64 [...], the smallest that are far. keys: int64 [..., q], far keys that each query sees.
    queries: int64 [..., k], far queries that see each key. uniform: float64 [..., k], the sum of equal
    weights of those.
    """

    distances: Tensor
    keys: Tensor
    queries: Tensor
    uniform: Tensor


@dataclass(frozen=True, eq=False)
class Visibility:
    """The keys of each query: key j is visible at i if j < length, by causality, window and mask.

    Causal is j <= i, a window i − j < window and j − i <= after, where these are not None. Results are
    kept for the next question; nobody may write into them.

    positions: int64 [..., q]. lengths: int64 [...]. mask: bool [..., q, k] or None.
    """

    positions: Tensor
    lengths: Tensor
    keys: int
    causal: bool
    window: int | None
    after: int | None
    mask: Tensor | None
    _counted: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def real(self) -> Tensor:
        """Queries that are no padding, bool [..., q]."""
        return self._once("real", lambda: self.positions < self.lengths[..., None])

    def of_any_head(self) -> Visibility:
        """Return what the queries see in some head, [..., 1, q], of heads of one length."""
        mask = None if self.mask is None else self.mask.any(-3, keepdim=True)
        return replace(self, positions=self.positions[..., :1, :], lengths=self.lengths[..., :1], mask=mask)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the first key and the one behind the last that each query may see, int64 [..., q]."""
        return self._once("bounds", self._bounds)

    def _once(self, name: Hashable, count: Callable[[], Any]) -> Any:
        if name not in self._counted:
            self._counted[name] = count()
        return self._counted[name]

    def _bounds(self) -> tuple[Tensor, Tensor]:
        lengths = self.lengths[..., None].expand(self.positions.shape)
        first = torch.zeros_like(self.positions)
        if self.window is not None:
            first = (self.positions - self.window + 1).clamp(min=0)
        later = 0 if self.causal else self.after
        last = lengths if later is None else torch.minimum(lengths, self.positions + (later + 1))
        # queries before the first key may see none
        last = torch.where(self.real, last.clamp(min=0), 0)
        return torch.minimum(first, last), last

    def rows(self, begin: int, end: int) -> Tensor:
        """Return which keys queries [begin, end) see, bool [..., end − begin, k]."""
        first, last = (bound[..., begin:end, None] for bound in self.bounds())
        key = torch.arange(self.keys, device="cpu")
        seen = (key >= first) & (key < last)
        return seen if self.mask is None else seen & self.mask[..., begin:end, :]

    def key_counts(self, first: int | None = None) -> Tensor:
        """Return how many keys each query sees, int64 [..., q], among the leading `first` keys if given."""
        return self._once(("keys", first), lambda: self._key_counts(first))

    def _key_counts(self, first: int | None) -> Tensor:
        if self.mask is None:
            start, stop = self.bounds()
            if first is not None:
                start, stop = start.clamp(max=first), stop.clamp(max=first)
            return stop - start
        return torch.cat([seen[..., :first].sum(-1) for _, seen in self._blocks()], -1)

    def query_counts(self) -> Tensor:
        """Return how many queries see each key, int64 [..., k]."""
        return self._once("queries", self._query_counts)

    def last_queries(self, first: int, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return which of each map's last queries see a key, their number, and the equal share of first keys.

        The types are bool [..., q], int64 [...] and float64 [...], the mean over these queries of the
        share of visible keys that are among the leading `first`.
        """
        return self._once(("last", first, queries), lambda: self._last_queries(first, queries))

    def _last_queries(self, first: int, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        visible = self.key_counts()
        order = self.real.flip(-1).cumsum(-1).flip(-1)  # 1 for the last real query
        counted = self.real & (order <= queries) & (visible > 0)
        number = counted.sum(-1)
        equal = self.key_counts(first).double() / visible.clamp(min=1)
        return counted, number, torch.where(counted, equal, 0.0).sum(-1) / number

    def far_distances(self, border: Border) -> Tensor:
        """Return the smallest distance beyond a border in each map, int64 [...]."""
        return self._once(("distances", border), lambda: border.distances(self.lengths))

    def far_pairs(self, border: Border) -> FarPairs:
        """Return what is counted of pairs beyond a border."""
        return self._once(border, lambda: self._far_pairs(border))

    def _far_pairs(self, border: Border) -> FarPairs:
        distances = self.far_distances(border)
        keys = self.far_counts(distances)
        has_far = keys > 0
        equal = torch.where(has_far, 1.0 / self.key_counts().clamp(min=1).double(), 0.0)
        queries = self.far_sums(distances, has_far.long())
        # Differences of cumulated sums leave their rounding where nothing is far.
        uniform = torch.where(queries > 0, self.far_sums(distances, equal).clamp(min=0.0), 0.0)
        return FarPairs(distances, keys, queries, uniform)

    def _query_counts(self) -> Tensor:
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
            earlier = self._add_between(start, near_start, values)
            if self.causal:  # no key behind its query is seen
                return earlier
            near_stop = torch.minimum(stop, torch.maximum(start, self.positions + border))
            return earlier + self._add_between(torch.maximum(near_start, near_stop), stop, values)
        total = torch.zeros((*self.positions.shape[:-1], self.keys), dtype=values.dtype, device="cpu")
        for begin, seen in self._blocks():
            far = self._far(begin, seen, border)
            total += torch.where(far, values[..., begin : begin + seen.shape[-2], None], 0).sum(-2)
        return total

    def far_maxima(self, distances: Tensor, values: Tensor) -> Tensor:
        """Return the largest of `values` [..., q] over a key's far queries, 0 of none, [..., k]."""
        if self.mask is None and self._once("ascending", self._is_ascending):
            return self._range_maxima(distances[..., None], values)
        largest = torch.zeros((*self.positions.shape[:-1], self.keys), dtype=torch.float64, device="cpu")
        for begin, seen in self._blocks():
            far = self._far(begin, seen, distances[..., None])
            column = values[..., begin : begin + seen.shape[-2], None]
            largest = torch.maximum(largest, torch.where(far, column, 0.0).amax(-2))
        return largest

    def _is_ascending(self) -> bool:
        """Return True if no query stands before the one that precedes it."""
        return bool((self.positions.diff(dim=-1) >= 0).all())

    def _range_maxima(self, border: Tensor, values: Tensor) -> Tensor:
        """Return the same where positions ascend: far queries of a key are one range on either side."""
        key = torch.arange(self.keys, device="cpu").expand(*border.shape[:-1], -1).contiguous()
        positions = self.positions.contiguous()
        queries = self.real.sum(-1, keepdim=True)
        later = torch.searchsorted(positions, key + border)
        if self.window is None:
            largest = _largest_from(values, later)
        else:
            end = torch.minimum(queries, torch.searchsorted(positions, key + self.window))
            largest = _largest_between(values, later, end)
        if not self.causal:
            earlier = torch.minimum(torch.searchsorted(positions, key - border, right=True), queries)
            begin = torch.zeros_like(key)
            if self.after is not None:
                begin = torch.minimum(torch.searchsorted(positions, key - self.after), earlier)
            largest = torch.maximum(largest, _largest_between(values, begin, earlier))
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


@lru_cache(maxsize=4)
def _default_visibility(
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    causal: bool,
    window: int | None,
    after: int | None,
    lengths: tuple[int, ...],
) -> Visibility:
    """Return the visibility of queries at the last keys, without a mask."""
    positions = (torch.arange(queries, device="cpu") + (keys - queries)).expand(*leading, queries)
    sizes = torch.tensor(lengths, dtype=torch.int64, device="cpu").reshape(leading)
    return Visibility(positions, sizes, keys, causal, window, after, None)


def visible_keys(seen: Visibility, n: int) -> str:
    """Return the keys that queries of a text of n tokens see, as the visibility of a captured layer says it.

    >>> sides = visibility_of((1, 9, 9), None, None, False, 3, 4, None)
    >>> visible_keys(sides, 9), visible_keys(sides, 4)
    ('window 2+4', 'window 2+')
    """
    if n < 2:
        return "causal"
    if seen.mask is not None:
        return "mask"
    before = None if seen.window is None or seen.window >= n else seen.window - 1
    after = 0 if seen.causal else seen.after
    after = None if after is None or after >= n - 1 else after
    if before is None and not after:
        return "full" if after is None else "causal"
    if after == 0 and before is not None:
        return f"window {before + 1}"
    return "window " + "+".join("" if side is None else str(side) for side in (before, after))


def visibility_of(
    shape: tuple[int, ...],
    lengths: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    window: int | None,
    after: int | None,
    mask: Tensor | None,
) -> Visibility:
    """Return the visibility of attention [..., h, q, k]; that of few queries is made once for all alike.

    Args:
        lengths: that broadcast to [..., h]; None: all keys.
        positions: that broadcast to [..., h, q]; None: the queries are at the last keys.
    """
    *leading, queries, keys = shape
    sizes = torch.full(leading, keys, dtype=torch.int64, device="cpu")
    if lengths is not None:
        sizes = lengths.expand(leading).contiguous()
    if positions is None and mask is None and sizes.numel() * queries <= _FEW_QUERIES:
        counts = tuple(sizes.flatten().tolist())
        return _default_visibility(tuple(leading), queries, keys, causal, window, after, counts)
    if positions is None:
        positions = torch.arange(queries, device="cpu") + (keys - queries)
    return Visibility(positions.expand(*leading, queries), sizes, keys, causal, window, after, mask)


def _largest_from(values: Tensor, start: Tensor) -> Tensor:
    """Return the largest of values from each start on, 0 of none."""
    later = torch.nn.functional.pad(values, (0, 1)).flip(-1).cummax(-1).values.flip(-1)
    return later.gather(-1, start)


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
