# SPDX-License-Identifier: MIT
"""Maps that several tests read: seeded, drawn by hypothesis, of given signals, and hard for float64.

The arithmetic of 100 digits judges what is said of the hard ones.
"""

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

mp.mp.dps = 100
EPS = 2.0**-52
# Below the smallest normal number float64 has no relative precision.
TINY = 2.0**-1022
KINDS = ("causal", "full", "sparse", "sink", "local", "tied")
#: Regimes of attention that benchmarks have too; all are causal but the last.
REGIMES = ("sink", "local", "diffuse", "peaky", "bidirectional")


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


def regime_maps(regime, n, dtype=torch.float64, leading=(2, 3)):
    """Maps [*leading, n, n]: a first key that all rest on, near keys, nearly equal weights, sharp ones."""
    generator = torch.Generator().manual_seed(n)
    logits = torch.randn(*leading, n, n, generator=generator, dtype=torch.float64)
    place = torch.arange(n)
    if regime == "sink":
        logits[..., 0] += 5.0
    elif regime == "local":
        logits -= 0.5 * (place[:, None] - place).abs()
    else:
        logits *= {"diffuse": 0.1, "peaky": 4.0, "bidirectional": 4.0}[regime]
    if regime != "bidirectional":
        logits = logits.masked_fill(place > place[:, None], -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


@st.composite
def attention_maps(draw, smallest=1, largest=24):
    """A float64 map of any kind."""
    return attention_map(
        draw(st.integers(smallest, largest)),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from([0.1, 1.5, 6.0])),
    )


def of_signal(x, dtype=torch.float64):
    """A map whose every row is x."""
    x = np.asarray(x, dtype=float)
    return torch.tensor(np.tile(x, (len(x), 1))).to(dtype)


def signals(attention, *, signal="rows", min_keys=32, drop_first=False, visible=None):
    """{query: signal} of one map [n, n], as the definition says; query 0 where there is one signal."""
    a = np.asarray(attention, dtype=float)
    n = len(a)
    if visible is None:
        visible = np.tri(n, dtype=bool) if n > 1 and not np.triu(a, 1).any() else np.ones((n, n), bool)
    keys = np.arange(n) >= (1 if drop_first else 0)
    a = np.where(visible & keys, a, 0.0)
    if drop_first:
        with np.errstate(invalid="ignore", divide="ignore"):
            a = a / a.sum(1, keepdims=True)
    rows = {i: a[i, visible[i] & keys] for i in range(n) if np.isfinite(a[i]).all()}
    if signal == "rows":
        return {i: x for i, x in rows.items() if len(x) >= min_keys}
    if signal == "last":
        return {0: rows[n - 1]} if n - 1 in rows and len(rows[n - 1]) >= min_keys else {}
    if signal == "mean":
        long = [i for i, x in rows.items() if len(x) >= min_keys]
        seen = (visible & keys)[long].sum(0)
        x = a[long].sum(0)[seen > 0] / seen[seen > 0] if long else np.zeros(0)
    else:
        i, j = np.indices((n, n))
        seen = visible & keys & np.isin(i, list(rows))
        # distances that no visible pair has are left out
        x = np.array([a[seen & (np.abs(i - j) == d)].mean() for d in np.unique(np.abs(i - j)[seen])])
    return {0: x} if len(x) >= min_keys else {}


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def hard_maps(n=8):
    """Float64 maps [n, n] by name."""
    rng = np.random.default_rng(7)
    full = softmax(rng.standard_normal((n, n)))
    maps = {
        "softmax": full,
        "causal": np.tril(full) / np.tril(full).sum(-1, keepdims=True),
        "uniform": np.full((n, n), 1 / n),
        "one row for all": np.tile(full[0], (n, 1)),
        "one-hot rows": np.eye(n)[rng.integers(0, n, n)],
        "permutation": np.eye(n)[rng.permutation(n)],
        "identity": np.eye(n),
        "star": np.eye(n)[[0] * n],
        "zeros": np.zeros((n, n)),
    }
    nearly = np.full((n, n), 1 / n) + 1e-13 * rng.standard_normal((n, n))
    maps["clustered eigenvalues"] = nearly
    thread, half = np.zeros((n, n)), n // 2
    thread[:half, :half] = thread[half:, half:] = 0.25
    thread[half - 1, half] = thread[half, half - 1] = 1e-12
    maps["two islands and a thread of 1e-12"] = thread
    graded = np.tril(full) * 10.0 ** -(4.0 * np.arange(n))
    maps["graded over 28 decades"] = graded
    # Even multiples of the smallest number, whose means are numbers too.
    tiny = 1e-323 * rng.integers(1, 1000, (n, n))
    maps["subnormal weights"] = np.where(np.eye(n) > 0, 1.0, tiny)
    maps["only subnormal weights"] = tiny
    maps["nearly rank one"] = np.tile(full[0], (n, 1)) * (1 + 1e-10 * rng.standard_normal((n, n)))
    bf16 = torch.tensor(full).bfloat16()
    maps["bfloat16"] = bf16.double().numpy()  # rows off by up to 4e-3
    maps["float16"] = torch.tensor(full).half().double().numpy()
    return maps


def exact(matrix):
    """The same numbers as mpmath's."""
    return mp.matrix([[mp.mpf(float(x)) for x in row] for row in matrix])


def eigenvalues(matrix):
    """Of a symmetric mpmath matrix, ascending."""
    return sorted(mp.eigsy(matrix, eigvals_only=True))


def apart(result, expected):
    """|found - wanted| without rounding."""
    return abs(mp.mpf(float(result)) - expected)


# One of each kind of difficulty; the others of HARD take longer than a quick test may.
QUICK = ("bfloat16", "clustered eigenvalues", "one-hot rows", "only subnormal weights", "zeros")


def some_quick(maps):
    """Names of maps as parameters, the others marked slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in maps]
