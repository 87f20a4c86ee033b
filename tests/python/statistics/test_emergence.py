# SPDX-License-Identifier: MIT
"""emergence_step: splits against all orders, noise and planted steps; crossings, integer order."""

import math

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope import statistics
from attnscope.protocols import ruscio2025
from attnscope.statistics import emergence

STEPS = [0, 1, 2, 4, 8, 16, 512, 1000, 2000, 143000]
#: Verdicts that name a change, of which one has a step.
CHANGES = ("step", "trend")


def table(values, steps=STEPS, **columns):
    """`values` [samples, steps]."""
    rows = [
        {"step": step, "sample": sample, "x": value, **columns}
        for sample, curve in enumerate(values)
        for step, value in zip(steps, curve, strict=True)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def half_way(data, **options):
    return asc.emergence_step(data, "x", draws=1, **options)["half_way"]


def test_the_first_step_that_covers_the_fraction():
    curve = [0.0, 0.0, 0.1, 0.2, 0.45, 0.55, 0.5, 0.9, 0.95, 1.0]
    result = asc.emergence_step(table([curve, curve]), "x").iloc[0]
    assert (result["half_way"], result["start"], result["end"]) == (16, 0, 1)
    assert half_way(table([curve]), fraction=0.2).item() == 4
    assert half_way(table([curve]), fraction=1.0).item() == 143000
    falling = [1 - value for value in curve]
    assert half_way(table([falling])).item() == 16


def test_steps_are_integers_not_strings():
    # As strings 143000 comes before 2, and the last step would be 8.
    curve = np.arange(len(STEPS)) / 9.0
    result = asc.emergence_step(table([curve]), "x").iloc[0]
    assert (result["half_way"], result["end"]) == (16, 1)
    published = ruscio2025.emergence_change(table([curve]), "x")
    assert published.last_step == 8
    assert published.change == pytest.approx(curve[4])


def test_no_change_and_missing_values_have_no_step():
    # sums in another order are no change, and no member of a family of tests
    rounded = asc.emergence_step(table([[1.0 + 2.0**-52 * (at % 3) for at in range(10)]]), "x").iloc[0]
    assert (rounded["verdict"], math.isnan(rounded["p_value"])) == ("no change", True)
    constant = asc.emergence_step(table([[1.0] * 10]), "x").iloc[0]
    assert constant["verdict"] == "no change"
    assert constant[["step", "half_way"]].isna().all()
    assert math.isnan(constant["p_value"])
    assert half_way(table([[np.nan] * 9 + [1.0]])).isna().all()
    gap = [0.0, np.nan, 0.1, 0.6, np.nan, 0.7, 0.8, 0.9, 1.0, 1.0]
    assert half_way(table([gap])).item() == 4


def test_one_row_for_every_group_and_rows_of_a_sample_are_averaged():
    half = table([[0.0] * 5 + [1.0] * 5], layer=0, head=0)
    other = table([[0.0] * 7 + [1.0] * 3], layer=0, head=1)
    doubled = pd.concat([half, other])
    result = asc.emergence_step(doubled, "x", by=["layer", "head"])
    assert result["step"].tolist() == [16, 1000]
    answer = ["verdict", "step", "p_value", "p_holm", "difference", "low", "high", "start", "end", "half_way"]
    assert list(result.columns) == ["layer", "head", *answer]
    assert result["half_way"].tolist() == [16, 1000]
    # Averaged over heads the curve is 0, then 0.5, then 1: half the way is reached with the first head.
    assert half_way(doubled).item() == 16


def test_a_planted_step_is_found_with_its_difference():
    draw = np.random.default_rng(0)
    level = np.array([0.0] * 4 + [1.0] * 6)
    result = asc.emergence_step(table(level + 0.1 * draw.normal(size=(12, 10))), "x").iloc[0]
    assert (result["verdict"], result["step"]) == ("step", 8)
    assert result["low"] < 1 < result["high"]
    assert result["p_holm"] <= 0.05
    assert asc.emergence_step(table(-level + 0.1 * draw.normal(size=(12, 10))), "x")["step"].item() == 8


def test_too_few_checkpoints_say_so():
    for count in range(2, 8):
        curve = [0.0] * (count // 2) + [1.0] * (count - count // 2)
        result = asc.emergence_step(table([curve], steps=STEPS[:count]), "x").iloc[0]
        assert result["verdict"] == "too few to tell", count
        assert math.isnan(result["p_value"])
    eight = [0.0] * 4 + [1.0] * 4
    assert asc.emergence_step(table([eight], steps=STEPS[:8]), "x")["verdict"].item() == "step"
    # Among fifty quantities no order of eight checkpoints is rare enough.
    many_heads = pd.concat([table([eight], steps=STEPS[:8], head=head) for head in range(50)])
    assert set(asc.emergence_step(many_heads, "x", by=["head"])["verdict"]) == {"too few to tell"}


def test_the_p_value_is_that_of_all_orders():
    """Eight checkpoints have 40,320 orders: the split statistic of each, by hand."""
    from itertools import permutations

    draw = np.random.default_rng(5)
    for _ in range(3):
        mean = draw.normal(size=8) + np.array([0.0] * 4 + [1.5] * 4)

        def best(orders):
            squares = [
                k * (8 - k) / 8 * (orders[:, :k].mean(1) - orders[:, k:].mean(1)) ** 2 for k in (3, 4, 5)
            ]
            return np.max(squares, axis=0)

        best_splits = best(np.array(list(permutations(mean))))
        expected = (best_splits >= best(mean[None]) * (1 - 1e-9)).mean()
        _, p_value, _ = emergence._split_of(mean, 9999, 0)
        assert p_value == pytest.approx(expected, abs=4 * math.sqrt(expected / 9999) + 1e-4)


def test_quantities_of_a_run_are_one_family():
    draw = np.random.default_rng(1)
    curves = [(np.arange(15), draw.normal(size=(15, 6))) for _ in range(8)]
    curves.append((np.arange(15), np.zeros((15, 6))))  # no test: in no family
    result = emergence.emergence_splits(curves)
    p_values = np.array([row["p_value"] for row in result])
    assert np.isnan(p_values[-1])
    np.testing.assert_allclose(
        [row["p_holm"] for row in result][:-1], statistics.holm(p_values[:-1]), rtol=1e-12
    )
    again = emergence.emergence_splits(curves)
    pd.testing.assert_frame_equal(pd.DataFrame(result), pd.DataFrame(again))


def noise(draw, samples, jitter):
    """Fifteen checkpoints around a constant; `jitter` is what all texts of a checkpoint share."""
    return draw.normal(size=(15, samples)) + jitter * draw.normal(size=(15, 1))


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 0.3, 2.0])
def test_noise_does_not_emerge(jitter):
    draw = np.random.default_rng(11)
    trials, steps, crossed = 400, 0, 0
    for trial in range(trials):
        values = noise(draw, 20, jitter)
        result = emergence.emergence_splits([(2 ** np.arange(15), values)], seed=trial)[0]
        steps += result["verdict"] in CHANGES
        crossed += result["half_way"] is not None and result["half_way"] <= 2**3
    print(f"jitter {jitter}: a step in {steps / trials:.3f}, half way by step 8 in {crossed / trials:.2f}")
    assert steps / trials <= 0.06 + 0.02  # two standard errors of 400 trials
    assert crossed / trials > 0.5  # what half the way says of the same noise


