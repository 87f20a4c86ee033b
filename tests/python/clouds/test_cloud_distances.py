# SPDX-License-Identifier: MIT
"""cloud_distances: against SciPy, exact where it says so, and the same numbers in a part of a cloud."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import attnscope as asc
from topology_inputs import CLOUDS, cloud

METRICS = ("euclidean", "cosine")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 3), (5, 8), (37, 511), (66, 512), (33, 1030)])
def test_distances_are_those_of_scipy(kind, metric, n, d):
    if kind == "circle" and d < 2:
        return
    points = cloud(kind, n, d)
    result = asc.cloud_distances(points, metric=metric)
    expected = cdist(points.numpy(), points.numpy(), metric)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-13, atol=5e-15)


@pytest.mark.parametrize("metric", METRICS)
def test_it_is_exactly_symmetric_and_exactly_0_for_equal_rows(metric):
    points = cloud("gaussian", 50, 70)
    points[17] = points[3]
    points[40] = points[3]
    result = asc.cloud_distances(points, metric=metric)
    assert torch.equal(result, result.mT)
    zero = (result == 0).nonzero().tolist()
    equal_points = {3, 17, 40}
    assert zero == [[i, j] for i in range(50) for j in range(50) if i == j or {i, j} <= equal_points]


def test_near_points_far_from_the_origin_lose_no_digits():
    points = torch.full((2, 4), 1e8, dtype=torch.float64)
    points[1, 0] += 2**-20
    assert asc.cloud_distances(points)[0, 1].item() == 2**-20
    # Half the square of the angle between them.
    angle = 1e-6
    turned = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert math.isclose(asc.cloud_distances(turned, metric="cosine")[0, 1].item(), angle**2 / 2, rel_tol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", METRICS)
def test_every_dtype_is_read_exactly_and_whatever_its_strides(dtype, metric):
    points = cloud("gaussian", 20, 12).to(dtype)
    expected = asc.cloud_distances(points.double(), metric=metric)
    assert torch.equal(asc.cloud_distances(points, metric=metric), expected)
    turned = points.T.contiguous().T
    assert torch.equal(asc.cloud_distances(turned, metric=metric), expected)
    wide = torch.zeros(20, 30, dtype=dtype)
    wide[:, ::2][:, :12] = points
    assert torch.equal(asc.cloud_distances(wide[:, ::2][:, :12], metric=metric), expected)


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=30)
@given(st.integers(2, 70), st.integers(1, 40), st.integers(0, 1000))
def test_a_part_of_a_cloud_has_the_same_numbers(metric, n, d, seed):
    points = cloud("gaussian", n, d, seed)
    chosen = np.random.default_rng(seed).permutation(n)[: 1 + seed % n]
    all_distances = asc.cloud_distances(points, metric=metric)
    part = asc.cloud_distances(points[chosen], metric=metric)
    assert torch.equal(part, all_distances[chosen][:, chosen])


def test_threads_do_not_change_a_bit():
    points = cloud("gaussian", 200, 90)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        distances = asc.cloud_distances(points)
        torch.set_num_threads(4)
        assert torch.equal(asc.cloud_distances(points), distances)
    finally:
        torch.set_num_threads(before)


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_offsets_and_scales(n, d, seed, scale):
    points = cloud("gaussian", n, d, seed)
    moved = asc.cloud_distances(points + scale)
    torch.testing.assert_close(moved, asc.cloud_distances(points), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        asc.cloud_distances(points * scale, metric="cosine"),
        asc.cloud_distances(points, metric="cosine"),
        rtol=1e-12,
        atol=1e-15,
    )


def test_lengths_cut_a_cloud_and_a_cloud_that_is_not_finite_leaves_the_others_alone():
    points = torch.stack([cloud("gaussian", 9, seed=seed) for seed in range(3)])
    points[1, 2, 0] = math.nan
    points[2, 7] = math.inf  # beyond its length
    with pytest.warns(RuntimeWarning, match="cloud_distances: 1 of 3 clouds hold NaN"):
        result = asc.cloud_distances(points, lengths=[4, 9, 6])
    assert torch.equal(result[0, :4, :4], asc.cloud_distances(points[0, :4]))
    assert result[0, 4:].isnan().all()
    assert result[0, :, 4:].isnan().all()
    assert result[1].isnan().all()
    assert torch.equal(result[2, :6, :6], asc.cloud_distances(points[2, :6]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_taken_and_results_come_back_on_the_cpu():
    points = cloud("gaussian", 30)
    subsets = torch.rand(4, 30) < 0.5
    result = asc.local_dimension(points.cuda(), k=4, subsets=subsets.cuda())
    assert torch.equal(result.value, asc.local_dimension(points, k=4, subsets=subsets).value)
    assert torch.equal(asc.cloud_distances(points.cuda()), asc.cloud_distances(points))
    assert asc.boundary(points.cuda(), points.cuda() + 1).norm.device.type == "cpu"


def test_bad_input():
    with pytest.raises(ValueError, match=r"zero vector at index 1$"):
        asc.cloud_distances(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), metric="cosine")
    with pytest.raises(ValueError, match=r"zero vector at index \(1, 0\)"):
        asc.cloud_distances(torch.tensor([[[1.0]], [[0.0]]]), metric="cosine")
    with pytest.raises(ValueError, match="metric must be one of 'euclidean', 'cosine', got 'precomputed'"):
        asc.cloud_distances(torch.eye(2), metric="precomputed")
    with pytest.raises(ValueError, match=r"points must be clouds .* got shape \(0, 3\)"):
        asc.cloud_distances(torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"lengths must lie between 1 and n = 2, got 3"):
        asc.cloud_distances(torch.eye(2), lengths=3)
    # Beyond a cloud's length a zero vector is no point.
    asc.cloud_distances(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), metric="cosine", lengths=1)


def distances_with_rounding(dtype):
    """Distances whose two triangles differ as a Gram matrix or a rounded copy in this dtype makes them."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(200, 16, generator=generator, dtype=torch.float64)
    exact = asc.cloud_distances(points)
    if dtype in (torch.float16, torch.bfloat16):
        step = torch.finfo(dtype).eps * exact * torch.rand(200, 200, generator=generator)
        return (exact + step).to(dtype)
    x = points.to(dtype)
    squares = (x * x).sum(-1)
    noise = torch.finfo(dtype).eps * squares.max() * torch.randn(200, 200, generator=generator).to(dtype)
    gram = squares[:, None] + squares - 2 * (x @ x.T) + 4 * noise
    return gram.clamp(min=0).fill_diagonal_(0).sqrt()


