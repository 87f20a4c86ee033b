# SPDX-License-Identifier: MIT
"""Partial correlation by three forms, and the correlation of versions of one text by enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscope import statistics
from attnscope.statistics import partial_correlation, within_correlation


def drawn(seed, n=30, c=3, ties=False):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c))
    x, y = z @ rng.normal(size=c) + rng.normal(size=n), z @ rng.normal(size=c) + rng.normal(size=n)
    return (np.round(x), np.round(y), np.round(z)) if ties else (x, y, z)


def inverse_form(x, y, z, ranked=True):
    """−P_xy/√(P_xx·P_yy) of the inverse correlation matrix."""
    data = np.column_stack([x, y, z])
    data = stats.rankdata(data, axis=0) if ranked else data
    p = np.linalg.inv(np.corrcoef(data.T))
    return -p[0, 1] / math.sqrt(p[0, 0] * p[1, 1])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("method", ["spearman", "pearson"])
@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=15)
def test_it_is_the_inverse_matrix_form_and_the_form_of_residuals(method, ties, seed, c):
    x, y, z = drawn(seed, c=c, ties=ties)
    result = statistics.partial_correlation(x, y, z, method=method)
    assert result.r == pytest.approx(inverse_form(x, y, z, method == "spearman"), abs=1e-12)
    data = np.column_stack([x, y, z])
    data = stats.rankdata(data, axis=0) if method == "spearman" else data
    design = np.column_stack([np.ones(len(x)), data[:, 2:]])
    rest = data[:, :2] - design @ np.linalg.lstsq(design, data[:, :2], rcond=None)[0]
    assert result.r == pytest.approx(np.corrcoef(rest.T)[0, 1], abs=1e-12)
    assert result.low < result.r < result.high
    freedom = len(x) - 2 - c
    t = result.r * math.sqrt(freedom / (1 - result.r**2))
    expected = 2 * stats.t.sf(abs(t), freedom)
    if method == "spearman":
        expected = max(expected, p_of_influences(rest, design, result.r))
    assert result.p_value == pytest.approx(expected, abs=1e-12)
    assert result.n == len(x)


def p_of_influences(rest, design, r):
    """Student's p of artanh r in units of its standard error from what each sample contributes."""
    n, parameters = design.shape
    u, v = (rest / rest.std(0)).T
    leverage = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
    share = leverage + (u**2 + v**2 - 2 * r * u * v) / (1 - r**2) / n
    influence = (u * v - r * (u**2 + v**2) / 2) / np.clip(1 - share, 0.1, None)
    error = math.sqrt((n - 1) * (influence**2).sum() / n) / n / (1 - r**2)
    return 2 * stats.t.sf(abs(math.atanh(r)) / error, n - parameters - 1)


@pytest.mark.parametrize(("strength", "most"), [(0, 0.05), (3, 0.05), (10, 0.09)])
def test_ranks_of_a_common_cause_are_tested_as_their_interval_is(strength, most):
    """Student's p was below .05 in .10 of cases where the cause correlates by .95 with both, .20 at .995."""
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        cause = rng.normal(size=40)
        x, y = strength * cause + rng.normal(size=(2, 40))
        rejected += statistics.partial_correlation(x, y, cause).p_value <= 0.05
    assert rejected / 400 <= most


