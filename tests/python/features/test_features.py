# SPDX-License-Identifier: MIT
"""Features: stable names, the numbers of analyze, answers, disk, and what is refused."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attnscope as asc
from attnscope.errors import ResultsError
from attnscope.results.features import features_of
from attnscope.results.results import Results
from models import text, tiny

METRICS = ["lookback", "stable_rank", "previous_share", "laplacian_top", "head_divergence"]
SPANS = [(4, 9), (2, 8), (5, 12)]


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def ids(llama):
    return text(llama, batch=3, n=12)["input_ids"]


@pytest.fixture(scope="module")
def table(llama, ids):
    labels, groups = [0, 1, 0], ["a", "b", "a"]
    return asc.features(llama, ids, METRICS, answers=SPANS, labels=labels, groups=groups)


def test_the_names_of_a_tiny_model_are_these(table):
    expected = [
        f"{column}__l{layer:02d}h{head:02d}__answer"
        for column in ("lookback", "stable_rank", "previous_share", "head_divergence")
        for layer in range(2)
        for head in range(4)
    ]
    expected += [f"head_divergence__l{layer:02d}__answer" for layer in range(2)]
    expected += [
        f"{column}__l{layer:02d}mean__answer"
        for column in ("lookback", "stable_rank", "previous_share")
        for layer in range(2)
    ]
    expected += [
        f"laplacian_top_r{rank:02d}__l{layer:02d}h{head:02d}__answer"
        for layer in range(2)
        for head in range(4)
        for rank in range(10)
    ]
    expected += [
        f"laplacian_top_r{rank:02d}__l{layer:02d}mean__answer" for layer in range(2) for rank in range(10)
    ]
    assert sorted(table.X) == sorted(expected)
    assert all(re.fullmatch("[a-z0-9_]+", name) for name in table.X)
    assert (table.X.dtypes == np.float64).all()


def test_numbers_are_those_of_maps_that_end_with_the_answer(llama, ids, table):
    for row, (start, stop) in enumerate(SPANS):
        with asc.capture(llama) as recording, torch.no_grad():
            for layer in recording.run(input_ids=ids[row : row + 1, :stop]):
                maps = layer.attention[0]
                names = [f"l{layer.index:02d}h{head:02d}__answer" for head in range(4)]

                def numbers(column, names=names, row=row):
                    return table.X.loc[row, [f"{column}__{name}" for name in names]].to_numpy(float)

                expected = asc.lookback(maps, (start, stop)).value
                np.testing.assert_allclose(numbers("lookback"), expected, atol=1e-6)
                np.testing.assert_allclose(numbers("stable_rank"), asc.stable_rank(maps), rtol=1e-5)
                top = asc.causal_spectrum(maps).laplacian.sort(descending=True).values
                np.testing.assert_allclose(numbers("laplacian_top_r02"), top[:, 2], atol=1e-6)


def test_the_answer_alone_is_its_block_as_it_is(llama, ids):
    table = asc.features(llama, ids, ["stable_rank", "log_determinant"], answers=SPANS, answer_only=True)
    for row, (start, stop) in enumerate(SPANS):
        with asc.capture(llama) as recording, torch.no_grad():
            layer = next(iter(recording.run(input_ids=ids[row : row + 1])))
        block = layer.attention[0, :, start:stop, start:stop]
        names = [f"stable_rank__l00h{head:02d}__answer" for head in range(4)]
        np.testing.assert_allclose(table.X.loc[row, names].to_numpy(float), asc.stable_rank(block), rtol=1e-5)


def test_answers_that_the_model_writes_are_those_of_the_same_tokens(llama, ids):
    generate = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    written = asc.features(llama, ids, METRICS, generate=generate)
    assert written.index[["start", "stop", "n_tokens"]].to_numpy().tolist() == [[12, 15, 15]] * 3
    with torch.no_grad():
        sequences = llama.generate(ids, **generate, pad_token_id=0)
    again = asc.features(llama, sequences, METRICS, answers=[(12, 15)] * 3)
    assert list(written.X) == list(again.X)
    np.testing.assert_allclose(written.X.to_numpy(), again.X.to_numpy(), rtol=1e-4, atol=1e-6)
    block = asc.features(llama, ids, ["stable_rank"], generate=generate, answer_only=True)
    expected = asc.features(llama, sequences, ["stable_rank"], answers=[(12, 15)] * 3, answer_only=True)
    np.testing.assert_allclose(block.X.to_numpy(), expected.X.to_numpy(), rtol=1e-4)


def test_the_index_holds_what_is_no_feature(table):
    assert list(table.index) == ["sample", "start", "stop", "n_tokens", "n_answer", "label", "group"]
    assert table.index["n_answer"].tolist() == [5, 6, 7]
    assert table.index["n_tokens"].tolist() == [12] * 3
    assert table.index["label"].tolist() == [0, 1, 0]
    assert table.index["group"].tolist() == ["a", "b", "a"]
    assert not set(table.index) & set(table.X)


def test_about_says_where_a_feature_is_from(table):
    features = table.about.set_index("name")
    row = features.loc["lookback__l01h03__answer"]
    assert (row["metric"], row["layer"], row["head"], row["place"]) == ("lookback", 1, 3, "head")
    assert (row["kind"], row["low"], row["high"], row["undefined"]) == ("value", 0, 1, 0)
    assert features.loc["laplacian_top_r09__l00h00__answer", "undefined"] == pytest.approx(2 / 3)
    assert features.loc["head_divergence__l00__answer", "place"] == "layer"
    assert list(features.index) == list(table.X)
    assert table.facts["dtype"] == "float32"
    assert table.facts["version"] == asc.__version__


def test_positions_constants_and_numbers_per_token_are_left_out_unless_named(llama, ids):
    table = asc.features(llama, ids, ["sink_share", "sink_position", "attention_entropy"])
    columns = set(table.about["column"])
    assert "sink_share" in columns
    assert "sink_share_uniform" not in columns
    assert "entropy_per_query" not in columns
    named = asc.features(llama, ids, ["sink_share", "sink_share_uniform"])
    assert "sink_share_uniform" in set(named.about["column"])


def test_thresholds_have_names(llama, ids):
    table = asc.features(llama, ids, ["graph_statistics"], thresholds=[0.05, 0.001])
    assert "density_t0p05__l00h00" in table.X
    assert "density_t0p001__l01mean" in table.X
    with pytest.raises(ValueError, match="thresholds must be numbers, because '2/n' differs by text"):
        asc.features(llama, ids, ["graph_statistics"], thresholds=[0.05, "2/n"])
    for single in (0.05, np.float64(0.05), torch.tensor(0.05, dtype=torch.float64)):
        by_one = asc.features(llama, ids, {"graph_statistics": {"thresholds": single}})
        assert "density_t0p05__l00h00" in by_one.X


def test_options_that_are_no_mapping_are_refused(llama, ids):
    with pytest.raises(TypeError, match="the options of 'sink_share' must be a mapping, got int"):
        asc.features(llama, ids, {"sink_share": 3})


def test_names_may_come_from_an_iterator(llama, ids):
    named = asc.features(llama, ids, iter(["sink_share", "sink_share_uniform"]))
    assert "sink_share_uniform" in set(named.about["column"])


def test_rows_do_not_depend_on_other_rows(llama, ids, table):
    single = asc.features(llama, ids[1:2], METRICS, answers=SPANS[1:2])
    np.testing.assert_allclose(single.X.to_numpy()[0], table.X.to_numpy()[1], rtol=1e-4, atol=1e-6)


def test_parquet_gives_back_what_was_written(table, tmp_path):
    stored = asc.Features.from_parquet(table.to_parquet(tmp_path / "features.parquet"))
    pd.testing.assert_frame_equal(stored.X, table.X)
    pd.testing.assert_frame_equal(stored.about, table.about, check_dtype=False)
    assert stored.index.to_numpy().tolist() == table.index.to_numpy().tolist()
    assert dict(stored.facts) == dict(table.facts)
    other = tmp_path / "other.parquet"
    table.X.to_parquet(other)
    with pytest.raises(ResultsError, match="holds no features"):
        asc.Features.from_parquet(other)


def test_any_results_become_features(llama, ids):
    results = asc.analyze(llama, ids, ["stable_rank", "sink_share"])
    table = results.features()
    heads = results["heads"]
    row = heads[(heads["sample"] == 1) & (heads["layer"] == 1) & (heads["head"] == 2)]
    assert table.X.loc[1, "stable_rank__l01h02"] == row["stable_rank"].item()
    assert set(results.features(["stable_rank"]).about["column"]) == {"stable_rank"}
    with pytest.raises(ResultsError, match="no numbers in a column 'fiedler_value'"):
        results.features(["fiedler_value"])


def test_tables_that_are_no_rows_of_texts_are_named():
    heads = pd.DataFrame({"sample": [0, 0], "layer": [0, 0], "head": [0, 0], "stable_rank": [1.0, 2.0]})
    with pytest.raises(ResultsError, match="two rows of one text, layer and head"):
        features_of(Results({"heads": heads}))
    two = heads.assign(model=["a", "b"], revision="", step=-1, head=[0, 1])
    with pytest.raises(ResultsError, match=r"holds several checkpoints, got .*'a'"):
        features_of(Results({"heads": two}))
    with pytest.raises(ResultsError, match="has no table of maps or layers"):
        features_of(Results({"norms": pd.DataFrame({"norm": [1.0]})}))
    odd = heads.iloc[:1].rename(columns={"stable_rank": "Stable rank"})
    with pytest.raises(ResultsError, match="names hold small letters, digits and underscores, got 'Stable"):
        features_of(Results({"heads": odd}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answer_only": True}, "answer_only needs answers, got None"),
        ({"answers": SPANS, "generate": {"max_new_tokens": 2}}, "answer says where answers are, generate"),
        ({"answers": [(2, 4), None, (1, 3)]}, "text 1 has no answer"),
        ({"labels": [0, 1]}, r"labels must be one for each of 3 texts, got shape \(2,\)"),
        ({"groups": [[0, 1, 2]]}, r"groups must be one for each of 3 texts, got shape \(1, 3\)"),
    ],
)
def test_bad_input_is_named(llama, ids, options, words):
    with pytest.raises(ValueError, match=f"features: {words}"):
        asc.features(llama, ids, ["stable_rank"], **options)


def test_parquet_keeps_every_digit_of_what_is_said_of_a_feature(tmp_path):
    graphs = pd.DataFrame({"sample": [0, 1, 2], "layer": 0, "head": 0, "threshold": 1.5e-12, "cuts": 1.0})
    table = features_of(Results({"graphs": graphs}))
    stored = asc.Features.from_parquet(table.to_parquet(tmp_path / "features.parquet"))
    assert stored.about["at"].tolist() == [1.5e-12]
    graphs = graphs.assign(cuts=[1.0, np.nan, 1.0])
    table = features_of(Results({"graphs": graphs}))
    stored = asc.Features.from_parquet(table.to_parquet(tmp_path / "features.parquet"))
    assert stored.about["undefined"].tolist() == [1 / 3]


def test_a_damaged_file_of_features_is_named(table, tmp_path):
    file = table.to_parquet(tmp_path / "features.parquet")
    stored, data = pq.read_table(file), file.read_bytes()
    for damaged in (data[: len(data) // 2], b""):
        file.write_bytes(damaged)
        with pytest.raises(ResultsError, match=r"features\.parquet is not a readable Parquet file"):
            asc.Features.from_parquet(file)
    fields = pa.schema([field.remove_metadata() for field in stored.schema], stored.schema.metadata)
    pq.write_table(stored.cast(fields), file)
    with pytest.raises(ResultsError, match=r"features\.parquet holds features whose description is gone"):
        asc.Features.from_parquet(file)


def test_labels_of_several_types_are_named_before_anything_is_written(tmp_path):
    heads = pd.DataFrame({"sample": [0, 1], "layer": 0, "head": 0, "entropy": [1.0, 2.0]})
    samples = pd.DataFrame({"sample": [0, 1], "label": ["right", 1]})
    with pytest.raises(ResultsError, match=r"to_parquet: the index of the features cannot be .*label"):
        features_of(Results({"heads": heads, "samples": samples})).to_parquet(tmp_path / "features.parquet")
    assert not list(tmp_path.iterdir())
