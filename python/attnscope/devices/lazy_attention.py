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
import triton.language as tl
from torch import Tensor

#: Row measures that one pass gives, in the order of the kernel's outputs.
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


@triton.jit
def _softcapped(s, softcap_log2):
    """Return softcap·tanh(s/softcap), both times log2 e, by e^(−2|x|), which does not overflow."""
    u = tl.exp2(tl.abs(s) * (-2.0 * 1.4426950408889634 / softcap_log2))
    return tl.where(s < 0, -softcap_log2, softcap_log2) * (1.0 - u) / (1.0 + u)


@triton.jit
def _seen(
    i,
    j,
    length,
    window,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Return which queries see which keys of a tile."""
    seen = (j[None, :] < length) & (i[:, None] >= -1)
    if CAUSAL:
        seen = seen & (i[:, None] >= j[None, :])
    if HAS_WINDOW:
        seen = seen & (i[:, None] - j[None, :] < window)
    return seen


@triton.jit
def _vectors(base, stride, row, limit, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load queries or keys of some rows [rows, PADDED]; 0 behind the limit and the width."""
    c = tl.arange(0, PADDED)
    return tl.load(
        base + row[:, None].to(tl.int64) * stride + c[None, :],
        mask=(row[:, None] < limit) & (c[None, :] < WIDTH),
        other=0.0,
    )


@triton.jit
def _scores(
    q,
    k,
    i,
    j,
    scale_log2,
    softcap_log2,
    slope,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return a tile's scores times log2 e; pairs that are not seen have theirs too."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
    if HAS_SOFTCAP:
        s = _softcapped(s, softcap_log2)
    if HAS_SLOPES:
        s -= slope * 1.4426950408889634 * tl.abs(i[:, None] - j[None, :]).to(tl.float32)
    return s


@triton.jit
def _distances(p, tile_mass, i, j0, offset, CAUSAL: tl.constexpr):
    """Return Σ p·|i − j| over the keys of a tile."""
    if CAUSAL:  # without an integer for each pair
        distances = (i - j0).to(tl.float32) * tile_mass - tl.sum(p * offset.to(tl.float32)[None, :], 1)
    else:
        distances = tl.sum(p * tl.abs(i[:, None] - (j0 + offset)[None, :]).to(tl.float32), 1)
    return distances


@triton.jit
def _store(pointer, values, is_inside, is_stored):
    """Store values, NaN behind a text's length, where the output has room."""
    tl.store(pointer, tl.where(is_inside, values, float("nan")), mask=is_stored)


@triton.jit
def _rows(
    q_ptr,
    k_ptr,
    length_ptr,
    slope_ptr,
    sink_ptr,
    out_ptr,
    heads,
    group,
    queries,
    keys,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    scale_log2,
    softcap_log2,
    window,
    near,
    plane,
    ENTROPY: tl.constexpr,
    COLLISION: tl.constexpr,
    LARGEST: tl.constexpr,
    DISTANCE: tl.constexpr,
    FIRST: tl.constexpr,
    NEAR: tl.constexpr,
    HAS_SINK: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Measure a block of queries of one head; the position of query r is r + keys − queries."""
    program = tl.program_id(1)
    batch, head = program // heads, program % heads
    r = tl.program_id(0) * BQ + tl.arange(0, BQ)
    length = tl.load(length_ptr + batch)
    i = r + keys - queries
    q_base = q_ptr + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_ptr + batch.to(tl.int64) * k_batch + (head // group).to(tl.int64) * k_head
    q = _vectors(q_base, q_row, r, queries, WIDTH, PADDED)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(slope_ptr + head)
    top = tl.full([BQ], -1e30, tl.float32)
    mass = tl.zeros([BQ], tl.float32)
    sum_ps = tl.zeros([BQ], tl.float32)
    sum_pp = tl.zeros([BQ], tl.float32)
    sum_pd = tl.zeros([BQ], tl.float32)
    sum_first = tl.zeros([BQ], tl.float32)
    sum_near = tl.zeros([BQ], tl.float32)
    first_position = tl.program_id(0) * BQ + keys - queries
    begin = 0
    end = length
    # tiles before `clear` hold no key that any query of the block does not see
    clear = length // BK * BK
    if CAUSAL:
        end = tl.minimum(length, first_position + BQ)
        clear = tl.minimum(clear, tl.maximum(0, first_position + 1) // BK * BK)
    if HAS_WINDOW:
        begin = tl.maximum(0, (first_position - window + 1) // BK * BK)
        clear = begin
    offset = tl.arange(0, BK)
    for j0 in range(begin, end, BK):
        j = j0 + offset
        k = _vectors(k_base, k_row, j, length, WIDTH, PADDED)
        s = _scores(q, k, i, j, scale_log2, softcap_log2, slope, HAS_SOFTCAP, HAS_SLOPES, PRECISION)
        if j0 >= clear:
            s = tl.where(_seen(i, j, length, window, CAUSAL, HAS_WINDOW), s, -1e30)
        higher = tl.maximum(top, tl.max(s, 1))
        drop = tl.maximum(top - higher, -1e4)
        factor = tl.exp2(drop)
        # a row that has seen nothing yet has the maximum of hidden scores, and no weight
        t = s - tl.where(higher > -1e29, higher, 0.0)[:, None]
        p = tl.exp2(t)
        tile_mass = tl.sum(p, 1)
        if ENTROPY:  # before the mass, whose value up to here it needs
            sum_ps = factor * (sum_ps + drop * mass) + tl.sum(p * tl.maximum(t, -1e4), 1)
        if COLLISION:
            sum_pp = factor * factor * sum_pp + tl.sum(p * p, 1)
        if DISTANCE:
            sum_pd = factor * sum_pd + _distances(p, tile_mass, i, j0, offset, CAUSAL)
        if FIRST > 0:
            sum_first = factor * sum_first
            if j0 < FIRST:
                sum_first += tl.sum(tl.where(j[None, :] < FIRST, p, 0.0), 1)
        if NEAR:
            sum_near = factor * sum_near
            if j0 + BK > first_position - near:
                sum_near += tl.sum(tl.where(tl.abs(i[:, None] - j[None, :]) < near, p, 0.0), 1)
        mass = factor * mass + tile_mass
        top = higher
    z = mass
    if HAS_SINK:
        # the learned sink may lie above every score
        sink = tl.load(sink_ptr + head) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        factor = tl.exp2(tl.maximum(top - higher, -1e4))
        drop = tl.maximum(top - higher, -1e4)
        sum_ps = factor * (sum_ps + drop * mass)
        sum_pp = factor * factor * sum_pp
        sum_pd = factor * sum_pd
        sum_first = factor * sum_first
        sum_near = factor * sum_near
        mass = factor * mass
        z = mass + tl.exp2(sink - higher)
        peak = factor / z
        top = higher
    else:
        peak = 1.0 / z
    at = out_ptr + (batch * heads + head).to(tl.int64) * queries + r
    is_inside, is_stored = (r < queries) & (i < length), r < queries
    _store(at, (top + tl.log2(z)) * 0.6931471805599453, is_inside, is_stored)
    if ENTROPY:
        entropy = 0.6931471805599453 * (mass * tl.log2(z) - sum_ps) / z
        _store(at + plane, entropy, is_inside, is_stored)
    if COLLISION:
        _store(at + 2 * plane, sum_pp / z / z, is_inside, is_stored)
    if LARGEST:
        _store(at + 3 * plane, peak, is_inside, is_stored)
    if DISTANCE:
        _store(at + 4 * plane, sum_pd / z, is_inside, is_stored)
    if FIRST > 0:
        _store(at + 5 * plane, sum_first / z, is_inside, is_stored)
    if NEAR:
        _store(at + 6 * plane, sum_near / z, is_inside, is_stored)


@triton.jit
def _keys(
    q_ptr,
    k_ptr,
    length_ptr,
    slope_ptr,
    log_z_ptr,
    mass_ptr,
    squares_ptr,
    heads,
    group,
    queries,
    keys,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    scale_log2,
    softcap_log2,
    window,
    SQUARES: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up what a block of keys of one head receives, with log Z of every query known."""
    program = tl.program_id(1)
    batch, head = program // heads, program % heads
    j = tl.program_id(0) * BK + tl.arange(0, BK)
    length = tl.load(length_ptr + batch)
    q_base = q_ptr + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_ptr + batch.to(tl.int64) * k_batch + (head // group).to(tl.int64) * k_head
    k = _vectors(k_base, k_row, j, length, WIDTH, PADDED)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(slope_ptr + head)
    mass = tl.zeros([BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    begin = 0
    end = queries
    # from `clear` on every query of a block sees every key of this program, or has a log Z that makes its
    # weight 0
    clear = 0
    if CAUSAL:
        begin = tl.maximum(0, (tl.program_id(0) * BK - keys + queries) // BQ * BQ)
        clear = (tl.program_id(0) + 1) * BK - keys + queries
    if HAS_WINDOW:
        end = tl.minimum(queries, (tl.program_id(0) + 1) * BK + window - keys + queries)
        clear = queries
    for r0 in range(begin, end, BQ):
        r = r0 + tl.arange(0, BQ)
        i = r + keys - queries
        q = _vectors(q_base, q_row, r, queries, WIDTH, PADDED)
        # queries outside the text get an infinite log Z, so that their weights are 0
        inside = (r < queries) & (i < length)
        log_z = tl.load(
            log_z_ptr + (batch * heads + head).to(tl.int64) * queries + r, mask=inside, other=1e30
        )
        s = _scores(q, k, i, j, scale_log2, softcap_log2, slope, HAS_SOFTCAP, HAS_SLOPES, PRECISION)
        s -= log_z[:, None] * 1.4426950408889634
        if r0 < clear:
            s = tl.where(_seen(i, j, length, window, CAUSAL, HAS_WINDOW), s, -1e30)
        p = tl.exp2(s)
        mass += tl.sum(p, 0)
        if SQUARES:
            squares += tl.sum(p * p, 0)
    at = (batch * heads + head).to(tl.int64) * keys + j
    is_inside, is_stored = j < length, j < keys
    _store(mass_ptr + at, mass, is_inside, is_stored)
    if SQUARES:
        _store(squares_ptr + at, squares, is_inside, is_stored)


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
    softcap: float | None,
    slopes: Tensor | None,
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
        "CAUSAL": causal,
        "HAS_SOFTCAP": softcap is not None,
        "HAS_WINDOW": window is not None,
        "HAS_SLOPES": slopes is not None,
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
    inputs = _inputs(query, key, scaling, causal, window, softcap, slopes, lengths)
    batch, heads, queries, _ = inputs.shape
    planes = torch.empty((7, batch, heads, queries), dtype=torch.float32, device=query.device)
    _rows[(triton.cdiv(queries, ROW_TILE["BQ"]), batch * heads)](
        inputs.query,
        inputs.key,
        sink_ptr=planes if sink_logits is None else sink_logits.to(query.device, torch.float32),
        out_ptr=planes,
        plane=batch * heads * queries,
        near=near,
        ENTROPY="entropy" in measures,
        COLLISION="collision" in measures,
        LARGEST="largest" in measures,
        DISTANCE="distance" in measures,
        FIRST=first if "first_mass" in measures else 0,
        NEAR="near_mass" in measures,
        HAS_SINK=sink_logits is not None,
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
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
) -> KeyMeasures:
    """Measure what every key receives, with log Z of the queries from `row_measures`; arguments are the same.

    Returns:
        KeyMeasures, NaN behind the lengths.
    """
    inputs = _inputs(query, key, scaling, causal, window, softcap, slopes, lengths)
    batch, heads, _, keys = inputs.shape
    mass = torch.empty((batch, heads, keys), dtype=torch.float32, device=query.device)
    second = torch.empty_like(mass)
    _keys[(triton.cdiv(keys, KEY_TILE["BK"]), batch * heads)](
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