def test_one_covariate_has_a_formula_and_none_is_the_plain_correlation():
    x, y, z = drawn(3, c=1)
    z = z[:, 0]
    xy, xz, yz = (stats.spearmanr(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert statistics.partial_correlation(x, y, z).r == pytest.approx(expected, abs=1e-12)
    plain = statistics.correlation(x, y, method="spearman")
    for no_covariates in ([], np.empty((len(x), 0)), np.ones(len(x)), np.ones((len(x), 2))):
        result = statistics.partial_correlation(x, y, no_covariates)
        assert result.r == pytest.approx(plain.r, abs=1e-12)
        assert result.p_value == pytest.approx(plain.p_value, abs=1e-12)


def test_a_constant_covariate_and_a_repeated_one_change_nothing():
    x, y, z = drawn(4, c=2)
    expected = statistics.partial_correlation(x, y, z)
    constant = statistics.partial_correlation(x, y, np.column_stack([z, np.full(len(x), 7.0)]))
    assert constant.r == pytest.approx(expected.r, abs=1e-12)
    assert constant.p_value == pytest.approx(expected.p_value, abs=1e-12)
    repeated = statistics.partial_correlation(x, y, np.column_stack([z, 2 * z[:, :1]]))
    assert repeated.r == pytest.approx(expected.r, abs=1e-12)


def test_what_has_no_value_is_nan():
    x, y, z = drawn(5)
    for a, b, c in (
        (np.ones(30), y, z),
        (x, np.full(30, 0.1), z),
        (x[:5], y[:5], z[:5]),
        (x, y, x),
        ([], [], []),
        (np.full(30, math.nan), y, z),
    ):
        result = statistics.partial_correlation(a, b, c)
        assert all(math.isnan(value) for value in result[:4])
    x[3], z[7, 1] = math.nan, math.nan
    present = ~np.isin(np.arange(30), (3, 7))
    result = statistics.partial_correlation(x, y, z)
    assert result.n == 28
    assert result.r == pytest.approx(inverse_form(x[present], y[present], z[present]), abs=1e-12)


def test_a_unit_counts_as_one_sample():
    x, y, z = drawn(7, n=60)
    single_result = statistics.partial_correlation(x, y, z)
    assert single_result.low < single_result.r < single_result.high
    twice = [np.concatenate([values, values]) for values in (x, y, z)]
    units = np.tile(np.arange(60), 2)
    result = statistics.partial_correlation(*twice, units=units)
    assert result.n == 60
    assert result.r == pytest.approx(single_result.r, abs=1e-12)
    assert (result.low, result.high) == pytest.approx((single_result.low, single_result.high), abs=1e-9)
    assert result.p_value == pytest.approx(single_result.p_value, abs=1e-12)
    assert result.high - result.low > 1.2 * np.ptp(statistics.partial_correlation(*twice)[1:3])


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [1, 1, 2, 3], [1, 2, 2, 2, 5], [1, 1, 2, 2, 3, 3], [4, 1, 3, 2, 9]]
)
def test_the_permutation_variance_is_one_over_k_less_one_exactly(values):
    """Over all k! orders, ties or not; what the p-value rests on."""
    other = list(range(len(values)))
    result = [
        statistics.within_correlation(values, order, [0] * len(values), draws=1).r
        for order in itertools.permutations(other)
    ]
    assert np.mean(result) == pytest.approx(0, abs=1e-12)
    assert np.mean(np.square(result)) == pytest.approx(1 / (len(values) - 1), abs=1e-12)


def test_the_mean_over_texts_and_its_z_against_scipy():
    rng = np.random.default_rng(8)
    texts = np.repeat(np.arange(9), [3, 4, 5, 6, 7, 3, 3, 8, 2])
    x, y = np.round(rng.normal(size=len(texts)), 1), rng.normal(size=len(texts))
    correlations = [stats.spearmanr(x[texts == t], y[texts == t]).statistic for t in range(8)]
    result = statistics.within_correlation(x, y, texts, draws=300, seed=3)
    assert result.r == pytest.approx(np.mean(correlations), abs=1e-12)
    assert result.n == 8  # the last text has two versions
    z = sum(correlations) / math.sqrt(sum(1 / ((texts == t).sum() - 1) for t in range(8)))
    of_mean = stats.ttest_1samp(correlations, 0.0).pvalue
    assert result.p_value == pytest.approx(max(2 * stats.norm.sf(abs(z)), of_mean), abs=1e-12)
    four = statistics.within_correlation(x[:18], y[:18], texts[:18], draws=300)
    few = sum(correlations[:4]) / math.sqrt(sum(1 / ((texts == t).sum() - 1) for t in range(4)))
    assert math.isnan(four.low)
    assert four.p_value == pytest.approx(2 * stats.norm.sf(abs(few)), abs=1e-12)
    interval = statistics.bootstrap(correlations, draws=300, seed=3)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_p_within_texts_speaks_of_the_mean_as_the_interval_does():
    """Texts of strong correlations of either sign, whose mean is 0: p was below .05 in .2 to .3 of cases."""
    rng = np.random.default_rng(3)
    texts, small = np.repeat(np.arange(12), 8), 0
    for _ in range(300):
        x, noise = rng.normal(size=(2, 12, 8))
        y = rng.choice([-1.0, 1.0], (12, 1)) * x + 0.7 * noise
        small += within_correlation(x.ravel(), y.ravel(), texts, draws=20).p_value < 0.05
    assert stats.binomtest(small, 300, 0.05, alternative="greater").pvalue > 0.01


