# SPDX-License-Identifier: MIT
"""emergence_step: crossings by construction, integer order, intervals over samples."""

import math

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope.inference import emergence
from attnscope.protocols import ruscio2025

STEPS = [0, 1, 2, 4, 8, 16, 512, 1000, 2000, 143000]


def table(values, steps=STEPS, **columns):
    """`values` [samples, steps]."""
    rows = [
        {"step": step, "sample": sample, "x": value, **columns}
        for sample, curve in enumerate(values)
        for step, value in zip(steps, curve, strict=True)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_the_first_step_that_covers_the_fraction():
    curve = [0.0, 0.0, 0.1, 0.2, 0.45, 0.55, 0.5, 0.9, 0.95, 1.0]
    found = asc.emergence_step(table([curve, curve]), "x").iloc[0]
    assert (found["step"], found["low"], found["high"]) == (16, 16, 16)
    assert (found["start"], found["end"]) == (0, 1)
    assert asc.emergence_step(table([curve]), "x", fraction=0.2)["step"].item() == 4
    assert asc.emergence_step(table([curve]), "x", fraction=1.0)["step"].item() == 143000
    falling = [1 - value for value in curve]
    assert asc.emergence_step(table([falling]), "x")["step"].item() == 16


def test_steps_are_integers_not_strings():
    # As strings 143000 comes before 2, and the last step would be 8.
    curve = np.arange(len(STEPS)) / 9.0
    found = asc.emergence_step(table([curve]), "x").iloc[0]
    assert (found["step"], found["end"]) == (16, 1)
    published = ruscio2025.emergence_change(table([curve]), "x")
    assert published.last_step == 8
    assert published.change == pytest.approx(curve[4])


def test_no_change_and_missing_values_have_no_step():
    assert asc.emergence_step(table([[1.0] * 10]), "x")["step"].item() == -1
    assert asc.emergence_step(table([[np.nan] * 9 + [1.0]]), "x")["step"].item() == -1
    gap = [0.0, np.nan, 0.1, 0.6, np.nan, 0.7, 0.8, 0.9, 1.0, 1.0]
    assert asc.emergence_step(table([gap]), "x")["step"].item() == 4


def test_the_interval_is_over_samples_and_seeded():
    early = [0.0, 0.0, 1.0, *[1.0] * 7]
    late = [0.0, 0.0, 0.0, *[0.0] * 4, 1.0, 1.0, 1.0]
    data = table([early] * 6 + [late] * 6)
    one, again = asc.emergence_step(data, "x").iloc[0], asc.emergence_step(data, "x").iloc[0]
    assert one.equals(again)
    assert (one["low"], one["high"]) == (2, 1000)
    lone = asc.emergence_step(table([early] * 12), "x").iloc[0]
    assert (lone["low"], lone["high"]) == (2, 2)


def test_one_row_for_every_group_and_rows_of_a_sample_are_averaged():
    half = table([[0.0] * 5 + [1.0] * 5], layer=0, head=0)
    other = table([[0.0] * 8 + [1.0] * 2], layer=0, head=1)
    both = pd.concat([half, other])
    found = asc.emergence_step(both, "x", by=["layer", "head"])
    assert found["step"].tolist() == [16, 2000]
    assert list(found.columns) == ["layer", "head", "step", "low", "high", "start", "end"]
    # Averaged over heads the curve is 0, then 0.5, then 1: half the way is reached with the first head.
    assert asc.emergence_step(both, "x")["step"].item() == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "y"}, "the table has no column 'y', only step, sample, x"),
        ({"fraction": 0}, r"fraction must lie in \(0, 1\], got 0"),
        ({"fraction": 1.5}, r"fraction must lie in \(0, 1\], got 1.5"),
        ({"confidence": 1}, "confidence must lie strictly between 0 and 1, got 1"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"by": "head"}, "by must be a list of columns, got the string 'head'"),
        ({"table": table([[1.0]], steps=[5])}, r"at least two steps, none negative, got \[5\]"),
        ({"table": table([[1.0, 2.0]], steps=[-1, 3])}, r"none negative, got \[-1, 3\]"),
    ],
)
def test_bad_arguments_are_named(change, message):
    options = {"table": table([range(10)]), "metric": "x", **change}
    with pytest.raises(ValueError, match="emergence_step: .*" + message):
        asc.emergence_step(options.pop("table"), options.pop("metric"), **options)


