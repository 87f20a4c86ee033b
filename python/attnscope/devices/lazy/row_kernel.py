# SPDX-License-Identifier: MIT
"""Measures of queries: one program for each head and block of queries, keys in a loop, an online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from attnscope.devices.lazy.tiles import (
    AFTER,
    CAUSAL,
    SINK,
    WINDOW,
    hide,
    load_head,
    load_slope,
    load_vectors,
    store,
    tile_scores,
)

# What is measured beside log Z, bits of MEASURES.
ENTROPY = tl.constexpr(1)
COLLISION = tl.constexpr(2)
LARGEST = tl.constexpr(4)
DISTANCE = tl.constexpr(8)
FIRST_MASS = tl.constexpr(16)
NEAR_MASS = tl.constexpr(32)


@triton.jit
def _distances(p, tile_mass, i, j0, FORM: tl.constexpr, BK: tl.constexpr):
    """Return Σ p·|i − j| over the keys of a tile."""
    offset = tl.arange(0, BK)
    if CAUSAL & FORM:  # without an integer for each pair
        distances = (i - j0).to(tl.float32) * tile_mass - tl.sum(p * offset.to(tl.float32)[None, :], 1)
    else:
        distances = tl.sum(p * tl.abs(i[:, None] - (j0 + offset)[None, :]).to(tl.float32), 1)
    return distances


@triton.jit
def _key_range(position, length, window, after, FORM: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    """Return the first key that queries from a position on see, the key behind their last, and `clear`.

    Tiles before `clear` hold no key that any query of the block does not see.
    """
    begin = 0
    end = length
    clear = length // BK * BK
    if CAUSAL & FORM:
        end = tl.minimum(length, position + BQ)
        clear = tl.minimum(clear, tl.maximum(0, position + 1) // BK * BK)
    if AFTER & FORM:
        end = tl.minimum(length, position + BQ + after)
        clear = tl.minimum(clear, tl.maximum(0, position + after + 1) // BK * BK)
    if WINDOW & FORM:
        begin = tl.maximum(0, (position - window + 1) // BK * BK)
        clear = begin
    return begin, end, clear


@triton.jit
def _add_tile(
    s,
    i,
    j0,
    position,
    near,
    top,
    mass,
    sum_ps,
    sum_pp,
    sum_pd,
    sum_first,
    sum_near,
    FIRST: tl.constexpr,
    MEASURES: tl.constexpr,
    FORM: tl.constexpr,
    BK: tl.constexpr,
):
    """Return the maximum of the scores so far and the sums relative to it, with those of a tile."""
    j = j0 + tl.arange(0, BK)
    higher = tl.maximum(top, tl.max(s, 1))
    drop = tl.maximum(top - higher, -1e4)
    factor = tl.exp2(drop)
    # a row that has seen nothing yet has the maximum of hidden scores, and no weight
    t = s - tl.where(higher > -1e29, higher, 0.0)[:, None]
    p = tl.exp2(t)
    tile_mass = tl.sum(p, 1)
    if ENTROPY & MEASURES:  # before the mass, whose value up to here it needs
        sum_ps = factor * (sum_ps + drop * mass) + tl.sum(p * tl.maximum(t, -1e4), 1)
    if COLLISION & MEASURES:
        sum_pp = factor * factor * sum_pp + tl.sum(p * p, 1)
    if DISTANCE & MEASURES:
        sum_pd = factor * sum_pd + _distances(p, tile_mass, i, j0, FORM, BK)
    if FIRST_MASS & MEASURES:
        sum_first = factor * sum_first
        if j0 < FIRST:
            sum_first += tl.sum(tl.where(j[None, :] < FIRST, p, 0.0), 1)
    if NEAR_MASS & MEASURES:
        sum_near = factor * sum_near
        if j0 + BK > position - near:
            sum_near += tl.sum(tl.where(tl.abs(i[:, None] - j[None, :]) < near, p, 0.0), 1)
    return higher, factor * mass + tile_mass, sum_ps, sum_pp, sum_pd, sum_first, sum_near


@triton.jit
def _store_rows(
    at,
    plane,
    is_inside,
    is_stored,
    sink_ptr,
    head,
    top,
    mass,
    sum_ps,
    sum_pp,
    sum_pd,
    sum_first,
    sum_near,
    MEASURES: tl.constexpr,
    FORM: tl.constexpr,
):
    """Store the measures that follow from the sums over all keys, each in its plane."""
    z = mass
    factor = 1.0
    if SINK & FORM:
        # the learned sink may lie above every score
        sink = tl.load(sink_ptr + head) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        drop = tl.maximum(top - higher, -1e4)
        factor = tl.exp2(drop)
        sum_ps = factor * (sum_ps + drop * mass)
        mass = factor * mass
        z = mass + tl.exp2(sink - higher)
        top = higher
    # a query that sees nothing has no weight to divide
    divisor = tl.where(z == 0.0, 1.0, z)
    store(at, (top + tl.log2(z)) * 0.6931471805599453, is_inside, is_stored)
    if ENTROPY & MEASURES:
        entropy = 0.6931471805599453 * (mass * tl.log2(divisor) - sum_ps) / divisor
        store(at + plane, entropy, is_inside, is_stored)
    if COLLISION & MEASURES:
        store(at + 2 * plane, factor * factor * sum_pp / divisor / divisor, is_inside, is_stored)
    if LARGEST & MEASURES:
        store(at + 3 * plane, tl.where((mass == 0.0) & (z == z), 0.0, factor / divisor), is_inside, is_stored)
    if DISTANCE & MEASURES:
        store(at + 4 * plane, factor * sum_pd / divisor, is_inside, is_stored)
    if FIRST_MASS & MEASURES:
        store(at + 5 * plane, factor * sum_first / divisor, is_inside, is_stored)
    if NEAR_MASS & MEASURES:
        store(at + 6 * plane, factor * sum_near / divisor, is_inside, is_stored)


@triton.jit
def measure_rows(
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
    after,
    near,
    plane,
    FIRST: tl.constexpr,
    MEASURES: tl.constexpr,
    FORM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Measure a block of queries of one head; the position of query r is r + keys − queries."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    length, slope = tl.load(length_ptr + batch), load_slope(slope_ptr, head, FORM)
    position = tl.program_id(0) * BQ + keys - queries
    r = tl.program_id(0) * BQ + tl.arange(0, BQ)
    i = r + keys - queries
    q_base = load_head(q_ptr, batch, head, q_batch, q_head)
    k_base = load_head(k_ptr, batch, head // group, k_batch, k_head)
    q = load_vectors(q_base, q_row, r, queries, WIDTH, PADDED)
    top, mass = tl.full([BQ], -1e30, tl.float32), tl.zeros([BQ], tl.float32)
    ps, pp, pd, first, close = mass, mass, mass, mass, mass
    begin, end, clear = _key_range(position, length, window, after, FORM, BQ, BK)
    for j0 in range(begin, end, BK):
        j = j0 + tl.arange(0, BK)
        k = load_vectors(k_base, k_row, j, length, WIDTH, PADDED)
        s = tile_scores(q, k, i, j, scale_log2, softcap_log2, slope, FORM, PRECISION)
        if j0 >= clear:
            s = hide(s, i, j, length, window, after, FORM)
        top, mass, ps, pp, pd, first, close = _add_tile(
            s, i, j0, position, near, top, mass, ps, pp, pd, first, close, FIRST, MEASURES, FORM, BK
        )
    at = out_ptr + tl.program_id(1).to(tl.int64) * queries + r
    is_inside, is_stored = (r < queries) & (i < length), r < queries
    _store_rows(
        at, plane, is_inside, is_stored, sink_ptr, head, top, mass, ps, pp, pd, first, close, MEASURES, FORM
    )
