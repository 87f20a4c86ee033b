# SPDX-License-Identifier: MIT
"""Gride: two_nn, the likelihood by hand, dimensions of cubes, and what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import attnscope as asc


def cube(n, d, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rank_one_is_two_nn():
    points = cube(80, 3)
    assert asc.gride(points, 1).item() == pytest.approx(asc.two_nn(points).item(), rel=1e-12)
    line = torch.tensor([[0.0], [1.0], [math.e]], dtype=torch.float64)
    assert asc.gride(line, 1).item() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("n1", [2, 5])
def test_it_makes_the_ratios_most_likely_but_for_one_point(n1):
    """The density of μ is D (μ^D − 1)^{n1 − 1} μ^{−(2·n1 − 1) D − 1}/B(n1, n1), the root of N − 1 points."""
    points = cube(60, 2)
    apart = torch.cdist(points, points).sort(-1).values.numpy()
    mu = apart[:, 2 * n1] / apart[:, n1]

    def loss(d):
        size = len(mu) - 1
        likelihood = (n1 - 1) * np.log(np.expm1(d * np.log(mu))) - (2 * n1 - 1) * d * np.log(mu)
        return -(size * np.log(d) + likelihood.sum())

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-10}).x
    assert asc.gride(points, n1).item() == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_cubes_have_their_dimension(d):
    assert asc.gride(cube(2000, d), 4).item() == pytest.approx(d, rel=0.12)


def test_scale_distances_and_lengths():
    points = cube(50, 3)
    expected = asc.gride(points, 3).item()
    assert asc.gride(points * 1e6, 3).item() == pytest.approx(expected, rel=1e-9)
    distances = asc.cloud_distances(points)
    assert asc.gride(None, 3, distances=distances).item() == pytest.approx(expected, rel=1e-12)
    pair = torch.stack([points, cube(50, 3, seed=1)])
    result = asc.gride(pair, 3, lengths=[50, 20])
    assert result[0].item() == pytest.approx(expected, rel=1e-12)
    assert result[1].item() == pytest.approx(asc.gride(pair[1, :20], 3).item(), rel=1e-12)


def test_clouds_without_a_dimension():
    assert asc.gride(torch.zeros(6, 2), 1).isnan()
    corners = torch.eye(6)  # all at one distance: every ratio is 1
    assert asc.gride(corners, 2).isnan()


def test_ranks_out_of_range_are_named():
    with pytest.raises(ValueError, match="gride: n1 must be at least 1, got 0"):
        asc.gride(cube(9, 2), 0)
    with pytest.raises(ValueError, match="2·n1 must be at most n - 1 = 8, got n1 = 5"):
        asc.gride(cube(9, 2), 5)


def test_a_cloud_that_is_not_finite_is_counted_in_a_warning():
    clouds = torch.stack([cube(9, 2), cube(9, 2, seed=1)])
    clouds[1, 3, 0] = torch.nan
    with pytest.warns(asc.errors.NonFiniteWarning, match="gride: 1 of 2 clouds hold NaN"):
        result = asc.gride(clouds, 2)
    assert result.isnan().tolist() == [False, True]
