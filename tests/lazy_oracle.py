# SPDX-License-Identifier: MIT
"""Attention of queries and keys as a map in float64 NumPy, and its measures."""

import numpy as np
import torch

import attnscope as asc

MASK = torch.rand(96, 96, generator=torch.Generator().manual_seed(3)) > 0.3
#: Options, and the support under which metrics of the map see the same pairs.
KINDS = {
    "causal": ({}, "causal"),
    "full": ({"causal": False}, "full"),
    "window": ({"window": 30}, torch.ones(96, 96).tril().triu(-29).bool()),
    "mask": ({"mask": MASK}, MASK & torch.ones(96, 96).tril().bool()),
    "learned sink": ({"sink_logits": torch.tensor([0.0, 1.0, 5.0])}, "causal"),
}


def as_numbers(values):
    return np.asarray(torch.as_tensor(values).double())


def dense_attention(
    query,
    key,
    *,
    scaling=None,
    causal=True,
    window=None,
    bias=None,
    softcap=None,
    sink_logits=None,
    mask=None,
    lengths=None,
    query_positions=None,
):
    """Return log Z and the map; a query that sees nothing has no weight, one of padding is NaN."""
    q, k = as_numbers(query), as_numbers(key)
    k = k.repeat(q.shape[-3] // k.shape[-3], -3)
    rows, keys = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    i = np.arange(rows) + keys - rows if query_positions is None else np.asarray(query_positions)
    distance = i[:, None] - np.arange(keys)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        slopes = as_numbers(bias)
        scores = scores + (-slopes[:, None, None] * abs(distance) if slopes.ndim == 1 else slopes)
    hidden = np.zeros(scores.shape, bool)
    if causal:
        hidden |= distance < 0
    if window is not None:
        hidden |= distance >= window
    if mask is not None:
        hidden |= ~np.asarray(mask)
    if lengths is not None:
        hidden |= np.arange(keys) >= np.asarray(lengths)[..., None, None, None]
    scores = np.where(hidden, -np.inf, scores)
    sinks = np.full(q.shape[-3], -np.inf) if sink_logits is None else as_numbers(sink_logits)
    sinks = np.broadcast_to(sinks[:, None], scores.shape[:-1])
    largest = np.maximum(scores.max(-1), sinks)
    origin = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(scores - origin[..., None])
        z = weights.sum(-1) + np.exp(sinks - origin)
        log_z = origin + np.log(z)
        maps = np.where(z[..., None] > 0, weights / z[..., None], 0.0)
    if lengths is not None:
        padding = i >= np.asarray(lengths)[..., None, None]
        padding = np.broadcast_to(padding, log_z.shape)
        log_z, maps = np.where(padding, np.nan, log_z), np.where(padding[..., None], np.nan, maps)
    return log_z, maps


def row_measures(log_z, maps, positions=None):
    """Return the measures of every query that `LazyAttention.row_measures` gives."""
    rows, keys = maps.shape[-2:]
    i = np.arange(rows) + keys - rows if positions is None else np.asarray(positions)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(maps > 0, np.log(np.where(maps > 0, maps, 1.0)), 0.0)
    return {
        "log_z": log_z,
        "entropy": -(maps * logs).sum(-1),
        "collision": (maps**2).sum(-1),
        "largest": maps.max(-1),
        "distance": (maps * abs(i[:, None] - np.arange(keys))).sum(-1),
        "mass": maps.sum(-1),
    }


def random_vectors(
    heads=2, rows=130, width=16, kv=None, keys=None, seed=0, sharpness=1.0, dtype=torch.float32
):
    """Return queries and keys of a seeded normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(heads, rows, width, generator=generator) * sharpness
    key = torch.randn(kv or heads, keys or rows, width, generator=generator)
    return query.to(dtype), key.to(dtype)


def lazy_and_map(query, key, **options):
    """Return lazy attention in float64 and the map of the oracle."""
    precision = options.pop("precision", "exact")
    lazy = asc.LazyAttention(query, key, precision=precision, **options)
    return lazy, dense_attention(query, key, **options)[1]


def sink_like_vectors(**options):
    query, key = random_vectors(heads=3, rows=96, **options)
    query[:2] += 1.0
    key[0, 0] += 1.5
    return query, key


def assert_equal_results(ours, expected, tolerance):
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == expected.dtype
        if ours.dtype.is_floating_point:
            np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(ours, expected)
        return
    for field in ours._fields:
        assert_equal_results(getattr(ours, field), getattr(expected, field), tolerance)
