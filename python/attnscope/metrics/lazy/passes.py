# SPDX-License-Identifier: MIT
"""Passes over queries and keys: which results one of them gives, and how several callers share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Measures of queries that `LazyAttention.row_measures` gives.
ROW_MEASURES = ("log_z", "entropy", "collision", "largest", "distance", "mass")

#: What computes a function of the core for lazy attention, by the name of the function; the package fills it.
FUNCTIONS: dict[str, Callable[..., Any]] = {}

#: A result of a pass by its name and its option.
Key = tuple[str, Any]


#: Name of results of the mean over heads: their option is the result's own name and option.
HEAD_MEAN = "head_mean"


class Noted(Exception):
    """Raised in the place of a pass while `shared_pass` collects what is to be measured."""


class SharedResults(NamedTuple):
    """Results of passes over lazy attention, and what is still to be collected, inside `shared_pass`.

    `derived` holds what several metrics make of results, by attention and name.
    """

    results: dict[tuple[int, Key], Tensor]
    noted: dict[int, dict[Key, None]]
    collecting: list[bool]
    derived: dict[tuple[int, str], Any]


SHARED: ContextVar[SharedResults | None] = ContextVar("passes over lazy attention", default=None)


def find_shared(attention: object, key: Key) -> Tensor | None:
    """Return a result that an earlier pass over this attention has left, None without one."""
    shared = SHARED.get()
    return None if shared is None else shared.results.get((id(attention), key))


def share_result(attention: object, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` gives, once for all metrics of one pass; nobody may write into it."""
    shared = SHARED.get()
    if shared is None:
        return make()
    key = (id(attention), name)
    if key not in shared.derived:
        shared.derived[key] = make()
    return shared.derived[key]


@contextmanager
def shared_pass() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Inside, results of passes are kept; the function yielded notes what another function will need.

    Nobody may change queries or keys meanwhile. The first call that needs a result measures everything noted.
    A block inside another one shares the results of that one.
    """
    outer = SHARED.get()
    shared = SharedResults({}, {}, [False], {}) if outer is None else outer
    token = SHARED.set(shared)

    def note(function: Callable[[], Any]) -> None:
        is_noting = shared.collecting[0]
        shared.collecting[0] = True
        try:
            function()
        except Noted:
            pass
        finally:
            shared.collecting[0] = is_noting

    try:
        yield note
    finally:
        SHARED.reset(token)


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
            # 1e-9 more than the product's rounding takes: 0.7 of 90 tokens are 63
            return (sizes.double() * self.distance + 1e-9).floor().long() + 1
        return torch.full_like(sizes, int(self.distance) + 1)


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


def select_compatible(keys: Sequence[Key]) -> list[Key]:
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


def join_slabs(slabs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
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


_LAST_AXIS = {*ROW_MEASURES, "divergence", "far_mass", "far_squares", "far_largest", "counts"}
