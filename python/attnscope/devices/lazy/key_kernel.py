# SPDX-License-Identifier: MIT
"""Sums over what each key receives: one program a head and block of keys, queries in a loop, log Z known."""

from __future__ import annotations

import triton
import triton.language as tl

from attnscope.devices.lazy.tiles import (
    AFTER,
    CAUSAL,
    WINDOW,
    hide,
    load_head,
    load_slope,
    load_vectors,
    store,
    tile_scores,
)


@triton.jit
def _query_range(queries, keys, window, after, FORM: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    """Return the first query that sees a key of the program's block, the query behind the last, and `clear`.

    From `clear` on every query of a block sees every key of this program, or has a log Z that makes its
    weight 0.
    """
    begin = 0
    end = queries
    clear = 0
    if CAUSAL & FORM:
        begin = tl.maximum(0, (tl.program_id(0) * BK - keys + queries) // BQ * BQ)
        clear = (tl.program_id(0) + 1) * BK - keys + queries
    if AFTER & FORM:
        begin = tl.maximum(0, (tl.program_id(0) * BK - after - keys + queries) // BQ * BQ)
        clear = (tl.program_id(0) + 1) * BK - after - keys + queries
    if WINDOW & FORM:
        end = tl.minimum(queries, (tl.program_id(0) + 1) * BK + window - keys + queries)
        clear = queries
    return begin, end, clear


@triton.jit
def measure_keys(
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
    after,
    SQUARES: tl.constexpr,
    FORM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up what a block of keys of one head receives, with log Z of every query known."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    length, slope = tl.load(length_ptr + batch), load_slope(slope_ptr, head, FORM)
    j = tl.program_id(0) * BK + tl.arange(0, BK)
    q_base = load_head(q_ptr, batch, head, q_batch, q_head)
    k_base = load_head(k_ptr, batch, head // group, k_batch, k_head)
    k = load_vectors(k_base, k_row, j, length, WIDTH, PADDED)
    mass, squares = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
    begin, end, clear = _query_range(queries, keys, window, after, FORM, BQ, BK)
    for r0 in range(begin, end, BQ):
        r = r0 + tl.arange(0, BQ)
        i = r + keys - queries
        q = load_vectors(q_base, q_row, r, queries, WIDTH, PADDED)
        # queries outside the text get an infinite log Z, so that their weights are 0
        log_z_at = log_z_ptr + tl.program_id(1).to(tl.int64) * queries + r
        log_z = tl.load(log_z_at, mask=(r < queries) & (i < length), other=1e30)
        # so do those that see nothing
        log_z = tl.where(log_z < -1e29, 1e30, log_z)
        s = tile_scores(q, k, i, j, scale_log2, softcap_log2, slope, FORM, PRECISION)
        s -= log_z[:, None] * 1.4426950408889634
        if r0 < clear:
            s = hide(s, i, j, length, window, after, FORM)
        p = tl.exp2(s)
        mass += tl.sum(p, 0)
        if SQUARES:
            squares += tl.sum(p * p, 0)
    at = tl.program_id(1).to(tl.int64) * keys + j
    store(mass_ptr + at, mass, j < length, j < keys)
    if SQUARES:
        store(squares_ptr + at, squares, j < length, j < keys)
