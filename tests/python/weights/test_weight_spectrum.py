# SPDX-License-Identifier: MIT
"""Tails of weight spectra: closed forms, a search in loops, scale, random matrices, and what is refused."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heavy(n, alpha=2.5, seed=0):
    """A matrix whose squared singular values are draws of a power law."""
    draws = np.random.default_rng(seed).uniform(size=n)
    return torch.from_numpy(np.sqrt((1 - draws) ** (-1 / (alpha - 1)))).diag()


def search(values, lower):
    """The fit as Clauset et al. word it, one xmin and one value after another."""
    best = None
    for x in sorted(set(values))[:-1]:
        tail = sorted(value for value in values if value >= x)
        n = len(tail)
        alpha = 1 + n / sum(math.log(value / x) for value in tail)
        law = [1 - (value / x) ** (1 - alpha) for value in tail]
        ks = max(abs(law[k] - k / n) for k in range(n))
        if not lower:
            ks = max(ks, *(abs(law[k] - (k + 1) / n) for k in range(n)))
        if best is None or ks < best[2]:
            best = alpha, x, ks, n
    return best


def test_three_values_by_hand():
    result = asc.weight_spectrum(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64).exp().diag())
    expected = {
        "alpha": 2,
        "xmin": 1,
        "ks": 1 / 3,
        "tail": 3,
        "alpha_error": 1 / math.sqrt(3),
        "alpha_hat": 4 / math.log(10),
        "log_spectral_norm": 2 / math.log(10),
        "log_norm": math.log10(1 + math.e + math.e**2),
        "log_alpha_norm": math.log10(1 + math.e**2 + math.e**4),
        "stable_rank": (1 + math.e + math.e**2) / math.e**2,
    }
    for field, value in expected.items():
        assert getattr(result, field).item() == pytest.approx(value, abs=1e-13), field


def test_values_that_are_equal_but_for_rounding_are_equal():
    """A turned matrix has the values of the one that was not turned; those of an orthogonal one are all 1."""
    left, right = (torch.linalg.qr(drawn(40, 40, seed=seed))[0] for seed in (1, 2))
    orthogonal = asc.weight_spectrum(left)
    assert orthogonal.alpha.isnan()
    assert orthogonal.tail.item() == 0
    two_values = torch.tensor([2.0] * 20 + [1.0] * 20, dtype=torch.float64).diag()
    plain, turned = asc.weight_spectrum(two_values), asc.weight_spectrum(left @ two_values @ right)
    # 40/(20 ln 4) above 1
    assert plain.alpha.item() == pytest.approx(1 + 2 / math.log(4), rel=1e-12)
    for field in plain._fields:
        assert getattr(turned, field).item() == pytest.approx(getattr(plain, field).item(), rel=1e-11), field


@pytest.mark.parametrize("cdf", ["both", "lower"])
@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_a_search(cdf, seed):
    matrix = heavy(60, seed=seed) if seed % 2 else drawn(40, 25, seed=seed)
    result = asc.weight_spectrum(matrix, cdf=cdf)
    values = torch.linalg.svdvals(matrix).square().tolist()
    alpha, x, ks, n = search(values, cdf == "lower")
    assert result.alpha.item() == pytest.approx(alpha, rel=1e-10)
    assert result.xmin.item() == pytest.approx(x, rel=1e-12)
    assert result.ks.item() == pytest.approx(ks, rel=1e-9)
    assert result.tail.item() == n


def test_the_exponent_of_a_power_law_is_found():
    result = asc.weight_spectrum(heavy(2000, alpha=2.5))
    assert abs(result.alpha.item() - 2.5) < 4 * result.alpha_error.item()


def test_scale_changes_norms_and_nothing_else():
    matrix = drawn(30, 20)
    plain, scaled = asc.weight_spectrum(matrix), asc.weight_spectrum(matrix * 1e150)
    for field in ("alpha", "ks", "stable_rank", "mp_soft_rank"):
        assert getattr(scaled, field).item() == pytest.approx(getattr(plain, field).item(), rel=1e-9)
    assert scaled.log_norm.item() == pytest.approx(plain.log_norm.item() + 300, rel=1e-12)
    transposed = asc.weight_spectrum(matrix.T)
    assert transposed.alpha.item() == pytest.approx(plain.alpha.item(), rel=1e-9)


def test_random_matrices_end_at_the_edge_and_a_planted_direction_is_a_spike():
    matrix = drawn(400, 200, seed=3)
    plain = asc.weight_spectrum(matrix)
    edge = (math.sqrt(400) + math.sqrt(200)) ** 2
    largest = 10 ** plain.log_spectral_norm.item()
    assert plain.mp_soft_rank.item() == pytest.approx(min(1, edge / largest), abs=0.02)
    assert plain.spikes.item() <= 1
    direction = torch.outer(drawn(400, seed=4), drawn(200, seed=5)) * 0.5
    assert asc.weight_spectrum(matrix + direction).spikes.item() == 1


def test_rounding_is_no_value():
    basis = drawn(12, 4)
    result = asc.weight_spectrum(basis @ basis.T)
    assert result.tail.item() <= 4
    assert result.xmin.item() > 1e-6


def test_batches_and_matrices_without_a_tail():
    matrices = torch.stack([drawn(9, 9), torch.eye(9).double(), torch.zeros(9, 9).double()])
    result = asc.weight_spectrum(matrices)
    assert result.alpha[0] == asc.weight_spectrum(matrices[0]).alpha
    assert result.alpha[1:].isnan().all()
    assert result.tail.tolist()[1:] == [0, 0]
    assert result.log_norm[1].item() == pytest.approx(math.log10(9))
    assert result.log_norm[2].isnan()
    assert result.spikes.tolist()[2] == -1
    matrices[1, 0, 0] = torch.inf
    with pytest.warns(RuntimeWarning, match="weight_spectrum: 1 of 3 matrices hold NaN"):
        broken = asc.weight_spectrum(matrices)
    assert broken.stable_rank.isnan().tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("matrix", "options", "words"),
    [
        (torch.ones(3), {}, r"matrix must be matrices .* got shape \(3,\)"),
        (torch.ones(2, 2), {"cdf": "upper"}, "cdf must be one of 'both', 'lower', got 'upper'"),
    ],
)
def test_bad_input_is_named(matrix, options, words):
    with pytest.raises(ValueError, match=f"weight_spectrum: {words}"):
        asc.weight_spectrum(matrix, **options)
