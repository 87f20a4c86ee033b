# SPDX-License-Identifier: MIT
"""The scales of Betti curves: where pieces merge, and where all points are connected."""

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from attnscope.studies.hallucination_geometry.clouds import SCALES, curve_scales


def distances(seed, apart):
    """Two tight groups of points that lie far apart."""
    rng = np.random.default_rng(seed)
    points = np.concatenate([0.01 * rng.standard_normal((15, 6)), apart + rng.standard_normal((15, 6))])
    return squareform(pdist(points))


def test_half_of_the_scales_are_quantiles_of_merges_and_half_of_distances():
    """Single linkage by a minimum spanning tree merges pieces where H0 of a Rips complex dies."""
    clouds = [distances(0, 3.0), distances(1, 8.0)]
    merges = np.concatenate([minimum_spanning_tree(matrix).data for matrix in clouds])
    pairs = np.concatenate([matrix[np.triu_indices(30, 1)] for matrix in clouds])
    share = np.linspace(0, 1, SCALES // 2)
    expected = np.sort(np.concatenate([np.quantile(merges, share), np.quantile(pairs, share)]))
    scales = curve_scales([torch.from_numpy(matrix) for matrix in clouds]).numpy()
    np.testing.assert_allclose(scales, expected, rtol=1e-6)
    # evenly spaced scales would see the tight groups merge within two of them
    even = np.linspace(0, pairs.max(), SCALES)
    inside = merges[merges < 0.1]
    resolved = len(np.unique(np.searchsorted(scales, inside)))
    assert resolved > 10 > len(np.unique(np.searchsorted(even, inside)))


def test_points_that_are_all_equal_have_scales():
    scales = curve_scales([torch.zeros(5, 5, dtype=torch.float64)])
    assert scales.shape == (SCALES,)
    assert not scales.any()