@pytest.mark.slow
@pytest.mark.parametrize("before", [4, 7, 11])
def test_a_step_of_three_standard_errors_is_found(before):
    draw = np.random.default_rng(12)
    trials, near = 300, 0
    height = 3 / math.sqrt(20)  # of one checkpoint's mean
    for trial in range(trials):
        values = noise(draw, 20, 0.0)
        values[before:] += height
        result = emergence.emergence_splits([(np.arange(15), values)], seed=trial)[0]
        near += result["verdict"] == "step" and abs(result["step"] - before) <= 1
    print(f"{before} of 15 before: within one checkpoint in {near / trials:.3f}")
    assert near / trials >= 0.85


@pytest.mark.slow
def test_a_family_of_noise_has_a_step_in_few_runs():
    draw = np.random.default_rng(13)
    trials, any_step = 60, 0
    for trial in range(trials):
        curves = [(np.arange(15), noise(draw, 10, 0.5)) for _ in range(20)]
        any_step += any(
            emergence_split["verdict"] in CHANGES
            for emergence_split in emergence.emergence_splits(curves, seed=trial)
        )
    print(f"any step among 20 quantities: {any_step / trials:.3f}")
    assert any_step / trials <= 0.12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "y"}, "the table has no column 'y', only step, sample, x"),
        ({"fraction": 0}, r"fraction must lie in \(0, 1\], got 0"),
        ({"level": 0}, "level must lie strictly between 0 and 1, got 0"),
        ({"fraction": 1.5}, r"fraction must lie in \(0, 1\], got 1.5"),
        ({"confidence": 1}, "confidence must lie strictly between 0 and 1, got 1"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"by": "head"}, "by must be a list of columns, got 'head'"),
        ({"table": table([[1.0]], steps=[5])}, r"at least two steps, none negative, got \[5\]"),
        (
            {"table": table([[1.0, 2.0]], steps=[-1, 3])},
            r"none negative, got \[-1, 3\]; table\[table\['step'\] >= 0\] leaves out",
        ),
    ],
)
def test_bad_arguments_are_named(change, message):
    options = {"table": table([range(10)]), "metric": "x", **change}
    with pytest.raises((TypeError, ValueError), match="emergence_step: .*" + message):
        asc.emergence_step(options.pop("table"), options.pop("metric"), **options)


