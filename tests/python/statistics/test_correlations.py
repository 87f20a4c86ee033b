# SPDX-License-Identifier: MIT
"""Correlations of few samples: p-values by enumeration, and intervals against the jackknife and coverage."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from attnscope import statistics

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("ties", [False, True])
def test_the_p_value_of_few_ranks_is_the_share_of_their_orders(n, ties):
    x, y = RNG.normal(size=n), RNG.normal(size=n)
    x, y = (np.round(x), np.round(y)) if ties else (x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        x[0], y[0] = 9.0, 9.0
    ranks = stats.rankdata(x), stats.rankdata(y)
    observed = abs(np.corrcoef(*ranks)[0, 1])
    absolute_correlations = [
        abs(np.corrcoef(ranks[0], order)[0, 1]) for order in itertools.permutations(ranks[1])
    ]
    result = statistics.correlation(x, y, method="spearman")
    assert result.p_value == pytest.approx(
        np.mean(np.array(absolute_correlations) >= observed - 1e-9), abs=1e-12
    )


@pytest.mark.parametrize("n", [3, 4, 9, 10, 12])
@pytest.mark.parametrize("sign", [1, -1])
def test_ranks_in_one_order_have_the_p_value_of_two_orders(n, sign):
    """Student's t gives 0 there, also of three samples, in which a third of all orders correlate as much."""
    x = np.arange(n) ** 2.0
    result = statistics.correlation(x, sign * np.arange(n), method="spearman")
    assert result.r == sign
    assert result.p_value == pytest.approx(2 / math.factorial(n), rel=1e-12)


def test_ten_ranks_and_more_follow_student():
    x, y = RNG.normal(size=10), RNG.normal(size=10)
    result, expected = statistics.correlation(x, y, method="spearman"), stats.spearmanr(x, y)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_below_five_samples_there_is_no_interval(method):
    for n in (3, 4):
        result = statistics.correlation(RNG.normal(size=n), RNG.normal(size=n), method=method)
        assert not math.isnan(result.r)
        assert math.isnan(result.low)
        assert math.isnan(result.high)
    result = statistics.correlation([1, 2, 3, 4, 5], [1, 2, 3, 5, 4], method=method)
    assert -1 < result.low < result.r < result.high < 1


def test_five_ranks_in_one_order_leave_room_below():
    result = statistics.correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 9], method="spearman")
    assert (result.r, result.high) == (1, 1)
    assert result.low < 0.5


@pytest.mark.parametrize("law", ["normal", "noise grows with x"])
def test_the_standard_error_is_that_of_leaving_samples_out(law):
    """The interval's reach on Fisher's scale against the delete-one jackknife, by hand."""
    x = RNG.normal(size=80)
    y = 0.5 * x + RNG.normal(size=80) if law == "normal" else x * RNG.normal(size=80)
    result = statistics.correlation(x, y)
    samples_left = [np.delete(np.arange(80), sample) for sample in range(80)]
    z = np.arctanh(
        [np.corrcoef(x[samples_of_fold], y[samples_of_fold])[0, 1] for samples_of_fold in samples_left]
    )
    error = math.sqrt(79 / 80 * ((z - z.mean()) ** 2).sum())
    reach = (math.atanh(result.high) - math.atanh(result.low)) / 2
    expected = max(stats.t.ppf(0.975, 78) * error, stats.norm.ppf(0.975) / math.sqrt(77))
    assert reach == pytest.approx(expected, rel=0.1)
    if law != "normal":
        assert reach > 1.3 * stats.norm.ppf(0.975) / math.sqrt(77)


@pytest.mark.parametrize("method", ["pearson", "spearman"])
@pytest.mark.parametrize("n", [5, 12])
def test_the_interval_of_few_samples_covers(method, n):
    """Pearson's .6 of normal values, and what ranks of it tend to, 6/pi*asin(.3)."""
    truth = 0.6 if method == "pearson" else 6 / math.pi * math.asin(0.3)
    draw, hits = np.random.default_rng(n), 0
    for _ in range(400):
        x = draw.normal(size=n)
        result = statistics.correlation(x, 0.6 * x + 0.8 * draw.normal(size=n), method=method)
        hits += result.low <= truth <= result.high
    assert hits / 400 >= 0.93


def test_what_a_masked_array_hides_is_missing():
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(2, 20))
    hidden = np.ma.masked_array(x, mask=np.arange(20) == 4)
    without = np.delete(x, 4), np.delete(y, 4)
    for function in (statistics.correlation, statistics.paired_test):
        assert function(hidden, y) == function(*without)
    counts = np.ma.masked_array(np.arange(20), mask=np.arange(20) == 4)
    assert statistics.correlation(counts, y) == statistics.correlation(
        np.delete(np.arange(20), 4), without[1]
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_what_varies_by_rounding_alone_is_constant(method):
    """Six equal shares that were added up in other orders correlated by -0.35 with others."""
    rng = np.random.default_rng(0)
    rounded = 0.3 * (1 + 2.0**-53 * rng.integers(0, 3, 6))
    other = rng.normal(size=6)
    assert np.ptp(rounded) > 0
    assert math.isnan(statistics.correlation(rounded, other, method=method).r)
    assert math.isnan(statistics.partial_correlation(rounded, other, [], method=method).r)
    # as a covariate it explains nothing
    adjusted = statistics.partial_correlation(other, other[::-1], rounded, method=method)
    assert adjusted == statistics.partial_correlation(other, other[::-1], [], method=method)
    assert math.isnan(statistics.within_correlation(rounded, other, [0, 0, 0, 1, 1, 1]).r)


@pytest.mark.filterwarnings("error")
def test_an_infinite_value_is_ranked_or_has_no_correlation():
    """A correlation without covariates left its sample out where `correlation` ranked it."""
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0, -math.inf], [2.0, 1.0, 4.0, 3.0, math.inf, 6.0]
    for method in ("pearson", "spearman"):
        plain = statistics.correlation(x, y, method=method)
        partial = statistics.partial_correlation(x, y, [], method=method)
        np.testing.assert_allclose(plain, partial, rtol=1e-12)
        assert math.isnan(plain.r) == (method == "pearson")
