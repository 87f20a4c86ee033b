# SPDX-License-Identifier: MIT
"""Results of passes over queries and keys that an accelerator holds, by the kernels of that device."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Protocol

import torch
from torch import Tensor

from attnscope.devices import placement
from attnscope.metrics.lazy.passes import Key
from attnscope.metrics.lazy.visibility import Visibility

#: Results of queries that the kernel gives under the same name.
_OF_QUERIES = ("entropy", "collision", "largest", "distance")
#: Results of keys, from a second kernel that needs log Z.
_OF_KEYS = ("incoming", "squares")


class Scores(Protocol):
    """The attributes of a `LazyAttention` that the kernels read."""

    query: Tensor
    key: Tensor
    scaling: float
    causal: bool
    window: int | None
    after: int | None
    softcap: float | None
    sink_logits: Tensor | None
    lengths: Tensor | None
    precision: str

    @property
    def shape(self) -> torch.Size: ...
    @property
    def visibility(self) -> Visibility: ...
    @property
    def slopes(self) -> Tensor | None: ...
    @property
    def is_plain(self) -> bool: ...


def measure_on_device(attention: Scores, keys: dict[Key, None]) -> dict[Key, Tensor]:
    """Return those results among `keys` that the device's kernels give, float64 on the CPU.

    Triton kernels make float32 sums; torch operations take the place of kernels where a device has none. Both
    know neither a bias but slopes, nor a mask, nor positions of their own; for anything else, and on the CPU,
    nothing is returned, and the core measures.
    """
    if not _has_kernels(attention):
        return _measure_in_tiles(attention, keys) if _takes_tiles(attention) else {}
    from attnscope.devices.lazy.lazy_attention import RowMeasures, key_measures, row_measures

    *leading, queries, width = attention.query.shape
    query = attention.query.reshape(-1, leading[-1], queries, width)
    key = attention.key.reshape(-1, *attention.key.shape[-3:])
    options = _options(attention)
    firsts = sorted({option for name, option in keys if name == "first"})
    sinks = attention.sink_logits

    def measure(names: list[str], first: int) -> RowMeasures:
        return row_measures(query, key, names, first=first, sink_logits=sinks, **options)

    of_queries = [name for name in _OF_QUERIES if (name, None) in keys]
    rows = measure([*of_queries, *["first_mass"] * bool(firsts)], firsts[0] if firsts else 1)
    results: dict[Key, Tensor] = {}

    def store_result(name: str, option: Any, values: Tensor | None) -> None:
        if values is not None and (name, option) in keys:
            results[name, option] = values.reshape(*leading, values.shape[-1]).double().cpu()

    store_result("log_z", None, rows.log_z)
    store_result("mass", None, _mass(attention, rows.log_z))
    for name in of_queries:
        store_result(name, None, getattr(rows, name))
    for place, first in enumerate(firsts):
        store_result("first", first, (measure(["first_mass"], first) if place else rows).first_mass)
    if any((name, None) in keys for name in _OF_KEYS):
        received = key_measures(query, key, rows.log_z, squares=("squares", None) in keys, **options)
        store_result("incoming", None, received.mass)
        store_result("squares", None, received.squares)
    return results


def _has_kernels(attention: Scores) -> bool:
    """Return True if a device holds the queries and has kernels for such attention."""
    query = attention.query
    interpreted = query.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if not (query.device.type == "cuda" or interpreted) or importlib.util.find_spec("triton") is None:
        return False
    if attention.precision != "fast" or torch.float64 in (query.dtype, attention.key.dtype):
        return False
    if not attention.is_plain or query.dtype != attention.key.dtype:
        return False
    lengths = attention.lengths
    # the kernel takes one length for all heads of a text
    return lengths is None or bool((lengths == lengths[..., :1]).all())


def _takes_tiles(attention: Scores) -> bool:
    """Return True if torch operations measure such attention where its queries and keys are."""
    from attnscope.devices.slab import has_float64

    device = attention.query.device
    if device.type == "cpu" and not placement.takes_torch_on_cpu():
        return False
    if attention.precision == "exact" and not has_float64(device):
        return False
    return attention.is_plain


def _measure_in_tiles(attention: Scores, keys: dict[Key, None]) -> dict[Key, Tensor]:
    """Return the results among `keys` that torch operations give, float64 on the CPU."""
    from attnscope.devices.lazy.torch_tiles import Queries, measure_in_tiles

    device, visibility = attention.query.device, attention.visibility
    # a matrix unit may round float32 to ten bits, which the bound of "fast" does not allow
    is_rounded = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    is_rounded &= torch.float32 in (attention.query.dtype, attention.key.dtype)
    queries = Queries(
        attention.query.detach(),
        attention.key.detach(),
        visibility.positions.expand(attention.shape[:-1]).to(device),
        visibility.lengths.expand(attention.shape[:-2]).to(device),
        attention.scaling,
        attention.softcap,
        attention.slopes,
        attention.sink_logits,
        attention.causal,
        attention.window,
        attention.after,
        attention.precision == "exact" or is_rounded,
    )
    return {key: values.cpu().double() for key, values in measure_in_tiles(queries, keys).items()}


def _options(attention: Scores) -> dict[str, Any]:
    """Return what both kernels take besides queries and keys."""
    sizes = None
    if attention.lengths is not None:
        sizes = attention.lengths.expand(attention.shape[:-2])[..., 0].reshape(-1)
    return {
        "scaling": attention.scaling,
        "causal": attention.causal,
        "window": attention.window,
        "after": attention.after,
        "softcap": attention.softcap,
        "slopes": attention.slopes,
        "lengths": sizes,
    }


def _mass(attention: Scores, log_z: Tensor) -> Tensor:
    """Return the mass of the real keys of each query, which a learned sink takes the rest of."""
    if attention.sink_logits is None:
        return torch.where(log_z.isnan(), torch.nan, (log_z > -torch.inf).to(log_z.dtype))
    from attnscope.devices.lazy.torch_tiles import sinks_in_range

    sinks = sinks_in_range(attention.sink_logits, log_z.dtype).to(log_z.device)[:, None]
    return (1 - torch.exp(sinks - log_z)).clamp(min=0)  # rounding of log Z grows with the sink