def test_models_and_protocols_are_not_mixed_in_silence():
    two_models = pd.concat([table([range(10)], model="a"), table([range(10)], model="b")])
    with pytest.raises(ValueError, match="holds 2 values of 'model': filter it or name 'model' in by"):
        asc.emergence_step(two_models, "x")
    assert asc.emergence_step(two_models, "x", by=["model"])["model"].tolist() == ["a", "b"]
    assert len(asc.emergence_step(table([range(10)], model="a"), "x")) == 1
    # NaN is the threshold of what has none.
    half = pd.concat([table([range(10)], threshold=0.1), table([range(10)], threshold=np.nan)])
    with pytest.raises(ValueError, match=r"^emergence_step: the table holds 2 values of 'threshold'"):
        asc.emergence_step(half, "x")
    with pytest.raises(ValueError, match=r"ruscio2025.emergence_change: the table has no column 'y'"):
        ruscio2025.emergence_change(two_models, "y")
    with pytest.raises(ValueError, match="at least two steps"):
        ruscio2025.emergence_change(table([[1.0]], steps=[5]), "x")


def test_steps_written_as_digits_stand_in_the_order_of_their_numbers():
    table = pd.DataFrame(
        {"step": [0, 1, 2, 10] * 2, "sample": [0] * 4 + [1] * 4, "x": [0.0, 0.2, 0.6, 1.0] * 2}
    )
    words = table.assign(step=table["step"].astype(str))
    pd.testing.assert_frame_equal(asc.emergence_step(words, "x"), asc.emergence_step(table, "x"))
    assert asc.emergence_step(words, "x")["half_way"].item() == 2
    published = ruscio2025.emergence_change
    assert published(words, "x") == published(table, "x")
    with pytest.raises(ValueError, match=r"^emergence_step: steps must be whole numbers, got .*1\.5"):
        asc.emergence_step(table.assign(step=table["step"] * 1.5), "x")


def crossing(curve, fraction):
    """The first place that has covered the fraction of the way, None where there is no way."""
    way = curve[-1] - curve[0]
    if math.isnan(way) or way == 0:
        return None
    return next(
        k for k, x in enumerate(curve) if (x - curve[0]) * math.copysign(1, way) >= fraction * abs(way)
    )


def by_hand(group, fraction):
    """The step by the definition, row by row; −1 where nothing changes."""
    steps, samples = sorted(set(group["step"])), sorted(set(group["sample"]))
    values = {(step, sample): [] for step in steps for sample in samples}
    for row in group.itertuples():
        if not math.isnan(row.x):
            values[row.step, row.sample].append(row.x)
    means = {key: sum(value) / len(value) for key, value in values.items() if value}
    curve = []
    for step in steps:
        present = [means[step, sample] for sample in samples if (step, sample) in means]
        curve.append(sum(present) / len(present) if present else math.nan)
    at = crossing(curve, fraction)
    return -1 if at is None else steps[at]


