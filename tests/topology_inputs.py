# SPDX-License-Identifier: MIT
"""Maps and clouds of points for the topology tests, and their bars by other people's programs."""

import numpy as np
import torch

KINDS = ("softmax", "causal", "sink", "tied", "sparse", "one_hot")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CLOUDS = ("gaussian", "clustered", "circle", "tied")


def attention_map(kind, n, seed=0):
    """A seeded map [n, n] float64 of one of KINDS."""
    rng = np.random.default_rng([seed, n, KINDS.index(kind)])
    if kind == "tied":
        return rng.integers(0, 5, (n, n)) / 4.0
    if kind == "sparse":
        return np.where(rng.random((n, n)) < 0.15, rng.random((n, n)), 0.0)
    if kind == "one_hot":
        return np.eye(n)[rng.integers(0, np.arange(n) + 1)]
    logits = 2.0 * rng.standard_normal((n, n))
    if kind == "sink":
        logits[:, 0] += 6.0
    if kind != "softmax":
        logits = np.where(np.tri(n, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def weights_of(attention, symmetrize="max"):
    """w [n, n] float64 of one map, never above 1; exact for the max and min of any dtype."""
    a = torch.as_tensor(attention).to(torch.float64).numpy()
    merged = {"max": np.maximum(a, a.T), "min": np.minimum(a, a.T), "mean": 0.5 * (a + a.T)}[symmetrize]
    return np.minimum(merged, 1.0)


def dissimilarity(attention, symmetrize="max"):
    """1 − w [n, n] float64 with a zero diagonal."""
    d = 1.0 - weights_of(attention, symmetrize)
    np.fill_diagonal(d, 0.0)
    return d


def lexicographic(bars):
    bars = np.asarray(bars, dtype=np.float64).reshape(-1, 2)
    bars = bars[bars[:, 0] < bars[:, 1]]
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


def gudhi_bars(distance, field=2):
    """[H0, H1] of a distance matrix over Z/field by GUDHI's simplex tree; bars of length 0 left out."""
    import gudhi

    if len(distance) == 1:
        return [np.array([[0.0, np.inf]]), np.empty((0, 2))]
    tree = gudhi.RipsComplex(distance_matrix=distance).create_simplex_tree(max_dimension=2)
    tree.compute_persistence(homology_coeff_field=field, min_persistence=-1.0)
    return [lexicographic(tree.persistence_intervals_in_dimension(k)) for k in (0, 1)]


def cloud(kind, n, d=5, seed=0):
    """A seeded cloud [n, d] float64 of one of CLOUDS."""
    rng = np.random.default_rng([seed, n, d, CLOUDS.index(kind)])
    if kind == "tied":
        # Whole coordinates, none all 0: many equal distances, some equal points.
        points = rng.integers(0, 3, (n, d)).astype(float)
        points[:, 0] += 1
    elif kind == "circle":
        angle = rng.uniform(0, 2 * np.pi, n)
        points = np.zeros((n, d))
        points[:, 0], points[:, 1] = np.cos(angle), np.sin(angle)
        points += 0.01 * rng.standard_normal((n, d))
    elif kind == "clustered":
        centres = 5 * rng.standard_normal((max(1, n // 8), d))
        points = centres[rng.integers(0, len(centres), n)] + 0.3 * rng.standard_normal((n, d))
    else:
        points = rng.standard_normal((n, d))
    return torch.from_numpy(points)
