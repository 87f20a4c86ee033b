# SPDX-License-Identifier: MIT
"""Eigenvalues of causal maps: closed forms, a solver, lengths, and what is refused."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.discovery import quantity
from attnscope.metrics.spectra.causal_spectrum import largest_values


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return logits.softmax(-1).to(dtype)


def test_uniform_causal_attention_by_hand():
    uniform = torch.ones(4, 4, dtype=torch.float64).tril()
    result = asc.causal_spectrum(uniform / uniform.sum(-1, keepdim=True))
    torch.testing.assert_close(
        result.laplacian,
        torch.tensor([25 / 48 - 1, 13 / 36 - 0.5, 7 / 24 - 1 / 3, 0.0]).double(),
        rtol=0,
        atol=1e-7,
    )
    assert result.attention.tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert result.log_determinant.item() == pytest.approx(-math.log(24) / 4, abs=1e-15)
    single = asc.causal_spectrum(torch.ones(1, 1))
    assert (single.laplacian.item(), single.attention.item(), single.log_determinant.item()) == (0, 1, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 4])
def test_they_are_the_eigenvalues(dtype, window):
    attention = maps(2, 11, 11, dtype=dtype)
    visible = torch.ones(11, 11, dtype=torch.bool).tril()
    if window:
        visible = visible.triu(1 - window)
        attention = attention * visible
    result = asc.causal_spectrum(attention, support=visible)
    for k, wide in enumerate(attention.double().numpy()):
        alpha = np.array([wide[visible[:, j], j].mean() for j in range(11)])
        for ours, matrix in (
            (result.laplacian[k], np.diag(alpha) - wide),
            (result.attention[k], wide),
        ):
            values = np.sort(np.linalg.eigvals(matrix).real)
            np.testing.assert_allclose(np.sort(ours.numpy()), values, atol=1e-12)
        assert result.log_determinant[k].item() == pytest.approx(np.linalg.slogdet(wide)[1] / 11, abs=1e-12)


def test_the_floor_and_values_of_lm_polygraph():
    attention = maps(3, 8, 8)
    attention[:, 3, 3] = 0
    # its attention score: the sum over tokens of ln(A_ii + 1e-12)
    score = (attention.diagonal(dim1=-2, dim2=-1) + 1e-12).log().sum(-1)
    result = asc.causal_spectrum(attention, support="causal")
    torch.testing.assert_close(8 * result.log_determinant, score, rtol=0, atol=1e-9)
    higher = asc.causal_spectrum(attention, support="causal", floor=0.5)
    assert higher.log_determinant.min() >= math.log(0.5)


def test_lengths_are_leading_blocks_and_ranks_end_with_them():
    attention = maps(2, 12, 12)
    result = asc.causal_spectrum(attention, lengths=[12, 7])
    single = asc.causal_spectrum(attention[1, :7, :7])
    torch.testing.assert_close(result.laplacian[1, :7], single.laplacian, rtol=0, atol=0)
    assert result.laplacian[1, 7:].isnan().all()
    assert torch.equal(result.log_determinant[1], single.log_determinant)
    top = largest_values(result.attention)
    assert top.shape == (2, 10)
    assert top[1, 7:].isnan().all()
    assert torch.equal(top[1, :7], single.attention.sort(descending=True).values)
    short = largest_values(single.attention)
    assert short[7:].isnan().all()


def test_a_map_that_is_not_finite_is_nan():
    attention = maps(2, 6, 6)
    attention[0, 5, 0] = torch.inf
    with pytest.warns(RuntimeWarning, match="1 of 2 matrices hold NaN"):
        result = asc.causal_spectrum(attention)
    for field in result:
        assert field[0].isnan().all()
        assert not field[1].isnan().any()


def test_learned_sinks_are_not_renormalised():
    attention = 0.6 * maps(6, 6)
    assert torch.equal(asc.causal_spectrum(attention).attention, attention.diagonal())


@pytest.mark.parametrize("floor", [0.0, 1.0, -1e-9, math.nan])
def test_a_floor_outside_its_range_is_named(floor):
    with pytest.raises(ValueError, match="causal_spectrum: floor must lie strictly between 0 and 1"):
        asc.causal_spectrum(maps(4, 4), floor=floor)


def test_columns_of_analyze_are_ranked():
    assert quantity("laplacian_top").axes == ("rank",)
    assert quantity("laplacian_top").bounds(5) == (-1, 1)
