# SPDX-License-Identifier: MIT
"""Results of passes over queries and keys that an accelerator holds, by the kernels of that device."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.metrics.lazy.passes import Key

if TYPE_CHECKING:
    from attnscope.metrics.lazy.lazy_attention import LazyAttention

#: Results of queries that the kernel gives under the same name.
_OF_QUERIES = ("entropy", "collision", "largest", "distance")
#: Results of keys, from a second kernel that needs log Z.
_OF_KEYS = ("incoming", "squares")


def measure_on_device(attention: LazyAttention, keys: dict[Key, None]) -> dict[Key, Tensor]:
    """Return those results among `keys` that the device's kernels give, float64 on the CPU.

    The kernels make float32 sums, and know neither a bias but slopes, nor a mask, nor positions of their own;
    for anything else, and on the CPU, nothing is returned, and the core measures.
    """
    if not _has_kernels(attention):
        return {}
    from attnscope.devices.lazy_attention import key_measures, row_measures

    *leading, queries, width = attention.query.shape
    query = attention.query.reshape(-1, leading[-1], queries, width)
    key = attention.key.reshape(-1, *attention.key.shape[-3:])
    options = _options(attention)
    firsts = sorted({option for name, option in keys if name == "first"})
    of_queries = [name for name in _OF_QUERIES if (name, None) in keys]
    if firsts:
        of_queries.append("first_mass")
    sinks = {"sink_logits": attention.sink_logits, "first": firsts[0] if firsts else 1}
    rows = row_measures(query, key, of_queries, **sinks, **options)
    shape = tuple(leading)
    results: dict[Key, Tensor] = {}

    def put(name: str, option: Any, values: Tensor) -> None:
        if (name, option) in keys:
            results[name, option] = values.reshape(*shape, values.shape[-1]).double().cpu()

    put("log_z", None, rows.log_z)
    put("mass", None, _mass(attention, rows.log_z))
    for name in _OF_QUERIES:
        if getattr(rows, name) is not None:
            put(name, None, getattr(rows, name))
    for first in firsts:
        again = (
            rows
            if first == firsts[0]
            else row_measures(query, key, ["first_mass"], **{**sinks, "first": first}, **options)
        )
        put("first", first, again.first_mass)
    if any((name, None) in keys for name in _OF_KEYS):
        received = key_measures(query, key, rows.log_z, squares=("squares", None) in keys, **options)
        put("incoming", None, received.mass)
        if received.squares is not None:
            put("squares", None, received.squares)
    return results


def _has_kernels(attention: LazyAttention) -> bool:
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


def _options(attention: LazyAttention) -> dict[str, Any]:
    """Return what both kernels take besides queries and keys."""
    sizes = None
    if attention.lengths is not None:
        sizes = attention.lengths.expand(attention.shape[:-2])[..., 0].reshape(-1)
    return {
        "scaling": attention.scaling,
        "causal": attention.causal,
        "window": attention.window,
        "softcap": attention.softcap,
        "slopes": attention.slopes,
        "lengths": sizes,
    }


def _mass(attention: LazyAttention, log_z: Tensor) -> Tensor:
    """Return the mass of the real keys of each query, which a learned sink takes the rest of."""
    if attention.sink_logits is None:
        return torch.where(log_z.isnan(), torch.nan, 1.0)
    sinks = attention.sink_logits.to(log_z.device, log_z.dtype)[:, None]
    return 1 - torch.exp(sinks - log_z)
