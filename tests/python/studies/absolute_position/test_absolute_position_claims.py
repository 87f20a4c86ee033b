# SPDX-License-Identifier: MIT
"""Verdicts on encodings and on the precursor's claims, from tables made by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope.studies.absolute_position import encodings, first_position
from attnscope.studies.absolute_position.sums import profile_of_sums

SHAPE = {"layers": 3, "heads": 4, "width": 32, "revision": "", "step": -1}


def trained(theta, windows, slopes, *, encoding="rope", width=32):
    """Facts and slopes of trainings with one encoding."""
    facts = [
        {
            **SHAPE,
            "model": f"{theta} {windows} {at}",
            "encoding": encoding,
            "rope_theta": theta,
            "windows": windows,
            "width": width,
        }
        for at in range(len(slopes))
    ]
    rows = [
        {"model": fact["model"], "encoding": encodings.label(fact), "measure": "moved_l2", "slope": slope}
        for fact, slope in zip(facts, slopes, strict=True)
    ]
    return facts, rows


def verdict(*parts):
    facts, slopes = (pd.DataFrame([row for part in parts for row in part[at]]) for at in range(2))
    (row,) = encodings.CLAIMS.decide({"": (facts, slopes)}, None)
    return row


@pytest.mark.parametrize(
    ("larger", "plain", "window", "expected"),
    [
        ([0.0, 0.1, 0.0], [1.0, 1.1, 1.0], [2.0, 2.1, 2.0], "supported"),
        ([2.0, 2.1, 2.0], [1.0, 1.1, 1.0], [3.0, 3.1, 3.0], "contradicted"),
        ([0.0, 0.1, 0.0], [1.0, 1.1, 1.0], [0.5, 0.4, 0.5], "contradicted"),
        ([0.0, 0.1, 0.0], [1.0, 1.1, 1.0], [0.0, 2.1, 1.5], "undecided"),
    ],
)
def test_the_order_of_encodings_is_judged_by_the_spread_of_trainings(larger, plain, window, expected):
    decided = verdict(
        trained(1e6, "causal", larger), trained(1e4, "causal", plain), trained(1e4, "window 32", window)
    )
    assert decided.verdict == expected
    steps = np.mean(window) - np.mean(plain), np.mean(plain) - np.mean(larger)
    assert decided.value == pytest.approx(min(steps))


def test_what_encodings_cannot_be_compared_by():
    plain, window = trained(1e4, "causal", [1.0, 1.1]), trained(1e4, "window 32", [2.0, 2.1])
    larger = trained(1e6, "causal", [0.0, 0.1])
    assert "a larger base and a window are needed" in verdict(plain, window).reason
    assert "two trainings or more" in verdict(plain, window, trained(1e6, "causal", [0.0])).reason
    other = trained(1e6, "causal", [0.0, 0.1], width=64)
    assert "not of one shape" in verdict(plain, window, other).reason
    bare = trained(np.nan, "causal", [1.0, 1.0], encoding="none")
    assert verdict(plain, window, larger, bare).verdict == "supported"


def test_slopes_are_those_of_a_line_over_depth():
    facts = pd.DataFrame([{**SHAPE, "model": "a", "encoding": "none", "rope_theta": np.nan, "windows": ""}])
    means = pd.DataFrame(
        {"model": "a", "layer": [2, 0, 1], "moved_l2": [5.0, 1.0, 3.0], "felt": [1.0, np.nan, 2.0]}
    )
    slopes_by_measure = encodings._slopes(facts, means).set_index("measure")["slope"]
    assert slopes_by_measure["moved_l2"] == pytest.approx(4.0)
    assert slopes_by_measure["felt"] == pytest.approx(-2.0)


def test_a_run_says_how_its_model_tells_positions_apart(results):
    facts = results.table("encodings").iloc[0]
    assert (facts["encoding"], facts["rope_type"], facts["rope_theta"]) == ("rope", "default", 10000.0)
    assert (facts["layers"], facts["heads"], facts["windows"], facts["sets_bos"]) == (3, 4, "causal", True)


def test_what_is_checked_is_stored(results):
    row = results.table("checks").set_index("check").loc["layer_0_shuffled"]
    assert row["holds"]
    assert 0.001 < row["value"] <= 1


def test_stored_sums_make_the_profile_again_and_merge(results):
    table = results.table("sums")
    rows = table[(table["arm"] == "base") & (table["input"] == "windows")]
    profile = profile_of_sums(rows)
    position = results.table("position")
    early = position[
        (position["arm"] == "base") & (position["input"] == "windows") & (position["queries"] == "early")
    ]
    size = asc.residual_size(profile)
    np.testing.assert_allclose(size.estimate.ravel(), early["residual"], rtol=1e-12)
    twice = profile_of_sums(rows)
    twice.merge(profile)
    assert twice.texts == 2 * profile.texts
    np.testing.assert_allclose(asc.residual_size(twice).estimate, size.estimate, rtol=1e-12)
    with pytest.raises(ValueError, match="one model, arm and input, got 240 rows that differ in arm, input"):
        profile_of_sums(table)


def test_the_path_of_position_0_is_a_mean_over_texts_and_not_over_batches():
    """The last batch holds two texts, and the others four."""
    rows = [
        {"arm": "base", "sample": 4 * at, "layer": layer, "texts": texts, "norm": value + layer}
        | {name: value for name in ("other_05", "other_50", "other_95", "largest", "gap", "across")}
        | {"cosine": np.nan if layer else value}
        for layer in (0, 1)
        for at, (texts, value) in enumerate([(4, 1.0), (4, 2.0), (2, 9.0)])
    ]
    written = []

    class Run:
        def read(self, name):
            return pd.DataFrame(rows)

        def model(self):
            return SimpleNamespace(dtype="torch.float32")

        def write(self, name, **columns):
            written.append(columns)

    first_position.trajectory(Run())
    mean = (4 * 1 + 4 * 2 + 2 * 9) / 10
    assert [row["norm"] for row in written] == pytest.approx([mean, mean + 1])
    assert [row["other_50"] for row in written] == pytest.approx([mean, mean])
    assert [row["gap"] for row in written] == [9.0, 9.0]
    assert written[0]["cosine"] == pytest.approx(mean)
    assert np.isnan(written[1]["cosine"])


def test_bases_that_kinds_of_layers_have_for_themselves_are_all_said():
    """Gemma 3: one base for layers with a window, another one for the rest."""
    from transformers import Gemma3TextConfig, LlamaConfig

    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    }
    facts = encodings.rotation(Gemma3TextConfig(rope_parameters=kinds))
    assert np.isnan(facts["rope_theta"])
    assert np.isnan(facts["rope_factor"])
    assert facts["rope_type"] == "sliding_attention default 10000, full_attention linear 1e+06 / 8"
    words = encodings.label({**facts, "encoding": "rope", "windows": "window 32, causal"})
    assert words == f"rope ({facts['rope_type']}) window 32"
    equal_kinds = {name: {"rope_type": "default", "rope_theta": 5e5} for name in kinds}
    assert encodings.rotation(Gemma3TextConfig(rope_parameters=equal_kinds))["rope_theta"] == 5e5
    assert encodings.rotation(LlamaConfig())["rope_theta"] == 1e4
    assert np.isnan(encodings.rotation(None)["rope_factor"])
