# SPDX-License-Identifier: MIT
"""cloud_spectrum: against NumPy, closed forms, degenerate clouds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from topology_inputs import CLOUDS, cloud


def by_numpy(points, center=True):
    x = points.numpy().astype(float)
    sigma = np.linalg.svd(x - x.mean(0) if center else x, compute_uv=False)
    p = sigma / sigma.sum()
    p = p[p > 0]
    energy = sigma**2
    share = np.cumsum(energy) / energy.sum()
    return (
        np.exp(-(p * np.log(p)).sum()),
        energy.sum() ** 2 / (energy**2).sum(),
        energy[1] / energy[0],
        int(np.searchsorted(share, 0.95)) + 1,
    )


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize(("n", "d"), [(9, 4), (6, 40), (50, 8)])
@pytest.mark.parametrize("center", [True, False])
def test_it_is_what_numpy_finds(kind, n, d, center):
    points = cloud(kind, n, d)
    result = asc.cloud_spectrum(points, center=center)
    expected = by_numpy(points, center)
    np.testing.assert_allclose([float(value) for value in result[:4]], expected, rtol=1e-9)
    assert result.singular_values.shape == (min(n, d),)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_plus_and_minus_a_frame_has_all_its_directions(d):
    turn = asc.haar_basis(d, d, 1)
    result = asc.cloud_spectrum(torch.cat([turn, -turn]))
    assert math.isclose(result.effective_rank.item(), d, rel_tol=1e-12)
    assert math.isclose(result.participation_ratio.item(), d, rel_tol=1e-12)
    assert math.isclose(result.isotropy.item(), 1.0 if d > 1 else 0.0, rel_tol=1e-12)
    assert result.pca_dimension.item() == d


@settings(max_examples=25)
@given(st.integers(2, 12), st.integers(2, 6), st.integers(0, 1000), st.floats(1e-2, 1e2))
def test_offset_scale_rotation_and_order_do_not_matter(n, d, seed, scale):
    points = cloud("gaussian", n, d, seed)
    result = asc.cloud_spectrum(points)
    order = np.random.default_rng(seed).permutation(n)
    moved = asc.cloud_spectrum((scale * points @ asc.haar_basis(d, d, seed) + 3.0)[order])
    for name in ("effective_rank", "participation_ratio", "isotropy", "pca_dimension"):
        torch.testing.assert_close(
            getattr(moved, name), getattr(result, name), rtol=1e-6, atol=1e-9, equal_nan=True
        )
    assert result.effective_rank.item() <= n - 1 + 1e-6


def test_no_variance():
    # 0.1 has a mean of seven that is not 0.1.
    for points in (torch.full((7, 3), 0.1, dtype=torch.float64), torch.ones(1, 4)):
        result = asc.cloud_spectrum(points)
        assert (result.effective_rank.item(), result.pca_dimension.item()) == (0.0, 0.0)
        assert result.participation_ratio.isnan()
        assert result.isotropy.isnan()


def test_two_points_have_one_direction():
    result = asc.cloud_spectrum(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    assert math.isclose(result.effective_rank.item(), 1.0, rel_tol=1e-12)
    assert math.isclose(result.singular_values[0].item(), 5 / math.sqrt(2), rel_tol=1e-12)
    assert result.pca_dimension.item() == 1


def test_lengths_dtypes_and_a_cloud_that_is_not_finite():
    points = torch.stack([cloud("gaussian", 10, 6, seed) for seed in range(3)]).float()
    points[1, 0, 0] = math.inf
    points[2, 9] = math.nan  # beyond its length
    with pytest.warns(RuntimeWarning, match="cloud_spectrum: 1 of 3 clouds"):
        result = asc.cloud_spectrum(points, lengths=[10, 10, 4])
    assert result.effective_rank[1].isnan()
    assert result.singular_values[1].isnan().all()
    single_result = asc.cloud_spectrum(points[2, :4].double())
    torch.testing.assert_close(result.effective_rank[2], single_result.effective_rank, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        result.singular_values[2, :4], single_result.singular_values, rtol=1e-9, atol=1e-9
    )
    assert (result.singular_values[2, 4:] < 1e-12).all()
    for dtype in (torch.float16, torch.bfloat16):
        low = points[0].to(dtype)
        assert torch.equal(asc.cloud_spectrum(low).isotropy, asc.cloud_spectrum(low.double()).isotropy)
