# SPDX-License-Identifier: MIT
"""Small maps that are hard for float64, and the arithmetic of 100 digits that judges what is said of them."""

import mpmath as mp
import numpy as np
import pytest
import torch

mp.mp.dps = 100
EPS = 2.0**-52
# Below the smallest normal number float64 has no relative precision.
TINY = 2.0**-1022


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


def apart(found, wanted):
    """|found - wanted| without rounding."""
    return abs(mp.mpf(float(found)) - wanted)


# One of each kind of difficulty; the others of HARD take longer than a quick test may.
QUICK = ("bfloat16", "clustered eigenvalues", "one-hot rows", "only subnormal weights", "zeros")


def some_quick(maps):
    """Names of maps as parameters, the others marked slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in maps]
