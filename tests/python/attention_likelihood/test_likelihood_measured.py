# SPDX-License-Identifier: MIT
"""The study on two trained models, against numbers of loops without the package, and against the loops.

100 sentences of Wikipedia, 128 tokens at most, seed 0. Everything is deterministic: draws are hashed, and
pairs do not depend on batches.
"""

import csv

import numpy as np
import pytest

import attnscope as asc
from attnscope.engine.run_study import run
from likelihood_study import DATA, loops

#: By layer: share of real words, correlation within texts, its z, change of the share by the least likely
#: words with half its interval, gain at home.
MEASURED = {
    "stories260K": {
        "share": (0.510, 0.600, 0.310, 0.322, 0.121),
        "within": (0.577, 0.004, -0.422, -0.552, -0.414),
        "z": (14.7, 0.1, -10.8, -14.1, -10.6),
        "lowest": (-0.413, 0.041, 0.093, 0.147, 0.147),
        "reach": (0.044, 0.018, 0.026, 0.022, 0.026),
        "swap": (-0.0076, 0.0027, -0.0042, 0.0028, -0.0020),
    },
    "llama2xs": {
        "share": (0.104, 0.118, 0.188, 0.475, 0.352),
        "within": (0.363, 0.055, -0.178, -0.200, -0.177),
        "z": (9.3, 1.4, -4.6, -5.1, -4.5),
        "lowest": (-0.085, -0.007, 0.132, 0.139, 0.148),
        "reach": (0.018, 0.020, 0.031, 0.027, 0.037),
        "swap": (-0.0101, -0.0039, -0.0059, -0.0046, -0.0064),
    },
}
#: Mean log-likelihood by mode, stories260K.
NATS = {
    "real": -11.6,
    "lowest": -65.2,
    "low": -39.4,
    "mid": -30.5,
    "high": -21.2,
    "highest": -12.0,
    "nats:3": -12.9,
    "nats:6": -17.9,
    "swap": -13.0,
}
#: Correlation over texts of real words, boost, and the same given length, place and pieces.
BETWEEN = {"between": (0.10, -0.06, -0.09, -0.12, 0.02), "between_partial": (0.17, -0.11, -0.15, -0.15, 0.12)}


def settings(name, output, samples=100, block=64, **options):
    return asc.Study(
        study="attention_likelihood",
        models=str(DATA / name / "hf"),
        texts={"path": str(DATA / "text" / "wiki_dataset_sink.csv"), "column": "text", "samples": samples},
        max_tokens=128,
        block=block,
        output=str(output),
        name=f"{name}-{block}",
        options={"bootstrap": 200, **options},
    )


@pytest.fixture(autouse=True)
def data():
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not here")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MEASURED))
def test_numbers_of_two_trained_models(name, tmp_path):
    results = run(settings(name, tmp_path), progress=False)
    expected = MEASURED[name]
    targets = results.table("targets")
    assert targets["reason"].isna().sum() == 100
    assert (targets["partner"] >= 0).sum() == 2 * 45
    assert (targets["stop"] - targets["start"] == 1).sum() == 20
    table = results.table("head_mean_associations")
    within = table[(table["design"] == "within") & (table["predictor"] == "log_likelihood")]
    np.testing.assert_allclose(within["estimate"], expected["within"], atol=1e-3)
    np.testing.assert_allclose(within["z"], expected["z"], atol=0.06)
    swap = table[(table["design"] == "swap") & (table["measure"] == "share")]
    np.testing.assert_allclose(swap["estimate"], expected["swap"], atol=1e-3)
    shifts = results.table("shifts")
    lowest = shifts[(shifts["mode"] == "lowest") & (shifts["measure"] == "share")]
    np.testing.assert_allclose(lowest["real"], expected["share"], atol=1e-3)
    np.testing.assert_allclose(lowest["difference"], expected["lowest"], atol=1e-3)
    np.testing.assert_allclose((lowest["high"] - lowest["low"]) / 2, expected["reach"], atol=1.5e-3)
    claims = results.table("claims").set_index("claim")
    assert claims.loc["C4", "verdict"] == "not testable here"
    assert claims.loc["C3", "verdict"] == "contradicted"
    if name == "stories260K":
        means = results.table("words").groupby("mode")["log_likelihood"].mean()
        assert {mode: round(value, 1) for mode, value in means.items()} == pytest.approx(NATS, abs=0.06)
        assert lowest["commonest"].iloc[0] == pytest.approx(0.27)
        rows = table[(table["mode"] == "real") & (table["measure"] == "boost")]
        for design, values in BETWEEN.items():
            np.testing.assert_allclose(rows[rows["design"] == design]["estimate"], values, atol=1.1e-2)


@pytest.mark.slow
def test_random_weights_correlate_over_texts_and_exchange_nothing(tmp_path):
    study = settings("stories260K", tmp_path, 40, nulls=["random_weights"], permutations=999)
    controls = run(study, progress=False).table("controls")
    plain = controls[(controls["design"] == "between") & (controls["predictor"] == "log_likelihood")]
    means = plain.groupby("layer")["estimate"].mean()
    assert (means > 0.2).all(), means
    swap = controls[controls["design"] == "swap"]["estimate"]
    assert swap.abs().max() < 1e-4
    assert controls["draw"].nunique() == 8


@pytest.mark.slow
def test_ids_are_those_of_loops(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = DATA / "llama2xs" / "hf"
    with open(DATA / "text" / "wiki_dataset_sink.csv", encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)][:12]
    results = run(settings("llama2xs", tmp_path, 12), progress=False)
    words = results.table("words").set_index(["sample", "mode"])
    share = results.table("head_mean_spans").set_index(["sample", "mode", "layer"])["span_share"]
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    by_hand, _ = loops().study(model, AutoTokenizer.from_pretrained(folder), texts, max_tokens=128)
    assert len(by_hand) == 12
    for text in by_hand:
        for mode, ids in text.versions.items():
            row = words.loc[(text.sample, mode)]
            assert list(row["replacement_ids"]) == ids[text.start : text.stop], (text.sample, mode)
            assert row["log_likelihood"] == pytest.approx(text.likelihood[mode], abs=1e-3)
            for layer, value in enumerate(text.share[mode]):
                assert share.loc[(text.sample, mode, layer)] == pytest.approx(value, abs=1e-3)


@pytest.mark.slow
def test_blocks_of_8_and_of_64_agree(tmp_path):
    short_blocks, long_blocks = (
        run(settings("stories260K", tmp_path, 24, block), progress=False) for block in (8, 64)
    )
    for name, keys, columns in (
        ("words", ["sample", "mode"], ["log_likelihood", "per_piece", "place", "prediction_entropy"]),
        ("spans", ["sample", "mode", "layer", "head"], ["span_share", "span_context", "span_received"]),
        ("head_mean_spans", ["sample", "mode", "layer"], ["span_share", "span_special", "span_boost"]),
    ):
        first, second = (
            results.table(name).set_index(keys).sort_index() for results in (short_blocks, long_blocks)
        )
        assert first.index.equals(second.index), name
        if name == "words":
            assert first["replacement_ids"].map(list).tolist() == second["replacement_ids"].map(list).tolist()
        for column in columns:
            np.testing.assert_allclose(
                first[column].astype(float),
                second[column].astype(float),
                rtol=1e-5,
                atol=1e-5,
                err_msg=column,
            )