@pytest.mark.filterwarnings("error")
def test_half_way_is_that_of_the_definition():
    draw = np.random.default_rng(4)
    crossed = 0
    for seed in range(60):
        steps = sorted(draw.choice(STEPS, draw.integers(2, 7), replace=False).tolist())
        rows = [
            # Eighths, and two rows a sample: every sum is exact, so that equal ways are equal.
            {"step": step, "sample": sample, "layer": layer, "head": head, "x": draw.integers(0, 9) / 8}
            for step in steps
            for sample in range(draw.integers(1, 5))
            for layer in range(2)
            for head in range(2)
        ]
        frame = pd.DataFrame(rows).sample(frac=1, random_state=seed)
        frame.loc[draw.random(len(frame)) < draw.choice([0, 0.2, 0.6]), "x"] = np.nan
        fraction = float(draw.choice([0.25, 0.5, 0.75, 1.0]))
        by = [[], ["layer"], ["layer", "head"]][seed % 3]
        groups = [((), frame)] if not by else frame.groupby(by)
        answer = asc.emergence_step(frame, "x", by=by, fraction=fraction, draws=1)
        for half, (_, group) in zip(answer["half_way"], groups, strict=True):
            expected = by_hand(group, fraction)
            assert (-1 if pd.isna(half) else half) == expected
            crossed += expected != -1
    assert crossed > 60


def test_a_series_of_more_than_a_thousand_checkpoints():
    steps = np.arange(1040)
    values = np.where(steps < 700, 0.0, 1.0)[:, None] + np.random.default_rng(0).normal(0, 0.1, (1040, 3))
    (result,) = emergence.emergence_splits([(steps, values)], draws=99)
    assert (result["verdict"], result["step"]) == ("step", 700)


def test_an_infinite_mean_is_no_step():
    """No order reached an infinite sum, so that any curve with one had a step of the smallest p."""
    noise = np.random.default_rng(1).normal(size=len(STEPS))
    noise[3] = np.inf
    result = asc.emergence_step(table([noise]), "x").iloc[0]
    without = asc.emergence_step(table([np.delete(noise, 3)], np.delete(STEPS, 3)), "x").iloc[0]
    assert (result["verdict"], result["p_value"]) == (without["verdict"], without["p_value"])
    assert asc.emergence_step(table([[*noise[:-1], np.inf]]), "x").iloc[0]["verdict"] not in CHANGES


def test_a_text_that_later_checkpoints_lack_makes_no_step():
    """Texts of other means had a step in each of a hundred series where one of them ended."""
    draw = np.random.default_rng(2)
    steps_named = 0
    for _ in range(40):
        values = np.arange(6.0)[:, None] + draw.normal(0, 0.1, (6, len(STEPS)))
        values[0, 5:] = np.nan
        steps_named += asc.emergence_step(table(values), "x").iloc[0]["verdict"] in CHANGES
    assert steps_named <= 5


def test_levels_are_those_of_least_squares_with_a_level_for_each_sample():
    draw = np.random.default_rng(3)
    for _ in range(20):
        values = draw.normal(size=(7, 5)) + 10 * draw.normal(size=5)
        values[draw.random(values.shape) < 0.3] = np.nan
        values[:, 0] = draw.normal(size=7)  # so that all checkpoints are held together
        rows, columns = np.nonzero(~np.isnan(values))
        design = np.concatenate([np.eye(7)[rows], np.eye(5)[columns]], axis=1)
        fitted = np.linalg.lstsq(design, values[rows, columns], rcond=None)[0][:7]
        levels = emergence._levels(values, np.nanmean(values, axis=1))
        np.testing.assert_allclose(levels - levels.mean(), fitted - fitted.mean(), atol=1e-9)
    apart = np.array([[1.0, np.nan], [np.nan, 5.0]])
    np.testing.assert_allclose(emergence._levels(apart, np.array([1.0, 5.0])), [1.0, 5.0])


@pytest.mark.parametrize("checkpoints", [9, 14, 30])
def test_what_rises_all_along_is_a_trend(checkpoints):
    """A straight line had a step at its middle."""
    places = np.linspace(0, 1, checkpoints)
    curves = {
        "trend": (places, -3 * places, places**1.2),
        "step": (places >= 0.5, places >= 0.4, 1 / (1 + np.exp((0.5 - places) / 0.02))),
    }
    noise = 0.02 * np.random.default_rng(0).normal(size=checkpoints)
    for verdict, means in curves.items():
        for mean in means:
            curve = np.arange(checkpoints), (mean + noise)[:, None] + np.zeros(3)
            (split,) = emergence.emergence_splits([curve])
            assert split["verdict"] == verdict
            assert (split["step"] is None) == (verdict == "trend")
            assert split["p_holm"] <= 0.05
