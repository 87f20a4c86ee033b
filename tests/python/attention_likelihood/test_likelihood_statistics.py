# SPDX-License-Identifier: MIT
"""Statistics of the likelihood study on numbers with known answers."""

import itertools

import numpy as np
import pytest
from scipy import stats

from attnscope.studies.attention_likelihood import associations, estimates, shifts
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.attention_likelihood.panel import (
    MEASURES,
    Panel,
    by_unit,
    correlations,
    slope,
)
from attnscope.studies.attention_likelihood.targets import exchanges

OPTIONS = LikelihoodOptions(bootstrap=200, permutations=999)


def panel(x, y, *, ids=None, units=None, swap=None, modes=None):
    """A panel of T texts and K versions from likelihoods [T, K] and shares [L, T, K]."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    texts, versions = x.shape
    modes = modes or ["real", *(f"nats:{k + 1}" for k in range(versions - 1 - (swap is not None)))]
    modes = [*modes, "swap"] if swap is not None else modes
    pieces = np.full((texts, versions), 2.0)
    words = {
        "log_likelihood": x,
        "per_piece": x / 2,
        "pieces": pieces,
        "start": np.tile(np.arange(4.0, 4 + texts)[:, None], versions),
        "n_tokens": np.tile(20.0 + np.arange(texts)[:, None] % 7, versions),
    }
    measures = {name: y.copy() for name in MEASURES} | {"inner": y / 2}
    partner = np.full(texts, -1) if swap is None else np.asarray(swap)
    ids = ids or [[(row, k) for k in range(versions)] for row in range(texts)]
    samples = np.arange(texts)
    units = samples if units is None else np.asarray(units)
    return Panel(samples, units, modes, words, ids, partner, list(range(len(y))), measures)


def test_the_permutation_variance_of_a_correlation_is_one_over_k_less_1_with_ties_or_without():
    for y in ([0.1, 0.4, 0.2, 0.9, 0.3], [0.1, 0.1, 0.4, 0.4, 0.4, 0.9]):
        x = np.arange(len(y), dtype=float)
        orders = np.array([[y[at] for at in order] for order in itertools.permutations(range(len(y)))])
        r = correlations(np.tile(x, (len(orders), 1)), orders, np.ones(orders.shape, bool))
        assert r.var() == pytest.approx(1 / (len(y) - 1), abs=1e-12)


def test_correlations_and_slopes_are_those_of_a_loop():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 5)), draw.normal(size=(2, 6, 5)).round(1)
    has_value = draw.random((6, 5)) < 0.8
    has_value[0] = [True, True, False, False, False]
    computed = correlations(x, y, has_value)
    slopes = slope(x, y, has_value)
    for layer in range(2):
        top = bottom = 0.0
        for text in range(6):
            a, b = x[text, has_value[text]], y[layer, text, has_value[text]]
            if len(a) < 3:
                assert np.isnan(computed[layer, text])
            else:
                assert computed[layer, text] == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-12)
            top += ((a - a.mean()) * (b - b.mean())).sum()
            bottom += ((a - a.mean()) ** 2).sum()
        assert slopes[layer] == pytest.approx(top / bottom, abs=1e-12)
    assert np.isnan(correlations(x, np.ones((1, 6, 5)), has_value)).all()


def test_the_family_wise_p_is_small_for_a_planted_layer_and_uniform_without():
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(20, 6)), draw.normal(size=(3, 20, 6))
    y[1] += 2 * x
    rows = list(associations.within(panel(x, y), OPTIONS, 0))
    assert [row["layer"] for row in rows] == [0, 1, 2]
    assert rows[1]["p_adjusted"] == pytest.approx(1 / 1000)
    assert rows[1]["z"] > 5
    assert rows[1]["low"] < rows[1]["estimate"] < rows[1]["high"]
    assert all(rows[at]["p_adjusted"] >= rows[at]["p_value"] - 0.02 for at in (0, 2))
    largest = associations.permuted(x, y, np.ones(x.shape, bool), np.arange(20), 999, 0)
    # one layer alone has |z| of a normal; the largest of three lies above
    assert 1.96 < np.quantile(largest, 0.95) < 2.7


def test_a_replacement_that_is_the_real_word_counts_once():
    x = np.array([[-3.0, -3.0, -5.0, -9.0]])
    panel_of_texts = panel(x, np.zeros((1, 1, 4)), ids=[[(1,), (1,), (2,), (3,)]])
    assert panel_of_texts.distinct.tolist() == [[True, False, True, True]]


def additive(texts=8, delta=0.0):
    """Shares that are a sum of what the token gives and what the text gives, with a gain at home."""
    draw = np.random.default_rng(2)
    token, text = draw.normal(size=texts), draw.normal(size=texts)
    partner = np.arange(texts).reshape(-1, 2)[:, ::-1].ravel()
    real, away = token + text + delta, token[partner] + text
    return panel(
        np.stack([np.full(texts, -4.0), np.full(texts, -9.0)], 1),
        np.stack([real, away], 1)[None],
        swap=partner,
        modes=["real"],
    )


def test_token_and_text_effects_cancel_in_an_exchange_and_a_gain_at_home_is_found():
    for delta in (0.0, 0.125):
        panel_of_texts = additive(delta=delta)
        gain = associations.unit_gain(
            panel_of_texts, panel_of_texts.measures["share"][0], panel_of_texts.pairs()
        )
        np.testing.assert_allclose(gain, delta, atol=1e-12)
        assert associations.swap_cost(panel_of_texts, OPTIONS, 0)["estimate"] == pytest.approx(5.0)
        rows = associations.swap_effects(panel_of_texts, OPTIONS, 0)
        assert rows[0]["n"] == 4
        assert rows[0]["estimate"] == pytest.approx(delta, abs=1e-12)


def test_a_text_given_twice_is_one_unit():
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(10, 5)), draw.normal(size=(1, 10, 5))
    once = panel(x, y)
    twice = panel(np.vstack([x, x]), np.concatenate([y, y], 1), units=[*range(10), *range(10)])
    first, second = (
        next(associations.within(panel_of_texts, OPTIONS, 0)) for panel_of_texts in (once, twice)
    )
    for name in ("estimate", "low", "high", "n", "z", "p_value", "p_adjusted"):
        assert first[name] == pytest.approx(second[name]), name
    shares = np.concatenate([y, y], 1)[0]
    (of_head,) = associations.of_heads(twice, shares[None], [0], [0])
    assert (of_head["z"], of_head["n"]) == (pytest.approx(first["z"]), 10)
    first, second = (shifts.shifts(panel_of_texts, OPTIONS)[0] for panel_of_texts in (once, twice))
    assert (first["difference"], first["low"], first["n"]) == pytest.approx(
        (second["difference"], second["low"], second["n"])
    )
    assert by_unit(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2])).tolist() == [2.0, 5.0]


def test_of_an_encoder_equal_texts_are_one_given_the_probability_at_the_position():
    draw = np.random.default_rng(7)
    x, y, probability = draw.normal(size=(10, 5)), draw.normal(size=(1, 10, 5)), draw.random((10, 5))
    once = panel(x, y)
    twice = panel(np.vstack([x, x]), np.concatenate([y, y], 1), units=[*range(10), *range(10)])
    once.words["own_probability"], twice.words["own_probability"] = (
        probability,
        np.vstack([probability, probability]),
    )
    rows, rows_of_twice = (
        list(associations.conditional_correlations(panel_of_texts, OPTIONS, 0))
        for panel_of_texts in (once, twice)
    )
    for row, row_of_twice in zip(rows, rows_of_twice, strict=True):
        for name in ("estimate", "low", "high", "p_value", "n"):
            assert row[name] == pytest.approx(row_of_twice[name], nan_ok=True), name


def test_a_text_without_a_correlation_has_no_part_in_the_law_of_the_largest():
    draw = np.random.default_rng(8)
    x, y = draw.normal(size=(8, 5)), draw.normal(size=(2, 8, 5))
    constant = np.vstack([x, np.ones((24, 5))])
    with_constant = np.concatenate([y, draw.normal(size=(2, 24, 5))], 1)
    distinct = np.ones((32, 5), bool)
    largest = associations.permuted(constant, with_constant, distinct, np.arange(32), 999, 0)
    # |z| of a normal, the larger of two layers, not half of it
    assert 1.9 < np.quantile(largest, 0.95) < 2.6


def test_a_mode_is_less_likely_where_it_lowers_the_likelihood_of_the_texts_that_have_it():
    """Texts without the mode say nothing of it, and a text given ten times says no more than once."""
    x = np.array([[-9.0, -10.0], [-9.0, -10.0], [-9.0, -10.0], [-30.0, np.nan]])
    assert shifts.less_likely(panel(x, np.zeros((1, 4, 2)))) == [1]
    x = np.array([[-2.0, -6.0], [-2.0, -6.0], [-2.0, -3.0], *[[-2.0, -1.0]] * 10])
    given_often = panel(x, np.zeros((1, 13, 2)), units=[0, 1, 2, *[3] * 10])
    (row, *_) = shifts.shifts(given_often, OPTIONS)
    assert row["log_likelihood_difference"] == -2.0
    assert shifts.less_likely(given_often) == [1]


def test_the_best_layer_is_not_chosen_on_a_text_that_it_is_reported_on():
    x = np.tile(np.arange(4.0), (4, 1))
    y = np.stack([np.stack([x[0], x[0], -x[0], -x[0]]), np.stack([x[0] * 0 + [0, 2, 1, 3]] * 4)])
    row = shifts.best_layer(panel(x, y, units=[0, 0, 3, 3]))
    assert (row["held_out_layer"], row["held_out_rho"], row["n"]) == (0, pytest.approx(-1.0), 2)


def test_depth_is_the_last_third_less_the_first():
    x = np.tile(np.arange(5.0), (6, 1))
    y = np.stack([-x, x, x, x, x])
    difference = associations.depth(panel(x, y), OPTIONS, 0)
    assert difference["estimate"] == 2.0
    assert np.isnan(associations.depth(panel(x, y[:2]), OPTIONS, 0)["estimate"])


def test_shifts_are_paired_tests():
    draw = np.random.default_rng(4)
    x, y = -np.abs(draw.normal(size=(9, 3))), draw.random((2, 9, 3))
    rows = shifts.shifts(panel(x, y), OPTIONS)
    row = next(row for row in rows if (row["layer"], row["mode"], row["measure"]) == (1, "nats:2", "special"))
    expected = stats.ttest_rel(y[1, :, 2], y[1, :, 0])
    ends = expected.confidence_interval()
    assert (row["p_value"], row["low"], row["high"]) == pytest.approx((expected.pvalue, ends.low, ends.high))
    assert row["log_likelihood_difference"] == pytest.approx((x[:, 2] - x[:, 0]).mean())
    family = [row["p_value"] for row in rows if row["measure"] == "special"]
    assert row["p_adjusted"] >= row["p_value"]
    assert len(family) == 4


def test_between_texts_length_can_make_a_correlation_that_is_gone_when_it_is_given():
    draw = np.random.default_rng(5)
    panel_of_texts = panel(np.zeros((60, 2)), np.zeros((1, 60, 2)))
    length = panel_of_texts.words["n_tokens"][:, 0]
    panel_of_texts.words["per_piece"][:] = (-length + 0.3 * draw.normal(size=60))[:, None]
    panel_of_texts.measures["boost"][0] = (-length + 0.3 * draw.normal(size=60))[:, None]
    rows = {
        row["design"]: row
        for row in associations.between(panel_of_texts, OPTIONS, 0)
        if (row["mode"], row["measure"]) == ("real", "boost")
    }
    assert rows["between"]["estimate"] > 0.9
    assert abs(rows["between_partial"]["estimate"]) < 0.4
    assert rows["between"]["slope"] == pytest.approx(1.0, abs=0.1)


def test_the_best_layer_is_chosen_on_other_texts_than_it_is_reported_on():
    x = np.tile(np.arange(4.0), (4, 1))
    y = np.stack([np.stack([x[0], -x[0], x[0], -x[0]]), np.stack([x[0] * 0 + [0, 2, 1, 3]] * 4)])
    row = shifts.best_layer(panel(x, y))
    assert row["layer"] == 1
    assert (row["held_out_layer"], row["held_out_rho"]) == (0, pytest.approx(-1.0))


def test_points_of_a_control_are_the_estimates_of_a_model():
    draw = np.random.default_rng(6)
    x, y = draw.normal(size=(8, 5)), draw.normal(size=(2, 8, 5))
    panel_of_texts = panel(x, y, swap=np.arange(8).reshape(-1, 2)[:, ::-1].ravel())
    rows = {
        (row["layer"], row["design"]): row
        for row in estimates.points(panel_of_texts)
        if row["measure"] == "share"
    }
    within = {row["layer"]: row for row in associations.within(panel_of_texts, OPTIONS, 0)}
    swap = {
        row["layer"]: row
        for row in associations.swap_effects(panel_of_texts, OPTIONS, 0)
        if row["measure"] == "share"
    }
    for layer in (0, 1):
        assert rows[layer, "within"]["estimate"] == pytest.approx(within[layer]["estimate"])
        assert rows[layer, "swap"]["estimate"] == pytest.approx(swap[layer]["estimate"])


def test_pairs_do_not_exchange_words_that_the_other_text_holds():
    form = [0, 1, 1, 1]
    assert exchanges([[1, 2], [2, 1]], [(0, 1), (0, 1)], form) == []
    assert exchanges([[1, 0], [2, 0], [3, 0]], [(0, 1), (-1, -1), (0, 1)], form) == [(0, 2)]


def test_one_version_or_constant_attention_has_no_correlation_and_no_test():
    panel_of_texts = panel(np.full((3, 2), -1.0), np.ones((1, 3, 2)))
    (row,) = associations.within(panel_of_texts, OPTIONS, 0)
    assert np.isnan(row["estimate"])
    assert np.isnan(row["p_adjusted"])
    assert shifts.best_layer(panel_of_texts) == {"mode": ""}
