# SPDX-License-Identifier: MIT
"""A checked argument of maps [..., q, k]: its tensor, its lengths, and where its queries stand.

In self-attention every query stands at a key: at the last keys of the map unless the caller says otherwise,
as with a cache. The queries of cross attention stand at no key. A square map of self-attention is the
rectangle with q = k, for which nothing but its length is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.arguments.host_copies import host_copy
from attnscope.arguments.transforms import is_transformed
from attnscope.arguments.unmaterialized import Unmaterialized


class Extent(NamedTuple):
    """The size and the places of rectangles as the core takes them.

    Attributes:
        keys: of each map, int64 [...]; None: all.
        queries: likewise.
        positions: the key of each query, int64 [..., q]; None: the last keys of each map.
        cross: queries stand at no key.
    """

    keys: Tensor | None
    queries: Tensor | None
    positions: Tensor | None
    cross: bool


class Places(NamedTuple):
    """The arguments `query_positions` and `query_lengths` of a metric, not yet checked, and `cross`."""

    positions: Any = None
    lengths: Any = None
    cross: bool = False

    @property
    def is_default(self) -> bool:
        """True where the caller set none of them."""
        return self.positions is None and self.lengths is None and not self.cross


#: Queries at the last keys, all of them real.
DEFAULT_PLACES = Places()


class Queries(NamedTuple):
    """The checked places of the queries of maps.

    Attributes:
        lengths: real queries of each map, int64 [...]; None: all.
        positions: the key of each query, int64 [..., q], contiguous; None: the last keys of each map.
        cross: queries stand at no key.
    """

    lengths: Tensor | None
    positions: Tensor | None
    cross: bool


class Attention(NamedTuple):
    """A checked argument: the tensor [..., q, k] as the core reads it, and one length per matrix or None.

    `queries` is None for square maps of self-attention, whose lengths count queries and keys alike.
    `is_plain` says that the tensor is known to be in the CPU's memory and to take part in no gradient.
    """

    tensor: Tensor
    lengths: Tensor | None
    queries: Queries | None = None
    is_plain: bool = False

    @property
    def n(self) -> int:
        """Number of keys."""
        return int(self.tensor.shape[-1])

    @property
    def query_count(self) -> int:
        return int(self.tensor.shape[-2])

    @property
    def sizes(self) -> Tensor | None:
        """Number of keys of each matrix [...], None where it is n; lazy attention brings its own."""
        if self.lengths is None and isinstance(self.tensor, Unmaterialized):
            lengths: Tensor = self.tensor.visibility.lengths
            return lengths
        return self.lengths

    @property
    def leading(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-2])

    @property
    def query_lengths(self) -> Tensor | None:
        """Queries of each matrix [...], None where all are real."""
        return self.lengths if self.queries is None else self.queries.lengths

    @property
    def cross(self) -> bool:
        """True where queries stand at no key of the map."""
        return self.queries is not None and self.queries.cross

    @property
    def extent(self) -> Tensor | Extent | None:
        """Lengths and places as the core takes them."""
        if self.queries is None:
            return self.lengths
        return Extent(self.lengths, self.queries.lengths, self.queries.positions, self.queries.cross)

    def places(self) -> Tensor:
        """Return the key at which each query stands, int64, broadcast against [..., q]."""
        if self.queries is None:
            return torch.arange(self.n, device="cpu")
        if self.queries.positions is not None:
            return self.queries.positions
        keys: Any = self.n if self.lengths is None else self.lengths[..., None]
        count: Any = self.query_count
        if self.queries.lengths is not None:
            count = self.queries.lengths[..., None]
        return torch.arange(self.query_count, device="cpu") + (keys - count)

    def support_in_words(self, function: str, support: str) -> str | Tensor:
        """Return "auto", "causal" or "full" as the core takes it for these queries.

        Queries that do not follow each other are no causal map to the core, which gets a mask.

        Raises:
            ValueError: "causal" in cross attention.
        """
        if self.queries is None or support == "full":
            return support
        if self.cross:
            if support == "causal":
                raise ValueError(f"{function}: in cross attention nothing is causal, got support='causal'")
            return "full"
        positions = self.queries.positions
        if positions is None or bool((positions.diff(dim=-1) == 1).all()):
            return support
        seen = torch.arange(self.n, device="cpu") <= positions[..., None]
        if support == "auto":
            if is_transformed(self.tensor):
                raise ValueError(
                    f"{function}: support='auto' cannot look at entries inside torch.vmap or torch.func for "
                    "queries that do not follow each other; give the support"
                )
            behind = (host_copy(self.tensor.detach()) != 0) & ~seen
            behind &= self.queries_inside()[..., None] & self.inside()[..., None, :]
            seen = seen | behind.any(-1).any(-1)[..., None, None]
        return seen

    @property
    def layers(self) -> Attention:
        """The same for heads [..., h, n, n], counted by layers in warnings."""
        if isinstance(self.tensor, Unmaterialized):
            return Attention(self.tensor.select_heads([0]), None)
        return Attention(self.tensor[..., 0, :, :], None)

    def inside(self) -> Tensor:
        """Return which keys are within the lengths, bool [..., k]; lazy attention brings lengths too."""
        inside = self._within(self.n, self.lengths)
        if isinstance(self.tensor, Unmaterialized):
            inside = inside & self._within(self.n, self.tensor.visibility.lengths)
        return inside

    def queries_inside(self) -> Tensor:
        """Return which queries are within the lengths, bool [..., q]; lazy attention brings lengths too."""
        inside = self._within(self.query_count, self.query_lengths)
        if isinstance(self.tensor, Unmaterialized):
            inside = inside & self.tensor.visibility.real
        return inside

    def _within(self, size: int, lengths: Tensor | None) -> Tensor:
        place = torch.arange(size, device="cpu")
        within = place >= 0 if lengths is None else place < lengths[..., None]
        return within.expand(*self.leading, size)


def place_queries(
    function: str, positions: Tensor | None, lengths: Tensor | None, cross: bool, attention: Attention
) -> Queries:
    """Return where the queries of checked maps stand.

    Args:
        function: whose error it would be.
        positions: the key of each query, int64 [..., q], or None.
        lengths: real queries of each map, or None: those that stand at a real key.
        cross: queries stand at no key.
        attention: the maps, with the lengths of their keys.

    Raises:
        ValueError: places that contradict each other or do not lie in the maps.
    """
    count, keys = attention.query_count, attention.n
    if positions is not None:
        if cross:
            raise ValueError(f"{function}: queries of cross attention have no position, got query_positions")
        if len(outside := positions[(positions < 0) | (positions >= keys)]):
            raise ValueError(
                f"{function}: query_positions must lie between 0 and {keys - 1}, the last key, got "
                f"{int(outside[0])}"
            )
    elif not cross and lengths is None and count > keys:
        raise ValueError(
            f"{function}: {count} queries cannot stand at the last of {keys} keys; give cross=True for cross "
            "attention, or query_positions"
        )
    if lengths is None and attention.lengths is not None and not cross:
        lengths = _queries_at_real_keys(function, positions, attention)
    if positions is None and not cross and lengths is not None:
        real_keys = torch.tensor(keys, device="cpu") if attention.lengths is None else attention.lengths
        real_keys = real_keys.expand(lengths.shape)
        if bool((longer := lengths > real_keys).any()):
            sizes = f"{int(lengths[longer][0])} queries and {int(real_keys[longer][0])} keys"
            raise ValueError(
                f"{function}: a map of {sizes} has no last key for each query; give cross=True for cross "
                "attention, or query_positions"
            )
    return Queries(None if lengths is None else lengths.contiguous(), positions, cross)


def _queries_at_real_keys(function: str, positions: Tensor | None, attention: Attention) -> Tensor:
    """Return how many leading queries of each map stand at a key within the map's length."""
    assert attention.lengths is not None
    if positions is not None:
        is_real = positions < attention.lengths[..., None]
        leading = is_real.cumprod(-1)
        if bool((behind := is_real & (leading == 0)).any()):
            raise ValueError(
                f"{function}: queries at padding must come last, got query_positions with a query at key "
                f"{int(positions[behind][0])} behind one at padding; give query_lengths"
            )
        return leading.sum(-1)
    hidden = attention.n - attention.query_count
    return (attention.lengths - hidden).clamp(0, attention.query_count)
