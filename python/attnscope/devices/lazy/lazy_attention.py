# SPDX-License-Identifier: MIT
"""Row and key measures of attention from its queries and keys, without the map, as Triton kernels.

A map of n tokens takes n² numbers, its queries and keys 2·n·d. Two kernels visit all visible pairs in tiles:

* rows: one program for each head and block of queries, keys in a loop with an online softmax; log Z and the
row sums.
* keys: one program for each head and block of keys, queries in a loop, log Z known; what each key receives.

Neither uses atomics, so equal inputs give equal bits. Products are made in float32 ("ieee") for float32
inputs and by the matrix units for half precision; sums of a row are float32 over tiles, so a sum of weights
is right to about 1e-5. Hidden scores are a large finite number, because 0 times infinity is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from attnscope.devices.lazy import tiles
from attnscope.devices.lazy.key_kernel import measure_keys
from attnscope.devices.lazy.row_kernel import measure_rows
from attnscope.devices.lazy.torch_tiles import sinks_in_range

#: Row measures that one pass gives, in the order of the kernel's outputs and of its bits.
ROW_MEASURES = ("entropy", "collision", "largest", "distance", "first_mass", "near_mass")
#: Queries and keys of a tile, warps and stages of each kernel; measured by `benchmarks/devices.py`.
ROW_TILE = {"BQ": 64, "BK": 64, "num_warps": 4, "num_stages": 2}
KEY_TILE = {"BQ": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
LOG2_E = math.log2(math.e)


class RowMeasures(NamedTuple):
    """Measures of every query's attention [batch, heads, queries], float32; None where not asked for.

    log_z: log of the sum of exponentials, a learned sink in it. entropy: −Σ A log A over the real keys, in
    nats. collision: Σ A². largest: max A. distance: Σ A·|i − j|. first_mass: Σ A over the first keys.
    near_mass: Σ A over the keys less than `near` positions away.
    """

    log_z: Tensor
    entropy: Tensor | None
    collision: Tensor | None
    largest: Tensor | None
    distance: Tensor | None
    first_mass: Tensor | None
    near_mass: Tensor | None


class KeyMeasures(NamedTuple):
    """Sums over the queries for every key [batch, heads, keys], float32: Σ_i A_ij and Σ_i A_ij²."""

    mass: Tensor
    squares: Tensor | None


class _Inputs(NamedTuple):
    """Checked queries and keys with everything that both kernels take."""

    query: Tensor
    key: Tensor
    numbers: dict[str, object]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, int(self.key.shape[2])


def _inputs(
    query: Tensor,
    key: Tensor,
    scaling: float | None,
    causal: bool,
    window: int | None,
    after: int | None,
    softcap: float | None,
    slopes: Tensor | None,
    sink_logits: Tensor | None,
    lengths: Tensor | None,
) -> _Inputs:
    if query.ndim != 4 or key.ndim != 4 or query.shape[-1] != key.shape[-1] or query.shape[0] != key.shape[0]:
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ValueError(
            "lazy attention: query must be [batch, heads, queries, d] and key [batch, key heads, keys, d], "
            f"got shapes {shapes}"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"lazy attention: {key.shape[1]} key heads do not divide {query.shape[1]} query heads into groups"
        )
    query, key = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, key))
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    device = query.device
    sizes = torch.full((batch,), keys, device="cpu") if lengths is None else lengths
    form = (
        tiles.CAUSAL.value * causal
        | tiles.SOFTCAP.value * (softcap is not None)
        | tiles.WINDOW.value * (window is not None)
        | tiles.AFTER.value * (after is not None and not causal)
        | tiles.SLOPES.value * (slopes is not None)
        | tiles.SINK.value * (sink_logits is not None)
    )
    numbers: dict[str, object] = {
        "length_ptr": sizes.to(device=device, dtype=torch.int32),
        "slope_ptr": torch.zeros(1, device=device) if slopes is None else slopes.to(device, torch.float32),
        "heads": heads,
        "group": heads // key.shape[1],
        "queries": queries,
        "keys": keys,
        **dict(zip(("q_batch", "q_head", "q_row"), query.stride(), strict=False)),
        **dict(zip(("k_batch", "k_head", "k_row"), key.stride(), strict=False)),
        "scale_log2": (width**-0.5 if scaling is None else scaling) * LOG2_E,
        "softcap_log2": (softcap or 1.0) * LOG2_E,
        "window": window or keys,
        "after": keys if after is None else min(after, keys),
        "FORM": form,
        "WIDTH": width,
        "PADDED": max(16, triton.next_power_of_2(width)),
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
    return _Inputs(query, key, numbers)


def row_measures(
    query: Tensor,
    key: Tensor,
    measures: Collection[str] = ROW_MEASURES,
    *,
    scaling: float | None = None,
    causal: bool = True,
    window: int | None = None,
    after: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sink_logits: Tensor | None = None,
    lengths: Tensor | None = None,
    first: int = 1,
    near: int = 64,
) -> RowMeasures:
    """Measure every query's attention from queries and keys, in one visit of all visible pairs.

    Args:
        query: [batch, heads, queries, d], float16, bfloat16 or float32, on the device.
        key: [batch, key heads, keys, d]; key heads divide heads. The last query sits at the last key.
        measures: names from ROW_MEASURES.
        scaling: of the scores; None is 1/√d.
        causal: whether a query sees no later key.
        window: a query sees keys less than so many positions before it; None: all.
        after: a query sees keys at most so many positions behind it, none if causal; None: all.
        softcap: scores become softcap·tanh(score/softcap).
        slopes: of ALiBi, [heads]; scores lose slope·|i − j|.
        sink_logits: of a learned sink, [heads]; it joins the denominator alone.
        lengths: tokens of each text, [batch].
        first: how many leading keys `first_mass` counts.
        near: distance below which `near_mass` counts a key.

    Returns:
        RowMeasures, NaN behind the lengths.

    Raises:
        ValueError: shapes that do not belong together, or an unknown measure.
    """
    if unknown := sorted(set(measures) - set(ROW_MEASURES)):
        raise ValueError(f"row_measures: unknown measure {unknown[0]!r}; there are {', '.join(ROW_MEASURES)}")
    inputs = _inputs(query, key, scaling, causal, window, after, softcap, slopes, sink_logits, lengths)
    batch, heads, queries, _ = inputs.shape
    planes = torch.empty((7, batch, heads, queries), dtype=torch.float32, device=query.device)
    measure_rows[(triton.cdiv(queries, ROW_TILE["BQ"]), batch * heads)](
        inputs.query,
        inputs.key,
        sink_ptr=planes
        if sink_logits is None
        else sinks_in_range(sink_logits, torch.float32).to(query.device),
        out_ptr=planes,
        plane=batch * heads * queries,
        near=near,
        FIRST=first if "first_mass" in measures else 0,
        MEASURES=sum(1 << place for place, name in enumerate(ROW_MEASURES) if name in measures),
        **inputs.numbers,
        **ROW_TILE,
    )
    answers = (planes[1 + place] if name in measures else None for place, name in enumerate(ROW_MEASURES))
    return RowMeasures(planes[0], *answers)


def key_measures(
    query: Tensor,
    key: Tensor,
    log_z: Tensor,
    *,
    squares: bool = False,
    scaling: float | None = None,
    causal: bool = True,
    window: int | None = None,
    after: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
) -> KeyMeasures:
    """Measure what every key receives, with log Z of the queries from `row_measures`; arguments are the same.

    Returns:
        KeyMeasures, NaN behind the lengths.
    """
    inputs = _inputs(query, key, scaling, causal, window, after, softcap, slopes, None, lengths)
    batch, heads, _, keys = inputs.shape
    mass = torch.empty((batch, heads, keys), dtype=torch.float32, device=query.device)
    second = torch.empty_like(mass)
    measure_keys[(triton.cdiv(keys, KEY_TILE["BK"]), batch * heads)](
        inputs.query,
        inputs.key,
        log_z_ptr=log_z.contiguous(),
        mass_ptr=mass,
        squares_ptr=second,
        SQUARES=squares,
        **inputs.numbers,
        **KEY_TILE,
    )
    return KeyMeasures(mass, second if squares else None)
