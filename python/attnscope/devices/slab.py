# SPDX-License-Identifier: MIT
"""Some maps of a batch with what measures ask about them."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from attnscope.devices.compensated_sums import sum_along


class NotOnDevice(Exception):
    """Raised by an implementation in torch operations for options that only the core computes."""


def states_by_head(states: Tensor, maps: Tensor) -> Tensor:
    """Return states [..., h, n, d], also of grouped queries: [..., groups, heads of a group, n, d]."""
    return states.flatten(-4, -3) if states.ndim > maps.ndim else states


def arithmetic_type(device: torch.device) -> torch.dtype:
    """Return the type of all arithmetic on a device: float64, and float32 where there is no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_float64(device: torch.device) -> bool:
    """Return True for devices that calculate in float64."""
    return arithmetic_type(device) == torch.float64


def refuse_float32(attention: Tensor) -> None:
    """Raise NotOnDevice where maps lie on a device without float64, which a tight bound needs."""
    if not has_float64(attention.device):
        raise NotOnDevice


class Slab:
    """Some maps of a batch, [m, q, k], and what a measure asks about them; each answer is computed once.

    Attributes:
        maps: as the caller holds them, any of the four element types.
        lengths: keys of each map, int64 [m]; of square maps its tokens.
        support: "auto", "causal", "full", or bool [m, q, k].
        is_ragged: False if every map is known to have k keys and q queries.
        needs_entropy: whether the measure asks for entropies of rows.
        queries: of each map, int64 [m]; None: as many as it has keys.
        shift: query i stands at key i + shift, int64 [m]; None: at key i.
        query_positions: the key of each query where they do not follow each other, int64 [m, q]; below 0 for
            queries of cross attention, which stand at none.
    """

    def __init__(
        self,
        maps: Tensor,
        lengths: Tensor,
        support: str | Tensor,
        *,
        is_ragged: bool,
        needs_entropy: bool,
        queries: Tensor | None = None,
        shift: Tensor | None = None,
        query_positions: Tensor | None = None,
    ) -> None:
        self.maps, self.lengths, self.support = maps, lengths, support
        self.is_ragged, self.needs_entropy = is_ragged, needs_entropy
        self.queries, self.shift = lengths if queries is None else queries, shift
        self.query_positions = query_positions

    @property
    def n(self) -> int:
        """Number of keys."""
        return int(self.maps.shape[-1])

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The type of all arithmetic."""
        return arithmetic_type(self.maps.device)

    @functools.cached_property
    def positions(self) -> Tensor:
        return torch.arange(self.n, device=self.maps.device)

    @functools.cached_property
    def inside(self) -> Tensor:
        """True for keys that belong to their map, [m, k]."""
        return self.positions < self.lengths[:, None]

    @functools.cached_property
    def rows(self) -> Tensor:
        """Numbers of the queries, [q]."""
        return torch.arange(self.maps.shape[-2], device=self.maps.device)

    @functools.cached_property
    def rows_inside(self) -> Tensor:
        """True for queries that belong to their map, [m, q]."""
        return self.inside if self.shift is None else self.rows < self.queries[:, None]

    @functools.cached_property
    def places(self) -> Tensor:
        """The key at which each query stands, [q], or [m, q] where maps differ; below 0 where at none."""
        if self.query_positions is not None:
            return self.query_positions
        return self.rows if self.shift is None else self.rows + self.shift[:, None]

    @functools.cached_property
    def _block(self) -> Tensor:
        """True for the entries of each map's own block, [m, q, k]."""
        return self.rows_inside[:, :, None] & self.inside[:, None, :]

    @functools.cached_property
    def finite(self) -> Tensor:
        """True for maps without a NaN or infinite entry in their own block, [m]."""
        finite = self.maps.isfinite()
        if self.is_ragged:
            finite = finite | ~self._block
        return finite.flatten(1).all(-1)

    @functools.cached_property
    def wide(self) -> Tensor:
        """The maps in the type of the arithmetic; 0 outside their blocks and in maps that are not finite."""
        keep = self.finite[:, None, None]
        if self.is_ragged:
            keep = keep & self._block
        return torch.where(
            keep, self.maps, torch.zeros((), dtype=self.maps.dtype, device=self.maps.device)
        ).to(self.dtype)

    @functools.cached_property
    def causal(self) -> Tensor:
        """True for maps that are judged causal: everything above the diagonal is exactly 0, [m]."""
        if self.shift is None:
            above = self.wide.triu(1) != 0
        else:
            above = (self.wide != 0) & (self.positions > self.places[..., None])
        return ~above.flatten(1).any(-1) & (self.lengths >= 2)

    @functools.cached_property
    def seen(self) -> Tensor:
        """True where a query sees a key, [m, q, k]; always within the map's own block."""
        lower = self.places[..., None] >= self.positions
        if isinstance(self.support, Tensor):
            visible = self.support
        elif self.support == "causal":
            visible = lower.expand(self.maps.shape)
        elif self.support == "full":
            visible = torch.ones_like(lower).expand(self.maps.shape)
        else:
            visible = lower | ~self.causal[:, None, None]
        return visible & self._block if self.is_ragged else visible

    @functools.cached_property
    def attention(self) -> Tensor:
        """The maps in the type of the arithmetic, 0 where a key is not visible."""
        return torch.where(self.seen, self.wide, 0.0)

    @functools.cached_property
    def is_causal(self) -> Tensor:
        """True for maps whose queries see no later key, [m]; of a boolean support nothing is known."""
        if self.support == "causal":
            return torch.ones_like(self.finite)
        return self.causal if self.support == "auto" else torch.zeros_like(self.finite)

    @functools.cached_property
    def visible_keys(self) -> Tensor:
        """Number of keys that each query sees, [m, q]."""
        if isinstance(self.support, Tensor):
            return self.seen.sum(-1)
        earlier = self.places + 1
        if self.shift is not None:
            earlier = torch.minimum(earlier.clamp(min=0), self.lengths[:, None])
        count = torch.where(self.is_causal[:, None], earlier, self.lengths[:, None])
        return torch.where(self.rows_inside, count, 0)

    @functools.cached_property
    def visible_queries(self) -> Tensor:
        """Number of queries that see each key, [m, k]."""
        if isinstance(self.support, Tensor):
            return self.seen.sum(-2)
        queries = self.queries[:, None]
        if self.shift is None:
            later = queries - self.positions
        else:
            later = queries - torch.minimum((self.positions - self.shift[:, None]).clamp(min=0), queries)
        count = torch.where(self.is_causal[:, None], later, queries)
        return torch.where(self.inside, count, 0)

    @functools.cached_property
    def key_mass(self) -> Tensor:
        """Attention that each key receives from all queries, [m, k]."""
        return sum_along(self.attention, -2)

    @functools.cached_property
    def row_entropy(self) -> Tensor:
        """−Σ_j A_ij log A_ij of every row in nats, [m, q]; a negative entry makes its row NaN."""
        return -sum_along(torch.xlogy(self.attention, self.attention))

    def first_keys(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first `count` columns of the maps, wide, and where they are seen, [m, q, count]."""
        keys = self.positions[:count]
        if isinstance(self.support, Tensor):
            seen = self.seen[..., :count]
        else:
            seen = (self.places[..., None] >= keys) | ~self.is_causal[:, None, None]
            seen = seen & self.rows_inside[:, :, None] & self.inside[:, None, :count]
        entries = torch.where(seen & self.finite[:, None, None], self.maps[..., :count].to(self.dtype), 0.0)
        return entries, seen

    def at_queries(self, keys: Tensor) -> Tensor:
        """Return flags of keys [m, k] for the queries that stand at them, [m, q]; False for all others."""
        if self.shift is None:
            return keys
        places = self.places.expand(self.maps.shape[:2])
        at_key = (places >= 0) & (places < self.n)
        return keys.gather(-1, places.clamp(0, self.n - 1)) & at_key

    def undefined_outside(self, columns: Tensor) -> Tensor:
        """Return numbers per key [m, k] with NaN behind the lengths and in maps that are not finite."""
        return torch.where(self.inside & self.finite[:, None], columns, math.nan)

    def places_of_values(self) -> Tensor:
        """Return which of min(q, k) singular values each map has, bool [m, min(q, k)]."""
        most = min(self.maps.shape[-2:])
        return (
            torch.arange(most, device=self.maps.device) < torch.minimum(self.lengths, self.queries)[:, None]
        )

    def undefined_outside_rows(self, rows: Tensor) -> Tensor:
        """Return numbers per query [m, q] with NaN behind each map's queries and in maps not finite."""
        return torch.where(self.rows_inside & self.finite[:, None], rows, math.nan)

    def undefined_where_not_finite(self, values: Tensor) -> Tensor:
        """Return numbers per map [m, ...] with NaN in maps that are not finite."""
        return torch.where(self.finite.reshape(-1, *[1] * (values.ndim - 1)), values, math.nan)
