# SPDX-License-Identifier: MIT
"""boundary: closed forms, what swapping labels does, and that the squared distance is unbiased."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from topology_inputs import cloud


def test_it_is_the_difference_of_means():
    one, other = cloud("gaussian", 30, 6), cloud("gaussian", 20, 6, seed=1) + 1
    found = asc.boundary(one, other)
    a, b = one.numpy(), other.numpy()
    v = b.mean(0) - a.mean(0)
    np.testing.assert_allclose(found.norm, np.linalg.norm(v), rtol=1e-12)
    np.testing.assert_allclose(found.direction, v / np.linalg.norm(v), rtol=1e-12)
    np.testing.assert_allclose(found.center, (a.mean(0) + b.mean(0)) / 2, rtol=1e-12)
    norms = np.linalg.norm(np.concatenate([a, b]), axis=1)
    np.testing.assert_allclose(found.relative_norm, np.linalg.norm(v) / norms.mean(), rtol=1e-12)
    scatter = np.trace(np.cov(a.T)) / 30 + np.trace(np.cov(b.T)) / 20
    np.testing.assert_allclose(found.distance2, v @ v - scatter, rtol=1e-12)


def test_swapping_the_labels_turns_it_round():
    one, other = cloud("gaussian", 12, 4), cloud("clustered", 9, 4)
    there, back = asc.boundary(one, other), asc.boundary(other, one)
    assert torch.equal(there.direction, -back.direction)
    for name in ("norm", "relative_norm", "distance2", "center"):
        torch.testing.assert_close(getattr(there, name), getattr(back, name), rtol=1e-12, atol=1e-15)


def test_pairs_are_compared_with_each_other():
    one, other = cloud("gaussian", 8, 5), cloud("gaussian", 8, 5, seed=3)
    pairs = torch.tensor([[0, 3], [5, 1], [7, 7], [2, 0]])
    found = asc.boundary(one, other, pairs=pairs)
    differences = (other[pairs[:, 1]] - one[pairs[:, 0]]).numpy()
    v = differences.mean(0)
    np.testing.assert_allclose(found.norm, np.linalg.norm(v), rtol=1e-12)
    scatter = np.trace(np.cov(differences.T)) / 4
    np.testing.assert_allclose(found.distance2, v @ v - scatter, rtol=1e-11)
    chosen = asc.boundary(one[pairs[:, 0]], other[pairs[:, 1]])
    torch.testing.assert_close(found.center, chosen.center)
    torch.testing.assert_close(found.relative_norm, chosen.relative_norm)


def test_the_squared_distance_is_unbiased():
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(4000, 5, 8, generator=draw, dtype=torch.float64)
    other = torch.randn(4000, 7, 8, generator=draw, dtype=torch.float64)
    other[..., 0] += 0.5
    found = asc.boundary(one, other).distance2
    error = found.std().item() / math.sqrt(4000)
    assert abs(found.mean().item() - 0.25) < 4 * error
    assert (found < 0).any()
    paired = asc.boundary(one, other, pairs=torch.arange(5)[:, None].expand(5, 2)).distance2
    assert abs(paired.mean().item() - 0.25) < 4 * paired.std().item() / math.sqrt(4000)


def test_degenerate_clouds():
    same = asc.boundary(torch.ones(3, 2), torch.ones(4, 2))
    assert same.norm.item() == 0
    assert same.direction.isnan().all()
    single = asc.boundary(torch.ones(1, 2), 2 * torch.ones(3, 2))
    assert math.isclose(single.norm.item(), math.sqrt(2))
    assert single.distance2.isnan()


def test_lengths_dtypes_and_a_cloud_that_is_not_finite():
    one = torch.stack([cloud("gaussian", 6, 3, seed) for seed in range(3)]).float()
    other = one + 1
    one[1, 0, 0] = math.nan
    other[2, 5] = math.nan  # beyond its length
    with pytest.warns(RuntimeWarning, match="boundary: 1 of 3 clouds"):
        found = asc.boundary(one, other, lengths=[6, 6, 4], other_lengths=[6, 6, 5])
    assert found.norm[1].isnan()
    alone = asc.boundary(one[2, :4].double(), other[2, :5].double())
    for own, its in zip(found, alone, strict=True):
        torch.testing.assert_close(own[2], its, rtol=1e-12, atol=1e-15)


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
