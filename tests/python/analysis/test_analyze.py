# SPDX-License-Identifier: MIT
"""asc.analyze: a model and inputs in, tables out, every number that of the direct call."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.cli.results_commands import statistics as cli_statistics
from attnscope.models import LoadError
from folders import model_folder, tokenizer
from models import text, tiny


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", implementation="eager")


def eager_maps(model, ids):
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions


def test_numbers_per_map_threshold_and_token(llama):
    ids = text(llama, batch=2, n=9)["input_ids"]
    results = asc.analyze(
        llama,
        ids,
        ["fiedler_value", "graph_statistics", "incoming_attention", "sink_share"],
        thresholds=[0.1, "2/n"],
    )
    means = [f"head_mean{name}" for name in ("_graphs", "_vectors", "s")]
    assert results.tables() == ["samples", "graphs", *means, "heads", "vectors"]
    mean = results.to_xarray("head_means")
    maps = eager_maps(llama, ids)
    heads, graphs, vectors = (results.to_xarray("heads"), results.table("graphs"), results.table("vectors"))
    for layer, attention in enumerate(maps):
        values = heads["fiedler_value"].sel(layer=layer, head=range(4)).squeeze()
        np.testing.assert_allclose(values, asc.fiedler_value(attention), rtol=1e-6)
        np.testing.assert_allclose(
            mean["fiedler_value"].sel(layer=layer).squeeze(),
            asc.fiedler_value(attention.double().mean(1)),
            rtol=1e-6,
        )
        np.testing.assert_allclose(
            heads["sink_boost"].sel(layer=layer, head=range(4)).squeeze(),
            asc.sink_share(attention).boost,
            rtol=1e-6,
        )
        stored = graphs[(graphs["layer"] == layer) & (graphs["head"] == 2) & (graphs["sample"] == 1)]
        assert stored["threshold"].tolist() == [0.1, 2 / 9]
        expected = asc.graph_statistics(attention[1, 2], [0.1, 2 / 9])
        np.testing.assert_array_equal(stored["components"], expected.components)
        rows = vectors[(vectors["layer"] == layer) & (vectors["head"] == 3) & (vectors["sample"] == 0)]
        assert rows["index"].tolist() == list(range(9))
        np.testing.assert_allclose(
            rows["incoming_attention"], asc.incoming_attention(attention[0, 3]), rtol=1e-6
        )


def test_padding_changes_nothing(llama):
    inputs = text(llama, padding="right", batch=2, n=20)
    padded_results = asc.analyze(llama, inputs, ["fiedler_value", "attention_entropy"], vectors=True)
    assert padded_results.table("samples")["n_tokens"].tolist() == [20, 11]
    single_results = asc.analyze(llama, inputs["input_ids"][1:, :11], ["fiedler_value", "attention_entropy"])
    padded = padded_results.table("heads").query("sample == 1").reset_index(drop=True)
    np.testing.assert_allclose(
        padded["fiedler_value"], single_results.table("heads")["fiedler_value"], rtol=1e-4
    )
    rows = padded_results.table("vectors").query("sample == 1")
    assert rows["index"].max() == 10
    assert rows["entropy"].notna().all()


def test_sentences_a_folder_and_everything(tmp_path):
    folder = model_folder(tmp_path / "tiny")
    results = asc.analyze(str(folder), ["the cat sat", "rain fell over the old town"])
    assert set(results.table("heads")["model"]) == {"tiny"}
    assert list(results.table("samples")["tokens"][0]) == ["<s>", "the", "cat", "sat"]
    assert {"sink_share", "entropy", "sink_token"} <= set(results.table("heads"))
    assert len(results.table("graphs")) == 2 * 2 * 4 * 7
    assert len(results.table("head_mean_graphs")) == 2 * 2 * 7


def test_own_options_per_column(llama):
    results = asc.analyze(
        llama,
        text(llama, batch=1, n=6)["input_ids"],
        {"plain": {"metric": "fiedler_value"}, "normalized": {"metric": "fiedler_value", "normalized": True}},
        name="mine",
        layers=[1],
    )
    heads = results.table("heads")
    assert set(heads["layer"]) == {1}
    assert set(heads["model"]) == {"mine"}
    assert (heads["normalized"] > heads["plain"]).all()


@pytest.mark.parametrize(
    ("inputs", "metrics", "options", "message"),
    [
        ("a text", ["fiedler_value"], {}, "a text needs a tokenizer: .*tokenizer="),
        (5, ["fiedler_value"], {}, "inputs must be sentences"),
        ([], ["fiedler_value"], {}, "there are no inputs"),
        ([[]], ["fiedler_value"], {}, "input 0 has no token"),
        (
            [1, 2],
            ["fiedler_value"],
            {},
            r"input 0 must be a sentence or a list of token ids, got 1; .* \[\[1,",
        ),
        ([[1], None], ["fiedler_value"], {}, "input 1 must be a sentence or a list of token ids, got None"),
        (["a", " \n"], ["fiedler_value"], {"tokenizer": tokenizer()}, r"input 1 is an empty text: ' \\n'"),
        ([[5000]], ["fiedler_value"], {}, "token id 5000 is outside the vocabulary"),
        ([[1, 2]], ["fiedler_valu"], {}, "did you mean 'fiedler_value'"),
        ([[1, 2]], None, {"epsilon": 0.1}, "'epsilon' is an option of single metrics"),
    ],
)
def test_bad_input_is_refused_in_words(llama, inputs, metrics, options, message):
    with pytest.raises(ValueError, match=message):
        asc.analyze(llama, inputs, metrics, **options)


def test_a_misspelt_argument_is_answered_with_the_nearest(llama):
    with pytest.raises(TypeError, match=r"^analyze: no argument 'tokeniser'; did you mean 'tokenizer'\?"):
        asc.analyze(llama, [[1, 2]], ["fiedler_value"], tokeniser=None)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Linear has no config"):
        asc.analyze(torch.nn.Linear(2, 2), [[1]], ["fiedler_value"])
    with pytest.raises(FileNotFoundError, match="there is no model folder"):
        asc.analyze("./none", [[1]], ["fiedler_value"])


@pytest.mark.parametrize("kind", ["object", "path", "text"])
def test_a_tokenizer_beside_a_model(llama, tmp_path, kind):
    folder = model_folder(tmp_path / "tiny")
    tokenizer_argument = {"object": tokenizer(), "path": folder, "text": str(folder)}[kind]
    results = asc.analyze(llama, "the cat sat", "fiedler_value", tokenizer=tokenizer_argument)
    assert list(results.table("samples")["tokens"][0]) == ["<s>", "the", "cat", "sat"]


def test_what_is_no_tokenizer_is_refused(llama):
    with pytest.raises(LoadError, match=r"\./none: tokenizer: "):
        asc.analyze(llama, "the cat sat", "fiedler_value", tokenizer="./none")
    with pytest.raises(TypeError, match="tokenizer must be one of transformers, a folder or a hub id, got 5"):
        asc.analyze(llama, "the cat sat", "fiedler_value", tokenizer=5)


@pytest.mark.parametrize("space", ["value", "hidden"])
def test_metrics_that_need_states(llama, space):
    ids = text(llama, batch=2, n=9)["input_ids"]
    # a metric of attention alone may stand beside them
    metrics = ["geometric_semantic_alignment", "reference_influence", "fiedler_value"]
    results = asc.analyze(llama, ids, metrics, space=space, vectors=True)
    heads, vectors = results.to_xarray("heads"), results.table("vectors")
    means = results.to_xarray("head_means")
    with torch.no_grad(), asc.capture(llama, sites=("attention", space)) as recording:
        for layer in recording.run(input_ids=ids):
            maps = layer.matrices()
            states = layer.states(space, per_head=True) if space == "value" else layer.states(space)[:, None]
            states = states.expand(*maps.shape[:2], *states.shape[2:])
            values = heads[f"alignment_{space}"].sel(layer=layer.index, head=range(4)).squeeze()
            want = asc.geometric_semantic_alignment(maps, states)
            np.testing.assert_allclose(values, want, rtol=1e-12)
            mean = means[f"alignment_{space}"].sel(layer=layer.index).squeeze()
            assert np.isnan(mean).all() == (space == "value")
            want = asc.reference_influence(maps, states, asc.sink_tokens(maps)).directional
            rows_of_layer = vectors[vectors["layer"] == layer.index]
            np.testing.assert_allclose(
                rows_of_layer.sort_values(["sample", "head", "index"])["reference_directional"],
                want.flatten(),
                rtol=1e-12,
            )


def test_the_share_of_the_sink_has_the_name_of_the_stored_tables(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    columns = asc.analyze(llama, ids, ["sink_share"]).table("heads").columns
    assert {"sink_share", "sink_share_uniform", "sink_boost"} < set(columns)
    assert "sink_share_share" not in columns


def test_options_of_states_are_checked(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    with pytest.raises(ValueError, match="space must be one of value, hidden, got 'key'"):
        asc.analyze(llama, ids, ["geometric_semantic_alignment"], space="key")
    with pytest.raises(ValueError, match="'space' is an option of geometric_semantic_alignment"):
        asc.analyze(llama, ids, ["fiedler_value"], space="value")
    with pytest.raises(ValueError, match="takes the option space, not 'without'"):
        asc.analyze(llama, ids, {"geometric_semantic_alignment": {"without": None}})


def test_every_metric_has_its_own_thresholds_and_name(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    metrics = {
        "low": {"metric": "betti_numbers", "thresholds": [0.1, "2/n"]},
        "graph_statistics": {"thresholds": [0.1, 0.3]},
    }
    graphs = asc.analyze(llama, ids, metrics).table("graphs")
    rows_of_head = graphs[(graphs["layer"] == 1) & (graphs["head"] == 2)].set_index("threshold")
    assert rows_of_head.index.tolist() == [0.1, 2 / 9, 0.3]
    attention = eager_maps(llama, ids)[1][0, 2]
    betti = asc.betti_numbers(attention, [0.1, 2 / 9])
    assert rows_of_head["low_0"].tolist() == [*betti[:, 0].tolist(), pd.NA]
    assert rows_of_head["low_1"].tolist() == [*betti[:, 1].tolist(), pd.NA]
    density = asc.graph_statistics(attention, [0.1, 0.3]).density.tolist()
    np.testing.assert_array_equal(rows_of_head["density"], [density[0], np.nan, density[1]])


def test_thresholds_of_metrics_that_are_one_number_share_a_row(llama):
    ids = text(llama, batch=1, n=10)["input_ids"]
    metrics = {
        "low": {"metric": "betti_numbers", "thresholds": [0.1, "2/n"]},
        "graph_statistics": {"thresholds": [0.2, 0.3]},
    }
    results = asc.analyze(llama, ids, metrics)
    graphs = results.table("graphs")
    assert not graphs.duplicated(results.key_columns("graphs")).any()
    rows_of_head = graphs[(graphs["layer"] == 1) & (graphs["head"] == 2)].set_index("threshold")
    attention = eager_maps(llama, ids)[1][0, 2]
    betti = asc.betti_numbers(attention, [0.1, 0.2])
    density = asc.graph_statistics(attention, [0.2, 0.3]).density.tolist()
    assert sorted(rows_of_head.index) == [0.1, 0.2, 0.3]
    assert rows_of_head["low_0"].loc[[0.1, 0.2, 0.3]].tolist() == [*betti[:, 0].tolist(), pd.NA]
    np.testing.assert_array_equal(rows_of_head["density"].loc[[0.1, 0.2, 0.3]], [np.nan, *density])


def test_two_tokens_are_not_taken_for_two_dimensions(llama):
    metrics = ["bar_count", "attention_entropy", "singular_values"]
    results = asc.analyze(llama, text(llama, batch=1, n=2)["input_ids"], metrics, vectors=True)
    assert results.table("heads")["bar_count_0"].tolist() == [2] * 12
    assert len(results.table("vectors")) == 2 * 12


def test_vectors_of_different_lengths_share_a_table(llama):
    inputs = text(llama, padding="right", batch=2, n=20)
    metrics = {"attention_entropy": {}, "smallest": {"metric": "laplacian_eigenvalues", "k": 13}}
    rows = asc.analyze(llama, inputs, metrics, vectors=True).table("vectors")
    short = rows[(rows["sample"] == 1) & (rows["layer"] == 0) & (rows["head"] == 0)]
    assert short["index"].tolist() == list(range(13))
    assert short["entropy"].notna().tolist() == [True] * 11 + [False] * 2
    assert short["smallest"].notna().tolist() == [True] * 11 + [False] * 2
    long = rows[(rows["sample"] == 0) & (rows["layer"] == 0) & (rows["head"] == 0)]
    assert long["smallest"].notna().tolist() == [True] * 13 + [False] * 7


def test_what_fits_no_table_is_refused_in_words(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    with pytest.raises(ValueError, match=r"analyze: morlet_scalogram has no place in a table; use measure"):
        asc.analyze(llama, ids, ["morlet_scalogram", "attention_entropy"])


def test_names_are_checked_before_anything_is_loaded():
    with pytest.raises(ValueError, match="did you mean 'fiedler_value'"):
        asc.analyze("./none", "a text", ["fiedlr_value"])
    with pytest.raises(TypeError, match="did you mean 'normalized'"):
        asc.analyze("./none", "a text", ["fiedler_value"], normalised=True)


def test_a_layer_that_is_not_there_is_an_argument_out_of_range(llama):
    with pytest.raises(ValueError, match=r"layers of LlamaForCausalLM: \[99\] out of range for"):
        asc.analyze(llama, torch.arange(6)[None], ["fiedler_value"], layers=[99])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"layers": 1.5}, ValueError, "analyze: layers must be whole numbers, at least one, got 1.5"),
        ({"layers": "1"}, ValueError, "analyze: layers must be whole numbers, at least one, got '1'"),
        ({"layers": True}, ValueError, "analyze: layers must be whole numbers, at least one, got True"),
        ({"max_memory": -1}, ValueError, "analyze: max_memory: expected an amount such as 4GB, got -1"),
        ({"queries": True}, ValueError, "analyze: queries must be 'answer', .* got True"),
        ({"vectors": np.ones(2)}, TypeError, "analyze: vectors must be True or False, got array"),
        ({"name": 3}, TypeError, "analyze: name must be a text, got 3"),
        ({"stack": 3}, TypeError, "analyze: stack must be a text, got 3"),
        ({"base": torch.ones(2)}, TypeError, "base must be a number, got tensor"),
    ],
    ids=str,
)
def test_arguments_of_another_kind_are_named(llama, options, error, words):
    metrics = ["attention_entropy", "sink_share"]
    with pytest.raises(error, match=words):
        asc.analyze(llama, torch.arange(6)[None], metrics, **options)


def test_numbers_of_numpy_choose_layers_and_queries(llama):
    ids, metrics = torch.arange(6)[None], ["sink_share"]
    plain = asc.analyze(llama, ids, metrics, layers=[1], queries=2)["heads"]
    for layers in (np.int64(1), np.array([1]), torch.tensor(1)):
        chosen = asc.analyze(llama, ids, metrics, layers=layers, queries=np.int64(2))["heads"]
        assert chosen.equals(plain)


def test_a_text_longer_than_the_context_is_cut_and_said(llama):
    longest = llama.config.max_position_embeddings
    with pytest.warns(RuntimeWarning, match=rf"1 of 2 texts were longer than {longest} tokens and are cut"):
        results = asc.analyze(llama, [[1, 2, 3], [1] * (longest + 1)], ["sink_share"])
    assert results["samples"]["truncated"].tolist() == [False, True]


@pytest.fixture(scope="module")
def sharp():
    """A causal model in which some heads have a sink."""
    model = tiny("gpt_oss", num_hidden_layers=2, sliding_window=None, layer_types=["full_attention"] * 2)
    return model


def test_every_metric_that_is_accepted_has_a_finite_number(sharp):
    """On a causal model; what has no place in tables, or reads what no model gives, is refused instead."""
    from attnscope.metrics.request import metric_names

    ids = text(sharp, batch=2, n=48)["input_ids"]
    ids[:, 8] = 5
    refused = {}
    for name in metric_names():
        try:
            results = asc.analyze(sharp, ids, [name], layers=[1])
        except ValueError as error:
            refused[name] = str(error)
            continue
        tables = [results.table(name) for name in results.tables() if name != "samples"]
        numbers = [
            table[column].dropna().astype(float)
            for table in tables
            for column in table.select_dtypes("number")
            if column not in ("step", "sample", "layer", "head", "n_tokens", "index", "threshold")
        ]
        assert any(np.isfinite(number).any() for number in numbers), name
        # of queries outside a head's sinks, where it has some; no causal query sees the token behind it
        if name not in ("reference_influence", "pattern_share"):
            assert results.left_out.empty, (name, results.left_out.to_dict())
    of_answers = {"lookback", "prompt_divergence"}
    others = {"betti_curve", "morlet_scalogram", "scale_sensitivity", "span_attention"}
    assert set(refused) == others | of_answers
    assert all("reads answers; answer=" in refused[name] for name in of_answers)
    assert "reads special_keys and word_span, which no model gives" in refused["span_attention"]


def test_scores_are_captured_for_what_reads_them(llama):
    ids = text(llama, batch=1, n=20)["input_ids"]
    heads = asc.analyze(llama, ids, ["offset_fit", "fiedler_value"]).to_xarray("heads")
    with asc.capture(llama, sites=("attention", "scores")) as recording, torch.no_grad():
        for layer in recording.run(input_ids=ids):
            want = asc.offset_fit(layer.scores)
            values_of_layer = heads.sel(layer=layer.index, head=range(4)).squeeze()
            np.testing.assert_allclose(values_of_layer["offset_r2"], want.r2[0], rtol=1e-12)
            np.testing.assert_allclose(values_of_layer["offset_r2_added"], want.added[0], rtol=1e-9)


def test_columns_without_a_value_are_left_out_with_a_reason(tmp_path):
    bloom = tiny("bloom")  # its attention hands out maps alone
    ids = text(bloom, batch=1, n=6)["input_ids"]
    words = r"analyze: \d+ of \d+ columns have no value; results.left_out has the reasons"
    with pytest.warns(RuntimeWarning, match=words):
        results = asc.analyze(bloom, ids)
    reasons = results.left_out.set_index("column")["reason"]
    assert reasons["offset_r2"].startswith("scores are not captured: capture: BloomModel does not let")
    assert "fewer than 8 tokens" in reasons["mp_ks"]
    stored_columns = {column for name in results.tables() for column in results.table(name)}
    assert not stored_columns & set(reasons.index)
    assert {"fiedler_value", "alignment_hidden", "entropy"} <= stored_columns
    stored = asc.load(results.save(tmp_path / "run").path)
    pd.testing.assert_frame_equal(stored.left_out, results.left_out)
    # a column that was asked for stays, and is null
    with pytest.warns(RuntimeWarning, match=words):
        null_results = asc.analyze(bloom, ids, ["marchenko_pastur"])
    assert null_results["heads"]["mp_ks"].isna().all()
    assert "mp_ks" in set(null_results.left_out["column"])
    assert asc.analyze(bloom, ids, ["fiedler_value"]).left_out.empty


def test_columns_of_analyze_have_the_statistic_of_their_kind(tmp_path):
    """A ratio had its mean, and a position too, where tables of studies have the median and the mode."""
    ids = np.random.default_rng(0).integers(3, 30, (5, 12)).tolist()
    results = asc.analyze(tiny("llama"), ids, ["sink_share", "graph_statistics", "sink_position"])
    for measured in (results, results.save(tmp_path / "saved")):
        compared = measured.compare(measured).set_index("metric")["statistic"]
        assert compared["sink_boost"] == "median"
        assert compared["sink_share"] == "mean"
        assert compared["sink_position"] == "most frequent"
        heads = measured["heads"]
        of_samples = heads.groupby("sample")["sink_boost"].median()
        row = cli_statistics(measured, "heads", ["model"], "sink_boost").iloc[0]
        assert row["sink_boost"] == of_samples.median()
