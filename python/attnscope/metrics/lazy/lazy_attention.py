# SPDX-License-Identifier: MIT
"""Attention of queries and keys whose map never exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.gradients.dispatch import followed_tensor, without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.lazy.arguments import (
    Bias,
    Window,
    bias_argument,
    check_shapes,
    first_tile,
    lengths_of_maps,
    per_head_argument,
    positions_argument,
    slice_argument,
    vectors_argument,
    window_argument,
)
from attnscope.metrics.lazy.device_pass import measure_on_device
from attnscope.metrics.lazy.passes import (
    FUNCTIONS,
    HEAD_MEAN,
    ROW_MEASURES,
    SHARED,
    Key,
    Noted,
    find_shared,
    join_slabs,
    select_compatible,
)
from attnscope.metrics.lazy.visibility import Visibility, visibility_of

_NAME = "LazyAttention"
_LOG_Z: Key = ("log_z", None)

#: Decorates what measures queries and keys: a loss takes the map, whose measures have derivatives.
_without_derivative = without_derivative("it gives values alone; a loss needs the map", _NAME)

#: Bytes of a callable bias that are evaluated together.
_BIAS_BYTES = 8 << 20
#: Entries of all maps in a slab of rows.
_SLAB_ENTRIES = 1 << 21
#: Tokens of a block of the diagonal.
_DIAGONAL = 128
#: Columns of a transposed product are a multiple of this.
_CHANNELS = 16
#: Queries of a slab are a multiple of the queries that the kernel works on together.
_SLAB = 32


@shown_by_shape
class TopKeys(NamedTuple):
    """The keys of largest weight of every query [..., h, q, k]; behind the visible ones weight 0, key −1."""

    weights: Tensor
    keys: Tensor


@shown_by_shape
class SparseAttention(NamedTuple):
    """Entries of at least a threshold, in the order of queries and keys.

    offsets [..., h, q + 1]: int64, where a query's entries begin in the two lists. keys, weights [m]: int32
    and float64.
    """

    offsets: Tensor
    keys: Tensor
    weights: Tensor


class LazyAttention(Unmaterialized):
    """Attention [..., h, q, k] of queries and keys, measured tile by tile.

    A score is scaling·query·key, capped to softcap·tanh(score/softcap), plus the bias; a query's weights are
    the softmax over its visible keys, and a learned sink joins the denominator only. Queries and keys are
    read in place, nothing of size q·k is allocated, and nothing can be set after the object is made.

    Args:
        query: [..., h, q, d], float16, bfloat16, float32 or float64: a tensor, a NumPy array, or what speaks
            DLPack; any strides.
        key: [..., kv, k, d] of the same leading axes; kv divides h (grouped queries).
        scaling: of the products; None: 1/√d.
        causal: a query sees no key behind its position.
        window: query i sees key j only if i − window < j; of a pair (before, after) only if i − before <= j
            <= i + after, where None is no bound. The attributes are `window` (before + 1) and `after`.
        bias: ALiBi slopes [h] (the score loses slope·|i − j|), a float tensor that broadcasts to
            [..., h, q, k], or a function (queries, keys) of their numbers, int64, that returns such a tile.
        softcap: c of c·tanh(score/c).
        sink_logits: [h], of a learned sink: rows then sum to less than one. −inf: none; +inf, as NaN, makes
            the results of its head NaN.
        mask: bool, broadcasts to [..., h, q, k]; True is visible.
        lengths: keys that exist, broadcast against [...] or [..., h]; what is behind them is padding.
        query_positions: int64 [q] or [..., q], positions of the queries among the k keys; None: the last
            query is at the last key. A query behind the `lengths` of its map, or at k, is padding.
        log_z: a known log Z [..., h, q] for `rows`, `tile` and `dense`; measures take their own.
        precision: "fast" (float32 products, float64 sums over rows; relative error of a weight about 1e-6 +
            3e-7·max|score|), "exact" (float64), None: exact for float64 inputs.

    Raises:
        TypeError, ValueError: what does not fit together, with the sizes.

    Example:
        Equal keys: query i spreads over i + 1 keys.

        >>> import torch, attnscope as asc
        >>> lazy = asc.LazyAttention(torch.ones(2, 4, 8), torch.zeros(2, 4, 8))
        >>> lazy
        LazyAttention(shape=(2, 4, 4), causal, precision='fast')
        >>> asc.attention_entropy(lazy, base=2)[0].round(decimals=6)
        tensor([0.0000, 1.0000, 1.5850, 2.0000], dtype=torch.float64)
    """

    __slots__ = (
        "_bias",
        "_host_views",
        "_log_z",
        "_mask",
        "_numbers",
        "_slopes",
        "_visibility",
        "after",
        "causal",
        "followed",
        "heads",
        "key",
        "lengths",
        "precision",
        "query",
        "query_positions",
        "scaling",
        "sink_logits",
        "softcap",
        "window",
    )

    query: Tensor
    key: Tensor
    causal: bool
    window: int | None
    after: int | None
    scaling: float
    softcap: float | None
    sink_logits: Tensor | None
    lengths: Tensor | None
    query_positions: Tensor | None
    precision: str
    heads: int
    followed: Tensor | None
    _bias: Bias
    _host_views: tuple[Tensor, Tensor] | None
    _log_z: Tensor | None
    _mask: Tensor | None
    _numbers: Tensor
    _slopes: Tensor | None
    _visibility: Visibility

    def __init__(
        self,
        query: Any,
        key: Any,
        *,
        scaling: float | None = None,
        causal: bool = True,
        window: Window = None,
        bias: Bias = None,
        softcap: float | None = None,
        sink_logits: Any = None,
        mask: Any = None,
        lengths: _checks.Lengths = None,
        query_positions: Any = None,
        log_z: Any = None,
        precision: str | None = None,
    ) -> None:
        set_field = super().__setattr__
        sources = (query, key, first_tile(bias), sink_logits, log_z, scaling, softcap)
        set_field("followed", followed_tensor(sources))
        query, key = (vectors_argument(name, value) for name, value in (("query", query), ("key", key)))
        check_shapes(query, key)
        *leading, heads, queries, width = query.shape
        keys = key.shape[-2]
        shape = (*leading, heads, queries, keys)
        if precision is None:
            precision = "exact" if torch.float64 in (query.dtype, key.dtype) else "fast"
        set_field("precision", scalars.choice_argument(_NAME, "precision", precision, ("fast", "exact")))
        set_field("query", query)
        set_field("key", key)
        set_field("heads", heads)
        set_field("causal", scalars.flag(_NAME, "causal", causal))
        for side, tokens in zip(("window", "after"), window_argument(window), strict=True):
            set_field(side, tokens)
        set_field("scaling", width**-0.5 if scaling is None else scalars.finite(_NAME, "scaling", scaling))
        set_field("softcap", None if softcap is None else scalars.positive(_NAME, "softcap", softcap))
        slopes, bias = bias_argument(bias, shape)
        sinks = None if sink_logits is None else per_head_argument("sink_logits", sink_logits, heads)
        set_field("sink_logits", sinks)
        set_field("_slopes", slopes)
        set_field("_bias", bias)
        seen = None
        if mask is not None:
            flags = _checks.flags_argument(
                _NAME, "mask", mask, shape, "does not broadcast to attention of shape"
            )
            seen = flags.expand(shape)
        set_field("_mask", seen)
        lengths_of_heads = None if lengths is None else lengths_of_maps(lengths, shape)
        set_field("lengths", lengths_of_heads)
        positions = None if query_positions is None else positions_argument(query_positions, shape)
        set_field("query_positions", positions)
        log_sums = None if log_z is None else _checks.float_tensor(_NAME, "log_z", log_z).double().cpu()
        if log_sums is not None:
            log_sums = _checks.expanded(f"{_NAME}: log_z", log_sums, shape[:-1]).contiguous()
        set_field("_log_z", log_sums)
        set_field("_numbers", self._numbers_of_heads())
        set_field("_host_views", None)
        places = (lengths_of_heads, positions, self.causal, self.window, self.after, seen)
        set_field("_visibility", visibility_of(shape, *places))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"LazyAttention cannot be changed: {name} is set when it is made")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"LazyAttention cannot be changed: {name} is set when it is made")

    def __repr__(self) -> str:
        words = [f"shape={tuple(self.shape)}"]
        words += ["causal"] * self.causal
        numbers = {name: getattr(self, name) for name in ("window", "after", "softcap")}
        words += [f"{name}={value}" for name, value in numbers.items() if value is not None]
        words += ["bias"] * (self._slopes is not None or self._bias is not None)
        words += ["sink_logits"] * (self.sink_logits is not None) + ["mask"] * (self._mask is not None)
        return f"LazyAttention({', '.join(words)}, precision={self.precision!r})"

    @property
    def shape(self) -> torch.Size:
        """Shape of the map: [..., h, q, k]."""
        return torch.Size((*self.query.shape[:-1], self.key.shape[-2]))

    @property
    def ndim(self) -> int:
        """Number of axes of the map."""
        return self.query.ndim

    @property
    def slopes(self) -> Tensor | None:
        """ALiBi slopes [h], or None."""
        return self._slopes

    @property
    def is_plain(self) -> bool:
        """True if causal, window, softcap, slopes, learned sinks and lengths say all of the scores."""
        return self._bias is None and self._mask is None and self.query_positions is None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights: float64."""
        return torch.float64

    @property
    def visibility(self) -> Visibility:
        """The keys that each query sees."""
        return self._visibility

    @property
    def sizes(self) -> Tensor:
        """Keys of each map that exist, int64 [..., h]."""
        return self._visibility.lengths

    @property
    @_without_derivative
    def log_z(self) -> Tensor:
        """Logarithm of each query's sum over visible keys and the learned sink, float64 [..., h, q]."""
        return self.take([("log_z", None)])[0]

    @property
    @_without_derivative
    def sink_mass(self) -> Tensor:
        """Mass that the learned sink takes of each row, float64 [..., h, q]; 0 without one."""
        if self.sink_logits is None:
            return torch.where(self._visibility.real, 0.0, torch.nan)
        return torch.exp((self.sink_logits[:, None] - self.log_z).clamp(max=0))

    @property
    def T(self) -> TransposedAttention:
        """The transposed map, for products."""
        return TransposedAttention(self)

    @_without_derivative
    def row_measures(self, names: Sequence[str] | str = ROW_MEASURES) -> dict[str, Tensor]:
        """Measures of every query from one pass, each float64 [..., h, q], NaN for padding.

        Args:
            names: of "log_z", "entropy" (nats), "collision" (Σ A²), "largest", "distance" (Σ A·|i − j|) and
                "mass" (Σ A).

        Raises:
            ValueError: an unknown name.
        """
        chosen_names = [names] if isinstance(names, str) else list(names)
        for name in chosen_names:
            scalars.choice_argument("row_measures", "names", name, ROW_MEASURES)
        return dict(zip(chosen_names, self.take([(name, None) for name in chosen_names]), strict=True))

    @_without_derivative
    def top(self, k: int = 8) -> TopKeys:
        """Return the k keys of largest weight of every query, larger weights and then earlier keys first."""
        k = scalars.at_least("LazyAttention.top", "k", k, 1)
        weights, keys = self.take([("top_weights", k), ("top_keys", k)])
        return TopKeys(weights, keys)

    @_without_derivative
    def at_least(self, threshold: float) -> SparseAttention:
        """Return the entries of at least a threshold: q/threshold at most, because rows sum to one."""
        threshold = scalars.fraction_argument("LazyAttention.at_least", "threshold", threshold)
        counts, keys, weights = self.take([(name, threshold) for name in ("counts", "keys", "weights")])
        shape = (*counts.shape[:-1], 1)
        ends = counts.flatten().cumsum(0).reshape(counts.shape)
        start = ends[..., :1] - counts[..., :1]
        return SparseAttention(torch.cat([start.reshape(shape), ends], -1), keys, weights)

    def rows(self, queries: slice | int) -> Tensor:
        """Return rows of the map, float64 [..., h, rows, k]; NaN for queries of padding."""
        return self.tile(queries, slice(None))

    @_without_derivative
    def tile(self, queries: slice | int, keys: slice | int) -> Tensor:
        """Return a part of the map, float64 [..., h, queries, keys]."""
        rows, columns = (
            slice_argument("queries", queries, self.shape[-2]),
            slice_argument("keys", keys, self.shape[-1]),
        )
        weigh: Any = _core.lazy_weights
        parts = []
        log_z = self._log_z if self._log_z is not None else self.log_z
        for begin, end, bias, positions in self._slabs(rows.start, rows.stop):
            inside = (max(begin, rows.start) - begin, min(end, rows.stop) - begin)
            sums = log_z[..., begin:end].contiguous()
            arguments = self._arguments(begin, end, bias, positions)
            place = (*inside, columns.start, columns.stop)
            parts.append(weigh(*arguments, sums, *place))
        part = torch.cat(parts, -2)
        return part.reshape(*self.shape[:-2], *part.shape[-2:])

    def dense(self) -> Tensor:
        """Return the whole map, float64 [..., h, q, k]; NaN for queries of padding."""
        return self.tile(slice(None), slice(None))

    @_without_derivative
    def diagonal(self) -> Tensor:
        """Return the attention of every token to itself, float64 [..., h, n]; NaN for padding.

        Raises:
            ValueError: a map that is not square.
        """
        queries, keys = self.shape[-2:]
        if queries != keys or self.query_positions is not None:
            places = "" if self.query_positions is None else " and query_positions"
            raise ValueError(
                "LazyAttention.diagonal: the map must be square, with queries at their own keys, got "
                f"{queries} x {keys}{places}"
            )
        attention = self.with_log_z(self.log_z)
        blocks = (slice(begin, begin + _DIAGONAL) for begin in range(0, keys, _DIAGONAL))
        return torch.cat([attention.tile(block, block).diagonal(dim1=-2, dim2=-1) for block in blocks], -1)

    @_without_derivative
    def head_mean_entropy(self) -> Tensor:
        """Return the entropy (nats) of the mean of the heads at every query, float64 [..., q]."""
        entropy = torch.empty((*self.shape[:-3], self.shape[-2]), dtype=torch.float64, device="cpu")
        for begin, maps in self.row_slabs():
            entropy[..., begin : begin + maps.shape[-2]] = torch.special.entr(maps.mean(-3)).sum(-1)
        return entropy

    def row_slabs(self) -> Iterator[tuple[int, Tensor]]:
        """Yield rows of all maps, float64 [..., h, r, k], with the number of the first query."""
        *leading, queries, keys = self.shape
        step = max(1, _SLAB_ENTRIES // (keys * math.prod(leading)))
        attention = self.with_log_z(self.log_z)
        for begin in range(0, queries, step):
            yield begin, attention.rows(slice(begin, begin + step))

    def __matmul__(self, x: Any) -> Tensor:
        """Return the product of the map with x [..., h, k, c], or [k, c], float64 [..., h, q, c]."""
        return _product(self, x, transposed=False)

    def with_lengths(self, lengths: _checks.Lengths) -> LazyAttention:
        """Return the same attention with other lengths."""
        return self._replaced(lengths=lengths)

    def with_log_z(self, log_z: Tensor) -> LazyAttention:
        """Return the same attention with its log Z at hand, for many tiles."""
        return self._replaced(log_z=log_z)

    def select_heads(self, heads: Sequence[int]) -> LazyAttention:
        """Return the attention of some query heads, each with its own copy of the keys it reads."""
        chosen = list(heads)
        group = self.heads // self.key.shape[-3]
        keys = [head // group for head in chosen]
        bias = self._bias
        if isinstance(bias, Tensor):
            bias = bias[..., chosen, :, :]
        elif bias is not None:
            function = bias

            def bias_of_heads(queries: Tensor, columns: Tensor) -> Tensor:
                shape = (*self.shape[:-2], len(queries), len(columns))
                return function(queries, columns).expand(shape)[..., chosen, :, :]

            bias = bias_of_heads
        return self._replaced(
            query=self.query[..., chosen, :, :],
            key=self.key[..., keys, :, :],
            bias=bias if self._slopes is None else self._slopes[chosen],
            sink_logits=None if self.sink_logits is None else self.sink_logits[chosen],
            mask=None if self._mask is None else self._mask[..., chosen, :, :],
            lengths=self.sizes[..., chosen] if self.lengths is not None else None,
            query_positions=None if self.query_positions is None else self.query_positions[..., chosen, :],
        )

    def select_texts(self, texts: Sequence[int]) -> LazyAttention:
        """Return the attention of some texts of a batch [batch, h, q, k]."""
        chosen = list(texts)
        bias: Any = self._bias
        if isinstance(bias, Tensor):
            bias = bias[chosen]
        elif bias is not None:
            function = bias

            def bias_of_texts(queries: Tensor, columns: Tensor) -> Tensor:
                shape = (*self.shape[:-2], len(queries), len(columns))
                return function(queries, columns).expand(shape)[chosen]

            bias = bias_of_texts
        return self._replaced(
            query=self.query[chosen],
            key=self.key[chosen],
            bias=bias if self._slopes is None else self._slopes,
            mask=None if self._mask is None else self._mask[chosen],
            lengths=None if self.lengths is None else self.sizes[chosen],
            query_positions=None if self.query_positions is None else self.query_positions[chosen],
        )

    def select_map(self, index: Sequence[int], length: int) -> LazyAttention:
        """Return one map [1, length, length] of a square attention, exact and without padding."""
        *leading, head = index
        kv_head = head // (self.heads // self.key.shape[-3])
        tokens, heads = slice(length), slice(head, head + 1)
        of_head: tuple[Any, ...] = (*leading, heads)
        of_rows, of_map = (*of_head, tokens), (*of_head, tokens, tokens)
        of_keys: tuple[Any, ...] = (*leading, slice(kv_head, kv_head + 1), tokens)
        bias: Any = self._bias
        if isinstance(bias, Tensor):
            bias = bias[of_map]
        elif bias is not None:
            function = bias

            def bias_of_map(queries: Tensor, columns: Tensor) -> Tensor:
                shape = (*self.shape[:-2], len(queries), len(columns))
                return function(queries, columns).expand(shape)[of_head]

            bias = bias_of_map
        return self._replaced(
            query=self.query[of_rows],
            key=self.key[of_keys],
            bias=bias if self._slopes is None else self._slopes[heads],
            sink_logits=None if self.sink_logits is None else self.sink_logits[heads],
            mask=None if self._mask is None else self._mask[of_map],
            lengths=None,
            precision="exact",
        )

    def uniform(self) -> LazyAttention:
        """Return attention with the same visibility and equal weights."""
        query, key = (part.new_zeros(*part.shape[:-1], 1).float() for part in (self.query, self.key))
        return self._replaced(query=query, key=key, bias=None, softcap=None, sink_logits=None)

    def take(self, keys: Sequence[Key]) -> list[Tensor]:
        """Return results of passes by name and option, [..., h, ...]; those at hand are not made again."""
        shared = SHARED.get()
        if shared is None:
            results = self._measure(dict.fromkeys(keys))
            return [results[key] for key in keys]
        shared.derived.setdefault((id(self), ""), self)  # its id stays its own
        noted = shared.noted.setdefault(id(self), {})
        if shared.collecting[0]:
            noted |= dict.fromkeys(keys)
            raise Noted
        if any((id(self), key) not in shared.results for key in keys):
            noted |= dict.fromkeys(keys)
            missing = {key: None for key in noted if (id(self), key) not in shared.results}
            shared.results.update({(id(self), key): value for key, value in self._measure(missing).items()})
        return [shared.results[id(self), key] for key in keys]

    def measure(self, function: str) -> Callable[..., Any] | None:
        """Return a function of the core for lazy attention, None where it has none."""
        computed = FUNCTIONS.get(function)
        return computed if computed is None or self.followed is None else _without_derivative(computed)

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        """Return the product with a checked x [..., h, rows, c], float64."""
        dtype = torch.float64 if self.precision == "exact" else torch.float32
        channels = x.shape[-1]
        if transposed:
            padding = -channels % _CHANNELS
            left = torch.nn.functional.pad(x.to(dtype), (0, padding)).contiguous()
            return self._pass(["transposed_product"], left=left)["transposed_product"][..., :channels]
        right = x.to(dtype).transpose(-1, -2).contiguous()
        return self._pass(["product"], right=right)["product"]

    def multiply_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of the map and of its transpose with x [..., h, n, c], in one pass."""
        dtype = torch.float64 if self.precision == "exact" else torch.float32
        channels = x.shape[-1]
        left = torch.nn.functional.pad(x.to(dtype), (0, -channels % _CHANNELS)).contiguous()
        right = x.to(dtype).transpose(-1, -2).contiguous()
        products = self._pass(["product", "transposed_product"], right=right, left=left)
        return products["product"], products["transposed_product"][..., :channels]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return of what copies and pickles are made: they are new objects, because none can be changed."""
        options = self._options() | {"log_z": self._log_z}
        # a stand-in is refused a gradient as the tensor itself is, which need not be one that torch copies
        followed = None if self.followed is None else torch.zeros(0, requires_grad=True, device="cpu")
        return _restored, (self.query, self.key, options, followed)

    def _options(self) -> dict[str, Any]:
        """Return the arguments by name, but for log Z, which is of these queries and keys alone."""
        return {
            "scaling": self.scaling,
            "causal": self.causal,
            "window": self._window_argument(),
            "bias": self._slopes if self._slopes is not None else self._bias,
            "softcap": self.softcap,
            "sink_logits": self.sink_logits,
            "mask": self._mask,
            "lengths": self.lengths,
            "query_positions": self.query_positions,
            "precision": self.precision,
        }

    def _replaced(self, **changes: Any) -> LazyAttention:
        query, key = changes.pop("query", self.query), changes.pop("key", self.key)
        return _restored(query, key, {**self._options(), **changes}, self.followed)

    def _window_argument(self) -> Window:
        """Return the window as it is given."""
        if self.after is None:
            return self.window
        return (None if self.window is None else self.window - 1, self.after)

    def _numbers_of_heads(self) -> Tensor:
        """Return scaling, softcap, slope and learned sink of each head, [..., h, 4]."""
        columns = (
            torch.full((self.heads,), self.scaling, dtype=torch.float64, device="cpu"),
            torch.full((self.heads,), self.softcap or 0.0, dtype=torch.float64, device="cpu"),
            torch.zeros(self.heads, dtype=torch.float64, device="cpu")
            if self._slopes is None
            else self._slopes,
            torch.full((self.heads,), -math.inf, dtype=torch.float64, device="cpu")
            if self.sink_logits is None
            else self.sink_logits,
        )
        return torch.stack(columns, -1).expand(*self.shape[:-2], 4).contiguous()

    def _slabs(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, int, Tensor | None, Any]]:
        """Yield queries measured together, their bias and positions: all, except of a callable bias."""
        queries, keys = self.shape[-2:]
        bias = self._bias
        if not callable(bias):
            yield 0, queries, bias, self.query_positions
            return
        size = _BIAS_BYTES // (4 * max(1, keys * math.prod(self.shape[:-2])))
        size = max(1, size // _SLAB) * _SLAB
        # at least one, so that an empty part has its shape
        last = queries if last is None else max(last, first + 1)
        positions = self._visibility.positions
        for begin in range(first // _SLAB * _SLAB, last, size):
            end = min(begin + size, queries)
            number = torch.arange(begin, end, device="cpu")
            tile = _checks.float_tensor(_NAME, "bias", bias(number, torch.arange(keys, device="cpu"))).cpu()
            shape = (*self.shape[:-2], end - begin, keys)
            tile = _checks.expanded(f"{_NAME}: bias", tile, shape, "does not broadcast to the tile of shape")
            yield begin, end, tile, positions[..., begin:end]

    def _arguments(
        self, begin: int, end: int, bias: Tensor | None, positions: Tensor | None
    ) -> tuple[Any, ...]:
        mask = self._mask
        where = None
        if positions is not None:
            where = positions.expand(*self.shape[:-2], end - begin).contiguous()
        query, key = self._on_host()
        return (
            query[..., begin:end, :],
            key,
            self._numbers,
            self.sizes,
            where,
            None if bias is None else self._split_heads(bias),
            None if mask is None else self._split_heads(mask[..., begin:end, :]),
            self.causal,
            self.window or 0,
            -1 if self.after is None else self.after,
            self.precision == "exact",
        )

    def _split_heads(self, maps: Tensor) -> Tensor:
        """Return maps [..., h, q, k] as [..., key heads, queries of each, q, k]."""
        groups = self.key.shape[-3]
        return maps.view(*maps.shape[:-3], groups, self.heads // groups, *maps.shape[-2:])

    def _on_host(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys as the core reads them, [..., key heads, queries of each, tokens, d].

        Vectors on an accelerator are copied once, when the core first asks for them.
        """
        if self._host_views is None:
            query, key = _checks.to_host(self.query), _checks.to_host(self.key)
            groups = key.shape[-3]
            group_size = self.heads // groups
            query = query.view(*query.shape[:-3], groups, group_size, *query.shape[-2:])
            key = key.unsqueeze(-3).expand(*key.shape[:-2], group_size, *key.shape[-2:])
            super().__setattr__("_host_views", (query, key))
            return query, key
        return self._host_views

    def _measure(self, keys: dict[Key, None]) -> dict[Key, Tensor]:
        """Return results of as few passes as their options allow, of heads and of their mean."""
        of_mean = [key for name, key in keys if name == HEAD_MEAN]
        log_z = find_shared(self, _LOG_Z) if of_mean else None
        of_heads = {key: None for key in keys if key[0] != HEAD_MEAN}
        if of_heads or (of_mean and log_z is None):
            of_heads[_LOG_Z] = None  # of every pass, because the mean may be asked for later
        results = measure_on_device(self, of_heads)
        results |= self._measure_on_host([key for key in of_heads if key not in results])
        if of_mean:
            log_z = results[_LOG_Z] if log_z is None else log_z
            of_layer = self._measure_on_host(of_mean, log_z)
            results |= {(HEAD_MEAN, key): value for key, value in of_layer.items()}
        return results

    def _measure_on_host(self, keys: Sequence[Key], log_z: Tensor | None = None) -> dict[Key, Tensor]:
        """Return results of the core's passes: of heads, or of their mean where log Z of heads is given."""
        results: dict[Key, Tensor] = {}
        firsts = sorted({option for name, option in keys if name == "first"})
        pending = [key for key in keys if key[0] != "first"]
        first_names = ["first"] if firsts else []
        while pending or first_names:
            chosen = select_compatible(pending)
            pending = [key for key in pending if key not in chosen]
            raw = self._pass(
                [*first_names, *dict.fromkeys(name for name, _ in chosen)], firsts, chosen, log_z=log_z
            )
            for place, first in enumerate(firsts if first_names else ()):
                results["first", first] = raw["first"][..., place]
            for name, option in chosen:
                value = raw[name]
                results[name, option] = value.squeeze(-1) if name in ("near", "beyond") else value
            first_names = []
        return results

    def _pass(
        self,
        names: list[str],
        firsts: Sequence[int] = (),
        chosen: Sequence[Key] = (),
        right: Tensor | None = None,
        left: Tensor | None = None,
        log_z: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Visit all visible pairs once, a slab of queries after another where a function gives the bias.

        With log Z of the heads, results are those of their mean, of one head.
        """
        options = {name: option for name, option in chosen}
        near: Any = options.get("near", options.get("beyond"))
        far = options.get("far_mass", options.get("far_incoming"))
        nears, fars = (
            None if border is None else self._visibility.far_distances(border) for border in (near, far)
        )
        if log_z is not None:  # the heads of a mean have one length
            nears, fars = (None if part is None else part[..., :1] for part in (nears, fars))
        nears = None if nears is None else nears.reshape(-1, 1).contiguous()
        fars = None if fars is None else fars.reshape(-1).contiguous()
        outputs = {*names} - {"counts", "keys", "weights"}
        if near is not None:
            outputs |= {"near", "beyond"}
        if "top_weights" in outputs or "top_keys" in outputs:
            outputs |= {"top_weights", "top_keys"}
        threshold = options.get("counts", 0.0)
        top = options.get("top_weights", options.get("top_keys", 0))
        without_first = near is not None and near.without_first
        measure: Any = _core.lazy_measures
        slabs = []
        for begin, end, bias, positions in self._slabs():
            arguments = self._arguments(begin, end, bias, positions)
            part = None if left is None else left[..., begin:end, :].contiguous()
            options_of_pass = (sorted(outputs), list(firsts), nears, without_first, fars, threshold, top)
            sums = None if log_z is None else log_z[..., begin:end].contiguous()
            slabs.append(measure(*arguments, *options_of_pass, right, part, sums))
        joined = slabs[0] if len(slabs) == 1 else join_slabs(slabs)
        *leading, heads = self.shape[:-2]
        axes = self.query.ndim - 1  # heads are in two axes

        def of_maps(name: str, value: Tensor) -> Tensor:
            if log_z is None or name == "divergence":
                return value.reshape(*leading, heads, *value.shape[axes:])
            return value.reshape(*leading, 1, *value.shape[axes - 1 :])

        return {
            name: value if name in ("keys", "weights") else of_maps(name, value)
            for name, value in joined.items()
        }


def _restored(query: Tensor, key: Tensor, options: dict[str, Any], followed: Tensor | None) -> LazyAttention:
    """Return lazy attention of parts of another, of which `followed` requires a gradient if it is given."""
    restored = LazyAttention(query, key, **options)
    if restored.followed is None:
        object.__setattr__(restored, "followed", followed)
    return restored


class TransposedAttention(NamedTuple):
    """The transposed map of lazy attention, for products alone."""

    attention: LazyAttention

    @property
    def shape(self) -> torch.Size:
        """Shape of the transposed map: [..., h, k, q]."""
        *leading, queries, keys = self.attention.shape
        return torch.Size((*leading, keys, queries))

    @property
    def T(self) -> LazyAttention:
        """The attention itself."""
        return self.attention

    def __matmul__(self, x: Any) -> Tensor:
        """Return the product with x [..., h, q, c], or [q, c], float64 [..., h, k, c]."""
        return _product(self.attention, x, transposed=True)


@_without_derivative
def _product(lazy: LazyAttention, x: Any, *, transposed: bool) -> Tensor:
    """Return the product with x; an entry of x that is not finite reaches the queries that see it."""
    *leading, queries, keys = lazy.shape
    size = queries if transposed else keys
    tensor = _checks.to_host(_checks.float_tensor("LazyAttention @ x", "x", x))
    if tensor.ndim < 2 or tensor.shape[-2] != size:
        raise ValueError(
            f"LazyAttention @ x: x must be [..., {size}, channels], got shape {tuple(tensor.shape)}"
        )
    words = "does not broadcast to"
    tensor = _checks.expanded("LazyAttention @ x: x", tensor, (*leading, size, tensor.shape[-1]), words)
    finite = tensor.isfinite()
    if bool(finite.all()):
        return lazy.multiply(tensor, transposed)
    result = lazy.multiply(torch.where(finite, tensor, 0), transposed)
    return torch.where(lazy.uniform().multiply((~finite).double(), transposed) > 0, torch.nan, result)
