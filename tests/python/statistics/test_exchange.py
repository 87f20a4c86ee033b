# SPDX-License-Identifier: MIT
"""exchange_labels and max_t: the right labellings, p-values that keep their level, families."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from attnscope import statistics


def difference(values):
    """Of means, in absolute value, of several labellings at once."""
    values = np.asarray(values)

    def of(labels):
        marked = labels.sum(-1)
        return np.abs(
            (labels * values).sum(-1) / marked - (~labels * values).sum(-1) / (labels.shape[-1] - marked)
        )

    return of


def test_pairs_exchange_by_fair_coins():
    values = [0.0, 1.0, 0.5, 2.0, 1.0, 0.3, -1.0, 1.4, 0.2, 0.9]
    labels, pairs = [0, 1] * 5, np.arange(10) // 2
    result = statistics.exchange_labels(difference(values), labels, pairs=pairs, draws=20_000)
    assert result.permutations == 32
    assert ((result.labels.reshape(-1, 5, 2).sum(-1)) == 1).all()
    assert len(np.unique(result.labels, axis=0)) == 32
    # Every labelling, one by one.
    labellings = np.array(list(itertools.product([False, True], repeat=5)))
    labellings = np.stack([labellings, ~labellings], -1).reshape(32, 10)
    exact = (difference(values)(labellings) >= result.observed - 1e-12).mean()
    assert abs(result.p_value - exact) < 0.01
    assert result.drawn.shape == (20_000,)


def test_labels_are_permuted_inside_clusters_that_hold_both():
    labels = np.array([0, 0, 1, 1, 1, 0, 0, 0])
    clusters = list("aaabbbcc")
    result = statistics.exchange_labels(difference(np.arange(8.0)), labels, clusters=clusters, draws=500)
    assert result.permutations == 3 * 3
    assert math.isnan(result.p_value)  # fewer than twenty
    assert (result.labels[:, :3].sum(1) == 1).all()
    assert (result.labels[:, 3:6].sum(1) == 2).all()
    assert not result.labels[:, 6:].any()
    assert len(np.unique(result.labels, axis=0)) == 9


def test_whole_clusters_are_permuted_where_they_are_nested():
    labels = np.repeat([0, 1, 0, 1, 0, 1, 0], 3)
    clusters = np.repeat(np.arange(7), 3)
    result = statistics.exchange_labels(difference(np.arange(21.0)), labels, clusters=clusters)
    assert result.permutations == math.comb(7, 3)
    by_cluster = result.labels.reshape(-1, 7, 3)
    assert (by_cluster == by_cluster[..., :1]).all()
    assert (by_cluster[..., 0].sum(1) == 3).all()
    assert np.isfinite(result.p_value)
    few = statistics.exchange_labels(difference(np.arange(9.0)), labels[:9], clusters=clusters[:9])
    assert few.permutations == 3
    assert np.isnan(few.p_value)


def test_without_either_all_labels_are_permuted():
    values = np.array([0.1, 0.5, 0.2, 2.0, 1.7, 2.2, 0.4, 1.9])
    labels = [0, 0, 0, 1, 1, 1, 0, 1]
    result = statistics.exchange_labels(difference(values), labels, draws=9999)
    exact = stats.permutation_test(
        (values[np.array(labels) == 1], values[np.array(labels) == 0]),
        lambda a, b: a.mean() - b.mean(),
        permutation_type="independent",
        n_resamples=np.inf,
    ).pvalue
    assert result.permutations == 70
    assert abs(result.p_value - exact) < 0.01


def test_under_the_null_the_level_is_kept():
    rng = np.random.default_rng(0)
    rejected = 0
    for trial in range(300):
        values = rng.standard_normal(24)
        pairs = np.arange(24) // 2
        result = statistics.exchange_labels(
            difference(values), [0, 1] * 12, pairs=pairs, draws=199, seed=trial
        )
        rejected += result.p_value < 0.05
    assert 4 <= rejected <= 28


def test_many_statistics_at_once_and_undefined_ones():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((20, 3))
    values[::2, 1] += 4
    labels = np.arange(20) % 2 == 0

    def statistic(drawn):
        drawn_statistics = np.stack([difference(values[:, k])(drawn) for k in range(3)], -1)
        drawn_statistics[:, 2] = math.nan
        drawn_statistics[5, 0] = math.nan  # a draw that is undefined counts as reached
        return drawn_statistics

    result = statistics.exchange_labels(statistic, labels)
    assert result.observed.shape == (3,)
    assert result.p_value[1] == 0.001
    assert np.isnan(result.p_value[2])
    assert result.p_value[0] > 1 / 1000
    family = statistics.max_t(result.observed, np.nan_to_num(result.drawn[:, :], nan=math.nan))
    assert np.isnan(family.p_adjusted[2])


def test_infinitely_many_labellings():
    labels = np.arange(4000) % 2
    result = statistics.exchange_labels(lambda drawn: drawn[:, 0].astype(float), labels, draws=19)
    assert math.isinf(result.permutations)


def test_max_t_by_hand():
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((199, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 0]
    drawn[:, 3] = 2.0
    observed = np.array([2.5, 5.0, 0.4, 2.0])
    all_statistics = np.concatenate([observed[None], drawn])[:, :3]
    t = (all_statistics - all_statistics.mean(0)) / all_statistics.std(0)
    result = statistics.max_t(observed, drawn)
    np.testing.assert_allclose(result.statistic[:3], t[0], rtol=1e-12)
    expected = [(1 + (t[1:].max(1) >= statistic).sum()) / 200 for statistic in t[0]]
    np.testing.assert_allclose(result.p_adjusted[:3], expected)
    assert np.isnan(result.p_adjusted[3])  # it does not vary
    assert result.p_value == min(expected)


def test_max_t_keeps_the_level_of_a_family():
    rng = np.random.default_rng(0)
    rejected = sum(
        statistics.max_t(rng.standard_normal(12), rng.standard_normal((199, 12))).p_value < 0.05
        for _ in range(400)
    )
    assert 7 <= rejected <= 36


def test_a_family_of_none():
    assert math.isnan(statistics.max_t([], np.zeros((9, 0))).p_value)
    assert math.isnan(statistics.max_t([1.0], np.full((9, 1), math.nan)).p_value)


def test_bad_input():
    def constant(drawn):
        return np.zeros(len(drawn))

    with pytest.raises(ValueError, match="labels must have two values, got 3"):
        statistics.exchange_labels(constant, [0, 1, 2])
    with pytest.raises(ValueError, match="every pair must hold one item of each label, got 1 items"):
        statistics.exchange_labels(constant, [0, 1, 1], pairs=[0, 0, 1])
    with pytest.raises(ValueError, match="every pair must hold one item of each label, got 2 items"):
        statistics.exchange_labels(constant, [0, 0, 1, 1], pairs=[0, 0, 1, 1])
    with pytest.raises(ValueError, match="pairs or clusters, got both"):
        statistics.exchange_labels(constant, [0, 1], pairs=[0, 0], clusters=[0, 0])
    with pytest.raises(
        ValueError, match="clusters must hold one label per item, \\[2\\], got shape \\(3,\\)"
    ):
        statistics.exchange_labels(constant, [0, 1], clusters=[0, 0, 1])
    with pytest.raises(ValueError, match=r"a row per labelling, \[1000, ...\], got shape \(\)"):
        statistics.exchange_labels(lambda drawn: 0.0, [0, 1])
    with pytest.raises(ValueError, match=r"observed must be \[m\] and drawn \[draws, m\]"):
        statistics.max_t([1.0], [[1.0, 2.0]])
