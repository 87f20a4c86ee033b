# SPDX-License-Identifier: MIT
"""null_clouds, null_directions and haar_basis: what each law keeps, by sampling and exactly."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from topology_inputs import cloud


def spread(points):
    rest = points - points.mean(-2, keepdim=True)
    return (rest.mT @ rest) / (points.shape[-2] - 1)


def test_gaussian_clouds_keep_mean_and_total_variance():
    points = cloud("clustered", 40, 5) + 3
    drawn = asc.null_clouds(points, "gaussian", draws=500)
    assert drawn.shape == (500, 40, 5)
    total = torch.trace(spread(points))
    torch.testing.assert_close(drawn.mean((0, 1)), points.mean(0), rtol=0, atol=0.2)
    mean = spread(drawn).mean(0)
    torch.testing.assert_close(
        mean, total / 5 * torch.eye(5, dtype=torch.float64), rtol=0.1, atol=0.05 * total
    )


def test_covariance_clouds_keep_mean_and_covariance_and_the_span():
    points = cloud("clustered", 12, 30) + 3
    drawn = asc.null_clouds(points, "covariance", draws=2000)
    torch.testing.assert_close(
        spread(drawn).mean(0), spread(points), rtol=0, atol=0.15 * spread(points).diagonal().max().item()
    )
    # No direction in which the points do not spread.
    rest = points - points.mean(0)
    basis = torch.linalg.svd(rest, full_matrices=False).Vh[:11]
    deviations = drawn[0] - points.mean(0)
    torch.testing.assert_close(deviations @ basis.T @ basis, deviations)


def test_template_clouds_keep_the_means_of_groups():
    draw = torch.Generator().manual_seed(0)
    groups = torch.arange(60) % 3
    points = torch.randn(60, 4, generator=draw, dtype=torch.float64) + 50 * groups[:, None]
    drawn = asc.null_clouds(points, "template", groups=groups, draws=400)
    for group in range(3):
        group_clouds = drawn[:, groups == group]
        torch.testing.assert_close(
            group_clouds.mean((0, 1)), points[groups == group].mean(0), rtol=0, atol=0.05
        )
    rest = torch.cat([points[groups == g] - points[groups == g].mean(0) for g in range(3)])
    pooled = rest.T @ rest / 57
    apart = torch.cat([drawn[:, groups == g] - points[groups == g].mean(0) for g in range(3)], 1)
    torch.testing.assert_close((apart.mT @ apart).mean(0) / 60, pooled, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", ["gaussian", "covariance", "template"])
def test_seeds_lengths_and_clouds_that_are_not_finite(kind):
    points = torch.stack([cloud("gaussian", 9, 4, seed) for seed in range(3)])
    points[1, 0, 0] = math.nan
    groups = torch.arange(9) % 2
    options = {"groups": groups, "lengths": [9, 9, 5]}
    with pytest.warns(RuntimeWarning, match="null_clouds: 1 of 3 clouds"):
        drawn = asc.null_clouds(points, kind, draws=6, **options)
    assert drawn.shape == (6, 3, 9, 4)
    assert drawn[:, 1].isnan().all()
    assert drawn[:, 2, 5:].isnan().all()
    assert drawn[:, 2, :5].isfinite().all()
    with pytest.warns(RuntimeWarning, match="1 of 3"):
        fewer = asc.null_clouds(points, kind, draws=2, **options)
    assert torch.equal(fewer.nan_to_num(), drawn[:2].nan_to_num())
    other = asc.null_clouds(points[0], kind, draws=1, seed=1, groups=groups)
    assert not torch.equal(other, asc.null_clouds(points[0], kind, draws=1, groups=groups))


@pytest.mark.parametrize("kind", ["gaussian", "covariance", "template"])
def test_the_draws_of_a_cloud_do_not_depend_on_its_batch(kind):
    points = torch.stack([cloud("gaussian", 11, 4, seed) for seed in range(3)])
    groups = torch.arange(11) % 2
    lengths = [11, 11, 7]
    drawn = asc.null_clouds(points, kind, draws=3, groups=groups, lengths=lengths)
    for place, n in enumerate(lengths):
        expected = asc.null_clouds(points[place, :n], kind, draws=3, groups=groups[:n])
        assert torch.equal(drawn[:, place, :n], expected)
    turned = asc.null_clouds(points.flip(0), kind, draws=3, groups=groups, lengths=lengths[::-1])
    assert torch.equal(turned.flip(1).nan_to_num(), drawn.nan_to_num())


def test_equal_points_stay_where_they_are():
    points = torch.full((5, 2), 0.1, dtype=torch.float64)
    for kind in ("gaussian", "covariance"):
        assert torch.equal(asc.null_clouds(points, kind, draws=1)[0], points)
    assert asc.null_clouds(points[:1], "gaussian").isnan().all()


def test_isotropic_directions_have_the_beta_law():
    directions = asc.null_directions(torch.ones(2, 30), draws=4000)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(4000, dtype=torch.float64))
    share = directions[:, :6].square().sum(-1)
    # Beta(3, 12): mean 1/5, variance 36/(15²·16).
    assert abs(share.mean().item() - 0.2) < 4 * share.std().item() / math.sqrt(4000)
    assert abs(share.var().item() / (36 / 3600) - 1) < 0.1


def test_covariance_directions_follow_the_spread():
    states = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([10.0, 1.0, 0.0])
    directions = asc.null_directions(states, "covariance", draws=300)
    assert directions[:, 2].abs().max() == 0
    assert directions[:, 0].abs().mean() > 0.9


def test_label_directions_are_boundaries_of_relabelled_states():
    states = cloud("gaussian", 7, 3)
    labels = ["f", "f", "u", "u", "u", "f", "u"]
    directions = asc.null_directions(states, "labels", labels=labels, draws=200)
    import itertools

    first_draws = set()
    for chosen in itertools.combinations(range(7), 4):
        mask = torch.zeros(7, dtype=torch.bool)
        mask[list(chosen)] = True
        first_draws.add(tuple(asc.boundary(states[~mask], states[mask]).direction.round(decimals=9).tolist()))
    drawn = {tuple(row.tolist()) for row in directions.round(decimals=9)}
    assert drawn <= first_draws
    assert len(drawn) > 30  # of 35


def test_haar_bases_are_orthonormal_and_uniform():
    basis = asc.haar_basis(9, 4, seed=3)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64))
    assert torch.equal(basis, asc.haar_basis(9, 4, seed=3))
    # Every entry is as often positive as negative, and the squares of the first row have mean k/d.
    bases = torch.stack([asc.haar_basis(6, 2, seed=seed) for seed in range(600)])
    assert abs(bases.sign().mean((0,)).abs().max().item()) < 4 / math.sqrt(600)
    share = bases[:, 0].square().sum(-1)
    assert abs(share.mean().item() - 2 / 6) < 4 * share.std().item() / math.sqrt(600)


def test_bad_input():
    points = torch.eye(4)
    with pytest.raises(
        ValueError, match="kind must be one of 'gaussian', 'covariance', 'template', got 'uniform'"
    ):
        asc.null_clouds(points, "uniform")
    with pytest.raises(ValueError, match="kind 'template' needs groups"):
        asc.null_clouds(points, "template")
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        asc.null_clouds(points, "gaussian", draws=0)
    with pytest.raises(ValueError, match="labels must have two values, got 3"):
        asc.null_directions(points, "labels", labels=[0, 1, 2, 2])
    with pytest.raises(ValueError, match=r"states must be \[n, d\], got shape \(1, 4, 4\)"):
        asc.null_directions(points[None])
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.d = 3, got 4"):
        asc.haar_basis(3, 4)
    np.testing.assert_equal(
        asc.null_directions(torch.ones(3, 2), "covariance", draws=1).isnan().all().item(), True
    )


@pytest.mark.parametrize("kind", ["gaussian", "covariance"])
def test_strides_change_no_bit_of_a_draw(kind):
    points = torch.randn(30, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = asc.null_clouds(points, kind, draws=3)
    for other in (points.mT.contiguous().mT, torch.stack([points, points], -1)[..., 0], points.numpy()):
        assert torch.equal(asc.null_clouds(other, kind, draws=3), expected)
    result = asc.null_directions(points.mT.contiguous().mT, "covariance", draws=3)
    assert torch.equal(result, asc.null_directions(points, "covariance", draws=3))
