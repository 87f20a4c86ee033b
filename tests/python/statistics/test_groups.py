# SPDX-License-Identifier: MIT
"""Jackknife and sign flips against closed forms, exhaustive flips and simulation; the slope of leakage."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope as asc
from attnscope import statistics
from attnscope.statistics.groups import jackknife_bounds, mean_product
from attnscope.statistics.leakage import leakage_slope


def test_the_jackknife_of_a_mean_is_students_interval():
    x = np.random.default_rng(0).normal(size=12)
    result = statistics.jackknife(x, np.mean)
    low, high = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert result == pytest.approx((x.mean(), low, high, 12))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e170, 1e300])
def test_the_jackknife_works_in_any_unit(unit):
    """Squares of small numbers are 0, so that the interval had no width; those of large ones are infinite."""
    values = np.array([1.0, 2.0, 4.0, 5.0])
    expected, result = (statistics.jackknife(values * factor, np.mean) for factor in (1.0, unit))
    np.testing.assert_allclose(result[:3], np.array(expected[:3]) * unit, rtol=1e-12)


def test_products_of_groups_are_looked_up_by_their_numbers():
    rng = np.random.default_rng(1)
    gram = rng.normal(size=(6, 6))
    gram = gram @ gram.T
    estimate, low, high, groups = jackknife_bounds(
        np.arange(6), lambda groups: mean_product(gram[np.ix_(groups, groups)])
    )
    slow = [
        np.mean([gram[g, f] for g, f in itertools.permutations([k for k in range(6) if k != out], 2)])
        for out in range(6)
    ]
    error = np.sqrt(5 / 6 * ((slow - np.mean(slow)) ** 2).sum())
    assert estimate == pytest.approx((gram.sum() - np.trace(gram)) / 30)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 5) * error)
    assert groups == 6


def test_sign_flips_are_those_of_all_signs():
    x = np.random.default_rng(2).normal(0.4, 1, size=8)
    signs = np.array(list(itertools.product([-1, 1], repeat=8)))
    expected_p = np.mean(np.abs(signs @ x) >= abs(x.sum()) - 1e-12)
    assert statistics.sign_flips(x, draws=200_000) == pytest.approx(expected_p, abs=0.004)
    above = np.mean(signs @ x >= x.sum() - 1e-12)
    assert statistics.sign_flips(x, draws=200_000, two_sided=False) == pytest.approx(above, abs=0.004)
    gram = np.outer(x, x)
    drawn = np.array([s @ gram @ s - np.trace(gram) for s in signs])
    exact = np.mean(drawn >= gram.sum() - np.trace(gram) - 1e-12)
    assert statistics.sign_flips(gram, draws=200_000) == pytest.approx(exact, abs=0.004)


def test_the_level_is_kept_for_noise_with_heavy_tails():
    rng = np.random.default_rng(3)
    x = rng.standard_t(3, size=(400, 8, 10)) * rng.gamma(1, size=(400, 8, 1))
    p = statistics.sign_flips(x @ x.transpose(0, 2, 1), draws=999)
    assert np.mean(p <= 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.filterwarnings("error")
def test_an_estimate_that_is_infinite_without_a_group_has_no_interval_and_no_warning():
    result = statistics.jackknife([1.0, 2.0, 3.0], lambda x: np.inf if len(x) == 2 and x[0] == 1 else x.sum())
    assert result.estimate == 6
    assert np.isnan([result.low, result.high]).all()


def test_undefined_values():
    assert np.isnan(statistics.jackknife([1.0], np.mean).low)
    assert np.isnan(statistics.sign_flips([1.0, np.nan]))
    gram = np.stack([np.ones((4, 4)), np.full((4, 4), np.nan), np.zeros((4, 4))])
    p = statistics.sign_flips(gram, draws=99)
    assert np.isnan(p).tolist() == [False, True, False]
    assert p[2] == 1.0
    assert np.isnan(mean_product(np.ones((1, 1))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.jackknife([], np.mean), r"at least one group"),
        (lambda: statistics.jackknife([1.0, 2.0], lambda x: x), r"must give a number"),
        (lambda: statistics.jackknife([1.0, 2.0], np.mean, confidence=1), r"confidence"),
        (lambda: statistics.sign_flips([1.0]), r"at least two groups"),
        (lambda: statistics.sign_flips(np.ones((3, 4))), r"must be square"),
        (lambda: statistics.sign_flips(np.ones((3, 3)), two_sided=True), r"no second side"),
        (lambda: statistics.sign_flips([1.0, 2.0], draws=0), r"draws must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


GROUPS, TEXTS = 8, 32


def profile_of(n, size, *, seed=0, noise=1.0):
    """Content of unit variance, and at every query a pattern along its keys of a given size."""
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.where(torch.arange(n) % 2 == 0, size, -size).double()
    s = noise * torch.randn(TEXTS, 2, n, n, dtype=torch.float64, generator=generator)
    s[..., : n // 2, :] += pattern
    profile = asc.PositionProfile(n, groups=GROUPS)
    profile.add(s, [text * GROUPS // TEXTS for text in range(TEXTS)])
    return profile


def test_a_share_that_falls_as_the_inverse_length_has_slope_minus_1():
    """Size² = 2/n beside content of variance 1 that dominates: the share is next to proportional to 1/n."""
    profiles = [profile_of(n, (2 / n) ** 0.5, seed=n) for n in (16, 32, 64)]
    result = leakage_slope(profiles)
    assert result.lengths == (16, 32, 64)
    assert result.share.estimate.shape == (3, 1)
    assert result.slope.estimate.item() == pytest.approx(-1, abs=0.25)
    assert result.slope.low.item() < result.slope.estimate.item() < result.slope.high.item() < -0.5


def test_a_share_of_1_at_every_length_has_slope_0():
    result = leakage_slope([profile_of(n, 1.0, noise=0.0) for n in (32, 16)])
    assert result.lengths == (16, 32)
    assert result.share.estimate.flatten().tolist() == pytest.approx([1, 1])
    assert result.slope.estimate.item() == pytest.approx(0, abs=1e-9)


def test_bad_profiles_have_no_slope():
    with pytest.raises(ValueError, match=r"two different lengths or more, none below 6, got \[16\]"):
        leakage_slope([profile_of(16, 1.0)])
    with pytest.raises(ValueError, match="at least 4 groups"):
        leakage_slope([profile_of(16, 1.0), asc.PositionProfile(8, groups=2)])
