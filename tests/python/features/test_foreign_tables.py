# SPDX-License-Identifier: MIT
"""Tables that somebody else has written or edited: another type in a column is an error in words, and a key
without a value is a place of its own."""

import csv
import errno
import os
import re
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

from attnscope import statistics
from attnscope.errors import MissingError, ResultsError
from attnscope.results.results import Results, load
from attnscope.results.summaries import measured_columns

HEADS = {
    **{"model": ["m", "m"], "revision": ["", ""], "step": [-1, -1], "sample": [0, 1], "layer": [0, 0]},
    **{"head": [0, 0], "protocol": ["exact", "exact"], "entropy": [1.0, 2.0]},
}
VALUES = {
    "texts": ["a", "b"],
    "numbers": [0.5, 1.5],
    "infinity": [np.inf, 1.0],
    "missing": [np.nan, 1.0],
    "nothing": [None, None],
    "null": [None, 1],
    "lists": [[1], [2]],
    "mappings": [{"a": 1}, {"a": 2}],
    "bytes": [b"a", b"b"],
    "dates": pd.to_datetime(["2020-01-01", "2021-01-01"]),
    "truth values": [True, False],
}


def results(**columns):
    return Results({"heads": pd.DataFrame({**HEADS, **columns})})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("column", HEADS)
@pytest.mark.parametrize("stored", [False, True])
def test_another_type_is_read_or_refused_in_words(column, kind, stored, tmp_path):
    foreign = results(**{column: VALUES[kind]})
    if stored:
        foreign = foreign.save(tmp_path / "run")
    for call in (
        foreign.features,
        foreign.to_xarray,
        lambda: foreign.to_xarray(metrics=[column]),
        lambda: foreign.compare(results()),
        lambda: results().compare(foreign),
    ):
        with suppress(ResultsError):
            call()


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("layer", ["a", "b"], "features: column 'layer' of table 'heads' must hold whole numbers, got texts"),
        ("head", [None, 1], "features: column 'head' of table 'heads' has no value in row 0"),
        (
            "sample",
            [0.5, 1],
            "features: column 'sample' of table 'heads' must hold whole numbers, got numbers",
        ),
        (
            "model",
            [["a"], ["b"]],
            "features: column 'model' of table 'heads' must hold single values, got ['a']",
        ),
    ],
)
def test_features_name_the_column_and_what_it_holds(column, values, words):
    with pytest.raises(ResultsError) as caught:
        results(**{column: values}).features()
    assert str(caught.value) == words


def test_compare_names_the_kinds_of_both_runs():
    words = "compare: column 'step' of table 'heads' holds texts in one run and whole numbers in the other"
    with pytest.raises(ResultsError, match=words):
        results(step=["a", "b"]).compare(results())


def test_a_key_without_a_value_is_a_place_of_its_own():
    rows = {"metric": ["a", "a", "b"], "threshold": [0.1, 0.2, np.nan], "value": [1.0, 2.0, 9.0]}
    table = Results({"baselines": pd.DataFrame(rows)}).to_xarray("baselines")
    assert table.sizes == {"threshold": 3}
    np.testing.assert_array_equal(table["threshold"], [0.1, 0.2, np.nan])
    np.testing.assert_array_equal(table["value"], [1.0, 2.0, 9.0])


def test_flags_of_which_some_are_missing_are_numbers(tmp_path):
    """They come from a file as objects, which arrays and features left out."""
    flags = results(has_sink=pd.array([True, None], "boolean"), complete=[True, False])
    sizes = results(size=pd.Categorical([3, 1]), name=pd.Categorical(["a", "b"]))
    for run in (sizes, sizes.save(tmp_path / "sizes")):
        assert set(run.to_xarray().data_vars) == {"entropy", "size"}
        assert run.features().X["size__l00h00"].tolist() == [3.0, 1.0]
    for run in (flags, flags.save(tmp_path / "run"), results(has_sink=[True, None], complete=[True, False])):
        cube = run.to_xarray()
        assert set(cube.data_vars) == {"entropy", "has_sink", "complete"}
        np.testing.assert_array_equal(cube["has_sink"].to_numpy().ravel(), [1.0, np.nan])
        features = run.features().X
        assert list(features) == ["entropy__l00h00", "has_sink__l00h00", "complete__l00h00"]
        np.testing.assert_array_equal(features["has_sink__l00h00"], [1.0, np.nan])
        assert set(measured_columns(run.heads)) == {"entropy", "has_sink", "complete"}
    saved = load(tmp_path / "run")
    for frame in (saved.heads, pd.read_parquet(saved.path / "tables" / "heads.parquet")):
        assert (frame["has_sink"].dtype, frame["complete"].dtype) == ("boolean", "bool")
        assert statistics.per_sample(frame, "has_sink").tolist() == [1.0, pd.NA]