TAKE_DISTANCES = {
    "two_nn": lambda d: asc.two_nn(None, distances=d),
    "local_dimension": lambda d: asc.local_dimension(None, distances=d, k=5).value,
    "cloud_persistence": lambda d: asc.cloud_persistence(d, metric="precomputed").death,
    "fragmentation": lambda d: asc.fragmentation(d, metric="precomputed"),
    "cloud_components": lambda d: asc.cloud_components(d, [1.0, 5.0], metric="precomputed").largest,
}


@pytest.mark.parametrize("name", TAKE_DISTANCES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_in_the_dtype_of_distances_is_no_asymmetry(name, dtype):
    distances = distances_with_rounding(dtype)
    assert not torch.equal(distances, distances.mT)
    result = TAKE_DISTANCES[name](distances)
    expected = TAKE_DISTANCES[name](torch.maximum(distances, distances.mT).double())
    assert result.shape == expected.shape
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-2}.get(dtype, 0.2)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", TAKE_DISTANCES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_other_asymmetries_are_refused_with_both_entries(name, dtype):
    distances = asc.cloud_distances(torch.arange(12.0)[:, None]).to(dtype)
    distances[2, 9] = 6.0
    with pytest.raises(ValueError, match=rf"^{name}: .* symmetric, got 6.0 at \(2, 9\) and 7.0 at \(9, 2\)"):
        TAKE_DISTANCES[name](distances)
    distances[2, 9] = torch.inf
    with pytest.raises(ValueError, match=rf"^{name}: .* symmetric, got inf at \(2, 9\) and 7.0 at \(9, 2\)"):
        TAKE_DISTANCES[name](distances)


def test_distances_of_cdist_in_float32_are_taken():
    points = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    distances = torch.cdist(points, points)
    expected = asc.two_nn(points)
    torch.testing.assert_close(asc.two_nn(None, distances=distances), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("power", [-1000, -520, 520, 1000])
def test_near_points_beside_a_far_one_keep_their_distance(power):
    far = 2.0**power
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [far, 0.0]], dtype=torch.float64)
    result = asc.cloud_distances(points)
    assert result[0, 1] == 5.0
    assert result[0, 2] == far
    largest = torch.finfo(torch.float64).max
    assert asc.cloud_distances(torch.tensor([[-largest], [largest]], dtype=torch.float64))[0, 1] == torch.inf


def test_points_that_differ_by_the_smallest_number_are_apart():
    least = 5e-324
    points = torch.tensor([[0.0], [least], [2 * least], [0.0]], dtype=torch.float64)
    expected = [[0, 1, 2, 0], [1, 0, 1, 1], [2, 1, 0, 2], [0, 1, 2, 0]]
    assert (asc.cloud_distances(points) / least).tolist() == expected
