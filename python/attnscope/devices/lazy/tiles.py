# SPDX-License-Identifier: MIT
"""A tile of scores: its queries and keys, what it adds to them, and which pairs are seen."""

from __future__ import annotations

import triton
import triton.language as tl

# How scores are made, bits of the kernels' FORM.
#: A query sees no later key.
CAUSAL = tl.constexpr(1)
#: Scores are softcap·tanh(score/softcap).
SOFTCAP = tl.constexpr(2)
#: A query sees keys less than `window` positions before it.
WINDOW = tl.constexpr(4)
#: Scores lose ALiBi's slope times the distance.
SLOPES = tl.constexpr(8)
#: A learned sink joins the denominator.
SINK = tl.constexpr(16)
#: A query sees keys at most `after` positions behind it.
AFTER = tl.constexpr(32)


@triton.jit
def load_head(pointer, batch, head, batch_stride, head_stride):
    """Return the address of a head's first vector."""
    return pointer + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride


@triton.jit
def load_vectors(base, stride, row, limit, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load queries or keys of some rows [rows, PADDED]; 0 behind the limit and the width."""
    c = tl.arange(0, PADDED)
    return tl.load(
        base + row[:, None].to(tl.int64) * stride + c[None, :],
        mask=(row[:, None] < limit) & (c[None, :] < WIDTH),
        other=0.0,
    )


@triton.jit
def load_slope(pointer, head, FORM: tl.constexpr):
    """Load ALiBi's slope of a head; 0 where there is none."""
    slope = 0.0
    if SLOPES & FORM:
        slope = tl.load(pointer + head)
    return slope


@triton.jit
def _softcapped(s, softcap_log2):
    """Return softcap·tanh(s/softcap), both times log2 e, by e^(−2|x|), which does not overflow."""
    u = tl.exp2(tl.abs(s) * (-2.0 * 1.4426950408889634 / softcap_log2))
    return tl.where(s < 0, -softcap_log2, softcap_log2) * (1.0 - u) / (1.0 + u)


@triton.jit
def tile_scores(q, k, i, j, scale_log2, softcap_log2, slope, FORM: tl.constexpr, PRECISION: tl.constexpr):
    """Return a tile's scores times log2 e; pairs that are not seen have theirs too."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
    if SOFTCAP & FORM:
        s = _softcapped(s, softcap_log2)
    if SLOPES & FORM:
        s -= slope * 1.4426950408889634 * tl.abs(i[:, None] - j[None, :]).to(tl.float32)
    return s


@triton.jit
def hide(s, i, j, length, window, after, FORM: tl.constexpr):
    """Return scores in which pairs that are not seen are a large finite number below 0."""
    seen = (j[None, :] < length) & (i[:, None] >= -1)
    if CAUSAL & FORM:
        seen = seen & (i[:, None] >= j[None, :])
    if WINDOW & FORM:
        seen = seen & (i[:, None] - j[None, :] < window)
    if AFTER & FORM:
        seen = seen & (j[None, :] - i[:, None] <= after)
    return tl.where(seen, s, -1e30)


@triton.jit
def store(pointer, values, is_inside, is_stored):
    """Store values, NaN behind a text's length, where the output has room."""
    tl.store(pointer, tl.where(is_inside, values, float("nan")), mask=is_stored)