def test_texts_that_say_nothing_do_not_count():
    x = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 5.0, 5.0, 5.0]
    y = [1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 1.0, 2.0, 3.0]
    texts = list("aaabbbccc")
    result = statistics.within_correlation(x, y, texts, draws=10)
    assert (result.r, result.n) == (1.0, 1)
    for covariates in (None, x[3:]):
        none = statistics.within_correlation(x[3:], y[3:], texts[3:], covariates=covariates, draws=10)
        assert math.isnan(none.r)
        assert none.n == 0
    assert statistics.within_correlation([], [], [], draws=10).n == 0


def test_given_a_control_it_is_the_pooled_partial_correlation_of_centred_ranks():
    rng = np.random.default_rng(9)
    texts = np.repeat(np.arange(10), 6)
    control = rng.normal(size=60)
    x, y = control + rng.normal(size=60), control + rng.normal(size=60)
    centred = np.concatenate(
        [stats.rankdata(np.column_stack([x, y, control])[texts == t], axis=0) - 3.5 for t in range(10)]
    )
    p = np.linalg.inv(centred.T @ centred)
    result = statistics.within_correlation(x, y, texts, covariates=control, draws=200, seed=1)
    assert result.r == pytest.approx(-p[0, 1] / math.sqrt(p[0, 0] * p[1, 1]), abs=1e-12)
    assert result.low < result.r < result.high
    assert result.n == 10
    assert math.isnan(result.p_value)
    assert math.isnan(statistics.within_correlation(x, y, texts, covariates=x, draws=10).r)


def test_few_ranks_given_a_covariate_are_counted():
    """Three degrees of freedom cannot give a p-value of 0: all orders of so many ranks are 24."""
    z = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    noise = np.array([0.0, 4.0, -3.0, 1.0, 2.0])
    result = statistics.partial_correlation(z + noise, z + noise, z)
    assert result.r == pytest.approx(1)
    assert result.p_value == pytest.approx(2 / math.factorial(4))
    assert math.isnan(result.low) == (len(z) < 1 + 4)
    six = statistics.partial_correlation(np.r_[z + noise, 9.0], np.r_[z + noise, 9.0], np.arange(6.0) ** 2)
    assert six.p_value == pytest.approx(2 / math.factorial(5))


def test_bad_input_is_named():
    for words, call in (
        (
            "method must be one of 'pearson', 'spearman', got 'kendall'",
            {"method": "kendall"},
        ),
        (
            r"units or texts must hold one label per item, \[3\], got shape \(2,\)",
            {"units": [1, 2]},
        ),
    ):
        with pytest.raises(ValueError, match=words):
            statistics.partial_correlation([1, 2, 3], [1, 2, 3], [1, 2, 4], **call)
    with pytest.raises(ValueError, match="partial_correlation: y must hold the 3 samples of x, got 2"):
        statistics.partial_correlation([1, 2, 3], [1, 2], [1, 2, 4])
    with pytest.raises(
        ValueError, match=r"covariates must have shape \[n\] or \[n, c\], got shape \(3, 1, 1\)"
    ):
        statistics.partial_correlation([1, 2, 3], [1, 2, 3], np.zeros((3, 1, 1)))
    with pytest.raises(
        ValueError, match=r"within_correlation: units or texts must hold one label per item, \[3\]"
    ):
        statistics.within_correlation([1, 2, 3], [1, 2, 3], [0])
    with pytest.raises(TypeError, match="partial_correlation: covariates must be numbers"):
        statistics.partial_correlation([1, 2, 3], [1, 2, 3], ["a", "b", "c"])


def test_rows_without_a_text_are_left_out():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 24))
    texts = np.repeat(np.arange(6.0), 4)
    texts[[3, 9, 10]] = np.nan
    present = ~np.isnan(texts)
    assert within_correlation(x, y, texts) == within_correlation(x[present], y[present], texts[present])
    names = np.array([None if label != label else str(label) for label in texts], dtype=object)
    expected = partial_correlation(x[present], y[present], (), units=names[present])
    assert partial_correlation(x, y, (), units=names) == expected
