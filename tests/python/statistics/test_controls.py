# SPDX-License-Identifier: MIT
"""control_test: the level and coverage where initialisations differ, beside one control's interval."""

import math

import numpy as np
import pytest
from scipy import stats

from attnscope import statistics


def test_the_model_is_one_draw_beside_the_mean_of_its_controls():
    """Crawford and Howell's t of a single case, where texts add nothing of their own."""
    draw = np.random.default_rng(0)
    levels = draw.normal(0, 1, 9)
    controls = [np.full(12, level) for level in levels]
    result = statistics.control_test(np.full(30, 2.5), controls)
    error = levels.std(ddof=1) * math.sqrt(1 + 1 / 9)
    t = (2.5 - levels.mean()) / error
    assert (result.statistic, result.freedom) == pytest.approx((t, 8), rel=1e-12)
    assert result.p_value == pytest.approx(2 * stats.t.sf(abs(t), 8), rel=1e-12)
    reach = stats.t.ppf(0.975, 8) * error
    assert (result.low, result.high) == pytest.approx(
        (2.5 - levels.mean() - reach, 2.5 - levels.mean() + reach)
    )
    assert result.between == pytest.approx(levels.std(ddof=1))
    assert (result.controls, result.texts) == (9, 30)


def trials(count, controls, texts, between):
    """(model, controls) of one more initialisation among equals: no difference but that of its weights."""
    draw = np.random.default_rng(3)
    for _ in range(count):
        model_mean, *shift = draw.normal(0, between, controls + 1)
        yield (
            draw.normal(model_mean, 1, texts),
            [draw.normal(control_mean, 1, texts // 4) for control_mean in shift],
        )


@pytest.mark.parametrize("controls", [8, 40])
def test_one_more_initialisation_differs_in_one_of_twenty_cases(controls):
    """Neither more texts nor more controls make an initialisation differ from initialisations."""
    widths = []
    for texts in (100, 10_000 if controls == 8 else 1000):
        hits = one_control = 0
        cases = list(trials(250, controls, texts, 0.3))
        for model_values, others in cases:
            result = statistics.control_test(model_values, others)
            assert (result.p_value > 0.05) == (result.low <= 0 <= result.high)
            hits += result.p_value > 0.05
            one_control += statistics.welch_test(model_values, others[0]).p_value >= 0.05
        widths.append(result.high - result.low)
        print(f"{texts} texts: kept {hits / 250:.3f}; one control over texts {one_control / 250:.3f}")
        assert hits / 250 >= 0.915  # controls of a quarter of the texts vary more than the model
    assert one_control / 250 < 0.4  # one draw of weights passes for a finding
    assert min(widths) > 2 * 1.96 * 0.3 * 0.6


def test_a_model_of_few_texts_is_not_surer_than_its_controls():
    """Two texts that happen to agree say nothing about how much texts vary."""
    controls = [np.tile([-1.0, 1.0], 50)] * 8
    result = statistics.control_test([0.9, 0.91], controls)
    assert result.p_value > 0.1


def test_the_spread_between_initialisations_is_without_that_of_texts():
    result = [statistics.control_test(*trial).between for trial in trials(200, 40, 80, 0.3)]
    assert np.sqrt(np.mean(np.square(result))) == pytest.approx(0.3, abs=0.03)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e170, 1e300])
def test_controls_of_any_unit_are_compared(unit):
    """The squares of small numbers are 0, and there was no test; those of large ones are infinite."""
    rng = np.random.default_rng(3)
    model, controls = rng.normal(1, 1, 6), rng.normal(0, 1, (9, 6))
    expected = statistics.control_test(model, controls)
    result = statistics.control_test(model * unit, controls * unit)
    for name in ("statistic", "p_value", "freedom"):
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=1e-9)
    for name in ("difference", "low", "high", "between"):
        assert getattr(result, name) == pytest.approx(getattr(expected, name) * unit, rel=1e-9)


def test_sums_in_another_order_are_no_spread_of_controls():
    """Ten controls and a model of equal numbers, added up in other orders, had a small p-value."""
    rng = np.random.default_rng(0)
    rows = rng.permuted(np.tile(rng.random(1000), (60, 1)), axis=1)
    sums = rows.cumsum(1)[:, -1].reshape(10, 6)
    assert np.ptp(sums) > 0
    model = np.full(6, sums.max() * (1 + 2.0**-50))
    assert math.isnan(statistics.control_test(model, sums).p_value)


def test_too_few_controls_make_no_test():
    result = statistics.control_test([1.0, 2.0], [[0.0, 1.0]] * 7)
    assert result.difference == 1
    assert (result.controls, result.texts) == (7, 2)
    assert all(math.isnan(x) for x in result[1:7])
    still = statistics.control_test([1.0, 1.0], [[1.0]] * 8)  # nothing varies: no test
    assert math.isnan(still.p_value)
    gap = statistics.control_test([1.0, np.nan, 2.0], [[k, np.nan] for k in range(8)] + [[np.nan]])
    assert (gap.controls, gap.texts) == (8, 2)
    with pytest.raises(ValueError, match="control_test: confidence must lie"):
        statistics.control_test([1.0], [[1.0]], confidence=1)


def test_a_number_in_the_place_of_controls_is_named():
    with pytest.raises(
        TypeError, match=r"control_test: controls must be a list of the numbers of each, got 3\.0"
    ):
        statistics.control_test([1.0, 2.0], 3.0)


def test_the_same_numbers_in_another_order_add_no_variance():
    """Rounding made of controls that are all alike, and of a model one more, a p-value of 0 or none."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        values = 3 * rng.normal(size=7)
        controls = [rng.permutation(values) for _ in range(8)]
        result = statistics.control_test(values + 1.3, controls)
        assert result.difference == pytest.approx(1.3)
        assert math.isnan(result.p_value)
