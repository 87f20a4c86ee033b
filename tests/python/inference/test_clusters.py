# SPDX-License-Identifier: MIT
"""Bootstrap intervals of samples that come in clusters."""

import math

import numpy as np
import pytest

from attnscope import inference


def test_clusters_are_drawn_whole():
    # Twenty samples of eight clusters that hold one number each are eight samples.
    rng = np.random.default_rng(0)
    means = rng.standard_normal(8)
    ids = np.repeat(np.arange(8), 5)
    found = inference.bootstrap(means[ids], clusters=ids)
    alone = inference.bootstrap(means)
    assert found.n == 8
    assert math.isclose(found.estimate, alone.estimate)
    np.testing.assert_allclose([found.low, found.high], [alone.low, alone.high], atol=1e-9)
    # As if they were forty, the interval would be far shorter.
    plain = inference.bootstrap(means[ids])
    assert found.high - found.low > 1.8 * (plain.high - plain.low)


def test_an_interval_over_clusters_covers_the_mean():
    rng = np.random.default_rng(0)
    for clusters in (10, 40):
        covered = 0
        for trial in range(200):
            ids = np.repeat(np.arange(clusters), rng.integers(2, 8, clusters))
            values = rng.standard_normal(clusters)[ids] + 0.5 * rng.standard_normal(len(ids))
            found = inference.bootstrap(values, clusters=ids, draws=400, seed=trial)
            covered += found.low <= 0 <= found.high
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

    found = inference.bootstrap(np.arange(12.0), spy, clusters=ids, draws=50)
    assert found.estimate == rate(np.arange(12.0))
    assert found.low < found.estimate < found.high
    assert all((counts % 2 == 0).all() and counts.sum() == 12 for counts in seen)
    assert max(counts.max() for counts in seen) > 2


def test_few_clusters_and_bad_ones():
    few = inference.bootstrap([1.0, 2.0, 3.0, math.nan], clusters=[0, 0, 1, 2])
    assert few[0] == 2.0
    assert math.isnan(few.low)
    assert few.n == 2
    assert inference.bootstrap([math.nan], clusters=[0]).n == 0
    with pytest.raises(ValueError, match=r"clusters must hold one id per sample, \[2\], got shape \(3,\)"):
        inference.bootstrap([1.0, 2.0], clusters=[0, 1, 2])
    with pytest.raises(ValueError, match=r"statistic must give a number, got shape \(12,\)"):
        inference.bootstrap(np.arange(12.0), lambda x: x, clusters=np.arange(12))
