# SPDX-License-Identifier: MIT
"""Seeded attention maps and hypothesis strategies that several tests draw from."""

import numpy as np
import torch
from hypothesis import strategies as st

KINDS = ("causal", "full", "sparse", "sink", "local", "tied")


def attention_map(n, kind="causal", seed=0, sharpness=1.5):
    """One softmax map [n, n] in float64: row-stochastic, with the support that its kind says."""
    rng = np.random.default_rng([seed, n, KINDS.index(kind)])
    logits = sharpness * rng.standard_normal((n, n))
    if kind == "sink":
        logits[:, 0] += 4.0
    if kind == "local":
        logits -= 0.5 * np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if kind == "tied":  # few distinct values, as half-precision maps have
        logits = np.round(logits)
    if kind == "sparse":
        logits = np.where(rng.random((n, n)) < 0.8, -np.inf, logits)
        np.fill_diagonal(logits, 0.0)
    if kind != "full":
        logits = np.where(np.tril(np.ones((n, n), bool)), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention_batch(shape, n, dtype=torch.float64, seed=0):
    """A tensor [*shape, n, n] that goes round the kinds."""
    count = int(np.prod(shape, dtype=int))
    maps = [attention_map(n, KINDS[i % len(KINDS)], seed + i) for i in range(count)]
    return torch.tensor(np.array(maps)).reshape(*shape, n, n).to(dtype)


@st.composite
def attention_maps(draw, smallest=1, largest=24):
    """A float64 map of any kind."""
    return attention_map(
        draw(st.integers(smallest, largest)),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from([0.1, 1.5, 6.0])),
    )
