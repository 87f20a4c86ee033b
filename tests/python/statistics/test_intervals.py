# SPDX-License-Identifier: MIT
"""Intervals and tests against SciPy, coverage by simulation, and laws."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscope import statistics

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=12), RNG.normal(0.3, 2, size=12)


def test_paired_test_equals_scipy():
    result, expected = statistics.paired_test(A, B), stats.ttest_rel(A, B)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-12)
    low, high = expected.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((low, high), rel=1e-12)
    assert (result.freedom, result.n) == (11, 12)
    holes = A.copy()
    holes[[2, 5]] = np.nan
    present = np.delete(np.arange(12), [2, 5])
    assert statistics.paired_test(holes, B) == statistics.paired_test(A[present], B[present])


def test_welch_test_equals_scipy():
    result = statistics.welch_test(A, B[:7], confidence=0.9)
    expected = stats.ttest_ind(A, B[:7], equal_var=False)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert result.freedom == pytest.approx(expected.df, rel=1e-12)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval(0.9)), rel=1e-12)
    assert result.n == 19


def test_sums_in_another_order_do_not_differ():
    values = np.random.default_rng(0).random((20, 1000))
    a, b = values.sum(1), np.array([math.fsum(row) for row in values])
    assert (a != b).any()
    same_result = statistics.paired_test(a, b)
    assert same_result.difference == 0
    assert math.isnan(same_result.p_value)  # no test, and in no family
    moved = a * (1 + 2.0**-30)
    assert statistics.paired_test(moved, a).p_value == pytest.approx(stats.ttest_rel(moved, a).pvalue)


@pytest.mark.parametrize("test", [statistics.paired_test, statistics.welch_test])
def test_a_resolution_says_what_counts_as_equal(test):
    rng = np.random.default_rng(5)
    states = rng.normal(size=(2, 20, 64)).astype(np.float32)
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    a, b = np.linalg.norm(states.astype(np.float64), axis=-1)
    b = b * (1 + 2.0**-24)  # a rounding that all share
    assert test(a, b).p_value < 0.001
    same_result = test(a, b, resolution=2.0**-20)
    assert same_result.difference == 0
    assert math.isnan(same_result.p_value)
    with pytest.raises(ValueError, match=r"resolution must lie in \[0, 1\), got 1.0"):
        test(a, b, resolution=1)


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_sums_in_another_order_are_no_spread_of_independent_samples():
    """Equal numbers that were added up in other orders differed with a small p-value."""
    rng = np.random.default_rng(2)
    rows = rng.permuted(np.tile(rng.random(1000), (20, 1)), axis=1)
    a, b = rows[:10].cumsum(1)[:, -1], np.array([math.fsum(row) for row in rows[10:]])
    assert np.ptp(a) > 0
    assert stats.ttest_ind(a, b, equal_var=False).pvalue < 0.001
    same_result = statistics.welch_test(a, b)
    assert same_result.difference == 0
    assert math.isnan(same_result.p_value)
    apart = statistics.welch_test(a, 2 * a)
    assert (apart.p_value, apart.statistic) == (pytest.approx(2 / math.comb(20, 10)), -math.inf)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_independent_samples_have_a_test_in_any_unit(unit):
    """One set that does not vary beside small numbers ended in a division by zero."""
    expected = statistics.welch_test([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])
    result = statistics.welch_test([unit] * 3, [unit, 2 * unit, 4 * unit])
    assert result.p_value == pytest.approx(expected.p_value, rel=1e-9)
    assert result.freedom == pytest.approx(expected.freedom, rel=1e-9)
    assert result.low == pytest.approx(expected.low * unit, rel=1e-9)
    far = statistics.welch_test([1.0] * 3, [0.0, 1e-200, 3e-200])
    assert (far.difference, far.p_value) == (1, pytest.approx(0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [2, 3, 5, 2000])
def test_equal_differences_are_no_surer_than_their_signs(count):
    """Two texts that differ by as much had a p-value of 0."""
    later = np.arange(count) + 1.0
    for a, b in ((later, later - 1), (np.full(count, 0.1) + 0.2 * later, 0.2 * later)):
        test = statistics.paired_test(a, b)
        assert test.p_value == 2.0 ** (1 - count)
        assert (test.statistic, test.n) == (math.inf, count)
        assert math.isnan(test.low)
        assert math.isnan(test.high)
    some_are_zero = statistics.paired_test(np.r_[1.0, 1.0, 1.0, 1.0 + 1.5 * 2.0**-40], np.ones(4))
    assert some_are_zero.p_value == pytest.approx(stats.ttest_1samp([0.0, 0, 0, 1], 0).pvalue)


def test_counts_of_a_few_texts_differ_as_often_as_a_test_may():
    """All of three differences are alike in one of four cases, and of two in every second."""
    rng = np.random.default_rng(0)
    for count in (2, 3, 4, 5):
        signs = rng.choice([-1.0, 1.0], size=(400, count))
        p_values = [statistics.paired_test(row, np.zeros(count)).p_value for row in signs]
        assert np.mean(np.array(p_values) <= 0.05) <= 0.06


@pytest.mark.filterwarnings("error")
def test_constant_sets_are_no_surer_than_their_divisions():
    for count, other in ((2, 2), (2, 3), (5, 5), (1000, 1200)):
        values = np.r_[np.zeros(count), np.ones(other)]
        test = statistics.welch_test(values[:count], values[count:])
        assert test.statistic == -math.inf
        if len(values) <= 10:
            means = [
                abs(values[list(chosen)].mean() - np.delete(values, chosen).mean())
                for chosen in itertools.combinations(range(len(values)), count)
            ]
            assert test.p_value == pytest.approx(np.mean(np.array(means) >= 1 - 1e-9))
        else:
            assert test.p_value == 0


@pytest.mark.filterwarnings("error")
def test_tests_without_spread_or_sentences():
    same_result = statistics.paired_test([1, 2, 3], [1, 2, 3])
    assert same_result.difference == 0
    assert math.isnan(same_result.p_value)  # no test, and in no family
    assert statistics.holm([same_result.p_value, 0.02, 0.04])[1] == 0.04
    assert math.isnan(statistics.paired_test([1.0], [0.0]).p_value)
    assert statistics.paired_test([1.0], [0.0]).difference == 1
    assert statistics.paired_test([1.0], [0.0]).n == 1
    two = statistics.paired_test([1.0, 4.0], [0.0, 1.0])
    assert (two.statistic, two.freedom) == pytest.approx((2, 1))
    assert math.isnan(statistics.paired_test([], []).difference)
    rigid = statistics.welch_test([1, 1, 1], [2, 2])
    assert (rigid.p_value, rigid.freedom, rigid.difference) == (pytest.approx(1 / 10), 3, -1)
    assert math.isnan(rigid.low)
    assert math.isnan(rigid.high)
    few = statistics.welch_test([1, 1], [2])
    assert (few.difference, few.n) == (-1, 3)
    assert all(math.isnan(x) for x in few[1:6])
    assert all(math.isnan(x) for x in statistics.paired_test([1.0], [0.0])[1:6])
    for a, b in (([], [2.0]), ([1.0], [np.nan]), ([], [])):
        none = statistics.welch_test(a, b)
        assert all(math.isnan(x) for x in none[:6])
    assert none.n == 0


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_correlation_equals_scipy(method):
    x = np.round(RNG.normal(size=40), 1)  # with ties
    y = x + RNG.normal(size=40)
    result = statistics.correlation(x, y, method=method)
    expected = (stats.pearsonr if method == "pearson" else stats.spearmanr)(x, y)
    assert result.r == pytest.approx(expected.statistic, rel=1e-12)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-8)
    assert result.low < result.r < result.high
    assert result == statistics.correlation(x, y, method=method)
    turned = statistics.correlation(x, -y, method=method)
    assert (turned.r, turned.low) == pytest.approx((-result.r, -result.high), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_intervals_are_the_quantiles_of_the_drawn_sentences(confidence):
    x = A[:9]
    tails = [0.5 - confidence / 2, 0.5 + confidence / 2]
    # A mean's draws are in units of their own standard error, at any number of samples.
    for values in (np.resize(A, 40) + np.arange(40), x):
        index = np.random.default_rng(3).integers(0, len(values), (2000, len(values)))
        result = statistics.bootstrap(values, confidence=confidence, seed=3)
        drawn = [values[index_row] for index_row in index if len(set(index_row)) > 1]
        t = [(resample.mean() - values.mean()) / resample.std(ddof=1) for resample in drawn]
        expected = [values.mean() - np.quantile(t, tail) * values.std(ddof=1) for tail in tails[::-1]]
        assert (result.low, result.high) == pytest.approx(tuple(expected), rel=1e-12)
    result = statistics.bootstrap(
        x, lambda resample: np.median(resample, axis=-1), confidence=confidence, seed=3
    )
    assert (result.low, result.high) == pytest.approx(
        tuple(np.quantile(np.median(x[index], axis=1), tails)), rel=1e-12
    )


@pytest.mark.filterwarnings("error")
def test_three_sentences_are_the_least_and_equal_ones_have_no_correlation():
    three = statistics.correlation([1.0, 2.0, 4.0], [1.0, 3.0, 2.0])
    assert three.r == pytest.approx(np.corrcoef([1, 2, 4], [1, 3, 2])[0, 1])
    assert three.n == 3
    for x, y in (
        ([1, 1, 1], [1, 2, 3]),
        ([0.1] * 3, [1, 2, 3]),
        ([1, 2, 3], [0.1] * 3),
        ([1, 2], [3, 4]),
        ([2, 2, 2], [3, 3, 3]),
    ):
        none = statistics.correlation(x, y)
        assert all(math.isnan(value) for value in none[:4])
        assert none.n == len(x)
    empty_result = statistics.bootstrap([np.nan])
    assert all(math.isnan(value) for value in empty_result[:3])
    assert empty_result.n == 0
    falling = statistics.correlation(np.arange(40) / 7, -np.arange(40) / 7)
    assert (falling.r, falling.low, falling.high) == pytest.approx((-1, -1, -1), abs=1e-15)
    assert min(falling[:3]) >= -1
    assert statistics.benjamini_hochberg([0.9, 1.0, 1.0]).max() == 1


def test_correlation_without_variance_or_sentences():
    assert math.isnan(statistics.correlation([1, 1, 1], [1, 2, 3]).r)
    assert math.isnan(statistics.correlation([1, 2], [1, 2]).r)
    exact = statistics.correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert exact.r == pytest.approx(1)
    assert exact.p_value < 1e-6
    assert (exact.low, exact.high) == pytest.approx((1, 1))


def test_bootstrap_is_seeded_counts_sentences_and_covers():
    result = statistics.bootstrap([1.0, np.nan, 3.0])
    assert (result.estimate, result.n) == (2, 2)
    assert statistics.bootstrap(A) == statistics.bootstrap(A)
    assert statistics.bootstrap(A) != statistics.bootstrap(A, seed=1)
    assert statistics.bootstrap([5.0] * 5, seed=2**63 - 1) == (5, 5, 5, 5)
    for count in range(1, 5):
        few = statistics.bootstrap(np.arange(count))
        assert few.n == count
        assert math.isnan(few.low)
        assert math.isnan(few.high)
    assert math.isnan(statistics.bootstrap([np.nan]).estimate)
    median = statistics.bootstrap(A, lambda x: np.median(x, axis=-1))
    assert median.estimate == np.median(A)
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        single_result = statistics.bootstrap(rng.normal(size=40), draws=400, seed=trial)
        hits += single_result.low <= 0 <= single_result.high
    assert 0.87 < hits / 200 < 0.99
    narrow = statistics.bootstrap(A, confidence=0.5)
    assert narrow.high - narrow.low < statistics.bootstrap(A).high - statistics.bootstrap(A).low


def test_a_statistic_that_many_draws_lack_has_no_interval():
    """A ratio that two thirds of the draws leave undefined had the interval of the others."""
    values = [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]

    def of_largest(samples):
        return np.where((samples == 2).any(-1), samples.mean(-1), np.nan)

    result = statistics.bootstrap(values, of_largest)
    assert (result.estimate, result.n) == (0.5, 6)
    assert math.isnan(result.low)
    assert math.isnan(result.high)
    rarely = statistics.bootstrap(np.arange(8.0), lambda x: np.where((x > 0).any(-1), x.mean(-1), np.nan))
    assert rarely.low < rarely.estimate < rarely.high


def test_the_median_and_its_exact_coverage():
    for n, coverage, low, high in ((5, 0.938, 0, 4), (8, 0.930, 1, 6), (12, 0.961, 2, 9), (30, 0.957, 9, 20)):
        result = statistics.median_interval(np.random.default_rng(n).permutation(n))
        assert result.coverage == pytest.approx(coverage, abs=5e-4)
        assert (result.low, result.high, result.n) == (low, high, n)
        assert result.estimate == (n - 1) / 2
    assert math.isnan(statistics.median_interval([1.0, 2.0, 3.0, 4.0]).low)
    hits = sum(
        interval.low <= 0 <= interval.high
        for trial in range(1000)
        for interval in [statistics.median_interval(np.random.default_rng(trial).standard_cauchy(8))]
    )
    assert hits / 1000 == pytest.approx(0.930, abs=0.03)


LAWS = {
    "normal": (lambda draw, n: draw.normal(size=n), 0.0, 0.93),
    "lognormal 0.5": (lambda draw, n: np.exp(0.5 * draw.normal(size=n)), math.exp(0.125), 0.90),
    "lognormal 1": (lambda draw, n: np.exp(draw.normal(size=n)), math.exp(0.5), 0.86),
}


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 8, 12, 20, 29, 30, 40, 60])
@pytest.mark.parametrize("law", LAWS)
def test_the_interval_of_a_mean_covers_at_any_number_of_samples(law, n):
    drawn, mean, least = LAWS[law]
    draw = np.random.default_rng(n)
    trials, covered, percentile = 1000, 0, 0
    for trial in range(trials):
        values = drawn(draw, n)
        single_result = statistics.bootstrap(values, draws=1000, seed=trial)
        covered += single_result.low <= mean <= single_result.high
        plain = np.quantile(values[draw.integers(0, n, (1000, n))].mean(1), [0.025, 0.975])
        percentile += plain[0] <= mean <= plain[1]
    print(f"{law}, {n} samples: {covered / trials:.3f}, percentile {percentile / trials:.3f}")
    assert least <= covered / trials <= 0.98
    assert percentile < covered


def test_holm_and_benjamini_hochberg_by_hand():
    p = np.array([0.001, 0.2, 0.012, np.nan, 0.04, 0.012])
    by_hand = [0.005, 0.2, 0.02, np.nan, 0.05, 0.02]
    np.testing.assert_allclose(statistics.benjamini_hochberg(p), by_hand, rtol=1e-12)
    by_hand = [0.005, 0.2, 0.048, np.nan, 0.08, 0.048]
    np.testing.assert_allclose(statistics.holm(p), by_hand, rtol=1e-12)
    assert len(statistics.holm([])) == len(statistics.benjamini_hochberg([])) == 0


@settings(max_examples=60)
@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_corrections_are_ordered_and_follow_their_p_values(p, seed):
    holm, bh = statistics.holm(p), statistics.benjamini_hochberg(p)
    assert (holm >= bh * (1 - 1e-12)).all()  # the two factors round apart
    assert (bh >= np.array(p)).all()
    assert (holm <= np.minimum(1, np.array(p) * len(p)) + 1e-12).all()
    order = np.random.default_rng(seed).permutation(len(p))
    np.testing.assert_allclose(statistics.holm(np.array(p)[order]), holm[order])
    np.testing.assert_allclose(statistics.benjamini_hochberg(np.array(p)[order]), bh[order])
    assert (np.diff(holm[np.argsort(p)]) >= -1e-12).all()


def test_the_largest_p_value_is_not_made_smaller_by_a_rounding():
    p = [0.18860277103730166] * 12
    assert statistics.benjamini_hochberg(p).tolist() == p


def test_heads_and_layers_of_a_sentence_are_one_number():
    table = pd.DataFrame(
        {"model": list("aaab"), "sample": [0, 0, 1, 0], "layer": [0, 1, 0, 0], "x": [1.0, 3.0, np.nan, 8.0]}
    )
    result = statistics.per_sample(table[table["model"] == "a"], "x")
    assert result[0] == 2
    assert math.isnan(result[1])
    assert statistics.per_sample(table, "x", by=["model"])["b", 0] == 8


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e-85, 1.0, 1e85, 1e200])
def test_correlations_and_degrees_of_freedom_do_not_depend_on_scale(scale):
    x, y = np.array([1.0, 2.0, 4.0, 7.0, 9.0]), np.array([1.0, 3.0, 2.0, 4.0, 3.5])
    for method in ("pearson", "spearman"):
        result = statistics.correlation(x * scale, y * scale, method=method)
        assert result == pytest.approx(statistics.correlation(x, y, method=method), rel=1e-9)
    if 1e-100 < scale < 1e100:
        freedom = stats.ttest_ind(x, y[:3], equal_var=False).df
        assert statistics.welch_test(x * scale, y[:3] * scale).freedom == pytest.approx(freedom, rel=1e-12)


def test_a_perfect_correlation_is_at_most_one():
    # Computed without the bounds, nine of these sixty exceed 1 in the last digit.
    for x in np.random.default_rng(8).normal(size=(60, 7)):
        for slope in (3.7, -3.7):
            result = statistics.correlation(x, slope * x + 0.3)
            assert result[:3] == pytest.approx([math.copysign(1, slope)] * 3, abs=1e-14)
            assert max(map(abs, result[:3])) <= 1


def test_what_is_missing_may_be_none():
    assert statistics.bootstrap([1.0, None, 3.0])[::3] == (2, 2)


def test_one_column_is_no_table():
    with pytest.raises(TypeError, match=r"^per_sample: table must be a pandas DataFrame, got Series$"):
        statistics.per_sample(pd.Series([1.0]), "x")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.paired_test([1, 2], [1]), "must hold the same sentences, got 2 and 1"),
        (lambda: statistics.paired_test([1, 2], [3, 5], confidence=0), "confidence must lie strictly"),
        (
            lambda: statistics.correlation([1, 2], [1, 2], method="kendall"),
            "^correlation: method must be one of 'pears",
        ),
        (
            lambda: statistics.per_sample(pd.DataFrame({"sample": [1], "x": ["b"]}), "x"),
            "^per_sample: column 'x' must hold numbers, got ",
        ),
        (
            lambda: statistics.correlation([1, 2, 3], [1, 2, 4], confidence=1),
            "^correlation: confidence must lie strictly",
        ),
        (lambda: statistics.bootstrap([1.0], draws=0), "draws must be at least 1, got 0"),
        (lambda: statistics.bootstrap([1.0], seed=-1), "^bootstrap: seed must be at least 0, got -1"),
        (lambda: statistics.bootstrap([1.0], seed=2**63), "^bootstrap: seed must fit in 64 bits, got"),
        (lambda: statistics.bootstrap([1.0], draws=2**63), "^bootstrap: draws must fit in 64 bits, got"),
        (lambda: statistics.bootstrap([[1.0]]), r"values must have one dimension, got shape \(1, 1\)"),
        (lambda: statistics.bootstrap([1.0], confidence=2), "confidence must lie strictly"),
        (
            lambda: statistics.welch_test([1, 2], [3], confidence=1),
            "^welch_test: confidence must lie strictly",
        ),
        (
            lambda: statistics.welch_test([1, 2], 3.0),
            r"^welch_test: b must have one dimension, got shape \(\)",
        ),
        (lambda: statistics.welch_test([[1]], [3]), "^welch_test: a must have one dimension"),
        (lambda: statistics.holm([0.1, 1.1]), "p_values must lie between 0 and 1"),
        (lambda: statistics.benjamini_hochberg([-0.1]), "p_values must lie between 0 and 1"),
        (lambda: statistics.per_sample(pd.DataFrame({"x": [1]}), "x"), "the table has no column 'sample'"),
        (
            lambda: statistics.per_sample(pd.DataFrame({"sample": [1], "x": [1.0]}), "x", by=["model"]),
            "^per_sample: the table has no column 'model', only sample, x",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_intervals_of_many_means_are_those_of_each():
    draw = np.random.default_rng(0)
    values = draw.lognormal(size=(6, 12)) * 10.0 ** np.arange(-3, 3)[:, None]
    values[1, 4] = np.nan
    values[2] = 7.0
    low, high = statistics.mean_intervals(values, draws=20_000)
    for row, *ends in zip(values, low, high, strict=True):
        single_result = statistics.bootstrap(row, draws=20_000)
        assert ends == pytest.approx([single_result.low, single_result.high], rel=0.05)
    samples = draw.normal(size=(3, 40))
    low, high = statistics.mean_intervals(samples, draws=20_000)
    for row, *ends in zip(samples, low, high, strict=True):
        single_result = statistics.bootstrap(row, draws=20_000)
        assert ends == pytest.approx([single_result.low, single_result.high], abs=0.02)


def test_there_is_no_interval_of_four_samples():
    low, high = statistics.mean_intervals(np.ones((2, 4)))
    assert np.isnan([*low, *high]).all()
    with pytest.raises(ValueError, match=r"values must be \[means, samples\], got shape \(3,\)"):
        statistics.mean_intervals([1.0, 2.0, 3.0])


@pytest.mark.parametrize("n", [5, 8, 20])
def test_studentised_intervals_of_many_means_cover(n):
    values = np.random.default_rng(n).normal(size=(800, n))
    low, high = statistics.mean_intervals(values, draws=1000)
    assert 0.92 <= ((low <= 0) & (high >= 0)).mean() <= 0.97


def test_the_interval_of_the_largest_of_many_allows_for_its_choice():
    """Forty heads of true mean 0 on ten texts: the largest mean's own interval misses 0 much too often."""
    draw = np.random.default_rng(5)
    covered = {False: 0, True: 0}
    for _ in range(100):
        values = draw.normal(size=(40, 10))
        top = int(values.mean(1).argmax())
        for together in covered:
            low, _ = statistics.mean_intervals(values, draws=300, together=together)
            covered[together] += low[top] <= 0
    assert covered[True] / 100 >= 0.92
    assert covered[False] / 100 < 0.7


