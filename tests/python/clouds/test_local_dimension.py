# SPDX-License-Identifier: MIT
"""local_dimension and two_nn: against loops in NumPy, laws, closed forms; subsets bit for bit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from topology_inputs import CLOUDS, cloud

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def by_hand(distances, k, groups=None):
    """Value, pointwise values, used, duplicates and tied, one point at a time."""
    n = len(distances)
    sums, used, duplicates, tied, pointwise = 0.0, 0, 0, 0, np.full(n, np.nan)
    for i in range(n):
        others = np.array([j for j in range(n) if j != i])
        if len(others) == 0:
            continue
        duplicates += (distances[i, others] == 0).any()
        others = others[distances[i, others] > 0]
        if groups is not None:
            others = others[groups[others] != groups[i]]
        if len(others) < k:
            continue
        r = np.sort(distances[i, others])[:k]
        s = np.log(r[-1] / r[:-1]).sum()
        if r[-1] == r[0]:
            tied += 1
            continue
        sums, used = sums + s, used + 1
        pointwise[i] = (k - 2) / s if k > 2 else np.nan
    return (k - 1) * used / sums if used else np.nan, pointwise, used, duplicates, tied


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("n", [1, 2, 3, 12, 60])
def test_it_is_the_sum_over_nearest_neighbours(kind, n):
    points = cloud(kind, n)
    distances = asc.cloud_distances(points).numpy()
    ks = [10, 2, 5]
    result = asc.local_dimension(points, k=ks)
    for a, k in enumerate(ks):
        value, pointwise, used, duplicates, tied = by_hand(distances, k)
        np.testing.assert_allclose(result.value[a], value, rtol=1e-12)
        np.testing.assert_allclose(result.points[a], pointwise, rtol=1e-11)
        assert [result.used[a], result.duplicates[a], result.tied[a]] == [used, duplicates, tied]


@pytest.mark.parametrize("kind", CLOUDS)
def test_across_leaves_out_neighbours_of_the_same_group(kind):
    points = cloud(kind, 50)
    names = np.array(["a", "b", "c"])[np.random.default_rng(0).integers(0, 3, 50)]
    value, pointwise, used, duplicates, tied = by_hand(asc.cloud_distances(points).numpy(), 6, names)
    result = asc.local_dimension(points, k=6, groups=list(names), across=True)
    np.testing.assert_allclose(result.value.item(), value, rtol=1e-12)
    np.testing.assert_allclose(result.points[0], pointwise, rtol=1e-11)
    assert [result.used.item(), result.duplicates.item(), result.tied.item()] == [used, duplicates, tied]
    # Groups alone change nothing, and a group per cloud may be given.
    plain = asc.local_dimension(points, k=6, groups=list(names))
    assert torch.equal(plain.value, asc.local_dimension(points, k=6).value)
    ids = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    results = asc.local_dimension(
        torch.stack([points, points]), k=6, groups=torch.stack([ids, ids.flip(0)]), across=True
    )
    assert torch.equal(results.value[0], result.value)
    assert not torch.equal(results.value[1], result.value)


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_arrival_times_of_a_poisson_process_in_m_dimensions_give_m(m):
    # The volume within the j-th neighbour grows by exponential steps, so r_j is their sum to the power 1/m.
    # 200 centres are read by the function, each with its k arrivals far from one another; all by the formula.
    rng = np.random.default_rng(m)
    k, trials = 20, 3000
    total = 0.0
    arrivals = np.cumsum(rng.exponential(size=(trials, k)), 1) ** (1 / m)
    for r in arrivals[:200]:
        distances = torch.full((k + 1, k + 1), 1e6, dtype=torch.float64)
        distances[0, 1:] = distances[1:, 0] = torch.from_numpy(r)
        distances.fill_diagonal_(0)
        total += (k - 2) / asc.local_dimension(None, distances=distances, k=k).points[0, 0].item()
    sums = np.log(arrivals[:, -1:] / arrivals[:, :-1]).sum(1)
    assert math.isclose(total, sums[:200].sum(), rel_tol=1e-12)
    assert abs((k - 1) * trials / sums.sum() / m - 1) < 0.01


def test_points_on_a_line_have_dimension_1():
    points = torch.rand(2000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(asc.local_dimension(points, k=10).value.item() - 1) < 0.05
    assert abs(asc.two_nn(points).item() - 1) < 0.05
    # The same line bent into a circle in 30 dimensions.
    angle = 2 * torch.pi * points
    bent = torch.cat([angle.cos(), angle.sin(), torch.zeros(2000, 28)], -1)
    assert abs(asc.local_dimension(bent, k=10).value.item() - 1) < 0.05
    assert abs(asc.two_nn(bent, discard=0.1).item() - 1) < 0.05


def test_a_regular_line_is_not_poisson():
    lattice = torch.arange(400, dtype=torch.float64)[:, None]
    assert 1.2 < asc.local_dimension(lattice, k=10).value.item() < 1.4


@settings(max_examples=25)
@given(st.integers(8, 40), st.sampled_from(CLOUDS), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_scale_rotation_offset_and_order_do_not_matter(n, kind, seed, scale):
    if kind == "tied":
        scale = 2.0 ** round(math.log2(scale))  # ties stay ties
    points = cloud(kind, n, 4, seed)
    result = asc.local_dimension(points, k=[3, 5])
    scaled = asc.local_dimension(scale * points, k=[3, 5])
    torch.testing.assert_close(scaled.value, result.value, rtol=1e-9, atol=0, equal_nan=True)
    torch.testing.assert_close(
        asc.two_nn(scale * points), asc.two_nn(points), rtol=1e-9, atol=0, equal_nan=True
    )
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    again = asc.local_dimension(points[order], k=[3, 5])
    torch.testing.assert_close(again.value, result.value, rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(again.duplicates, result.duplicates)
    assert torch.equal(again.tied, result.tied)
    if kind != "tied":
        turn = asc.haar_basis(4, 4, seed)
        turned = asc.local_dimension(points @ turn + 1.0, k=[3, 5])
        torch.testing.assert_close(turned.value, result.value, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("across", [False, True])
def test_a_subset_gives_bit_for_bit_what_a_call_on_it_gives(kind, across):
    n = 70
    points = cloud(kind, n, 6)
    draw = torch.Generator().manual_seed(0)
    subsets = torch.rand(15, n, generator=draw) < torch.rand(15, 1, generator=draw)
    subsets[0] = True
    subsets[1] = False
    subsets[2] = torch.arange(n) == 3
    subsets[3] = torch.arange(n) < 4
    groups = torch.randint(0, 4, (n,), generator=draw)
    result = asc.local_dimension(points, k=[3, 10], groups=groups, across=across, subsets=subsets)
    ratio = asc.two_nn(points, subsets=subsets)
    fit = asc.two_nn(points, subsets=subsets, discard=0.2)
    assert result.value.shape == (15, 2)
    assert result.points.shape == (15, 2, n)
    for s, subset in enumerate(subsets):
        assert result.points[s, :, ~subset].isnan().all()
        if not subset.any():
            assert result.value[s].isnan().all()
            assert result.used[s].tolist() == result.duplicates[s].tolist() == [0, 0]
            continue
        single_result = asc.local_dimension(points[subset], k=[3, 10], groups=groups[subset], across=across)
        for name, values in zip(result._fields, result, strict=True):
            values_of_subset = values[s][..., subset] if name == "points" else values[s]
            np.testing.assert_array_equal(values_of_subset, getattr(single_result, name), name)
        np.testing.assert_array_equal(ratio[s], asc.two_nn(points[subset]))
        np.testing.assert_array_equal(fit[s], asc.two_nn(points[subset], discard=0.2))


def test_points_at_an_infinite_distance_are_no_neighbours():
    points = cloud("gaussian", 40)
    distances = asc.cloud_distances(points)
    distances[:25, 25:] = distances[25:, :25] = math.inf
    parts = [slice(0, 25), slice(25, 40)]
    k = [3, 14, 15]  # more neighbours than the second part has
    result = asc.local_dimension(None, distances=distances, k=k)
    of_parts = [asc.local_dimension(None, distances=distances[part, part], k=k) for part in parts]
    for part, single_result in zip(parts, of_parts, strict=True):
        np.testing.assert_array_equal(result.points[:, part], single_result.points)
    assert result.used.tolist() == sum(single_result.used for single_result in of_parts).tolist()
    assert result.used.tolist() == [40, 40, 25]
    ratios = asc.two_nn(None, distances=distances).item()
    of_each = [
        (size - 1) / asc.two_nn(points[part]).item() for part, size in zip(parts, (25, 15), strict=True)
    ]
    assert math.isclose(ratios, 39 / sum(of_each), rel_tol=1e-12)


def test_threads_do_not_change_a_bit():
    points = cloud("gaussian", 90)
    subsets = torch.rand(40, 90, generator=torch.Generator().manual_seed(0)) < 0.5
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        results = asc.local_dimension(points, k=[5, 20], subsets=subsets)
        torch.set_num_threads(4)
        four = asc.local_dimension(points, k=[5, 20], subsets=subsets)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(results, four, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("n", [3, 40])
def test_two_nn_by_hand(kind, n):
    points = cloud(kind, n)
    distances = asc.cloud_distances(points).numpy()
    ratios = []
    for row in distances:
        r = np.sort(row[row > 0])[:2]
        if len(r) == 2:
            ratios.append(np.log(r[1] / r[0]))
    ratios = np.sort(ratios)
    size = len(ratios)
    if size < 2 or ratios.sum() == 0:
        assert asc.two_nn(points).isnan()
        return
    assert math.isclose(asc.two_nn(points).item(), (size - 1) / ratios.sum(), rel_tol=1e-10)
    # in tenths, because in float64 10·(1 − 0.8) is below 2
    for tenths in (1, 3, 8):
        used_ratios = ratios[: size * (10 - tenths) // 10]
        tail = -np.log(1 - np.arange(1, len(used_ratios) + 1) / size)
        squares = used_ratios @ used_ratios
        fit = (used_ratios @ tail) / squares if squares > 0 else math.nan
        result = asc.two_nn(points, discard=tenths / 10).item()
        assert math.isclose(result, fit, rel_tol=1e-10) or (math.isnan(result) and math.isnan(fit))


def test_degenerate_clouds():
    copies = asc.local_dimension(torch.ones(200, 3), k=[5, 20])
    assert copies.value.isnan().all()
    assert copies.used.tolist() == [0, 0]
    assert copies.duplicates.tolist() == [200, 200]
    assert asc.two_nn(torch.ones(200, 3)).isnan()
    for n in (1, 2, 5):
        few = asc.local_dimension(cloud("gaussian", n), k=5)
        assert few.value.isnan()
        assert few.used.item() == 0
    assert asc.two_nn(cloud("gaussian", 2)).isnan()
    # Every vertex of a simplex has all others at one distance.
    simplex = asc.local_dimension(None, distances=1 - torch.eye(12), k=4)
    assert simplex.value.isnan()
    assert (simplex.tied.item(), simplex.used.item(), simplex.duplicates.item()) == (12, 0, 0)
    assert asc.two_nn(None, distances=1 - torch.eye(12)).isnan()


@pytest.mark.parametrize("scale", [1.0, 0.1, 3e5])
def test_points_that_are_equally_far_stay_tied_when_they_are_turned(scale):
    """Rounding would make a dimension of 1e15 of the corners of a simplex, or of a grid."""
    turn, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).double())
    simplex = torch.eye(12, dtype=torch.float64) @ turn * scale
    result = asc.local_dimension(simplex, k=[2, 4])
    assert result.value.isnan().all()
    assert result.tied.tolist() == [12, 12]
    assert asc.two_nn(simplex).isnan()
    assert asc.two_nn(simplex, discard=0.1).isnan()
    assert asc.gride(simplex, 1).isnan()
    assert asc.gride(simplex, 2).isnan()
    grid = torch.cartesian_prod(torch.arange(6), torch.arange(6)).double()
    turned = grid @ torch.linalg.qr(turn[:2, :2])[0] * scale
    plain, moved = (asc.local_dimension(points, k=4) for points in (grid, turned))
    assert moved.tied.item() == plain.tied.item() == 16  # of the 36 the inner ones
    assert math.isclose(moved.value.item(), plain.value.item(), rel_tol=1e-9)
    assert asc.two_nn(turned).isnan()
    # a real difference of distances is none of rounding
    nearly = simplex * (1 + 1e-8 * torch.arange(12).double())[:, None]
    assert 1e7 < asc.two_nn(nearly).item() < 1e10


def test_a_duplicate_is_no_neighbour_and_is_counted():
    points = cloud("gaussian", 30)
    doubled = torch.cat([points, points[:4]])
    result = asc.local_dimension(doubled, k=5)
    assert result.duplicates.item() == 8
    value, _, used, _, _ = by_hand(asc.cloud_distances(doubled).numpy(), 5)
    assert math.isclose(result.value.item(), value, rel_tol=1e-12)
    assert result.used.item() == used == 34


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_points_and_of_distances(dtype):
    points = cloud("gaussian", 30).to(dtype)
    result_in_double = asc.local_dimension(points.double(), k=5).value
    assert torch.equal(asc.local_dimension(points, k=5).value, result_in_double)
    distances = asc.cloud_distances(points).to(dtype)
    exact = asc.local_dimension(None, distances=distances.double(), k=5).value
    assert torch.equal(asc.local_dimension(points, distances=distances, k=5).value, exact)
    assert torch.equal(
        asc.two_nn(None, distances=distances.T), asc.two_nn(None, distances=distances.double())
    )


def test_lengths_and_a_cloud_that_is_not_finite():
    points = torch.stack([cloud("gaussian", 30, seed=seed) for seed in range(3)])
    points[1, 3, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="local_dimension: 1 of 3 clouds"):
        result = asc.local_dimension(points, k=4, lengths=[30, 30, 12])
    assert torch.equal(result.value[0], asc.local_dimension(points[0], k=4).value)
    assert result.value[1].isnan().all()
    assert result.used[1].tolist() == result.duplicates[1].tolist() == result.tied[1].tolist() == [-1]
    single_result = asc.local_dimension(points[2, :12], k=4)
    assert torch.equal(result.value[2], single_result.value)
    assert torch.equal(result.points[2, 0, :12], single_result.points[0])
    assert result.points[2, 0, 12:].isnan().all()
    with pytest.warns(RuntimeWarning, match="two_nn: 1 of 3 clouds"):
        ratio = asc.two_nn(points, lengths=[30, 30, 12])
    assert torch.equal(ratio[2], asc.two_nn(points[2, :12]))


def test_bad_input():
    points = torch.eye(5)
    with pytest.raises(ValueError, match="k must be one or more numbers of at least 2, got 1"):
        asc.local_dimension(points, k=1)
    with pytest.raises(ValueError, match="k must be one or more"):
        asc.local_dimension(points, k=[])
    with pytest.raises(TypeError, match=r"k must be a whole number, got 2\.5"):
        asc.local_dimension(points, k=2.5)
    with pytest.raises(ValueError, match="across needs groups"):
        asc.local_dimension(points, across=True)
    with pytest.raises(ValueError, match=r"groups must hold one label per point, \[5\], got shape \(4,\)"):
        asc.local_dimension(points, groups=[0, 1, 2, 3], across=True)
    with pytest.raises(ValueError, match=r"distances of shape \(4, 4\) do not belong to points of shape"):
        asc.local_dimension(points, distances=torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"discard must lie in \[0, 1\), got 1.0"):
        asc.two_nn(points, discard=1.0)
    with pytest.raises(TypeError, match=r"points must be a .* got NoneType"):
        asc.two_nn(None)
