# SPDX-License-Identifier: MIT
"""The shape of Laplacian spectra: complete graphs, stars, NumPy, lengths."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc


def maps(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_complete_graphs_and_stars(n):
    complete = asc.laplacian_shape(torch.full((n, n), 1 / n, dtype=torch.float64))
    expected = (1, math.log(n - 1) / math.log(n), math.ceil(n / 2) / (n - 1), 1)
    for field, value in zip(complete, expected, strict=True):
        assert field.item() == pytest.approx(value, abs=1e-12)
    if n > 2:
        star = torch.zeros(n, n, dtype=torch.float64)
        star[:, 0] = 1
        result = asc.laplacian_shape(star, symmetrize="max")  # eigenvalues 0, 1 (n − 2 times), n
        assert result.ratio.item() == pytest.approx(1 / n, abs=1e-12)
        assert result.largest.item() == pytest.approx(n, abs=1e-12)


@pytest.mark.parametrize("normalized", [False, True])
def test_every_field_is_that_of_numpy(normalized):
    attention = maps(2, 9, 9)
    result = asc.laplacian_shape(attention, normalized=normalized)
    for k, a in enumerate(attention.numpy()):
        w = (a + a.T) / 2
        np.fill_diagonal(w, 0)
        d = w.sum(1)
        matrix = np.diag(d) - w
        if normalized:
            matrix = matrix / np.sqrt(np.outer(d, d))
        values = np.linalg.eigvalsh(matrix).clip(0)
        p = values[values > 1e-12] / values.sum()
        expected = (values[1] / values[-1], -(p * np.log(p)).sum() / np.log(9))
        assert result.ratio[k].item() == pytest.approx(expected[0], rel=1e-9)
        assert result.entropy[k].item() == pytest.approx(expected[1], rel=1e-9)
        assert result.upper_share[k].item() == pytest.approx(values[4:].sum() / values.sum(), rel=1e-9)


def test_lengths_maps_without_an_edge_and_maps_that_are_not_finite():
    attention = maps(3, 8, 8)
    attention[2] = torch.eye(8)
    result = asc.laplacian_shape(attention, lengths=[8, 5, 8])
    single = asc.laplacian_shape(attention[1, :5, :5])
    for field, expected in zip(result, single, strict=True):
        assert field[1].item() == pytest.approx(expected.item(), rel=1e-12)
        assert field[2].isnan()
    assert asc.laplacian_shape(torch.ones(1, 1)).ratio.isnan()
    attention[0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 3 matrices hold NaN"):
        assert asc.laplacian_shape(attention).ratio.isnan().tolist() == [True, False, True]


def test_an_unknown_symmetrization_is_named():
    with pytest.raises(ValueError, match="symmetrize must be one of 'mean', 'max', got 'min'"):
        asc.laplacian_shape(maps(4, 4), symmetrize="min")
