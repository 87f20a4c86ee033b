# SPDX-License-Identifier: MIT
"""cloud_persistence: bars equal GUDHI's over Z/2 on every kind of cloud, and closed forms."""

import math

import numpy as np
import pytest
import scipy.sparse.csgraph
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from topology_inputs import CLOUDS, cloud, gudhi_bars, lexicographic

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def assert_bars_equal(result, expected):
    for dimension, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
        np.testing.assert_array_equal(ours, theirs, err_msg=f"H{dimension}")


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 33, 65])
def test_bars_equal_gudhi_in_float64(kind, metric, n):
    points = cloud(kind, n)
    expected = gudhi_bars(asc.cloud_distances(points, metric=metric).numpy())
    assert_bars_equal(asc.cloud_persistence(points, metric=metric)[()], expected)
    components = asc.cloud_persistence(points, metric=metric, max_dimension=0)[()]
    assert_bars_equal(components, [expected[0], np.empty((0, 2))])


@pytest.mark.parametrize("kind", CLOUDS)
def test_bars_of_a_larger_cloud_equal_gudhi(kind):
    points = cloud(kind, 140, 8, seed=1)
    expected = gudhi_bars(asc.cloud_distances(points, metric="euclidean").numpy())
    assert len(expected[1]) > (0 if kind == "tied" else 2)
    assert_bars_equal(asc.cloud_persistence(points, metric="euclidean")[()], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_given_distances_are_ordered_in_their_own_precision(dtype):
    distances = asc.cloud_distances(cloud("gaussian", 40), metric="euclidean").to(dtype)
    for given_as in (distances, distances.T, distances.tril()[None].expand(2, 40, 40)[0] + distances.triu()):
        result = asc.cloud_persistence(given_as, metric="precomputed")[()]
        assert_bars_equal(result, gudhi_bars(distances.double().numpy()))


def test_distances_above_1_are_not_cut():
    distances = torch.tensor([[0.0, 3.0, 5.0], [3.0, 0.0, 40.0], [5.0, 40.0, 0.0]])
    for dimension in (0, 1):
        bars = asc.cloud_persistence(distances, metric="precomputed", max_dimension=dimension)[()][0]
        assert bars.tolist() == [[0, 3], [0, 5], [0, math.inf]]


@pytest.mark.parametrize("kind", CLOUDS)
def test_bars_equal_ripser_in_float32(kind):
    ripser = pytest.importorskip("ripser").ripser
    # Rounded to float32, in which ripser.py works.
    distances = asc.cloud_distances(cloud(kind, 60), metric="euclidean").float()
    theirs = ripser(distances.numpy(), distance_matrix=True, maxdim=1)["dgms"]
    ours = asc.cloud_persistence(distances, metric="precomputed")[()]
    assert_bars_equal(ours, [lexicographic(bars) for bars in theirs])


@settings(max_examples=40)
@given(st.integers(1, 16), st.sampled_from(CLOUDS), st.integers(0, 10_000))
def test_the_order_of_points_an_offset_and_the_length_of_vectors_do_not_matter(n, kind, seed):
    points = cloud(kind, n, 3, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    bars = asc.cloud_persistence(points, metric="euclidean")[()]
    assert_bars_equal(asc.cloud_persistence(points[order], metric="euclidean")[()], bars)
    # Whole steps of a power of two round nothing.
    assert_bars_equal(asc.cloud_persistence(4 * points, metric="euclidean")[()], [4 * part for part in bars])
    longer = points * torch.from_numpy(2.0 ** rng.integers(-3, 4, (n, 1)))
    assert_bars_equal(asc.cloud_persistence(longer)[()], asc.cloud_persistence(points)[()])


def test_a_circle_of_points_has_one_loop():
    m = 24
    angle = 2 * torch.pi * torch.arange(m, dtype=torch.float64) / m
    points = torch.stack([angle.cos(), angle.sin()], -1)
    _, loops = asc.cloud_persistence(points, metric="euclidean")[()]
    # From the chord between neighbours to the first chord of a third of the circle.
    longest = loops[np.argmax(loops[:, 1] - loops[:, 0])]
    np.testing.assert_allclose(longest, [2 * math.sin(math.pi / m), 2 * math.sin(math.pi / 3)], rtol=1e-12)
    assert (loops[:, 1] - loops[:, 0] > 1e-9).sum() == 1


def test_gaussian_points_in_many_dimensions_are_pieces_at_every_small_scale():
    points = torch.randn(200, 3072, generator=torch.Generator().manual_seed(0))
    bars = asc.cloud_persistence(points, max_dimension=0)
    assert asc.betti_curve(bars, [0.15])[0, 0].item() == 200


def test_degenerate_clouds():
    equal = asc.cloud_persistence(torch.ones(5, 3))
    assert equal[()][0].tolist() == [[0.0, math.inf]]
    assert asc.betti_curve(equal, [0.0]).tolist() == [[1, 0]]
    two = asc.cloud_persistence(torch.eye(2))[()]
    assert two[0].tolist() == [[0.0, 1.0], [0.0, math.inf]]
    assert len(two[1]) == 0
    single_point = asc.cloud_persistence(torch.eye(1))
    assert asc.betti_curve(single_point, [0.0, 2.0]).tolist() == [[1, 0], [1, 0]]


def test_lengths_and_a_cloud_that_is_not_finite():
    points = torch.stack([cloud("gaussian", 12, seed=seed) for seed in range(3)])
    points[1, 0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="cloud_persistence: 1 of 3 clouds"):
        result = asc.cloud_persistence(points, lengths=[12, 5, 7])
    assert_bars_equal(result[0], asc.cloud_persistence(points[0])[()])
    assert asc.betti_curve(result, [0.1])[1].tolist() == [[-1, -1]]
    assert_bars_equal(result[2], asc.cloud_persistence(points[2, :7])[()])


def test_threads_do_not_change_a_bar():
    points = torch.stack([cloud("gaussian", 50, seed=seed) for seed in range(6)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        bars = asc.cloud_persistence(points)
        torch.set_num_threads(4)
        four = asc.cloud_persistence(points)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bars.death, four.death)
    assert torch.equal(bars.death_edge, four.death_edge)


def test_bad_input():
    with pytest.raises(ValueError, match="max_dimension must be 0 or 1, got 2; GUDHI computes higher ones"):
        asc.cloud_persistence(torch.eye(3), max_dimension=2)
    with pytest.raises(ValueError, match=r"points must be square .* got shape \(2, 3\)"):
        asc.cloud_persistence(torch.ones(2, 3), metric="precomputed")
    with pytest.raises(ValueError, match=r"must not be negative, got -1.0 at \(1, 0\)"):
        asc.cloud_persistence(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), metric="precomputed")
    skew = torch.tensor([[0.0, 1.0], [1.0 + 1e-8, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"symmetric, got 1.0 at \(0, 1\) and 1.00000001 at \(1, 0\)"):
        asc.cloud_persistence(skew, metric="precomputed")
    skew[1, 0] = 1 + 1e-10  # rounding
    asc.cloud_persistence(skew, metric="precomputed")
    with pytest.raises(ValueError, match="metric must be one of 'cosine', 'euclidean', 'precomputed'"):
        asc.cloud_persistence(torch.eye(3), metric="manhattan")
    with pytest.raises(ValueError, match="zero vector at index 2"):
        asc.cloud_persistence(torch.tensor([[1.0], [2.0], [0.0]]))


INF = float("inf")


def bars(distances, **options):
    return asc.cloud_persistence(
        torch.tensor(distances, dtype=torch.float64), metric="precomputed", **options
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dimension", [0, 1])
def test_infinite_distances_are_pairs_that_nothing_joins(dtype, dimension):
    """A large number in the place of infinity gives the same bars, which die there."""
    generator = torch.Generator().manual_seed(1)
    for n in (2, 5, 17, 40):
        distances = torch.rand(n, n, generator=generator).round(decimals=2)
        distances = torch.maximum(distances, distances.mT)
        cut = torch.rand(n, n, generator=generator) < 0.6
        distances = distances.masked_fill(cut | cut.mT, INF).fill_diagonal_(0).to(dtype)
        result = asc.cloud_persistence(distances, metric="precomputed", max_dimension=dimension)
        large = asc.cloud_persistence(
            distances.nan_to_num(posinf=1024.0), metric="precomputed", max_dimension=dimension
        )
        expected = torch.where(large.death == 1024.0, INF, large.death)
        assert torch.equal(result.birth, large.birth)
        assert torch.equal(result.death, expected)
        assert torch.equal(result.dimension, large.dimension)
        assert bool((result.death_edge[result.death.isinf()] == -1).all())
        h0 = result.dimension == 0
        graph = scipy.sparse.csr_matrix(distances.float().isfinite().numpy())
        parts = scipy.sparse.csgraph.connected_components(graph, directed=False)[0]
        assert int((h0 & result.death.isinf()).sum()) == parts


def test_a_loop_that_only_infinite_distances_fill_is_never_filled():
    root = 2**0.5
    square = [[0, INF, 1, root], [INF, 0, root, 1], [1, root, 0, INF], [root, 1, INF, 0]]
    result = bars(square)
    assert result[()][0].tolist() == [[0, 1], [0, 1], [0, root], [0, INF]]
    assert result[()][1].tolist() == [[root, INF]]
    assert asc.bar_count(result).tolist() == [4, 1]
    assert asc.total_persistence(result).tolist() == [2 + root, 0.0]


def test_nan_among_distances_empties_a_cloud_and_infinity_on_the_diagonal_does_not():
    assert bars([[0, float("nan")], [float("nan"), 0]]).offsets.tolist() == [0, 0]
    assert bars([[INF, 1.0], [1.0, INF]])[()][0].tolist() == [[0, 1], [0, INF]]


def test_other_measures_take_infinite_distances_too():
    two = asc.cloud_distances(torch.tensor([[0.0], [1.0], [3.0], [10.0], [11.0], [14.0]]))
    apart = two.clone()
    apart[:3, 3:] = apart[3:, :3] = INF
    parts = asc.cloud_components(apart, [0.5, 100.0], metric="precomputed")
    assert parts.components.tolist() == [6, 2]
    assert parts.largest.tolist() == [1 / 6, 0.5]
    # neighbours that are no farther than a finite one are the same
    assert torch.equal(asc.two_nn(None, distances=apart), asc.two_nn(None, distances=two))
    dimension = asc.local_dimension(None, distances=apart, k=[2, 3])
    assert dimension.used.tolist() == [6, 0]
    assert torch.equal(dimension.value[:1], asc.local_dimension(None, distances=two, k=2).value)
    # the median pair is one that nothing joins: there is no scale
    assert asc.fragmentation(apart, metric="precomputed").isnan()
    near = two.clone()
    near[0, 5] = near[5, 0] = INF
    tree = [1.0, 2.0, 7.0, 1.0, 3.0]
    pairs = sorted(near[i, j].item() for i in range(6) for j in range(i))
    expected = sum(tree) / 5 / pairs[7]
    assert asc.fragmentation(near, metric="precomputed").item() == pytest.approx(expected, rel=1e-14)
