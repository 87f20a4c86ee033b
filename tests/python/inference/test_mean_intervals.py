# SPDX-License-Identifier: MIT
"""Intervals of many means: what few different values leave unknown."""

import math

import numpy as np
import pytest

from attnscope import inference


@pytest.mark.parametrize("ones", [1, 2])
def test_where_many_draws_repeat_one_value_there_is_no_interval(ones):
    """Of nine samples of 0 and one of 1, a third of the draws hold the 0 alone: nothing bounds the mean."""
    values = np.r_[np.zeros(10 - ones), np.full(ones, 0.1)]
    found = inference.bootstrap(values)
    assert (found.estimate, found.n) == (pytest.approx(ones / 100), 10)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    other = np.random.default_rng(0).normal(size=10)
    low, high = inference.mean_intervals([values, other, np.full(10, 0.3)])
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] < other.mean() < high[1]
    assert low[2] == high[2] == pytest.approx(0.3)


def test_rounding_is_no_standard_error():
    """Half of the samples are one number and half another: their intervals have ends within reach."""
    values = np.repeat([0.1, 0.7], 5)
    for low, high in (inference.bootstrap(values)[1:3], np.ravel(inference.mean_intervals([values]))):
        assert -0.1 < low < 0.4 < high < 0.9