def test_a_flag_that_is_missing_everywhere_is_compared(tmp_path):
    """The column was called one of texts, and a run could not be compared with itself."""
    saved = results(has_sink=pd.array([None, None], "boolean")).save(tmp_path / "run")
    row = saved.compare(saved).set_index("metric").loc["has_sink"]
    assert (row["finite"], row["equal"]) == (0, True)
    other = saved.compare(results(has_sink=[True, False])).set_index("metric").loc["has_sink"]
    assert (other["finite"], other["equal"]) == (0, False)


def test_the_largest_whole_numbers_are_read_beside_missing_ones(tmp_path):
    """A table with hashes of 64 bits ended in an error of Arrow."""
    hashes = pd.array([2**64 - 1, None], "UInt64")
    saved = results(hash=hashes).save(tmp_path / "run")
    read = pd.read_parquet(saved.to_parquet(tmp_path / "files")[0])
    for frame in (saved.heads, read):
        assert frame["hash"].dtype == "UInt64"
        assert frame["hash"].tolist() == [2**64 - 1, pd.NA]


def test_models_of_an_array_stand_in_the_order_of_the_plan():
    cube = results(model=["second", "first"]).to_xarray()
    assert cube["model"].to_numpy().tolist() == ["second", "first"]
    np.testing.assert_array_equal(cube["entropy"].sel(model="first").to_numpy().ravel(), [np.nan, 2.0])


def test_a_row_without_a_head_is_not_that_of_the_last_head():
    table = Results(
        {"heads": pd.DataFrame({"sample": [0, 1, 2], "head": [0, 1, None], "entropy": [1.0, 2.0, 9.0]})}
    ).to_xarray()
    np.testing.assert_array_equal(
        table["entropy"], [[1, np.nan, np.nan], [np.nan, 2, np.nan], [np.nan, np.nan, 9]]
    )


def test_numbers_of_a_text_that_is_not_listed_are_not_those_of_the_next():
    listed = pd.DataFrame({"sample": [0, 2]})
    foreign = Results({"heads": pd.DataFrame(HEADS), "samples": listed})
    words = "features: table 'heads' has rows of sample 1, which table 'samples' lacks"
    with pytest.raises(ResultsError, match=words):
        foreign.features()


def test_a_table_whose_file_is_gone_is_named(tmp_path):
    saved = Results({"heads": pd.DataFrame(HEADS), "graphs": pd.DataFrame(HEADS)}).save(tmp_path / "run")
    (saved.path / "tables" / "graphs.parquet").unlink()
    with pytest.warns(UserWarning, match="lacks table 'graphs', which its run has written$"):
        left = load(saved.path)
    assert left.tables() == ["heads"]
    with pytest.raises(MissingError, match=r"lacks table 'graphs', which its run has written$"):
        left.table("graphs")
    (saved.path / "units").mkdir()
    with pytest.warns(UserWarning, match="to write it again: attnscope resume "):
        load(saved.path)


