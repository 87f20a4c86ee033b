# SPDX-License-Identifier: MIT
"""fragmentation and cloud_components: against SciPy's trees and components, and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

import attnscope as asc
from topology_inputs import CLOUDS, cloud


def by_scipy(distances):
    n = len(distances)
    # Zero distances mean "no edge" to SciPy, so all are lifted by 1 and the tree is read back.
    tree = minimum_spanning_tree(distances + 1.0 - np.eye(n)).toarray()
    deaths = tree[tree > 0] - 1.0
    return deaths[deaths > 1e-12].mean() / np.median(distances[np.tril_indices(n, -1)])


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("n", [3, 8, 33, 100])
def test_fragmentation_is_that_of_scipys_tree(kind, metric, n):
    points = cloud(kind, n)
    expected = by_scipy(asc.cloud_distances(points, metric=metric).numpy())
    assert math.isclose(asc.fragmentation(points, metric=metric).item(), expected, rel_tol=1e-12)


@pytest.mark.parametrize("kind", CLOUDS)
def test_it_is_the_mean_bar_over_the_median_distance(kind):
    points = cloud(kind, 40)
    bars = asc.cloud_persistence(points)[()][0][:-1, 1]
    distances = asc.cloud_distances(points, metric="cosine")[tuple(torch.tril_indices(40, 40, -1))]
    expected = bars.mean() / np.median(distances)
    assert math.isclose(asc.fragmentation(points).item(), expected, rel_tol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 5, 30])
def test_a_simplex_has_exactly_1(d):
    assert asc.fragmentation(torch.eye(d + 1)).item() == 1.0
    assert asc.fragmentation(torch.eye(d + 1), metric="euclidean").item() == 1.0


def test_isotropic_points_in_many_dimensions_tend_to_1():
    draw = torch.Generator().manual_seed(0)
    low, high = (asc.fragmentation(torch.randn(100, d, generator=draw)).item() for d in (20, 20_000))
    assert low < 0.8
    assert 0.97 < high < 1


def test_degenerate_clouds():
    assert math.isnan(asc.fragmentation(torch.ones(1, 3)).item())
    assert math.isnan(asc.fragmentation(torch.ones(6, 3)).item())
    assert asc.fragmentation(torch.tensor([[1.0, 0.0], [0.5, 2.0]])).item() == 1.0
    # Three equal points and one apart: the median of 0, 0, 0, 1, 1, 1 is a half, one bar of length 1.
    apart = torch.tensor([[1.0], [1.0], [1.0], [2.0]])
    assert asc.fragmentation(apart, metric="euclidean").item() == 2.0


def test_of_distances_that_rounding_sets_apart_the_larger_counts():
    distances = asc.cloud_distances(cloud("gaussian", 9))
    apart = distances * (1 + 1e-10 * torch.rand(9, 9, generator=torch.Generator().manual_seed(0)).double())
    larger = torch.maximum(apart, apart.mT)
    for sides in (apart, apart.mT):
        assert torch.equal(
            asc.fragmentation(sides, metric="precomputed"), asc.fragmentation(larger, metric="precomputed")
        )


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "precomputed"])
@pytest.mark.parametrize("kind", CLOUDS)
def test_a_subset_gives_bit_for_bit_what_a_call_on_it_gives(metric, kind):
    points = cloud(kind, 60, 7)
    subsets = torch.rand(12, 60, generator=torch.Generator().manual_seed(0)) < 0.4
    subsets[0] = True
    subsets[1] = False
    subsets[2] = torch.arange(60) == 4
    argument = asc.cloud_distances(points) if metric == "precomputed" else points
    result = asc.fragmentation(argument, metric=metric, subsets=subsets)
    assert result.shape == (12,)
    for subset, value in zip(subsets, result, strict=True):
        argument_of_subset = argument[subset][:, subset] if metric == "precomputed" else argument[subset]
        if len(argument_of_subset) == 0:
            assert value.isnan()
            continue
        single_result = asc.fragmentation(argument_of_subset, metric=metric)
        assert torch.equal(value, single_result) or (value.isnan() and single_result.isnan())


def test_subsets_of_several_clouds_with_lengths_and_threads():
    points = torch.stack([cloud("gaussian", 20, seed=seed) for seed in range(6)]).reshape(2, 3, 20, 5)
    points[1, 1, 0] = math.nan
    subsets = torch.rand(4, 20, generator=torch.Generator().manual_seed(1)) < 0.6
    lengths = torch.tensor([20, 11, 7])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with pytest.warns(RuntimeWarning, match="fragmentation: 1 of 6 clouds"):
            result = asc.fragmentation(points, subsets=subsets, lengths=lengths)
        torch.set_num_threads(4)
        with pytest.warns(RuntimeWarning, match="1 of 6"):
            again = asc.fragmentation(points, subsets=subsets, lengths=lengths)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(result, again)
    assert result.shape == (4, 2, 3)
    for s in range(4):
        for a in range(2):
            for b in range(3):
                chosen = subsets[s] & (torch.arange(20) < lengths[b])
                single_value = (
                    torch.tensor(math.nan) if a == b == 1 else asc.fragmentation(points[a, b][chosen])
                )
                np.testing.assert_array_equal(result[s, a, b], single_value)


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("n", [1, 2, 30, 70])
def test_components_are_those_of_scipy(kind, metric, n):
    points = cloud(kind, n)
    distances = asc.cloud_distances(points, metric=metric).numpy()
    scales = np.quantile(distances, np.linspace(0, 1, 16))
    result = asc.cloud_components(points, scales, metric=metric, min_size=4)
    for s, scale in enumerate(scales):
        # Zero distances mean "no edge" to SciPy.
        count, labels = connected_components((distances <= scale).astype(int), directed=False)
        sizes = np.bincount(labels)
        assert result.components[s] == count
        assert result.clusters[s] == (sizes >= 4).sum()
        assert result.singletons[s] == (sizes == 1).sum()
        assert result.largest[s] == sizes.max() / n


@settings(max_examples=40)
@given(st.integers(1, 30), st.sampled_from(CLOUDS), st.integers(0, 1000))
def test_components_are_the_first_betti_numbers(n, kind, seed):
    points = cloud(kind, n, 4, seed)
    scales = torch.linspace(0, 2, 9)
    result = asc.cloud_components(points, scales)
    bars = asc.cloud_persistence(points, max_dimension=0)
    assert torch.equal(result.components, asc.betti_curve(bars, scales)[:, 0])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    for actual, other in zip(result, asc.cloud_components(points[order], scales), strict=True):
        assert torch.equal(actual, other)


def test_a_simplex_falls_apart_below_its_distance():
    result = asc.cloud_components(torch.eye(6), [-1.0, 0.0, 0.999, 1.0], min_size=2)
    assert result.components.tolist() == [6, 6, 6, 1]
    assert result.clusters.tolist() == [0, 0, 0, 1]
    assert result.singletons.tolist() == [6, 6, 6, 0]
    assert result.largest.tolist() == [1 / 6, 1 / 6, 1 / 6, 1.0]
    single = asc.cloud_components(torch.eye(6), 0.5, min_size=1)
    assert single.clusters.tolist() == [6]


def test_components_of_clouds_with_lengths_and_nan():
    points = torch.stack([cloud("gaussian", 9, seed=seed) for seed in range(3)])
    points[0, 0, 0] = math.inf
    with pytest.warns(RuntimeWarning, match="cloud_components: 1 of 3 clouds"):
        result = asc.cloud_components(points, [0.5, 2.0], lengths=[9, 9, 4])
    assert result.components[0].tolist() == [-1, -1]
    assert result.largest[0].isnan().all()
    assert result.components[2, 1] == 1
    assert torch.equal(result.components[2], asc.cloud_components(points[2, :4], [0.5, 2.0]).components)


@pytest.mark.parametrize("scales", [[], [1.0, 0.5], [math.nan], torch.eye(2)])
def test_bad_scales(scales):
    with pytest.raises(ValueError, match="cloud_components: scales must be"):
        asc.cloud_components(torch.eye(3), scales)


def test_bad_input():
    with pytest.raises(ValueError, match="min_size must be at least 1, got 0"):
        asc.cloud_components(torch.eye(3), 0.5, min_size=0)
    with pytest.raises(ValueError, match=r"subsets must be boolean of shape \[s, 3\], got torch.bool"):
        asc.fragmentation(torch.eye(3), subsets=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="subsets must be boolean"):
        asc.fragmentation(torch.eye(3), subsets=torch.ones(2, 3))
    with pytest.raises(ValueError, match="fragmentation: cosine distances need vectors that are not 0"):
        asc.fragmentation(torch.zeros(3, 2))