def test_a_head_without_values_does_not_take_the_intervals_of_the_others():
    values = np.random.default_rng(0).normal(size=(3, 8))
    values[1] = np.nan
    low, _ = statistics.mean_intervals(values, together=True)
    assert np.isfinite(low).tolist() == [True, False, True]


def test_rounding_is_no_spread_of_a_draw():
    """A draw of equal shares with other last bits had a standard error of 1e-17: the end was 8e14."""
    rng = np.random.default_rng(0)
    for values in ([0.3] * 9 + [1.0], [0.3] * 5 + [1.0, 0.7], [0.3] * 6):
        rounded = np.array(values) * (1 + 2.0**-53 * rng.integers(0, 3, len(values)))
        assert np.ptp(rounded[:5]) > 0
        results = [statistics.bootstrap(data) for data in (values, rounded)]
        np.testing.assert_allclose(results[1][:3], results[0][:3], rtol=1e-12)
        low, high = statistics.mean_intervals([rounded])
        np.testing.assert_allclose((low[0], high[0]), results[0][1:3], rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_what_is_infinite_has_no_interval_and_no_test():
    values, others = [1.0, math.inf, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, -math.inf, 3.0, 5.0]
    interval = statistics.bootstrap(values)
    assert (interval.estimate, interval.n) == (math.inf, 6)
    assert np.isnan(interval[1:3]).all()
    for test in (statistics.paired_test(values, others), statistics.welch_test(values, others)):
        assert np.isnan(test[1:6]).all()
    assert np.isnan(statistics.control_test(values, [others] * 8)[1:7]).all()
    assert np.isnan(statistics.sign_flips(values))


def test_rows_of_a_missing_key_are_kept():
    """A number without a threshold has a mean too; pandas leaves such rows out in silence."""
    data = pd.DataFrame(
        {"sample": [0, 0, 1, 1], "threshold": [None, 0.5, None, 0.5], "x": [1.0, 2.0, 3.0, 4.0]}
    )
    means = statistics.per_sample(data, "x", ["threshold"]).reset_index()
    assert means.sort_values("x")["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert means["threshold"].isna().sum() == 2


def test_a_missing_label_is_no_label():
    """Items without one were one cluster, one text or the second label of a test."""
    values, holes = np.arange(8.0), [0, 1, 2, 3, 4, math.nan, math.nan, math.nan]
    with pytest.raises(
        ValueError, match="bootstrap: clusters must hold a label for every item, got none for item 5"
    ):
        statistics.bootstrap(values, clusters=holes)
    with pytest.raises(ValueError, match="exchange_labels: labels must hold a label for every item"):
        statistics.exchange_labels(lambda drawn: drawn.sum(1), [0.0, math.nan] * 4)
    with pytest.raises(ValueError, match="exchange_labels: pairs must hold a label for every item"):
        statistics.exchange_labels(lambda drawn: drawn.sum(1), [0, 1] * 4, pairs=np.array([0, None] * 4))
    hidden = np.ma.masked_array([0, 1] * 4, mask=[True] + [False] * 7)
    with pytest.raises(ValueError, match="labels must hold a label for every item, got none for item 0"):
        statistics.exchange_labels(lambda drawn: drawn.sum(1), hidden)


def test_hidden_groups_are_missing():
    hidden = np.ma.masked_array([1, 2, 100], mask=[False, False, True])
    assert math.isnan(statistics.jackknife(hidden, np.mean).estimate)
