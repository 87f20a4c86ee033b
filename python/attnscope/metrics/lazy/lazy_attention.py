# SPDX-License-Identifier: MIT
"""Attention of queries and keys whose map never exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope._placement import Unmaterialized
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.lazy.visibility import Visibility

#: A bias of scores: ALiBi slopes [h], a tensor that broadcasts to the map, or a function of query and key
#: numbers.
Bias = Tensor | Callable[[Tensor, Tensor], Tensor] | None

#: Measures of queries that `row_measures` gives.
ROW_MEASURES = ("log_z", "entropy", "collision", "largest", "distance", "mass")

#: Bytes of a callable bias that are evaluated together.
_BIAS_BYTES = 8 << 20
#: Queries of a slab are a multiple of the queries that the kernel works on together.
_SLAB = 32

#: A result of a pass by its name and its option.
Key = tuple[str, Any]


class Noted(Exception):
    """Raised in the place of a pass while `shared_pass` collects what is to be measured."""


class _Shared(NamedTuple):
    """Results of passes over lazy attention, and what is still to be collected, inside `shared_pass`."""

    results: dict[tuple[int, Key], Tensor]
    noted: dict[int, dict[Key, None]]
    collecting: list[bool]


_SHARED: ContextVar[_Shared | None] = ContextVar("passes over lazy attention", default=None)


@contextmanager
def shared_pass() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Inside, results of passes are kept; the function yielded notes what another function will need.

    Nobody may change queries or keys meanwhile. The first call that needs a result measures everything noted.
    """
    shared = _Shared({}, {}, [False])
    token = _SHARED.set(shared)

    def note(function: Callable[[], Any]) -> None:
        shared.collecting[0] = True
        try:
            function()
        except Noted:
            pass
        finally:
            shared.collecting[0] = False

    try:
        yield note
    finally:
        _SHARED.reset(token)


