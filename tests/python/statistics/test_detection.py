# SPDX-License-Identifier: MIT
"""Held-out detection: against scikit-like loops by hand, under the null, and with a planted difference."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize

import attnscope as asc
from attnscope.statistics.detection import area, auc, cluster_wins, probe_scores


def clouds(seed, shift=0.0, n=160, d=30, templates=16):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    template = np.arange(n) // 2 % templates
    states = rng.standard_normal((n, d)) + 2 * rng.standard_normal((templates, d))[template]
    states[:, 0] += shift * labels
    return states, labels, template


def test_the_area_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, 40).astype(float), rng.integers(0, 2, 40)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    clusters = rng.integers(0, 6, 40)
    weights = np.array([2.0, 0, 1, 1, 3, 0])
    w = weights[clusters]
    top = sum(
        w[i] * w[j] * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
        for i in np.flatnonzero(labels)
        for j in np.flatnonzero(labels == 0)
    )
    bottom = w[labels == 1].sum() * w[labels == 0].sum()
    assert area(cluster_wins(scores, labels, clusters), weights) == pytest.approx(top / bottom)


@pytest.mark.parametrize("d", [5, 44])
def test_the_probe_is_the_minimum_of_its_loss(d):
    """SciPy's minimiser at each penalty, and the penalty that inner folds choose, by hand."""
    rng = np.random.default_rng(1)
    x, y, folds = rng.standard_normal((48, d)), np.arange(48) % 2, np.arange(48) // 8
    x[:, 0] += y

    def fitted(train, target, test, penalty):
        centre = train.mean(0)
        a, b = train - centre, test - centre
        size = np.sqrt((a**2).sum(1).mean())

        def loss(theta):
            logits = a @ theta[:-1] / size + theta[-1]
            signed = np.where(target == 1, logits, -logits)
            return np.logaddexp(0, -signed).sum() + penalty * len(a) / 100 * theta[:-1] @ theta[:-1] / 2

        theta = optimize.minimize(loss, np.zeros(d + 1), method="BFGS", options={"gtol": 1e-7}).x
        return b @ theta[:-1] / size + theta[-1]

    result = probe_scores(x, y, folds)
    for fold in (5,):
        test = folds == fold
        closest = min(
            np.abs(fitted(x[~test], y[~test], x[test], penalty) - result[test]).max()
            for penalty in (1e-3, 1e-2, 1e-1, 1.0, 10.0)
        )
        assert closest < 1e-4


