# SPDX-License-Identifier: MIT
"""Log volume: closed forms, determinants, INSIDE's convention, and what is refused."""

import math

import mpmath
import numpy as np
import pytest
import torch

import attnscope as asc


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_identity_and_equal_rows():
    expected = (2 * math.log(1.001) + math.log(0.001)) / 3
    assert asc.log_volume(torch.eye(3, dtype=torch.float64)).item() == pytest.approx(expected, abs=1e-14)
    equal_rows = drawn(1, 8).expand(5, 8)
    value = (equal_rows[0] - equal_rows[0].mean()).square().sum().item() * 5
    expected = (math.log(value + 1e-3) + 4 * math.log(1e-3)) / 5
    assert asc.log_volume(equal_rows).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("k", "d"), [(4, 9), (9, 4), (5, 5), (1, 3), (3, 1)])
def test_it_is_a_determinant(k, d):
    points = drawn(2, k, d)
    for value, z in zip(asc.log_volume(points, alpha=0.01), points.numpy(), strict=True):
        centred = z - z.mean(1, keepdims=True)
        sign, logarithm = np.linalg.slogdet(centred @ centred.T + 0.01 * np.eye(k))
        assert sign == 1
        assert value.item() == pytest.approx(logarithm / k, abs=1e-10)


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e150, 1e160, 1e300])
def test_points_whose_squares_are_beyond_float64(scale):
    """The singular values of the rows are those of a rotation times 3, 2 and 1, and grow with the scale."""
    turn, _ = torch.linalg.qr(drawn(4, 4))
    rows = torch.zeros(3, 4, dtype=torch.float64)
    rows[:, 1:] = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    # an orthogonal basis whose first vector is the constant one, which centring takes away
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(4, 1, dtype=torch.float64), turn[:, :3]], 1))
    with mpmath.workdps(30):
        terms = [
            mpmath.log((mpmath.mpf(sigma) * mpmath.mpf(scale)) ** 2 + mpmath.mpf(1e-3)) for sigma in (1, 2, 3)
        ]
        expected = float(sum(terms) / 3)
    leaf = (rows @ basis.mT * scale).requires_grad_()
    value = asc.log_volume(leaf)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    value.backward()
    assert leaf.grad.isfinite().all()


def test_lengths_are_the_first_rows():
    points = drawn(2, 6, 3)
    result = asc.log_volume(points, lengths=[6, 2])
    assert result[1].item() == pytest.approx(asc.log_volume(points[1, :2]).item(), abs=1e-13)


def test_clouds_that_are_not_finite():
    points = drawn(2, 4, 3)
    points[1, 0, 0] = torch.inf
    with pytest.warns(RuntimeWarning, match="log_volume: 1 of 2 clouds hold NaN"):
        assert asc.log_volume(points).isnan().tolist() == [False, True]


@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan])
def test_an_alpha_that_is_no_ridge_is_named(alpha):
    with pytest.raises(ValueError, match="log_volume: alpha must be above 0 and finite, got"):
        asc.log_volume(drawn(3, 3), alpha=alpha)