def test_models_and_protocols_are_not_mixed_in_silence():
    both = pd.concat([table([range(10)], model="a"), table([range(10)], model="b")])
    with pytest.raises(ValueError, match="holds 2 values of 'model': filter it or name 'model' in by"):
        asc.emergence_step(both, "x")
    assert asc.emergence_step(both, "x", by=["model"])["model"].tolist() == ["a", "b"]
    assert len(asc.emergence_step(table([range(10)], model="a"), "x")) == 1
    # NaN is the threshold of what has none.
    half = pd.concat([table([range(10)], threshold=0.1), table([range(10)], threshold=np.nan)])
    with pytest.raises(ValueError, match=r"^emergence_step: the table holds 2 values of 'threshold'"):
        asc.emergence_step(half, "x")
    with pytest.raises(ValueError, match=r"ruscio2025.emergence_change: the table has no column 'y'"):
        ruscio2025.emergence_change(both, "y")
    with pytest.raises(ValueError, match="at least two steps"):
        ruscio2025.emergence_change(table([[1.0]], steps=[5]), "x")


def test_steps_written_as_digits_stand_in_the_order_of_their_numbers():
    table = pd.DataFrame(
        {"step": [0, 1, 2, 10] * 2, "sample": [0] * 4 + [1] * 4, "x": [0.0, 0.2, 0.6, 1.0] * 2}
    )
    words = table.assign(step=table["step"].astype(str))
    pd.testing.assert_frame_equal(asc.emergence_step(words, "x"), asc.emergence_step(table, "x"))
    assert asc.emergence_step(words, "x")["step"].item() == 2
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


def by_hand(group, fraction, confidence, draws, seed):
    """The definition row by row."""
    steps, samples = sorted(set(group["step"])), sorted(set(group["sample"]))
    values = {(step, sample): [] for step in steps for sample in samples}
    for row in group.itertuples():
        if not math.isnan(row.x):
            values[row.step, row.sample].append(row.x)
    means = {key: sum(own) / len(own) for key, own in values.items() if own}

    def curve(weights):
        result = []
        for step in steps:
            known = [(w, means[step, s]) for s, w in zip(samples, weights, strict=True) if (step, s) in means]
            count = sum(w for w, _ in known)
            result.append(sum(w * x for w, x in known) / count if count else math.nan)
        return result

    whole = curve([1] * len(samples))
    at = crossing(whole, fraction)
    drawn = np.random.default_rng(seed).multinomial(
        len(samples), np.full(len(samples), 1 / len(samples)), draws
    )
    each = sorted(k for weights in drawn.tolist() if (k := crossing(curve(weights), fraction)) is not None)
    low = high = -1
    if at is not None and each:
        tail = (1 - confidence) / 2
        low, high = (steps[each[max(math.ceil(q * len(each)) - 1, 0)]] for q in (tail, 1 - tail))
    return {
        "step": -1 if at is None else steps[at],
        "low": low,
        "high": high,
        "start": whole[0],
        "end": whole[-1],
    }


@pytest.mark.filterwarnings("error")
def test_steps_and_intervals_are_those_of_the_definition():
    draw = np.random.default_rng(4)
    moved = lost = 0
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
        options = {
            "fraction": float(draw.choice([0.25, 0.5, 0.75, 1.0])),
            "confidence": float(draw.choice([0.5, 0.8, 0.95])),
            "draws": int(draw.choice([1, 7, 40])),
        }
        by = [[], ["layer"], ["layer", "head"]][seed % 3]
        found = asc.emergence_step(frame, "x", by=by, seed=seed, **options)
        groups = [((), frame)] if not by else frame.groupby(by)
        assert len(found) == len(groups)
        for own, (key, group) in zip(found.to_dict("records"), groups, strict=True):
            expected = {**dict(zip(by, key, strict=True)), **by_hand(group, seed=seed, **options)}
            assert list(own) == list(expected)
            assert own == pytest.approx(expected, rel=1e-12, abs=0, nan_ok=True)
            moved += expected["low"] != expected["high"]
            lost += expected["step"] == -1
    assert moved > 20
    assert 5 < lost < 60


def test_the_draws_are_a_thousand_at_95_percent_with_seed_nought():
    frame = table(np.random.default_rng(0).random((6, 10)))
    for given in ({}, {"seed": 3}, {"confidence": 0.6}, {"draws": 30}, {"fraction": 0.9}):
        options = {"fraction": 0.5, "confidence": 0.95, "draws": 1000, "seed": 0, **given}
        found = asc.emergence_step(frame, "x", **given).iloc[0].to_dict()
        assert found == pytest.approx(by_hand(frame, **options))
    values = frame.pivot(index="step", columns="sample", values="x").to_numpy()
    plain = emergence.emergence_of(np.array(STEPS), values)
    assert plain == pytest.approx(asc.emergence_step(frame, "x").iloc[0].to_dict())