@pytest.mark.parametrize("name", ["study.yaml", "provenance.json", "tables/heads.parquet"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(name, tmp_path, monkeypatch):
    saved = Results({"heads": pd.DataFrame(HEADS)}).save(tmp_path / "run")
    file, opened = saved.path / name, os.open

    def refusing(path, *arguments, **options):
        # the administrator, who may be running this, reads whatever the modes of files say
        if os.fspath(path) == str(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(ResultsError, match=rf"{re.escape(str(file))} cannot be read: Permission denied$"):
        load(saved.path).table("heads")


def test_columns_that_numbers_name_are_called_by_their_digits_as_in_a_file(tmp_path):
    from attnscope.cli.results_commands import statistics

    columns = pd.DataFrame({**HEADS, 7: [0.25, 0.75]})
    numbered = Results({"heads": columns})
    assert list(columns)[-1] == 7
    assert list(numbered["heads"])[-1] == "7"
    for foreign in (numbered, numbered.save(tmp_path / "run")):
        assert statistics(foreign, "heads", ["layer"], "7")["7"].tolist() == [0.5]
    assert numbered.report(tmp_path / "report.html").is_file()
    with pytest.raises(MissingError, match="no column 7 in table 'heads'; did you mean '7'"):
        numbered.table("heads", [7])


@pytest.mark.parametrize("name", ["entropy", 7])
def test_two_columns_of_one_name_are_refused(name):
    columns = pd.DataFrame({**HEADS, "7": 0.5})
    repeated = pd.DataFrame({name: [0.25, 0.75]})
    with pytest.raises(ValueError, match=f"Results: table 'heads' has two columns '{name}'"):
        Results({"heads": pd.concat([columns, repeated], axis=1)})


def test_what_no_file_can_hold_is_a_line(tmp_path):
    halves = results(words=[["\ud83d"], ["a"]])
    with pytest.raises(ResultsError, match="table 'heads' cannot be written as CSV"):
        halves.to_csv(tmp_path / "csv")
    assert not any((tmp_path / "csv").iterdir())
    sparse = results(words=pd.arrays.SparseArray([0, 1]))
    with pytest.raises(ResultsError, match="table 'heads' cannot be stored: Sparse pandas data"):
        sparse.save(tmp_path / "run")


def written_again(results, folder):
    """Results whose tables went through CSV files with the line ends and quotes of another system."""
    tables = {}
    for name in results.tables():
        file = folder / f"{name}.csv"
        results[name].to_csv(file, index=False, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
        tables[name] = pd.read_csv(file, dtype_backend="pyarrow")
    return Results(tables)


def test_tables_from_csv_files_count_as_those_that_were_written(tmp_path):
    """An empty revision came back as a missing number, and flags in Arrow's type were no numbers."""
    heads = pd.DataFrame(
        {
            **{"model": "m", "revision": "", "step": -1, "sample": [0, 0, 1, 1], "layer": 0},
            **{"head": [0, 1, 0, 1], "protocol": "exact", "share": [0.1, 0.2, 0.3, 0.7]},
            **{"has_sink": [True, False, True, True]},
        }
    )
    results = Results({"heads": heads})
    again = written_again(results, tmp_path)
    assert again["heads"]["revision"].tolist() == [""] * 4
    for first, second in ((results, again), (again, results)):
        assert first.compare(second)["equal"].all()
    assert again.to_xarray()["has_sink"].sum() == 3
    pd.testing.assert_frame_equal(again.features().X, results.features().X)
    mixed = pd.concat([heads.assign(revision="step8", step=8), heads.assign(revision=None)])
    assert set(Results({"heads": mixed})["heads"]["revision"]) == {"step8", ""}


def test_keys_that_one_file_lost_are_those_of_the_other(tmp_path):
    """The index is a key of `vectors`, though a file that another program has written names no keys."""
    vectors = pd.DataFrame({"sample": 0, "layer": 0, "index": [0, 1, 2], "mass": [0.2, 0.3, 0.5]})
    vectors.attrs["keys"] = ["sample", "layer", "index"]
    results = Results({"vectors": vectors})
    without_keys = written_again(results, tmp_path)
    assert "index" not in without_keys.key_columns("vectors")
    for first, second in ((results, without_keys), (without_keys, results)):
        (row,) = first.compare(second, "vectors").to_dict("records")
        assert (row["metric"], row["rows"], row["equal"]) == ("mass", 3, True)


def test_numbers_of_rows_make_no_features():
    """A table with the index that pandas gave it had a feature for each row, empty in all others."""
    heads = results(entropy=[1.0, 2.0])["heads"].reset_index()
    assert "index" in heads
    features = Results({"heads": heads}).features()
    assert features.X.to_dict("list") == {"entropy__l00h00": [1.0, 2.0]}
