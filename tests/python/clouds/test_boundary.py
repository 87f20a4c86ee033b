# SPDX-License-Identifier: MIT
"""boundary: closed forms, what swapping labels does, and that the squared distance is unbiased."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from topology_inputs import cloud


def test_it_is_the_difference_of_means():
    first, other = cloud("gaussian", 30, 6), cloud("gaussian", 20, 6, seed=1) + 1
    result = asc.boundary(first, other)
    a, b = first.numpy(), other.numpy()
    v = b.mean(0) - a.mean(0)
    np.testing.assert_allclose(result.norm, np.linalg.norm(v), rtol=1e-12)
    np.testing.assert_allclose(result.direction, v / np.linalg.norm(v), rtol=1e-12)
    np.testing.assert_allclose(result.center, (a.mean(0) + b.mean(0)) / 2, rtol=1e-12)
    norms = np.linalg.norm(np.concatenate([a, b]), axis=1)
    np.testing.assert_allclose(result.relative_norm, np.linalg.norm(v) / norms.mean(), rtol=1e-12)
    scatter = np.trace(np.cov(a.T)) / 30 + np.trace(np.cov(b.T)) / 20
    np.testing.assert_allclose(result.distance2, v @ v - scatter, rtol=1e-12)


def test_swapping_the_labels_turns_it_round():
    first, other = cloud("gaussian", 12, 4), cloud("clustered", 9, 4)
    forward, back = asc.boundary(first, other), asc.boundary(other, first)
    assert torch.equal(forward.direction, -back.direction)
    for name in ("norm", "relative_norm", "distance2", "center"):
        torch.testing.assert_close(getattr(forward, name), getattr(back, name), rtol=1e-12, atol=1e-15)


def test_pairs_are_compared_with_each_other():
    first, other = cloud("gaussian", 8, 5), cloud("gaussian", 8, 5, seed=3)
    pairs = torch.tensor([[0, 3], [5, 1], [7, 7], [2, 0]])
    result = asc.boundary(first, other, pairs=pairs)
    differences = (other[pairs[:, 1]] - first[pairs[:, 0]]).numpy()
    v = differences.mean(0)
    np.testing.assert_allclose(result.norm, np.linalg.norm(v), rtol=1e-12)
    scatter = np.trace(np.cov(differences.T)) / 4
    np.testing.assert_allclose(result.distance2, v @ v - scatter, rtol=1e-11)
    chosen = asc.boundary(first[pairs[:, 0]], other[pairs[:, 1]])
    torch.testing.assert_close(result.center, chosen.center)
    torch.testing.assert_close(result.relative_norm, chosen.relative_norm)


def test_the_squared_distance_is_unbiased():
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(4000, 5, 8, generator=draw, dtype=torch.float64)
    other = torch.randn(4000, 7, 8, generator=draw, dtype=torch.float64)
    other[..., 0] += 0.5
    result = asc.boundary(first, other).distance2
    error = result.std().item() / math.sqrt(4000)
    assert abs(result.mean().item() - 0.25) < 4 * error
    assert (result < 0).any()
    paired = asc.boundary(first, other, pairs=torch.arange(5)[:, None].expand(5, 2)).distance2
    assert abs(paired.mean().item() - 0.25) < 4 * paired.std().item() / math.sqrt(4000)


def test_degenerate_clouds():
    result_of_ones = asc.boundary(torch.ones(3, 2), torch.ones(4, 2))
    assert result_of_ones.norm.item() == 0
    assert result_of_ones.direction.isnan().all()
    single = asc.boundary(torch.ones(1, 2), 2 * torch.ones(3, 2))
    assert math.isclose(single.norm.item(), math.sqrt(2))
    assert single.distance2.isnan()


def test_lengths_dtypes_and_a_cloud_that_is_not_finite():
    first = torch.stack([cloud("gaussian", 6, 3, seed) for seed in range(3)]).float()
    other = first + 1
    first[1, 0, 0] = math.nan
    other[2, 5] = math.nan  # beyond its length
    with pytest.warns(RuntimeWarning, match="boundary: 1 of 3 clouds"):
        result = asc.boundary(first, other, lengths=[6, 6, 4], other_lengths=[6, 6, 5])
    assert result.norm[1].isnan()
    single_result = asc.boundary(first[2, :4].double(), other[2, :5].double())
    for actual, its in zip(result, single_result, strict=True):
        torch.testing.assert_close(actual[2], its, rtol=1e-12, atol=1e-15)


def test_bad_input():
    points = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"must agree in all but .* got \(3, 2\) and \(3, 4\)"):
        asc.boundary(points, torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"pairs must be points of 3 and 3, got \(0, 3\) in row 1"):
        asc.boundary(points, points, pairs=torch.tensor([[0, 0], [0, 3]]))
    with pytest.raises(ValueError, match=r"pairs must be \[p, 2\]"):
        asc.boundary(points, points, pairs=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="no lengths go with them"):
        asc.boundary(points, points, pairs=torch.tensor([[0, 0]]), lengths=2)
