# SPDX-License-Identifier: MIT
"""Matrix entropy: closed forms, eigenvalues of the Gram matrix, scale, and what is refused."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_closed_forms():
    assert asc.matrix_entropy(torch.eye(5)).item() == pytest.approx(math.log(5), abs=1e-14)
    assert asc.matrix_entropy(torch.eye(5), normalized=True).item() == pytest.approx(1, abs=1e-14)
    assert asc.matrix_entropy(torch.ones(4, 3)).item() == pytest.approx(0, abs=1e-14)
    assert asc.matrix_entropy(torch.ones(4, 3), center=True).isnan()
    assert asc.matrix_entropy(torch.ones(1, 3), normalized=True).isnan()
    assert asc.matrix_entropy(torch.zeros(2, 3)).isnan()
    # two directions of sizes 3 and 1: p = 9/10, 1/10
    expected = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert asc.matrix_entropy(torch.tensor([3.0, 1.0]).diag()).item() == pytest.approx(expected, abs=1e-14)
    assert asc.matrix_entropy(torch.tensor([3.0, 1.0]).diag(), unit=True).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_it_is_the_entropy_of_the_gram_matrix(center, unit):
    points = drawn(2, 7, 4)
    for value, x in zip(asc.matrix_entropy(points, center=center, unit=unit), points.numpy(), strict=True):
        x = x - x.mean(0) if center else x
        x = x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x
        p = np.linalg.eigvalsh(x @ x.T)
        p = p[p > 1e-12] / p.sum()
        assert value.item() == pytest.approx(-(p * np.log(p)).sum(), abs=1e-10)


@pytest.mark.parametrize("shape", [(3, 9), (9, 3), (4, 4)])
def test_orthogonal_directions_of_equal_size_have_all_the_entropy_that_there_can_be(shape):
    points = torch.eye(max(shape), dtype=torch.float64)[: shape[0], : shape[1]]
    assert asc.matrix_entropy(points).item() == pytest.approx(math.log(min(shape)), abs=1e-14)
    assert asc.matrix_entropy(points, normalized=True).item() == pytest.approx(1, abs=1e-14)


def test_scale_lengths_and_clouds_that_are_not_finite():
    points = drawn(2, 6, 3)
    result = asc.matrix_entropy(points, lengths=[6, 2], normalized=True)
    assert result[1].item() == pytest.approx(
        asc.matrix_entropy(points[1, :2], normalized=True).item(), abs=1e-13
    )
    torch.testing.assert_close(asc.matrix_entropy(points * 1e200), asc.matrix_entropy(points))
    points[0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="matrix_entropy: 1 of 2 clouds hold NaN"):
        assert asc.matrix_entropy(points).isnan().tolist() == [True, False]


def test_points_without_two_axes_are_named():
    with pytest.raises(ValueError, match=r"matrix_entropy: points must be clouds .*got shape \(3,\)"):
        asc.matrix_entropy(torch.ones(3))
