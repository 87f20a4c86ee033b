# SPDX-License-Identifier: MIT
"""Clouds of points for the tests."""

import numpy as np
import torch

CLOUDS = ("gaussian", "clustered", "circle", "tied")


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
