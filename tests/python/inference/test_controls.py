# SPDX-License-Identifier: MIT
"""control_test: the level and coverage where initialisations differ, beside one control's interval."""

import math

import numpy as np
import pytest
from scipy import stats

from attnscope import inference


def test_equal_to_welch_of_the_controls_means():
    draw = np.random.default_rng(0)
    own, controls = draw.normal(1, 1, 30), [draw.normal(0.1 * k, 1, 12) for k in range(9)]
    found = inference.control_test(own, controls)
    means = [one.mean() for one in controls]
    expected = stats.ttest_ind(own, means, equal_var=False)
    assert (found.statistic, found.p_value, found.freedom) == pytest.approx(
        (expected.statistic, expected.pvalue, expected.df), rel=1e-12
    )
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert (found.controls, found.texts) == (9, 30)


def trials(count, controls, texts, between):
    """(model, controls) of one more initialisation among equals: no difference but that of its weights."""
    draw = np.random.default_rng(3)
    for _ in range(count):
        shift = draw.normal(0, between, controls)
        yield draw.normal(0, 1, texts), [draw.normal(one, 1, texts // 4) for one in shift]


def test_initialisations_are_the_unit_and_texts_do_not_shrink_the_interval():
    widths = []
    for texts in (100, 10_000):
        hits = one_control = 0
        each = list(trials(300, 8, texts, 0.3))
        for own, controls in each:
            found = inference.control_test(own, controls)
            hits += found.low <= 0 <= found.high
            one_control += inference.welch_test(own, controls[0]).p_value >= 0.05
        widths.append(found.high - found.low)
        print(f"{texts} texts: covered {hits / 300:.3f}; one control over texts {one_control / 300:.3f}")
        assert hits / 300 == pytest.approx(0.95, abs=0.035)
    assert one_control / 300 < 0.3  # one draw of weights passes for a finding
    assert widths[1] > 0.2


def test_the_spread_between_initialisations_is_without_that_of_texts():
    found = [inference.control_test(*one).between for one in trials(200, 40, 80, 0.3)]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.3, abs=0.03)


def test_too_few_controls_make_no_test():
    found = inference.control_test([1.0, 2.0], [[0.0, 1.0]] * 7)
    assert found.difference == 1
    assert (found.controls, found.texts) == (7, 2)
    assert all(math.isnan(x) for x in found[1:7])
    still = inference.control_test([1.0, 1.0], [[1.0]] * 8)  # nothing varies: no test
    assert math.isnan(still.p_value)
    gap = inference.control_test([1.0, np.nan, 2.0], [[k, np.nan] for k in range(8)] + [[np.nan]])
    assert (gap.controls, gap.texts) == (8, 2)
    with pytest.raises(ValueError, match="control_test: confidence must lie"):
        inference.control_test([1.0], [[1.0]], confidence=1)