@shown_by_shape
class TopKeys(NamedTuple):
    """The keys of largest weight of every query [..., h, q, k]; weight 0 and key −1 behind the visible ones."""

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
        window: query i sees key j only if i − window < j.
        bias: ALiBi slopes [h] (the score loses slope·|i − j|), a float tensor that broadcasts to
            [..., h, q, k], or a function (queries, keys) of their numbers, int64, that returns such a tile.
        softcap: c of c·tanh(score/c).
        sink_logits: [h], of a learned sink: rows then sum to less than one.
        mask: bool, broadcasts to [..., h, q, k]; True is visible.
        lengths: keys that exist, broadcast against [...] or [..., h]; what is behind them is padding.
        query_positions: int64 [q] or [..., q], positions of the queries among the keys; None: the last query
            is at the last key.
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
        "_key",
        "_log_z",
        "_mask",
        "_numbers",
        "_query",
        "_slopes",
        "_visibility",
        "causal",
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
    scaling: float
    softcap: float | None
    sink_logits: Tensor | None
    lengths: Tensor | None
    query_positions: Tensor | None
    precision: str
    heads: int

    def __init__(
        self,
        query: Any,
        key: Any,
        *,
        scaling: float | None = None,
        causal: bool = True,
        window: int | None = None,
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
        query, key = (_vectors(name, value) for name, value in (("query", query), ("key", key)))
        _check_shapes(query, key)
        *leading, heads, queries, width = query.shape
        keys, groups = key.shape[-2], key.shape[-3]
        shape = (*leading, heads, queries, keys)
        if precision is None:
            precision = "exact" if torch.float64 in (query.dtype, key.dtype) else "fast"
        set_field("precision", _checks.choice_argument(_NAME, "precision", precision, ("fast", "exact")))
        set_field("query", query)
        set_field("key", key)
        set_field("heads", heads)
        set_field("causal", _checks.flag(_NAME, "causal", causal))
        least = 1
        set_field("window", None if window is None else _checks.at_least(_NAME, "window", window, least))
        set_field("scaling", width**-0.5 if scaling is None else _finite(_NAME, "scaling", scaling))
        set_field("softcap", None if softcap is None else _positive(_NAME, "softcap", softcap))
        slopes, bias = _bias_argument(bias, shape)
        sinks = None if sink_logits is None else _per_head("sink_logits", sink_logits, heads)
        set_field("sink_logits", sinks)
        set_field("_slopes", slopes)
        set_field("_bias", bias)
        seen = None
        if mask is not None:
            flags = _checks.flags_argument(_NAME, "mask", mask, shape, "does not broadcast to attention of shape")
            seen = flags.expand(shape)
        set_field("_mask", seen)
        given = None if lengths is None else _lengths_argument(lengths, shape)
        set_field("lengths", given)
        positions = None if query_positions is None else _positions_argument(query_positions, shape)
        set_field("query_positions", positions)
        known = None if log_z is None else _checks.float_tensor(_NAME, "log_z", log_z).double().cpu()
        if known is not None:
            known = _checks.expanded(f"{_NAME}: log_z", known, shape[:-1]).contiguous()
        set_field("_log_z", known)
        set_field("_numbers", self._numbers_of_heads())
        split = (-3, (groups, heads // groups))
        set_field("_query", query.unflatten(*split))
        set_field("_key", key.unsqueeze(-3).expand(*leading, groups, heads // groups, keys, width))
        set_field("_visibility", self._make_visibility())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"LazyAttention cannot be changed: {name} is set when it is made")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"LazyAttention cannot be changed: {name} is set when it is made")

    def __repr__(self) -> str:
        words = [f"shape={self.shape}"]
        words += ["causal"] * self.causal
        words += [f"{name}={getattr(self, name)}" for name in ("window", "softcap") if getattr(self, name)]
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
    def visibility(self) -> Visibility:
        """Who sees whom."""
        return self._visibility

    @property
    def sizes(self) -> Tensor:
        """Keys of each map that exist, int64 [..., h]."""
        return self._visibility.lengths

    @property
    def log_z(self) -> Tensor:
        """Logarithm of each query's sum over visible keys and the learned sink, float64 [..., h, q]."""
        return self.take([("log_z", None)])[0]

    @property
    def sink_mass(self) -> Tensor:
        """Mass that the learned sink takes of each row, float64 [..., h, q]; 0 without one."""
        if self.sink_logits is None:
            return torch.where(self._visibility.real, 0.0, torch.nan)
        return torch.exp(self.sink_logits[:, None] - self.log_z)

    @property
    def T(self) -> TransposedAttention:
        """The transposed map, for products."""
        return TransposedAttention(self)

    def row_measures(self, names: Sequence[str] | str = ROW_MEASURES) -> dict[str, Tensor]:
        """Measures of every query from one pass, each float64 [..., h, q], NaN for padding.

        Args:
            names: of "log_z", "entropy" (nats), "collision" (Σ A²), "largest", "distance" (Σ A·|i − j|) and
                "mass" (Σ A).

        Raises:
            ValueError: an unknown name.
        """
        asked = [names] if isinstance(names, str) else list(names)
        for name in asked:
            _checks.choice_argument("row_measures", "names", name, ROW_MEASURES)
        return dict(zip(asked, self.take([(name, None) for name in asked]), strict=True))

    def top(self, k: int = 8) -> TopKeys:
        """Return the k keys of largest weight of every query, larger weights and then earlier keys first."""
        k = _checks.at_least("LazyAttention.top", "k", k, 1)
        weights, keys = self.take([("top_weights", min(k, self.shape[-1])), ("top_keys", min(k, self.shape[-1]))])
        return TopKeys(weights, keys)

    def at_least(self, threshold: float) -> SparseAttention:
        """Return the entries of at least a threshold; as rows sum to one at most, q/threshold is their bound."""
        threshold = _checks.fraction_argument("LazyAttention.at_least", "threshold", threshold)
        counts, keys, weights = self.take([(name, threshold) for name in ("counts", "keys", "weights")])
        shape = (*counts.shape[:-1], 1)
        every = counts.flatten().cumsum(0).reshape(counts.shape)
        start = every[..., :1] - counts[..., :1]
        return SparseAttention(torch.cat([start.reshape(shape), every], -1), keys, weights)

    def rows(self, queries: slice | int) -> Tensor:
        """Return rows of the map, float64 [..., h, rows, k]; NaN for queries of padding."""
        return self.tile(queries, slice(None))

    def tile(self, queries: slice | int, keys: slice | int) -> Tensor:
        """Return a part of the map, float64 [..., h, queries, keys]."""
        rows, columns = _slice("queries", queries, self.shape[-2]), _slice("keys", keys, self.shape[-1])
        parts = []
        log_z = self._log_z if self._log_z is not None else self.log_z
        for begin, end, bias, positions in self._slabs(rows.start, rows.stop):
            inside = (max(begin, rows.start) - begin, min(end, rows.stop) - begin)
            sums = log_z[..., begin:end].contiguous()
            arguments = self._arguments(begin, end, bias, positions)
            parts.append(_core.lazy_weights(*arguments, sums, *inside, columns.start, columns.stop))
        part = torch.cat(parts, -2)
        return part.reshape(*self.shape[:-2], *part.shape[-2:])

    def dense(self) -> Tensor:
        """Return the whole map, float64 [..., h, q, k]; NaN for queries of padding."""
        return self.tile(slice(None), slice(None))

    def __matmul__(self, x: Any) -> Tensor:
        """Return the product of the map with x [..., h, k, c], or [k, c], float64 [..., h, q, c]."""
        return _product(self, x, transposed=False)

    def with_lengths(self, lengths: _checks.Lengths) -> LazyAttention:
        """Return the same attention with other lengths."""
        return self._replaced(lengths=lengths)

    def uniform(self) -> LazyAttention:
        """Return attention with the same visibility and equal weights."""
        query, key = (part.new_zeros(*part.shape[:-1], 1).float() for part in (self.query, self.key))
        return self._replaced(query=query, key=key, bias=None, softcap=None, sink_logits=None)

    def take(self, keys: Sequence[Key]) -> list[Tensor]:
        """Return results of passes by name and option, each [..., h, ...]; those at hand are not made again."""
        shared = _SHARED.get()
        if shared is None:
            results = self._measure(dict.fromkeys(keys))
            return [results[key] for key in keys]
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
        from attnscope.metrics.lazy import core_functions

        return getattr(core_functions, function, None)

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        """Return the product with a checked x [..., h, rows, c], float64."""
        dtype = torch.float64 if self.precision == "exact" else torch.float32
        channels = x.shape[-1]
        if transposed:
            padding = -channels % 16
            left = torch.nn.functional.pad(x.to(dtype), (0, padding)).contiguous()
            return self._pass(["transposed_product"], left=left)["transposed_product"][..., :channels]
        right = x.to(dtype).transpose(-1, -2).contiguous()
        return self._pass(["product"], right=right)["product"]

    def _replaced(self, **changes: Any) -> LazyAttention:
        given = {
            "scaling": self.scaling,
            "causal": self.causal,
            "window": self.window,
            "bias": self._slopes if self._slopes is not None else self._bias,
            "softcap": self.softcap,
            "sink_logits": self.sink_logits,
            "mask": self._mask,
            "lengths": self.lengths,
            "query_positions": self.query_positions,
            "precision": self.precision,
        }
        query, key = changes.pop("query", self.query), changes.pop("key", self.key)
        return LazyAttention(query, key, **{**given, **changes})

    def _make_visibility(self) -> Visibility:
        *leading, queries, keys = self.shape
        lengths = torch.full(leading, keys, dtype=torch.int64, device="cpu")
        if self.lengths is not None:
            lengths = self.lengths.expand(leading).contiguous()
        positions = self.query_positions
        if positions is None:
            positions = torch.arange(queries, device="cpu") + (keys - queries)
        return Visibility(
            positions.expand(*leading, queries), lengths, keys, self.causal, self.window, self._mask
        )

    def _numbers_of_heads(self) -> Tensor:
        """Return scaling, softcap, slope and learned sink of each head, [..., h, 4]."""
        columns = (
            torch.full((self.heads,), self.scaling, dtype=torch.float64, device="cpu"),
            torch.full((self.heads,), self.softcap or 0.0, dtype=torch.float64, device="cpu"),
            torch.zeros(self.heads, dtype=torch.float64, device="cpu") if self._slopes is None else self._slopes,
            torch.full((self.heads,), -math.inf, dtype=torch.float64, device="cpu")
            if self.sink_logits is None
            else self.sink_logits,
        )
        return torch.stack(columns, -1).expand(*self.shape[:-2], 4).contiguous()

    def _slabs(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int, Tensor | None, Any]]:
        """Yield queries that are measured together, with their bias and positions: all, but for a callable bias."""
        queries, keys = self.shape[-2:]
        bias = self._bias
        if not callable(bias):
            yield 0, queries, bias, self.query_positions
            return
        size = _BIAS_BYTES // (4 * max(1, keys * math.prod(self.shape[:-2])))
        size = max(1, size // _SLAB) * _SLAB
        last = queries if last is None else last
        positions = self._visibility.positions
        for begin in range(first // _SLAB * _SLAB, last, size):
            end = min(begin + size, queries)
            number = torch.arange(begin, end, device="cpu")
            tile = _checks.float_tensor(_NAME, "bias", bias(number, torch.arange(keys, device="cpu"))).cpu()
            shape = (*self.shape[:-2], end - begin, keys)
            tile = _checks.expanded(f"{_NAME}: bias", tile, shape, "does not broadcast to the tile of shape")
            yield begin, end, tile, positions[..., begin:end]

    def _arguments(self, begin: int, end: int, bias: Tensor | None, positions: Tensor | None) -> tuple[Any, ...]:
        split = (-3, tuple(self._query.shape[-4:-2]))
        mask = self._mask
        where = None
        if positions is not None:
            where = positions.expand(*self.shape[:-2], end - begin).contiguous()
        return (
            self._query[..., begin:end, :],
            self._key,
            self._numbers,
            self.sizes,
            where,
            None if bias is None else bias.unflatten(*split),
            None if mask is None else mask[..., begin:end, :].unflatten(*split),
            self.causal,
            self.window or 0,
            self.precision == "exact",
        )

    def _measure(self, keys: dict[Key, None]) -> dict[Key, Tensor]:
        """Return results of as few passes as their options allow."""
        results: dict[Key, Tensor] = {}
        firsts = sorted({option for name, option in keys if name == "first"})
        pending = [key for key in keys if key[0] != "first"]
        first_names = ["first"] if firsts else []
        while pending or first_names:
            chosen = _compatible(pending)
            pending = [key for key in pending if key not in chosen]
            raw = self._pass([*first_names, *dict.fromkeys(name for name, _ in chosen)], firsts, chosen, self.sizes)
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
        sizes: Tensor | None = None,
        right: Tensor | None = None,
        left: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Visit all visible pairs once, a slab of queries after another where a function gives the bias."""
        options = {name: option for name, option in chosen}
        near: Any = options.get("near", options.get("beyond"))
        far = options.get("far_mass", options.get("far_incoming"))
        nears = None if near is None else near.distances(self.sizes).reshape(-1, 1).contiguous()
        fars = None if far is None else far.distances(self.sizes).reshape(-1).contiguous()
        asked = {*names} - {"counts", "keys", "weights"}
        if near is not None:
            asked |= {"near", "beyond"}
        if "top_weights" in asked or "top_keys" in asked:
            asked |= {"top_weights", "top_keys"}
        threshold = options.get("counts", 0.0)
        top = options.get("top_weights", options.get("top_keys", 0))
        without_first = near is not None and near.without_first
        slabs = []
        for begin, end, bias, positions in self._slabs():
            arguments = self._arguments(begin, end, bias, positions)
            part = None if left is None else left[..., begin:end, :].contiguous()
            more = (sorted(asked), list(firsts), nears, without_first, fars, threshold, top, right, part)
            slabs.append(_core.lazy_measures(*arguments, *more))
        joined = slabs[0] if len(slabs) == 1 else _join(slabs)
        leading = self.shape[:-2]
        split = self._query.ndim - 2
        return {
            name: value if name in ("keys", "weights") else value.reshape(*leading, *value.shape[split:])
            for name, value in joined.items()
        }


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


class Border(NamedTuple):
    """A distance that divides near keys from far ones: a number of tokens, or a rule of each map's length."""

    name: str
    distance: float
    without_first: bool = False

    def distances(self, sizes: Tensor) -> Tensor:
        """Return the smallest far distance of maps of these sizes, int64."""
        if self.name == "sink_test":
            tenth = (sizes + 9) // 10
            return torch.maximum(torch.maximum(tenth, (sizes // 4).clamp(max=4)), torch.ones_like(sizes))
        if self.distance < 1.0:
            return (sizes.double() * self.distance).floor().long() + 1
        return torch.full_like(sizes, int(self.distance) + 1)


_NAME = "LazyAttention"

# Results of one pass share these options.
_OPTION_OF = {
    "near": "near",
    "beyond": "near",
    "far_mass": "far",
    "far_squares": "far",
    "far_largest": "far",
    "far_incoming": "far",
    "top_weights": "entries",
    "top_keys": "entries",
    "counts": "entries",
    "keys": "entries",
    "weights": "entries",
}


def _compatible(keys: Sequence[Key]) -> list[Key]:
    """Return the results among `keys` that one pass gives together with the first of them."""
    options: dict[str, tuple[Any, ...]] = {}
    chosen = []
    for name, option in keys:
        kind = _OPTION_OF.get(name)
        if kind is None:
            chosen.append((name, option))
            continue
        of_kind = (name.startswith("top"), option) if kind == "entries" else (option,)
        if options.setdefault(kind, of_kind) == of_kind:
            chosen.append((name, option))
    return chosen


def _join(slabs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the results of all queries from those of slabs of them."""
    joined: dict[str, Tensor] = {}
    for name in slabs[0]:
        parts = [slab[name] for slab in slabs]
        if name in ("incoming", "squares", "far_incoming", "transposed_product"):
            joined[name] = torch.stack(parts).sum(0)
        elif name not in ("keys", "weights"):
            joined[name] = torch.cat(parts, -1 if name in _LAST_AXIS else -2)
    if "counts" in joined:
        ends = [slab["counts"].flatten(0, -2).sum(-1).cumsum(0).tolist() for slab in slabs]
        for name in ("keys", "weights"):
            heads = [
                slab[name][(end[head - 1] if head else 0) : end[head]]
                for head in range(len(ends[0]))
                for slab, end in zip(slabs, ends, strict=True)
            ]
            joined[name] = torch.cat(heads)
    return joined


_LAST_AXIS = {*ROW_MEASURES, "far_mass", "far_squares", "far_largest", "counts"}


def _vectors(name: str, value: Any) -> Tensor:
    tensor = _checks.to_host(_checks.float_tensor(_NAME, name, value))
    if tensor.ndim < 3:
        raise ValueError(f"{_NAME}: {name} must be [..., heads, tokens, d], got shape {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise ValueError(f"{_NAME}: {name} must hold at least one number, got shape {tuple(tensor.shape)}")
    return tensor


def _check_shapes(query: Tensor, key: Tensor) -> None:
    shapes = f"query {tuple(query.shape)} and key {tuple(key.shape)}"
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{_NAME}: query and key must have one width d, got {query.shape[-1]} and {key.shape[-1]}")
    if query.shape[:-3] != key.shape[:-3]:
        raise ValueError(f"{_NAME}: query and key must have the same leading axes, got {shapes}")
    if query.shape[-3] % key.shape[-3]:
        raise ValueError(
            f"{_NAME}: {key.shape[-3]} key heads do not divide {query.shape[-3]} query heads into groups"
        )


def _finite(function: str, name: str, value: Any) -> float:
    number = _checks.real(function, name, value)
    if not math.isfinite(number):
        raise ValueError(f"{function}: {name} must be finite, got {value!r}")
    return number


def _positive(function: str, name: str, value: Any) -> float:
    number = _finite(function, name, value)
    if number <= 0:
        raise ValueError(f"{function}: {name} must be above 0, got {value!r}")
    return number


def _per_head(name: str, value: Any, heads: int) -> Tensor:
    tensor = _checks.float_tensor(_NAME, name, value).double().cpu()
    if tensor.shape != (heads,):
        raise ValueError(f"{_NAME}: {name} must hold a number for each of {heads} heads, got {tuple(tensor.shape)}")
    return tensor.clone()


def _bias_argument(bias: Any, shape: tuple[int, ...]) -> tuple[Tensor | None, Bias]:
    """Return ALiBi slopes, or the bias itself expanded to the shape of the map."""
    if bias is None or (callable(bias) and not isinstance(bias, Tensor)):
        return None, bias
    tensor = _checks.to_host(_checks.float_tensor(_NAME, "bias", bias))
    if tensor.ndim == 1:
        return _per_head("bias", tensor, shape[-3]), None
    return None, _checks.expanded(f"{_NAME}: bias", tensor, shape, "does not broadcast to attention of shape")


def _lengths_argument(lengths: Any, shape: tuple[int, ...]) -> Tensor:
    given = _checks.as_tensor(_NAME, "lengths", lengths)
    per_text = given.ndim < len(shape) - 2
    leading = shape[:-3] if per_text else shape[:-2]
    checked = _checks.lengths_argument(_NAME, lengths, leading, shape[-1])
    assert checked is not None
    return checked[..., None] if per_text else checked


def _positions_argument(positions: Any, shape: tuple[int, ...]) -> Tensor:
    tensor = _checks.as_tensor(_NAME, "query_positions", positions)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{_NAME}: query_positions must be integers, got {tensor.dtype}")
    tensor = tensor.to(device="cpu", dtype=torch.int64)
    if bool((tensor < 0).any()) or bool((tensor >= 1 << 24).any()):
        outside = tensor[(tensor < 0) | (tensor >= 1 << 24)]
        raise ValueError(f"{_NAME}: query_positions must lie between 0 and 2^24, got {int(outside[0])}")
    if tensor.ndim > 1:
        tensor = tensor.unsqueeze(-2)  # the same for all heads
    return _checks.expanded(f"{_NAME}: query_positions", tensor, shape[:-1]).contiguous()


def _slice(name: str, part: slice | int, size: int) -> slice:
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        if step != 1:
            raise ValueError(f"{_NAME}: {name} must be a slice of step 1, got step {step}")
        return slice(start, max(start, stop))
    index = _checks.whole(_NAME, name, part)
    if not -size <= index < size:
        raise ValueError(f"{_NAME}: {name} must lie between {-size} and {size - 1}, got {index}")
    return slice(index % size, index % size + 1)


def _product(lazy: LazyAttention, x: Any, *, transposed: bool) -> Tensor:
    """Return the product of a map with x; what is not finite in x reaches the queries that see it, no others."""
    *leading, queries, keys = lazy.shape
    size = queries if transposed else keys
    tensor = _checks.to_host(_checks.float_tensor("LazyAttention @ x", "x", x))
    if tensor.ndim < 2 or tensor.shape[-2] != size:
        raise ValueError(f"LazyAttention @ x: x must be [..., {size}, channels], got shape {tuple(tensor.shape)}")
    words = "does not broadcast to"
    tensor = _checks.expanded("LazyAttention @ x: x", tensor, (*leading, size, tensor.shape[-1]), words)
    finite = tensor.isfinite()
    if bool(finite.all()):
        return lazy.multiply(tensor, transposed)
    result = lazy.multiply(torch.where(finite, tensor, 0), transposed)
    return torch.where(lazy.uniform().multiply((~finite).double(), transposed) > 0, torch.nan, result)
