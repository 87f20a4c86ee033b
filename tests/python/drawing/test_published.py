# SPDX-License-Identifier: MIT
"""Published numbers are stored as printed, and a run's own stand beside them, computed the same way."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import study_tables as made
from attnscope.cli.application import app
from attnscope.errors import MissingError, ResultsError
from attnscope.published import compare_published, published_numbers, same_model
from attnscope.results.results import Results
from attnscope.studies.attention_sinks.published import SOURCES

NUMBERS = published_numbers("ruscio2025")


@pytest.fixture(scope="module")
def tiny():
    return compare_published(made.make_study(("tiny",)), draws=200)


def test_a_run_without_rows_says_so():
    results = made.make_study()
    empty = {name: results.table(name).iloc[:0] for name in results.tables()}
    compared = compare_published(Results(empty, study=results.study))
    assert str(compared) == "The run holds no model to compare."


def row(compared, **where):
    table = compared.table
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1, f"{len(table)} rows for {where}"
    return table.iloc[0]


def test_every_number_says_where_it_was_printed():
    assert len(NUMBERS) == 300
    assert (NUMBERS["origin"].str.len() > 10).all()
    assert (NUMBERS["printed"].str.len() > 0).all()
    assert set(NUMBERS["quantity"]) == set(SOURCES.index)
    ranges = NUMBERS["value"].isna()
    assert (NUMBERS[ranges]["low"] < NUMBERS[ranges]["high"]).all()
    assert not NUMBERS.duplicated(["model", "table", "quantity", "layer", "token", "statistic"]).any()


@pytest.mark.parametrize(
    ("model", "quantity", "layer", "statistic", "value"),
    [
        ("LLaMA-3.2-3B", "beta_0", 27, "mean", 26.41),
        ("LLaMA-3.2-3B", "beta_0", 27, "std", 5.14),
        ("Qwen-2.5-7B", "mean_persistence_0", 0, "mean", 0.2384),
        ("XLM-R-large", "beta_1", 12, "mean", 8.52),
        ("XLM-R-large", "attention_max", 6, "mean", 0.7441),
        ("LLaMA-3.2-3B", "alignment", -1, "mean", -0.2923),
        ("LLaMA-3.2-3B", "magnitude", 27, "mean", 84.0645),
        ("XLM-R-large", "alignment", -1, "trend", -0.731),
        ("Qwen-2.5-7B", "alignment", -1, "max", 0.34),
        ("XLM-R-large", "specialised_heads", -1, "share", 77 / 80),
    ],
)
def test_numbers_are_those_printed(model, quantity, layer, statistic, value):
    result = NUMBERS[
        (NUMBERS["model"] == model)
        & (NUMBERS["quantity"] == quantity)
        & (NUMBERS["layer"] == layer)
        & (NUMBERS["statistic"] == statistic)
        & (NUMBERS["table"] != "talk")
    ]
    assert result["value"].tolist() == [pytest.approx(value, abs=1e-12)]


def test_the_last_digit_of_every_printed_number_is_there():
    single = NUMBERS[NUMBERS["printed"].str.fullmatch(r"[+-]?[\d.]+") & NUMBERS["statistic"].ne("std")]
    assert len(single) > 90
    for number in single.itertuples():
        assert number.value == pytest.approx(float(number.printed), abs=1e-12), number
    with_spread = NUMBERS[NUMBERS["printed"].str.contains(r"\+-")]
    for number in with_spread.itertuples():
        mean, spread = number.printed.split("+-")
        assert number.value == float(mean if number.statistic == "mean" else spread)


def test_names_of_one_model_meet():
    for hub, label in (
        ("meta-llama/Llama-3.2-3B", "LLaMA-3.2-3B"),
        ("Qwen/Qwen2.5-7B", "Qwen-2.5-7B"),
        ("FacebookAI/xlm-roberta-large", "XLM-R-large"),
        ("/models/Llama-3.2-3B/", "LLaMA-3.2-3B"),
    ):
        assert same_model(hub, label)
    assert not same_model("meta-llama/Llama-3.2-1B", "LLaMA-3.2-3B")
    assert not same_model("Qwen/Qwen2.5-7B-Instruct", "Qwen-2.5-7B")


def test_means_and_differences_are_exact(tiny):
    result = row(tiny, published_model="LLaMA-3.2-3B", quantity="beta_0", published_layer=7, statistic="mean")
    assert (result["layer"], result["measured"], result["exact"]) == (1, 30.0, 40.0)
    assert result["difference"] == 30.0 - 26.41
    assert (result["low"], result["high"], result["sentences"]) == (30.0, 30.0, made.SAMPLES)
    result = row(tiny, published_model="LLaMA-3.2-3B", quantity="beta_1", published_layer=27)
    assert (result["measured"], result["exact"]) == (0.0, 5 + 4)
    levels = np.array(
        [[made.level(0, -1, s, lay) for lay in range(made.LAYERS)] for s in range(made.SAMPLES)]
    )
    where = {"published_model": "LLaMA-3.2-3B", "quantity": "alignment", "published_layer": -1}
    rows_in_print = tiny.table[~tiny.table["origin"].str.contains("talk")]
    only = type(tiny)(rows_in_print)
    for statistic, function in (("median", np.median), ("std", np.std), ("min", np.min), ("max", np.max)):
        assert row(only, **where, statistic=statistic)["measured"] == pytest.approx(
            function(-levels), abs=1e-12
        )
        assert row(only, **where, statistic=statistic)["exact"] == pytest.approx(
            function(levels - 0.3), abs=1e-12
        )
    result = row(only, **where, statistic="mean")
    assert result["measured"] == pytest.approx(-levels.mean(), abs=1e-12)
    assert result["difference"] == pytest.approx(-levels.mean() + 0.2923, abs=1e-12)
    assert result["low"] < result["measured"] < result["high"]
    result = row(only, **where, statistic="trend")
    assert (result["measured"], result["exact"]) == (pytest.approx(-1), pytest.approx(1))


def test_counts_of_heads_tokens_and_tests(tiny):
    llama = {"published_model": "LLaMA-3.2-3B"}
    # heads 1 and 2 of 3 pass 0.3
    assert row(tiny, **llama, quantity="specialised_heads", published_layer=0)["measured"] == pytest.approx(
        2 / 3
    )
    assert row(tiny, **llama, quantity="top_token", published_layer=0)["measured"] == 1.0
    qwen = {"published_model": "Qwen-2.5-7B"}
    assert row(tiny, **qwen, quantity="top_token", token="the", published_layer=0)["measured"] == 0.0
    assert row(tiny, **qwen, quantity="same_key_in_all_heads", published_layer=7)["measured"] == 1.0
    result = row(tiny, **llama, quantity="significant_layer_pairs")
    # p = 0.01 other: all ten below 0.05; Holm's 0.02 other: other 1 and 2 stay, one and two pairs
    assert (result["measured"], result["exact"]) == (10.0, 3.0)


def test_another_model_is_said_to_be_one(tiny):
    assert set(tiny.table["published_model"]) == {"LLaMA-3.2-3B", "Qwen-2.5-7B"}
    assert not tiny.table["same_model"].any()
    assert "tiny is not LLaMA-3.2-3B or Qwen-2.5-7B: the differences below are between models" in str(tiny)
    encoder = compare_published(made.make_study(("e",), causal=False), draws=10)
    assert set(encoder.table["published_model"]) == {"XLM-R-large"}
    comparison = compare_published(made.make_study(("meta-llama/Llama-3.2-3B",)), draws=10)
    assert set(comparison.table["published_model"]) == {"LLaMA-3.2-3B"}
    assert comparison.table["same_model"].all()
    assert "is the published LLaMA-3.2-3B by name" in str(comparison)
    comparison = compare_published(made.make_study(("tiny",)), against="xlm-roberta-large", draws=10)
    assert set(comparison.table["published_model"]) == {"XLM-R-large"}
    with pytest.raises(MissingError, match="'gpt2' was not published"):
        compare_published(made.make_study(), against="gpt2")
    with pytest.raises(MissingError, match=r"no published numbers of 'ruscio'; did you mean 'ruscio202\d'"):
        compare_published(made.make_study(), "ruscio")


def test_a_run_without_the_published_protocol_still_stands_beside():
    full = made.make_study()
    heads = full.table("heads")
    result = compare_published(
        Results({"heads": heads[heads["protocol"] == "exact"], "samples": full.table("samples")}),
        "ruscio2025",
        draws=10,
    )
    assert (
        result.table["measured"].drop(result.table.index[result.table["quantity"] == "tokens"]).isna().all()
    )
    assert result.table["exact"].notna().any()
    assert "no rows of protocol ruscio2025" in str(result)
    with pytest.raises(MissingError, match="no table 'heads'"):
        compare_published(Results({}), "ruscio2025")


def test_a_paper_of_another_study_or_none_is_refused_in_words():
    with pytest.raises(
        ResultsError, match="ruscio2024 publishes numbers of wavelet_heads; this run is of att"
    ):
        compare_published(made.make_study(), "ruscio2024")
    with pytest.raises(ResultsError, match="this run's study has no published numbers; there are those of"):
        compare_published(Results({}))
    phases = pd.DataFrame(
        {"model": ["Pythia-2.8B"], "revision": [""], "step": [-1], "metric": ["rho"], "mean": [-0.5]}
        | {"low": [-0.6], "high": [-0.4], "samples": [3]}
    )
    result = compare_published(Results({"phases": phases}, study={"study": "wavelet_heads"}))
    assert set(result.table["measured"].dropna()) == {-0.5}


def test_the_command_writes_text_json_and_csv(tmp_path):
    folder = tmp_path / "run"
    made.make_study().save(folder)
    call = CliRunner().invoke
    result = call(
        app, ["compare", str(folder), "--published", "ruscio2025", "--csv", str(tmp_path / "c.csv")]
    )
    assert result.exit_code == 0, result.output
    assert "none of the run's models was published; --against MODEL chooses one of LLaMA" in result.stdout
    assert "26.41" not in result.stdout
    result = call(app, ["compare", str(folder), "--published", "ruscio2025", "--against", "LLaMA-3.2-3B"])
    assert "tiny beside LLaMA-3.2-3B" in result.stdout
    assert "26.41" in result.stdout
    table = pd.read_csv(tmp_path / "c.csv")
    answer = json.loads(call(app, ["compare", str(folder), "--published", "ruscio2025", "--json"]).stdout)
    assert len(answer["rows"]) == len(table)
    assert answer["rows"][0]["published"] == 26.41
    assert answer["statements"]
    assert call(app, ["compare", str(folder)]).exit_code == 2
    assert call(app, ["compare", str(folder), str(folder), "--published", "ruscio2025"]).exit_code == 2