def test_nothing_is_found_where_nothing_is():
    areas = [
        asc.detection(*clouds(seed)[:2], folds=clouds(seed)[2] // 2, draws=10)["auc"][0] for seed in range(8)
    ]
    assert abs(np.mean(areas) - 0.5) < 0.06
    assert max(areas) < 0.75


def test_folds_that_hold_more_of_a_label_do_not_rank_the_wrong_way_round():
    """Noise whose labels fall on folds as they will: the training labels' log-odds alone gave .41."""
    result = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        labels, folds = rng.permutation(np.arange(60) % 2), np.arange(60) // 3 % 5
        result.append(auc(probe_scores(rng.standard_normal((60, 8)), labels, folds), labels))
    assert np.mean(result) == pytest.approx(0.5, abs=0.06)
    # what is fitted of nothing but labels tells no row from another
    constant = probe_scores(np.ones((60, 2)), labels, folds)
    assert np.abs(constant).max() < 1e-6


def test_a_planted_difference_and_its_baseline():
    states, labels, template = clouds(0, shift=9.0)
    useless = np.random.default_rng(5).standard_normal(len(labels))
    result = asc.detection(
        torch.tensor(states),
        labels,
        folds=template // 2,
        clusters=template,
        baselines={"auc_length": useless, "auc_words": states[:, 0]},
    ).set_index("score")
    assert result.loc["auc", "auc"] > 0.9
    assert result.loc["auc", "low"] > 0.7
    assert result.loc["auc", "low"] <= result.loc["auc", "auc"] <= result.loc["auc", "high"]
    assert abs(result.loc["auc_excess", "auc"]) < 0.1  # the planted coordinate alone knows as much
    without = asc.detection(
        states, labels, folds=template // 2, clusters=template, baselines={"auc_length": useless}
    ).set_index("score")
    assert without.loc["auc_excess", "low"] > 0.2
    assert set(result["n"]) == {160}


@pytest.mark.slow
def test_the_interval_covers_a_difference():
    """Sixteen templates; the true area from a large draw of the same law."""
    big = clouds(999, shift=1.0, n=6400, templates=640)
    truth = asc.detection(big[0][:, :1], big[1], folds=big[2] % 8, draws=10)["auc"][1]
    hits = 0
    for seed in range(200):
        states, labels, template = clouds(seed, shift=1.0)
        row = asc.detection(states[:, :1], labels, folds=template // 2, clusters=template, draws=400)
        hits += row["low"][1] <= truth <= row["high"][1]
    assert hits / 200 >= 0.93


def test_more_dimensions_than_texts_fit_nothing_held_out():
    rng = np.random.default_rng(0)
    result = asc.detection(rng.standard_normal((60, 300)), np.arange(60) % 2, folds=np.arange(60) // 10)
    assert result["auc"][0] < 0.75


def test_what_cannot_be_scored_is_nan():
    states, labels, template = clouds(0)
    assert asc.detection(states, labels, folds=np.zeros(160))["auc"].isna().all()
    states[3, 2] = np.nan
    result = asc.detection(states, labels, folds=template // 2, baselines={"auc_length": labels}, draws=50)
    values = result.set_index("score")["auc"]
    assert values[["auc", "auc_direction", "auc_excess"]].isna().all()
    assert values["auc_length"] == 1.0
    equal = asc.detection(np.ones((160, 3)), labels, folds=template // 2, draws=50)
    assert equal["auc"].tolist() == [0.5, 0.5]


def test_bad_arguments():
    states, labels, template = clouds(0)
    with pytest.raises(ValueError, match=r"labels must be 0 and 1, got \[0, 1, 2\]"):
        asc.detection(states, np.arange(160) % 3, folds=template)
    with pytest.raises(
        ValueError, match=r"folds must be the fold of each of 160 rows, got 5; np.arange\(160\) % 5"
    ):
        asc.detection(states, labels, folds=5)
    with pytest.raises(ValueError, match="folds must have 160 entries, got 5"):
        asc.detection(states, labels, folds=template[:5])
    with pytest.raises(ValueError, match="auc_words must have 160 rows, got 3"):
        asc.detection(states, labels, folds=template, baselines={"auc_words": np.ones(3)})


def test_scaled_columns_do_not_depend_on_their_units():
    states, labels, template = clouds(3, shift=1.5, d=6)
    units = np.array([1.0, 1e6, 1e-6, 50.0, 1.0, 3.0])
    options = {"folds": template % 5, "clusters": template, "draws": 50}
    plain = asc.detection(states, labels, scale=True, **options)
    other_units = asc.detection(states * units + 7 * units, labels, scale=True, **options)
    np.testing.assert_allclose(other_units["auc"], plain["auc"], atol=1e-12)
    unscaled = asc.detection(states * units, labels, **options)["auc"]
    assert unscaled[0] < plain["auc"][0] - 0.05  # the largest unit hides the column that differs


@pytest.mark.parametrize("d", [4, 200])
def test_scaling_learns_from_the_training_part_alone(d):
    """Against columns scaled by hand on each training part; a column that is constant there is left out."""
    states, labels, template = clouds(5, shift=2.0, n=60, d=d)
    folds = template % 4
    states[:, 1] = np.where(folds == 2, 3.0, 1.0)
    result = probe_scores(states, labels, folds, scale=True)
    test = folds == 2
    train = states[~test]
    keep = np.flatnonzero(train.std(0) > 1e-9)
    assert len(keep) == d - 1
    scaled = (states[:, keep] - train[:, keep].mean(0)) / train[:, keep].std(0)
    expected = probe_scores(scaled, labels, folds)[test]
    np.testing.assert_allclose(result[test], expected, atol=1e-4)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("factor", [2.0**-60, 2.0**-30, 2.0**60])
def test_areas_have_no_unit(factor):
    """Projections were rounded to 9 decimals whatever their unit: states of 1e-10 were all alike."""
    states, labels, template = clouds(3, shift=1.5)
    plain = asc.detection(states, labels, folds=template % 4)
    pd.testing.assert_frame_equal(asc.detection(factor * states, labels, folds=template % 4), plain)
    assert plain.set_index("score").loc["auc_direction", "auc"] > 0.6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"confidence": 2}, r"detection: confidence must lie .*got 2"),
        ({"draws": 0}, "detection: draws must be at least 1, got 0"),
        ({"seed": -1}, "detection: seed must be at least 0, got -1"),
        ({"labels": np.zeros((8, 1))}, r"detection: labels must have one dimension, got shape \(8, 1\)"),
        ({"labels": [0, 1, None, 1, "x", 0, 1, 0]}, "detection: labels must be 0 and 1, got"),
        ({"clusters": [1.0, np.nan] * 4}, "detection: clusters must hold a label for every item"),
        ({"folds": np.zeros((8, 2))}, "detection: folds must"),
    ],
)
def test_bad_arguments_are_named_with_their_value(changed, message):
    arguments = {"states": np.eye(8), "labels": [0, 1] * 4, "folds": np.arange(8) // 2, **changed}
    with pytest.raises(ValueError, match=message):
        asc.detection(**arguments)


def test_states_that_are_no_numbers_are_named():
    with pytest.raises(TypeError, match="detection: states must be numbers"):
        asc.detection(["a"] * 8, [0, 1] * 4, folds=np.arange(8) // 2)
