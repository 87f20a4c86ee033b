# SPDX-License-Identifier: MIT
"""Fractions of matrices in subspaces: projections by LAPACK, random subspaces by SciPy, laws, bad input;
the smallest edit against the constrained least squares that it solves."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope as asc
from attnscope.metrics.weights.low_rank import LowRank, minimal_edit
from attnscope.metrics.weights.matrix_spectrum import spectrum_of
from attnscope.metrics.weights.subspace_fraction import overlap


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthonormal(d, k=None, seed=1):
    return torch.linalg.qr(drawn(d, d, seed=seed)).Q[:, :k]


def low_rank(m, n, rank, seed=0):
    return drawn(m, rank, seed=seed) @ drawn(rank, n, seed=seed + 1)


@pytest.mark.parametrize("side", ["in", "out"])
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6), (1, 4)])
def test_equals_projections(side, shape):
    matrix = drawn(3, *shape)
    d = shape[1] if side == "in" else shape[0]
    basis = orthonormal(d)
    result = asc.subspace_fraction(matrix, basis, side=side, k=range(1, d + 1))
    for index in range(3):
        m = matrix[index].numpy() if side == "in" else matrix[index].numpy().T
        energies = np.linalg.svd(m, compute_uv=False) ** 2
        for k in range(1, d + 1):
            projector = basis[:, :k].numpy() @ basis[:, :k].numpy().T
            expected = np.linalg.norm(m @ projector) ** 2 / np.linalg.norm(m) ** 2
            best = energies[:k].sum() / energies.sum()
            np.testing.assert_allclose(result.fraction[index, k - 1], expected, rtol=1e-12)
            np.testing.assert_allclose(result.relative[index, k - 1], expected * d / k, rtol=1e-12)
            np.testing.assert_allclose(result.ceiling[index, k - 1], best, rtol=1e-12)
            if best - k / d > 1e-9:
                captured = (expected - k / d) / (best - k / d)
                np.testing.assert_allclose(result.captured[index, k - 1], captured, rtol=1e-9)


def test_laws():
    matrix, basis = drawn(6, 9), orthonormal(9)
    fraction = asc.subspace_fraction(matrix, basis[:, :4]).fraction
    rest = asc.subspace_fraction(matrix, basis[:, 4:]).fraction
    assert float(asc.subspace_fraction(matrix, basis).fraction) == pytest.approx(1, abs=1e-12)
    assert float(fraction + rest) == pytest.approx(1, abs=1e-12)
    turned = orthonormal(6, seed=5) @ matrix
    for other in (-3.7 * matrix, turned):
        again = asc.subspace_fraction(other, basis[:, :4])
        np.testing.assert_allclose(again.fraction, fraction, rtol=1e-12)
        np.testing.assert_allclose(again.deviation, asc.subspace_fraction(matrix, basis[:, :4]).deviation)
    main_directions = torch.linalg.svd(matrix).Vh.mT[:, :3]
    best = asc.subspace_fraction(matrix, main_directions, k=[1, 2, 3])
    np.testing.assert_allclose(best.fraction, best.ceiling, rtol=1e-12)
    np.testing.assert_allclose(best.captured, 1, rtol=1e-9)
    half = asc.subspace_fraction(matrix.float(), basis[:, :4])
    np.testing.assert_allclose(half.fraction, fraction, rtol=1e-6)


def test_low_rank_is_the_product():
    left, right = drawn(7, 2), drawn(2, 9, seed=3)
    factors = asc.LowRank(left, right, 1.5)
    dense = 1.5 * left @ right
    for side, d in (("in", 9), ("out", 7)):
        basis = orthonormal(d, 4)
        single_result = asc.subspace_fraction(factors, basis, side=side, k=[1, 3, 4])
        other = asc.subspace_fraction(dense, basis, side=side, k=[1, 3, 4])
        for a, b in zip(single_result, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)
        np.testing.assert_allclose(
            asc.concentration(factors, orthonormal(d), side=side),
            asc.concentration(dense, orthonormal(d), side=side),
            rtol=1e-10,
        )
        moment = drawn(d, d, seed=8)
        moment = moment @ moment.mT
        for a, b in zip(
            asc.alignment_gain(factors, moment, side=side),
            asc.alignment_gain(dense, moment, side=side),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10)


def test_mean_and_deviation_over_random_subspaces():
    d, k, count = 32, 5, 5_000
    matrix = low_rank(12, d, 6)
    bases = stats.ortho_group.rvs(d, size=count, random_state=1)[:, :, :k]
    m = matrix.numpy()
    fractions = ((m @ bases) ** 2).sum((1, 2)) / (m**2).sum()
    result = asc.subspace_fraction(matrix, orthonormal(d, k))
    assert abs(fractions.mean() - k / d) < 5 * fractions.std() / math.sqrt(count)
    assert fractions.std() == pytest.approx(float(result.deviation), rel=0.04)
    assert np.quantile(fractions, 0.99) == pytest.approx(
        stats.beta.isf(0.01, *_beta(k / d, float(result.deviation))), rel=0.04
    )
    moment = torch.diag(torch.arange(1.0, d + 1, dtype=torch.float64))
    turned = stats.ortho_group.rvs(d, size=count, random_state=2)
    gains = (
        ((m @ turned) ** 2 * np.arange(1, d + 1)).sum((1, 2)) * d / ((m**2).sum() * np.arange(1, d + 1).sum())
    )
    gain = asc.alignment_gain(matrix, moment, side="in")
    assert abs(gains.mean() - 1) < 5 * gains.std() / math.sqrt(count)
    assert gains.std() == pytest.approx(float(gain.deviation), rel=0.04)


def _beta(mean, deviation):
    total = mean * (1 - mean) / deviation**2 - 1
    return mean * total, (1 - mean) * total


def test_p_values_of_rank_one_are_those_of_the_beta_law():
    d, k = 24, 3
    matrix = torch.outer(drawn(5), drawn(d, seed=2))
    result = asc.subspace_fraction(matrix, orthonormal(d, k))
    fraction = float(result.fraction)
    assert float(result.p_value) == pytest.approx(stats.beta.sf(fraction, k / 2, (d - k) / 2), rel=1e-9)
    bases = stats.ortho_group.rvs(d, size=2000, random_state=3)[:, :, :k]
    drawn_fractions = asc.subspace_fraction(matrix, torch.tensor(bases)).fraction[:, 0].numpy()
    assert stats.kstest(drawn_fractions, stats.beta(k / 2, (d - k) / 2).cdf).pvalue > 1e-3
    p_values = asc.subspace_fraction(matrix, torch.tensor(bases)).p_value[:, 0].numpy()
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_gaussian_matrices_are_not_concentrated():
    matrices = drawn(50, 40, 32, seed=4)
    result = asc.concentration(matrices, torch.eye(32))
    assert abs(float(result.mean())) < 0.01
    z = asc.subspace_fraction(matrices, orthonormal(32, 4)).z
    assert float(z.abs().max()) < 5
    assert 0.7 < float(z.std()) < 1.3


def test_concentration_of_extremes():
    d = 6
    first = torch.zeros(4, d)
    first[:, 0] = 1
    last = first.flip(1)
    assert float(asc.concentration(first, torch.eye(d))) == pytest.approx((d - 1) / d)
    assert float(asc.concentration(last, torch.eye(d))) == pytest.approx((1 - d) / d)


def test_relative_fractions_of_both_sides():
    matrix = drawn(6, 9)
    left, right = orthonormal(6, 2), orthonormal(9, 3)
    result = asc.relative_subspace_fraction(matrix, left=left, right=right)
    m, el, r = matrix.numpy(), left.numpy(), right.numpy()
    parts = [np.linalg.norm(el.T @ m) ** 2, np.linalg.norm(m @ r) ** 2] / np.linalg.norm(m) ** 2
    assert float(result.both) == pytest.approx(parts.sum() / (2 / 6 + 3 / 9))
    assert float(result.left) == pytest.approx(parts[0] * 3)
    assert float(result.right) == pytest.approx(parts[1] * 3)
    single_result = asc.relative_subspace_fraction(matrix, left=left)
    assert float(single_result.both) == pytest.approx(float(result.left))
    assert torch.isnan(single_result.right)
    with pytest.raises(ValueError, match="got neither"):
        asc.relative_subspace_fraction(matrix)


def test_overlap():
    basis = orthonormal(8)
    assert float(overlap(basis[:, :3], basis[:, :3])) == pytest.approx(1)
    assert float(overlap(basis[:, :3], basis[:, 3:6])) == pytest.approx(0, abs=1e-12)


def test_one_bad_matrix_leaves_the_others_and_zeros_have_no_fraction():
    matrices = drawn(3, 4, 5)
    expected = asc.subspace_fraction(matrices, orthonormal(5, 2))
    matrices[1, 0, 0] = math.nan
    matrices[2] = 0
    result = asc.subspace_fraction(matrices, orthonormal(5, 2))
    for actual, other in zip(result, expected, strict=True):
        assert torch.equal(actual[0], other[0])
        assert torch.isnan(actual[1:]).all()
    gain = asc.alignment_gain(matrices, torch.eye(5), side="in").gain
    assert torch.isnan(gain).tolist() == [False, True, True]


def test_wide_matrices_are_estimated_from_below():
    matrix = (drawn(2100, 30, seed=1) @ drawn(30, 2110, seed=2)).float()
    result = spectrum_of(matrix, 4)
    exact = torch.linalg.svdvals(
        torch.linalg.qr(drawn(2100, 30, seed=1)).R @ drawn(30, 2110, seed=2)
    ).square()
    assert not result.exact
    np.testing.assert_allclose(result.top, exact[:4], rtol=0.05)
    assert (result.top <= exact[:4] * (1 + 1e-5)).all()
    expected = exact.sum() ** 2 / exact.square().sum()
    assert float(result.participation_ratio) == pytest.approx(float(expected), rel=0.2)


BASIS = torch.eye(4)[:, :2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: asc.subspace_fraction(torch.ones(3, 4), BASIS, side="left"),
            "side must be one of 'in', 'out'",
        ),
        (lambda: asc.subspace_fraction(torch.ones(3, 4), 1.2 * BASIS), r"orthonormal columns, got .* = 0.44"),
        (lambda: asc.subspace_fraction(torch.ones(4, 3), BASIS), "must have 3 rows"),
        (lambda: asc.subspace_fraction(torch.ones(3, 4), torch.ones(4, 5)), "at most 4 columns"),
        (lambda: asc.subspace_fraction(torch.ones(3, 4), BASIS, k=0), r"1 .. 2.*got 0"),
        (lambda: asc.subspace_fraction(torch.ones(3, 4), BASIS, k=3), r"1 .. 2.*got 3"),
        (lambda: asc.subspace_fraction(torch.ones(3, 4), BASIS, k=[]), "got none"),
        (lambda: asc.subspace_fraction(torch.ones(4), BASIS), r"matrix must be matrices .* got shape \(4,\)"),
        (lambda: asc.concentration(torch.ones(3, 4), BASIS), "span all 4 dimensions, got 2"),
        (lambda: asc.alignment_gain(torch.ones(3, 4), torch.eye(3), side="in"), r"\[..., 4, 4\].*\(3, 3\)"),
        (
            lambda: asc.alignment_gain(torch.ones(3, 4), torch.ones(4, 4).triu(), side="in"),
            "must be symmetric",
        ),
        (  # beside a large moment a small one is judged by its own size
            lambda: asc.alignment_gain(
                torch.ones(2, 3, 4), torch.stack([1e7 * torch.eye(4), torch.ones(4, 4).triu()]), side="in"
            ),
            r"must be symmetric, got \|S − Sᵀ\| = 1",
        ),
        (
            lambda: asc.alignment_gain(
                torch.ones(3, 4), torch.diag(torch.tensor([2.0, 1, 1, -1])), side="in"
            ),
            "positive semi-definite, got the eigenvalue -1",
        ),
        (lambda: asc.alignment_gain(torch.ones(3, 4), torch.zeros(4, 4), side="in"), "positive trace"),
        (lambda: asc.haar_deviation(0.5, 2.0, 4), r"pr must lie in \[1, d\], got 0.5"),
        (lambda: asc.haar_deviation(2.0, 5.0, 4), r"other_pr must lie in \[1, d\], got 5.0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_smallest_edit_maps_the_input_and_disturbs_others_least():
    x = drawn(200, 6, seed=0) * torch.linspace(3, 0.2, 6).double()
    moment, a, shift = x.mT @ x / len(x), drawn(6, seed=1), drawn(4, seed=2)
    result = minimal_edit(shift, a, moment, ridge=0).dense().numpy()
    np.testing.assert_allclose(result @ a.numpy(), shift, rtol=1e-10)
    # the stationary point of tr(ΔW S ΔWᵀ) under ΔW a = D, row by row: [S a; aᵀ 0] [w; λ] = [0; D_i]
    system = np.block([[moment.numpy(), a.numpy()[:, None]], [a.numpy()[None], np.zeros((1, 1))]])
    for row, expected in zip(result, shift.tolist(), strict=True):
        np.testing.assert_allclose(row, np.linalg.solve(system, [*[0.0] * 6, expected])[:6], rtol=1e-9)


def test_the_ridge_is_relative_to_the_mean_eigenvalue():
    moment = torch.diag(torch.tensor([4.0, 2.0]))
    result = minimal_edit(torch.ones(1), torch.ones(2), moment, ridge=1.0).dense()
    expected = torch.tensor([[1 / 7, 1 / 5]]).double()
    torch.testing.assert_close(result, expected / expected.sum())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimal_edit(torch.ones(2), torch.zeros(3), torch.eye(3)), "a must not be 0"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(3), torch.eye(2)), r"\(2,\), \(3,\) and \(2, 2\)"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(3), torch.eye(3), ridge=-1), "got -1"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(2), torch.zeros(2, 2), ridge=0), "no inverse"),
    ],
)
def test_bad_input_of_the_smallest_edit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


WEIGHTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
EYE = torch.eye(5, dtype=torch.float64)
OF_WEIGHTS = {
    "subspace_fraction": lambda m: asc.subspace_fraction(m, EYE[:, :2], k=[1, 2]),
    "concentration": lambda m: asc.concentration(m, EYE),
    "relative_subspace_fraction": lambda m: asc.relative_subspace_fraction(m, right=EYE[:, :2]),
    "alignment_gain": lambda m: asc.alignment_gain(m, EYE + torch.ones(5, 5), side="in"),
}


def fields(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_arrays_gradients_and_strides_change_no_bit(name):
    function = OF_WEIGHTS[name]
    expected = fields(function(WEIGHTS))
    wide = torch.randn(12, 10, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    wide[::2, ::2] = WEIGHTS
    for matrix in (
        WEIGHTS.numpy(),
        WEIGHTS.clone().requires_grad_(),
        torch.nn.Parameter(WEIGHTS),
        WEIGHTS.mT.contiguous().mT,
        wide[::2, ::2],
    ):
        for field, other in zip(fields(function(matrix)), expected, strict=True):
            assert not field.requires_grad
            assert torch.equal(field.nan_to_num(-7.0), other.nan_to_num(-7.0))


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_the_largest_numbers_are_weights_like_others(name):
    function = OF_WEIGHTS[name]
    largest = torch.finfo(torch.float64).max
    expected = fields(function(WEIGHTS.sign()))
    for field, other in zip(fields(function(WEIGHTS.sign() * largest)), expected, strict=True):
        torch.testing.assert_close(field, other, rtol=1e-12, atol=1e-12, equal_nan=True)
    bad = WEIGHTS.clone()
    bad[0, 0] = torch.inf
    assert all(field.isnan().all() for field in fields(function(bad))[:1])
    assert all(field.isnan().all() for field in fields(function(asc.LowRank(bad[:, :2], WEIGHTS[:2])))[:1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_bases_and_moments_are_right_to_the_rounding_of_their_dtype(dtype):
    basis = asc.haar_basis(5, 5, seed=1)
    moment = (basis * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])) @ basis.mT
    moment = moment * (1 + 0.4 * torch.finfo(dtype).eps * torch.randn(5, 5).sign())
    expected = asc.subspace_fraction(WEIGHTS, basis[:, :2]).fraction
    result = asc.subspace_fraction(WEIGHTS, basis[:, :2].to(dtype)).fraction
    torch.testing.assert_close(result, expected, rtol=0, atol=16 * torch.finfo(dtype).eps)
    assert asc.alignment_gain(WEIGHTS, moment.to(dtype), side="in").gain.isfinite()
    with pytest.raises(ValueError, match="symmetric"):
        asc.alignment_gain(WEIGHTS, (moment + 0.3 * torch.ones(5, 5).triu()).to(dtype), side="in")


def test_autocast_around_a_call_changes_no_product():
    generator = torch.Generator().manual_seed(4)
    matrix = torch.randn(700, 600, generator=generator)
    basis = torch.linalg.qr(torch.randn(600, 5, generator=generator)).Q
    low_rank = LowRank(matrix[:, :3], matrix[:3, :], 0.5)
    calls = (
        lambda: asc.subspace_fraction(matrix, basis).fraction,
        lambda: asc.concentration(matrix[:, :5], torch.eye(5)),
        lambda: low_rank @ basis,
        low_rank.dense,
        lambda: spectrum_of(matrix, 3).top,
    )
    for call in calls:
        expected = torch.utils._pytree.tree_leaves(call())
        with torch.autocast("cpu", torch.bfloat16):
            results = torch.utils._pytree.tree_leaves(call())
        for values, plain in zip(results, expected, strict=True):
            torch.testing.assert_close(values, plain, rtol=0, atol=0)
