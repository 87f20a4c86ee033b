# SPDX-License-Identifier: MIT
"""Intervals of means: of samples that come in clusters, and what few different values leave unknown."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import attnscope as asc
from attnscope import statistics
from attnscope.plots.selection import estimate
from attnscope.statistics.detection import areas


@pytest.mark.parametrize("repeated", [1, 2])
def test_where_many_draws_repeat_one_value_there_is_no_interval(repeated):
    """Of nine samples of 0 and one of 1, a third of the draws hold the 0 alone: nothing bounds the mean."""
    values = np.r_[np.zeros(10 - repeated), np.full(repeated, 0.1)]
    result = statistics.bootstrap(values)
    assert (result.estimate, result.n) == (pytest.approx(repeated / 100), 10)
    assert math.isnan(result.low)
    assert math.isnan(result.high)
    other = np.random.default_rng(0).normal(size=10)
    low, high = statistics.mean_intervals([values, other, np.full(10, 0.3)])
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] < other.mean() < high[1]
    assert low[2] == high[2] == pytest.approx(0.3)


def test_rounding_is_no_standard_error():
    """Half of the samples are one number and half another: their intervals have ends within reach."""
    values = np.repeat([0.1, 0.7], 5)
    for low, high in (statistics.bootstrap(values)[1:3], np.ravel(statistics.mean_intervals([values]))):
        assert -0.1 < low < 0.4 < high < 0.9


def test_clusters_are_drawn_whole():
    # Twenty samples of eight clusters that hold one number each are eight samples.
    rng = np.random.default_rng(0)
    means = rng.standard_normal(8)
    ids = np.repeat(np.arange(8), 5)
    result = statistics.bootstrap(means[ids], clusters=ids)
    single_result = statistics.bootstrap(means)
    assert result.n == 8
    assert math.isclose(result.estimate, single_result.estimate)
    np.testing.assert_allclose([result.low, result.high], [single_result.low, single_result.high], atol=1e-9)
    # As if they were forty, the interval would be far shorter.
    plain = statistics.bootstrap(means[ids])
    assert result.high - result.low > 1.8 * (plain.high - plain.low)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e150])
def test_clusters_of_one_sample_each_are_no_clusters(scale):
    """Also where squares of the numbers vanish, and where many draws repeat one value."""
    for values in (np.random.default_rng(1).normal(size=9), np.eye(9)[0], np.full(9, 0.3)):
        single_result = statistics.bootstrap(values * scale)
        result = statistics.bootstrap(values * scale, clusters=list("abcdefghi"))
        np.testing.assert_array_equal(result, single_result)


def test_an_interval_over_clusters_covers_the_mean():
    rng = np.random.default_rng(0)
    for clusters in (10, 40):
        covered = 0
        for trial in range(200):
            ids = np.repeat(np.arange(clusters), rng.integers(2, 8, clusters))
            values = rng.standard_normal(clusters)[ids] + 0.5 * rng.standard_normal(len(ids))
            result = statistics.bootstrap(values, clusters=ids, draws=400, seed=trial)
            covered += result.low <= 0 <= result.high
        assert 178 <= covered <= 199


def test_a_statistic_of_clusters_sees_the_samples_of_a_draw():
    scores, labels = np.arange(12.0), np.tile([False, True], 6)
    ids = np.arange(12) // 2

    def rate(places):
        chosen = places.astype(int)
        return scores[chosen][labels[chosen]].mean()

    seen = []

    def spy(places):
        seen.append(np.bincount(ids[places.astype(int)], minlength=6))
        return rate(places)

    result = statistics.bootstrap(np.arange(12.0), spy, clusters=ids, draws=50)
    assert result.estimate == rate(np.arange(12.0))
    assert result.low < result.estimate < result.high
    assert all((counts % 2 == 0).all() and counts.sum() == 12 for counts in seen)
    assert max(counts.max() for counts in seen) > 2


def test_few_clusters_and_bad_ones():
    few = statistics.bootstrap([1.0, 2.0, 3.0, math.nan], clusters=[0, 0, 1, 2])
    assert few[0] == 2.0
    assert math.isnan(few.low)
    assert few.n == 2
    assert statistics.bootstrap([math.nan], clusters=[0]).n == 0
    with pytest.raises(ValueError, match=r"clusters must hold one label per item, \[2\], got shape \(3,\)"):
        statistics.bootstrap([1.0, 2.0], clusters=[0, 1, 2])
    with pytest.raises(ValueError, match=r"statistic must give a number, got shape \(12,\)"):
        statistics.bootstrap(np.arange(12.0), lambda x: x, clusters=np.arange(12))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("count", [5, 6, 7, 11])
def test_the_interval_of_equal_numbers_is_their_mean(value, count):
    """A mean of equal numbers may be rounded: the interval ended at the number and did not hold its mean."""
    result = statistics.bootstrap([value] * count)
    assert result.low == result.estimate == result.high
    low, high = statistics.mean_intervals([[value] * count])
    assert (low[0], high[0]) == (result.low, result.high)


def test_intervals_that_hold_together_leave_unknown_tails_out():
    values = np.eye(10)[0]
    other = np.random.default_rng(0).normal(size=10)
    assert math.isnan(statistics.bootstrap(values).low)
    low, high = statistics.mean_intervals([values, other, np.full(10, 0.3)], together=True)
    assert np.isnan([low[0], high[0]]).all()
    single = statistics.mean_intervals([other], together=True)
    np.testing.assert_allclose([low[1], high[1]], np.ravel(single), rtol=1e-12)
    assert low[2] == high[2] == pytest.approx(0.3)


def test_what_tied_samples_miss_together_is_what_is_equal_by_chance():
    """Of five samples of three values all are equal by chance: .24 of sets of 32 means miss one."""
    rng, of_equal, of_others, sets = np.random.default_rng(1), 0, 0, 150
    for _ in range(sets):
        values = rng.integers(0, 3, size=(32, 5)) / 2
        low, high = statistics.mean_intervals(values, together=True)
        missed, equal = (low > 0.5) | (high < 0.5), np.ptp(values, axis=1) == 0
        of_equal += bool((missed & equal).any())
        of_others += bool((missed & ~equal).any())
    by_law = 1 - (1 - 2 * 3.0**-5) ** 32
    assert stats.binomtest(of_equal, sets, by_law).pvalue > 0.001
    assert of_others <= 0.05 * sets


@pytest.mark.parametrize("noise", [1e-13, 1e-9, 1e-7])
@pytest.mark.parametrize("count", [9, 60])
def test_nearly_equal_numbers_and_an_outlier_have_no_interval(noise, count):
    """Their interval ended at 2.5e7, where that of many means had no end."""
    values = 0.3 * (1 + noise * np.random.default_rng(0).normal(size=count))
    values[0] = 1.0
    single_result = statistics.bootstrap(values)
    of_clusters = statistics.bootstrap(np.repeat(values, 2), clusters=np.repeat(np.arange(count), 2))
    low, high = statistics.mean_intervals([values])
    assert np.isnan([*single_result[1:3], *of_clusters[1:3], *low, *high]).all()
    plain = statistics.bootstrap(values[1:])
    low, high = statistics.mean_intervals([values[1:]])
    assert plain.low <= plain.estimate <= plain.high
    assert (low[0], high[0]) == pytest.approx((plain.low, plain.high), rel=noise)


@pytest.mark.parametrize("count", [5, 6, 8])
def test_neither_seed_nor_order_decides_where_an_interval_of_few_samples_ends(count):
    """At a border they did, in 12 to 18 of 100 cases of six to eight lognormal values."""
    values = np.exp(np.random.default_rng(count).normal(size=count))
    expected = statistics.bootstrap(values)
    for seed in range(1, 6):
        moved = np.random.default_rng(seed).permutation(values)
        twice, clusters = np.repeat(moved, 2), np.repeat(np.arange(count), 2)
        ways = [
            statistics.bootstrap(moved, seed=seed)[1:3],
            statistics.bootstrap(twice, clusters=clusters, seed=seed)[1:3],
            np.ravel(statistics.mean_intervals([moved], seed=seed)),
        ]
        np.testing.assert_allclose(ways, np.tile(expected[1:3], (3, 1)), rtol=1e-9)
    together = [
        np.ravel(statistics.mean_intervals([values, values**2], together=True, seed=seed)) for seed in (0, 1)
    ]
    np.testing.assert_array_equal(*together)
    medians = [statistics.bootstrap(values, lambda x: np.median(x, axis=-1), seed=seed) for seed in (0, 1)]
    assert medians[0] == medians[1]


def test_draws_of_five_samples_are_counted_one_by_one():
    values = np.array([0.2, 1.0, 1.5, 4.0, 9.0])
    drawn = np.array(list(itertools.product(values, repeat=5)))
    drawn = drawn[np.ptp(drawn, axis=1) > 0]
    t = np.sort((drawn.mean(1) - values.mean()) / drawn.std(1, ddof=1))
    below, above = (t[math.ceil(level * len(t)) - 1] for level in (0.025, 0.975))
    ends = values.mean() - np.array([above, below]) * values.std(ddof=1)
    result = statistics.bootstrap(values)
    assert (result.low, result.high) == pytest.approx(tuple(ends), rel=1e-9)
    means = np.sort(np.array(list(itertools.product(values, repeat=5))).max(1))
    of_maximum = statistics.bootstrap(values, lambda x: x.max(-1))
    assert (of_maximum.low, of_maximum.high) == (means[math.ceil(0.025 * 3125) - 1], 9.0)


def test_a_tail_that_holds_less_than_a_draw_has_no_interval():
    """The outermost of 2,000 draws was the end at any confidence; the ends of .9999 and .999999 were one."""
    values = np.random.default_rng(0).normal(size=20)
    for statistic in (None, lambda drawn: np.median(drawn, -1)):
        assert math.isnan(statistics.bootstrap(values, statistic, confidence=0.9999).low)
        assert statistics.bootstrap(values, statistic, confidence=0.999).low < values.mean()
        assert not math.isnan(statistics.bootstrap(values, statistic, confidence=0.9999, draws=20_000).low)
    # all draws of five samples are counted, the rarest with a chance of 1/3125
    mean = statistics.bootstrap(values[:5], lambda drawn: drawn.mean(-1), confidence=0.9999)
    assert math.isnan(mean.low)
    low, high = statistics.mean_intervals([values, np.full(20, 0.3)], confidence=0.9999)
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] == high[1] == pytest.approx(0.3)
    for confidence, has_ends in ((0.9992, True), (0.9999, False)):
        low, _ = statistics.mean_intervals([values, values**2], confidence=confidence, together=True)
        assert np.isfinite(low).all() == has_ends
    labels = np.arange(40) % 2
    states = np.random.default_rng(1).normal(size=(40, 2))
    for confidence, has_ends in ((0.95, True), (0.9999, False)):
        areas = asc.detection(states, labels, folds=np.arange(40) // 4, confidence=confidence)
        assert areas["low"].notna().all() == has_ends


@pytest.mark.parametrize("n", [5, 8, 9, 20, 60])
def test_one_mean_has_one_interval_whichever_function_is_asked(n):
    """From nine samples on the draws were others, and figures had a thousand of them where tables had two."""
    values = np.random.default_rng(n).lognormal(size=(3, n))
    expected = [statistics.bootstrap(row)[1:3] for row in values]
    np.testing.assert_allclose(np.transpose(statistics.mean_intervals(values)), expected, rtol=1e-12)
    row = np.where(np.arange(n + 2) < n, np.append(values[0], [0.0, 0.0]), np.nan)
    np.testing.assert_allclose(np.ravel(statistics.mean_intervals([row])), expected[0], rtol=1e-12)
    table = pd.DataFrame({"sample": np.arange(n), "layer": 0, "entropy": values[0]})
    drawn = estimate(table, "entropy", ["layer"]).iloc[0]
    np.testing.assert_allclose([drawn["low"], drawn["high"]], expected[0], rtol=1e-12)


def test_a_tail_that_holds_less_than_one_draw_is_not_known():
    """The extreme ones of 100 draws ended an interval of any confidence above .98."""
    values = np.random.default_rng(0).normal(size=20)
    clusters = np.arange(20) // 2
    scores, labels = values, np.arange(20) % 2
    for confidence, is_known in ((0.98, True), (0.99, False)):
        how = {"confidence": confidence, "draws": 100}
        intervals = [
            statistics.bootstrap(values, **how)[1:3],
            statistics.bootstrap(values, lambda drawn: np.median(drawn, axis=-1), **how)[1:3],
            statistics.bootstrap(values, clusters=clusters, **how)[1:3],
            [end[0] for end in statistics.mean_intervals([values], **how)],
            areas({"auc": scores}, labels, clusters, **how)[["low", "high"]].iloc[0].tolist(),
        ]
        assert np.isfinite(intervals).all() == is_known
        assert np.isfinite(intervals).any() == is_known
    together = [
        statistics.mean_intervals([values], confidence=c, draws=100, together=True) for c in (0.99, 0.995)
    ]
    assert [bool(np.isfinite(low[0])) for low, _ in together] == [True, False]
    # equal numbers need no draw
    assert statistics.bootstrap(np.ones(20), confidence=0.9999).low == 1.0
    assert statistics.mean_intervals(np.ones((1, 20)), confidence=0.9999)[0].tolist() == [1.0]
