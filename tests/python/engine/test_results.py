# SPDX-License-Identifier: MIT
"""Results: tables in and out, axes, statistics by kind, compare, loading without torch.

A position has no mean, a count and a ratio have a median.
"""

import json
import pickle
import shutil
import subprocess
import sys
import warnings
import weakref
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.cli.results_commands import _usual_keys, narrow, statistics
from attnscope.errors import ResultsError
from attnscope.results import results as module
from attnscope.results import summaries
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.results import Results, load
from attnscope.results.schema import HEAD_KEYS
from attnscope.results.summaries import grouped, kinds_of, typical
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.study_api.tables import Column, Rows, Table
from attnscope.study_api.unfinished import unfinished
from folders import sink_study


def heads(steps=(0, 2, 10), samples=2, layers=2, n_heads=2, model="toy"):
    rows = [
        {
            "model": model,
            "revision": f"step{step}",
            "step": step,
            "sample": sample,
            "layer": layer,
            "head": head,
            "protocol": "exact",
            "fiedler_value": 100.0 * step + 10 * sample + layer + head / 10,
            "sink_position": head,
            "sink_token": "<s>",
        }
        for step in steps
        for sample in range(samples)
        for layer in range(layers)
        for head in range(-1, n_heads)
    ]
    return pd.DataFrame(rows)


def samples():
    return pd.DataFrame(
        {
            "model": ["toy"],
            "revision": ["step0"],
            "step": [0],
            "sample": [0],
            "group": ["text"],
            "text": ['He said "a, b"\nand <script>'],
            "tokens": [["<s>", "ä", ","]],
            "token_ids": [[1, 2, 3]],
            "n_tokens": [3],
            "truncated": [False],
        }
    )


@pytest.fixture
def run(tmp_path):
    results = Results({"heads": heads(), "samples": samples()}, study={"name": "toy"}, provenance={"seed": 0})
    return results.save(tmp_path / "run")


def test_a_saved_run_comes_back_equal(run):
    again = load(run.path)
    assert again.tables() == ["samples", "heads"]
    assert again.study == {"name": "toy"}
    hashes = {
        name: {"sha256": sha256((run.path / f"tables/{name}.parquet").read_bytes()).hexdigest(), "rows": rows}
        for name, rows in (("samples", 1), ("heads", 36))
    }
    assert again.provenance == {"seed": 0, "state": "saved", "tables": hashes}
    pd.testing.assert_frame_equal(again.table("heads"), heads(), check_dtype=False)
    assert list(again.table("heads").columns[:7]) == list(HEAD_KEYS)
    assert list(again.table("samples")["tokens"][0]) == ["<s>", "ä", ","]
    assert list(again.table("heads", ["step", "fiedler_value"]).columns) == ["step", "fiedler_value"]
    assert "heads 36" in repr(again)


def test_results_are_a_mapping_of_tables(run):
    assert list(run) == ["samples", "heads"]
    assert len(run) == 2
    assert "heads" in run
    assert "fiedler_value" not in run
    assert run.get("nothing") is None
    assert {name: len(table) for name, table in run.items()} == {"samples": 1, "heads": len(heads())}
    assert run == run
    assert run != load(run.path)
    assert len({run, run}) == 1
    assert bool(Results())
    with pytest.raises(KeyError, match="did you mean 'heads'"):
        run["head"]


def test_results_are_pickled_without_their_model(run):
    model = object.__new__(type("Model", (), {}))
    in_memory = Results({"heads": heads()}, study={"name": "toy"})
    in_memory.model = weakref.ref(model)
    again = pickle.loads(pickle.dumps(in_memory))
    assert again.model is None
    assert in_memory.model() is model
    pd.testing.assert_frame_equal(again["heads"], heads())
    stored = pickle.loads(pickle.dumps(run))
    pd.testing.assert_frame_equal(stored["heads"], run["heads"])


def test_tables_are_attributes_too(run):
    pd.testing.assert_frame_equal(run.heads, run["heads"])
    assert {"heads", "save"} <= set(dir(run))
    with pytest.raises(AttributeError, match="no attribute and no table 'head'; did you mean 'heads'"):
        run.head  # noqa: B018
    assert not hasattr(run, "_repr_svg_")
    named = Results({"figures": heads()})  # a method stays what it is
    assert callable(named.figures)


def test_save_refuses_a_folder_with_something_in_it(run):
    with pytest.raises(FileExistsError, match="not empty"):
        Results({"heads": heads()}).save(run.path)


def test_wrong_names_are_answered_with_the_nearest(run):
    with pytest.raises(KeyError, match="did you mean 'heads'"):
        run.table("head")
    with pytest.raises(KeyError, match="did you mean 'fiedler_value'"):
        run.table("heads", ["fiedler"])
    in_memory = Results({"heads": heads()})
    with pytest.raises(KeyError, match="did you mean 'heads'"):
        in_memory.table("headz")
    with pytest.raises(KeyError, match="did you mean 'fiedler_value'"):
        in_memory.table("heads", ["fiedler_val"])


def test_a_table_handed_out_is_a_copy(run):
    in_memory = Results({"heads": heads()})
    table = in_memory.table("heads")
    table.loc[:, "fiedler_value"] = -5.0
    assert (in_memory.table("heads")["fiedler_value"] > -1.0).all()


def test_xarray_axes_and_integer_steps(run):
    cube = run.to_xarray()
    assert dict(cube.sizes) == {"model": 1, "revision": 3, "sample": 2, "layer": 2, "head": 3}
    assert list(cube["revision"].values) == ["step0", "step2", "step10"]
    assert list(cube["step"].values) == [0, 2, 10]
    assert cube["fiedler_value"].sel(model="toy", step=10, sample=1, layer=1, head=-1).item() == 1010.9
    assert set(cube.data_vars) == {"fiedler_value", "sink_position"}


def test_xarray_leaves_cells_without_rows_nan():
    rows_of_models = pd.concat([heads(n_heads=1), heads(model="wide", n_heads=2)])
    cube = Results({"heads": rows_of_models}).to_xarray(metrics=["fiedler_value"])
    assert np.isnan(cube["fiedler_value"].sel(model="toy", head=1)).all()
    assert np.isfinite(cube["fiedler_value"].sel(model="wide", head=1)).all()


def test_xarray_refuses_two_rows_in_one_cell_and_an_absent_protocol():
    with pytest.raises(ValueError, match="share the same"):
        Results({"heads": pd.concat([heads(), heads()])}).to_xarray()
    with pytest.raises(ValueError, match="no rows of protocol 'ruscio2025'"):
        Results({"heads": heads()}).to_xarray(protocol="ruscio2025")


def test_csv_keeps_lists_quotes_and_newlines(run, tmp_path):
    files = run.to_csv(tmp_path / "csv")
    assert [file.name for file in files] == ["samples.csv", "heads.csv"]
    row = pd.read_csv(files[0]).iloc[0]
    assert row["text"] == 'He said "a, b"\nand <script>'
    assert json.loads(row["tokens"]) == ["<s>", "ä", ","]
    assert json.loads(row["token_ids"]) == [1, 2, 3]


def test_parquet_bytes_depend_on_the_data_alone(run, tmp_path):
    first = run.to_parquet(tmp_path / "a")
    second = Results({"heads": heads(), "samples": samples()}).to_parquet(tmp_path / "b")
    again = load(run.path).to_parquet(tmp_path / "c")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    assert pq.read_table(second[1]).num_rows == 36


def test_compare_states_the_difference_and_the_unmatched_rows():
    other = heads(steps=(0, 2))
    other["fiedler_value"] += 1.5
    table = Results({"heads": heads()}).compare(Results({"heads": other})).set_index("metric")
    row = table.loc["fiedler_value"]
    assert (row["rows"], row["only_here"], row["only_there"]) == (24, 12, 0)
    assert row["mean_difference"] == pytest.approx(1.5)
    assert row["max_difference"] == pytest.approx(1.5)
    assert row["correlation"] == pytest.approx(1.0)
    assert not row["equal"]
    assert table.loc["sink_position", "equal"]


def test_compare_matches_one_model_under_two_names_and_refuses_nothing_in_common():
    comparison = (
        Results({"heads": heads()}).compare(Results({"heads": heads(model="other")})).set_index("metric")
    )
    assert comparison.loc["fiedler_value", "equal"]
    with pytest.raises(ValueError, match="no row of table 'heads'"):
        Results({"heads": heads()}).compare(Results({"heads": heads(steps=(7,))}))


def test_means_of_a_table_are_of_one_checkpoint_each():
    """Grouped by model and layer alone, a series was averaged over its training."""
    series = Results({"heads": heads(steps=(0, 2, 10))})
    assert _usual_keys(series, "heads") == ["model", "step", "layer"]
    assert _usual_keys(Results({"heads": heads(steps=(7,))}), "heads") == ["model", "layer"]
    last = heads(steps=(7,)).assign(step=-1)
    branches = pd.concat([last.assign(revision=name) for name in ("main", "alpha")])
    assert _usual_keys(Results({"heads": branches}), "heads") == ["model", "step", "revision", "layer"]
    assert len(statistics(series, "heads", _usual_keys(series, "heads"))["step"].unique()) == 3


@pytest.mark.parametrize("column", [{"state": [[0.5], [1.0]]}, {"value": [None, None]}, {}])
def test_means_of_a_table_without_numbers_are_refused(tmp_path, column):
    """The command ended in an AttributeError for tables of vectors."""
    states = pd.DataFrame({"model": "m", "sample": [0, 1], "layer": 0, **column})
    saved = Results({"states": states}).save(tmp_path / "run")
    with pytest.raises(
        ResultsError, match="tables: table 'states' has no column of single numbers beside its"
    ):
        statistics(saved, "states", ["model", "layer"])


def test_rows_of_two_protocols_are_compared_apart():
    """Columns of one name are other quantities in each; their mean was of neither."""
    rows = heads().assign(fiedler_value=1.0)
    protocols = pd.concat([rows, rows.assign(protocol="ruscio2025", fiedler_value=3.0, published=5.0)])
    moved = protocols.assign(fiedler_value=protocols["fiedler_value"] + 0.5).iloc[:-1]
    table = Results({"heads": protocols}).compare(Results({"heads": moved}))
    chosen = table[table["metric"] == "fiedler_value"].set_index("protocol")
    assert chosen["here"].to_dict() == {"exact": 1.0, "ruscio2025": 3.0}
    assert chosen["there"].to_dict() == {"exact": 1.5, "ruscio2025": 3.5}
    assert chosen["rows"].to_dict() == {"exact": len(rows), "ruscio2025": len(rows) - 1}
    assert chosen["only_here"].to_dict() == {"exact": 0, "ruscio2025": 1}
    assert table[table["metric"] == "published"]["protocol"].tolist() == ["ruscio2025"]


def test_compare_says_where_the_sentences_are_not_the_same():
    sample_rows, other = samples(), samples()
    first = int(other["sample"].iloc[0])
    other["text"] = other["text"].where(other["sample"] != first, "another sentence")
    run = Results({"heads": heads(), "samples": sample_rows})
    with pytest.warns(UserWarning, match=rf"1 of \d+ differ, first: sample {first}\)"):
        run.compare(Results({"heads": heads(), "samples": other}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.compare(Results({"heads": heads(), "samples": sample_rows}))
        run.compare(Results({"heads": heads()}))


def without_hashes(folder):
    """A run folder of an attnscope that stored no hashes of tables."""
    file = folder / "provenance.json"
    facts = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({name: fact for name, fact in facts.items() if name != "tables"}), "utf-8")


def test_load_says_what_is_wrong_with_a_folder(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "begun" / "units").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"attnscope resume .*begun"):
        load(tmp_path / "begun")
    (run.path / "tables" / "heads.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"heads\.parquet is not as it was written \(its SHA-256 differs\)$"):
        load(run.path).table("heads")
    without_hashes(run.path)
    with pytest.raises(ValueError, match=r"heads\.parquet is not a readable Parquet file"):
        load(run.path).table("heads")
    (run.path / "provenance.json").write_text("{", "utf-8")
    with pytest.raises(ValueError, match=r"provenance\.json is damaged"):
        load(run.path)


@pytest.mark.parametrize("noted", [b"{no JSON", None], ids=["damaged", "an index"])
def test_what_pandas_noted_in_a_table_changes_no_column(run, noted):
    file = run.path / "tables" / "heads.parquet"
    expected = load(run.path).table("heads")
    if noted is None:
        heads().set_index(["layer", "head"]).to_parquet(file)
    else:
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"pandas": noted}), file)
    without_hashes(run.path)
    table = load(run.path).table("heads")
    pd.testing.assert_frame_equal(table[expected.columns], expected)
    assert isinstance(table.index, pd.RangeIndex)


def test_xarray_refuses_a_table_without_axes(run):
    pd.DataFrame({"value": [1.0]}).to_parquet(run.path / "tables" / "heads.parquet")
    without_hashes(run.path)
    with pytest.raises(ValueError, match="'heads' has no columns that could be axes"):
        load(run.path).to_xarray("heads")


def test_reading_a_run_needs_neither_torch_nor_transformers(run):
    source = Path(module.__file__)
    code = f"""
import importlib.util, sys
sys.modules["torch"] = sys.modules["transformers"] = None       # any import of them raises
spec = importlib.util.spec_from_file_location("results", {str(source)!r})
results = importlib.util.module_from_spec(spec)
sys.modules["results"] = results
spec.loader.exec_module(results)
run = results.load({str(run.path)!r})
assert len(run.table("heads")) == 36 and run.to_xarray().sizes["head"] == 3
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_schema_is_read_without_a_row(run, monkeypatch):
    stored = load(run.path)
    expected = stored.arrow("heads").schema
    in_memory = Results({"heads": run.table("heads")})
    monkeypatch.setattr(pq, "read_table", None)
    assert in_memory.schema("heads").names == expected.names
    assert stored.schema("heads").names == expected.names
    assert stored.schema("heads").types == expected.types
    with pytest.raises(KeyError, match=r"no table 'haeds'.*did you mean 'heads'"):
        stored.schema("haeds")


def test_the_package_loads_a_run_without_torch(run):
    code = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None       # any import of them raises
import attnscope as asc
results = asc.load({str(run.path)!r})
assert len(results.table("heads")) == 36 and results.to_xarray().sizes["head"] == 3
assert not results.compare(results).empty
try:
    asc.fiedler_value
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = "attnscope.fiedler_value needs torch, which is not installed; attnscope.load does not\n"
    assert done.stdout == expected


def test_features_without_torch_are_those_with_it(llama, texts, tmp_path):
    """Kinds and bounds stand in the files: without them positions and constants would be features."""
    from attnscope.engine.run_study import run

    finished = run(sink_study(tmp_path / "runs", llama, texts, protocols="exact"), progress=False)
    expected = finished.features()
    assert {"value", "count"} <= set(expected.about["kind"])
    code = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None       # any import of them raises
import attnscope as asc
table = asc.load({str(finished.path)!r}).features()
print(table.about[["name", "kind", "low", "high"]].to_json(orient="records"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    columns = ["name", "kind", "low", "high"]
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    expected_rows = json.loads(expected.about[columns].to_json(orient="records"))
    assert [rows[row["name"]] for row in expected_rows] == expected_rows
    assert rows["sink_rate__l00h00"]["kind"] == "value", "the study stores a share, the metric a flag"
    # which numbers a mean over heads has not is said by metrics alone
    assert all(name.endswith("mean") for name in {*rows} - {row["name"] for row in expected_rows})


def test_a_run_that_was_stopped_is_read_from_its_units(tmp_path):
    rows = [pd.DataFrame({"sample": [k], "layer": [0], "head": [0], "entropy": [float(k)]}) for k in range(2)]
    for number, frame in enumerate(rows):
        unit = tmp_path / "units" / f"{number:06d}-u"
        file = Results({"heads": frame}).to_parquet(unit)[0]
        (unit / "reduced-sums.parquet").write_bytes(b"no table")
        file_facts = {"sha256": sha256(file.read_bytes()).hexdigest(), "rows": 1}
        (unit / "unit.json").write_text(json.dumps({"unit": "u", "files": {"heads": file_facts}}))
    (tmp_path / "units" / ".000002-u.tmp").mkdir()
    results = load(tmp_path)
    assert results.tables() == ["heads"]
    assert results.table("heads")["entropy"].tolist() == [0.0, 1.0]
    assert "of the 2 units that are stored" in unfinished(results)
    assert f"attnscope resume {tmp_path}" in unfinished(results)
    results.to_parquet(tmp_path / "tables")
    assert unfinished(load(tmp_path)) == ""
    shutil.rmtree(tmp_path / "tables")
    (unit / "unit.json").write_text("{}")
    with pytest.raises(ValueError, match=r"000001-u/heads\.parquet is not as it was written"):
        load(tmp_path).table("heads")


OF_KINDS = Table(
    "heads",
    ("model", "sample", "layer", "head"),
    (
        Column("share"),
        Column("place", kind="position"),
        Column("bars", kind="count"),
        Column("odds", kind="ratio"),
    ),
)


@pytest.fixture
def of_kinds():
    rows = Rows(OF_KINDS, "heads")
    rows.add(
        model="m", sample=[0, 0, 0, 1, 1, 1], layer=[0] * 6, head=[0, 1, 2] * 2,
        share=[0.1, 0.2, np.nan, 0.3, 0.4, 0.5], place=[0, 0, 63, 0, 0, 7], bars=[1, 2, 9, 4, 4, 4],
        odds=[1.0, 2.0, 1e44, 1.0, 2.0, 3.0],
    )  # fmt: skip
    return Results({"heads": rows.arrow()})


def test_kinds_come_from_the_stored_file(of_kinds):
    assert kinds_of(of_kinds, "heads") == {
        "share": "value",
        "place": "position",
        "bars": "count",
        "odds": "ratio",
    }


def test_a_table_of_statistics(of_kinds):
    summary = statistics(of_kinds, "heads", ["model", "layer"]).iloc[0]
    assert summary["share"] == pytest.approx((0.15 + 0.4) / 2)
    assert summary["place"] == 0
    assert summary["bars"] == 3  # 2 and 4
    assert summary["odds"] == 2
    assert list(statistics(of_kinds, "heads", ["layer"], "odds,share").columns) == ["layer", "odds", "share"]


def test_compare_names_the_statistic(of_kinds):
    comparison = of_kinds.compare(of_kinds).set_index("metric")
    assert dict(comparison["statistic"]) == {
        "share": "mean",
        "place": "most frequent",
        "bars": "median",
        "odds": "median",
    }
    assert comparison.loc["place", "here"] == 0
    assert np.isnan(comparison.loc["place", "mean_difference"])
    assert comparison["equal"].all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.sampled_from(["value", "count", "flag"]))
def test_groups_are_as_each_by_itself(values, kind):
    frame = pd.DataFrame({"layer": [0] * len(values) + [1], "x": [*values, 5.0]})
    grouped_values = grouped(frame, ["layer"], {"x": kind})["x"]
    assert grouped_values.tolist() == pytest.approx(
        [typical(np.array(values), kind), 5.0], rel=1e-9, abs=1e-9
    )


def test_what_has_no_finite_value_has_no_statistic():
    assert np.isnan(typical(np.array([np.nan, np.inf]), "value"))


def test_columns_that_do_not_fit_are_counted(of_kinds):
    frame = statistics(of_kinds, "heads", ["model", "layer"])
    text, hidden = narrow(frame, kinds_of(of_kinds, "heads"), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "place (most frequent)" not in text
    assert hidden == 3
    text, hidden = narrow(frame, kinds_of(of_kinds, "heads"), 400)
    assert hidden == 0
    assert "place (most frequent)" in text
    assert "odds (median)" in text


def test_saved_results_are_overwritten_when_asked_and_runs_never(tmp_path):
    first = Results({"heads": heads()}).save(tmp_path / "saved")
    with pytest.raises(FileExistsError, match=r"saved exists and is not empty; overwrite=True replaces"):
        Results({"other": heads()}).save(tmp_path / "saved")
    again = Results({"other": heads()[:1]}).save(tmp_path / "saved", overwrite=True)
    assert again.tables() == ["other"]
    # results are written over the very files that they are read from
    assert again.save(tmp_path / "saved", overwrite=True)["other"].equals(again["other"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]
    assert first.path == tmp_path / "saved"
    (tmp_path / "saved" / "units").mkdir()
    with pytest.raises(FileExistsError, match=r"save: .*saved holds 'units' and is not overwritten"):
        again.save(tmp_path / "saved", overwrite=True)


def test_a_save_that_is_killed_between_its_moves_names_where_results_are(tmp_path, monkeypatch):
    """The old results were under a hidden name that nothing spoke of or ever removed."""
    target, moved = tmp_path / "saved", []
    Results({"old": heads()}).save(target)

    def rename(place, to):
        if moved:
            raise KeyboardInterrupt
        moved.append(place.replace(to))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            Results({"new": heads()}).save(target, overwrite=True)
    with pytest.raises(
        FileNotFoundError, match=r"killed has left .*/\.saved\.new and .*/\.saved\.old: rename"
    ):
        load(target)
    assert (load(tmp_path / ".saved.old").tables(), load(tmp_path / ".saved.new").tables()) == (
        ["old"],
        ["new"],
    )
    with pytest.raises(FileExistsError, match=r"\.saved\.new is where saving begins; rename it to saved"):
        load(tmp_path / ".saved.new").save(target, overwrite=True)
    assert load(tmp_path / ".saved.old").save(target, overwrite=True).tables() == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_results_are_saved_where_a_link_leads_and_not_under_the_process(tmp_path, monkeypatch):
    target, link = tmp_path / "saved", tmp_path / "link"
    Results({"old": heads()}).save(target)
    link.symlink_to(target)
    Results({"new": heads()}).save(link, overwrite=True)
    assert link.is_symlink()
    assert load(target).tables() == ["new"]
    monkeypatch.chdir(target)
    with pytest.raises(FileExistsError, match="saved is replaced as a whole, and this process works in it"):
        Results({"other": heads()}).save(".", overwrite=True)
    assert load(".").tables() == ["new"]


def test_whole_numbers_stay_whole_in_every_file_though_some_are_missing(tmp_path):
    positions = pd.DataFrame({"head": [0, 1], "sink_position": pd.array([3, None], "Int64"), "count": [1, 2]})
    results = Results({"heads": positions})
    kinds = {"head": "int64", "sink_position": "Int64", "count": "int64"}
    (parquet,), (csv,) = results.to_parquet(tmp_path), results.to_csv(tmp_path)
    saved = results.save(tmp_path / "run")
    for frame in (results.table("heads"), saved.table("heads"), pd.read_parquet(parquet)):
        assert frame.dtypes.astype(str).to_dict() == kinds
    assert csv.read_text("utf-8").splitlines() == ["head,sink_position,count", "0,3,1", "1,,2"]
    for frame in (pd.read_csv(csv, dtype_backend="numpy_nullable"), pd.concat([saved["heads"], positions])):
        assert frame["sink_position"].dtype == "Int64"


def test_what_float32_rounds_correlates_with_nothing():
    """Norms of normalised states are one number; their last bits had a correlation of two runs."""
    generator = np.random.default_rng(0)
    first, second = heads(), heads()
    first["fiedler_value"] = np.float32(1) + generator.integers(0, 3, len(first)) * 2.0**-23
    second["fiedler_value"] = 2 * first["fiedler_value"]
    row = (
        Results({"heads": first}).compare(Results({"heads": second})).set_index("metric").loc["fiedler_value"]
    )
    assert np.isnan(row["correlation"])
    assert row["mean_difference"] == pytest.approx(1)
    assert summaries.ROUNDED == ROUNDED_FLOAT32


def test_groups_keep_missing_keys_and_the_order_of_the_models():
    rows = pd.DataFrame(
        {
            "model": ["b", "b", "b", "a"],
            "threshold": [0.5, np.nan, 0.1, np.nan],
            "share": [1.0, 2.0, 3.0, 4.0],
        }
    )
    table = grouped(rows, ["threshold", "model"], {"share": "value"})
    assert table["share"].tolist() == [3.0, 1.0, 2.0, 4.0]
    assert table["model"].tolist() == ["b", "b", "b", "a"]
    by_model = statistics(Results({"baselines": rows}), "baselines", ["model", "threshold"])
    assert by_model["share"].tolist() == [3.0, 1.0, 2.0, 4.0]


def test_named_labels_of_rows_are_columns_and_are_stored(tmp_path):
    """An index, as `groupby` makes it, was lost with the keys in it."""
    means = heads().groupby(["layer", "head"])[["fiedler_value"]].mean()
    results = Results({"means": means, "chosen": heads().query("layer == 1")})
    assert results["means"].columns.tolist() == ["layer", "head", "fiedler_value"]
    assert results.key_columns("means") == ["layer", "head"]
    pd.testing.assert_frame_equal(results.save(tmp_path / "run")["means"], means.reset_index())
    assert load(tmp_path / "run")["chosen"].columns.tolist() == heads().columns.tolist()


@pytest.mark.parametrize(
    ("tables", "facts", "message"),
    [
        ({"mixed": pd.DataFrame({"x": ["a", 1]})}, {}, "table 'mixed' cannot be stored: .*column x"),
        ({}, {"study": {"seed": np.float64(1)}}, "save: the study and the provenance must be plain data"),
        ({}, {"provenance": {"seed": {1, 2}}}, "save: the study and the provenance must be plain data"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path, tables, facts, message):
    """The tables before a fault stayed, and were read as the whole."""
    results = Results({"heads": heads(), **tables}, **facts)
    with pytest.raises(ResultsError, match=message):
        results.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    with pytest.raises(ResultsError, match=message):
        results.save(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    Results({"heads": heads()}).save(tmp_path / "run")


def test_a_save_that_is_killed_shows_no_table(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(module, "remove", lambda path: None)
    monkeypatch.setattr(Results, "_rows", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Results({"heads": heads()}).save(folder)
    with pytest.raises(FileNotFoundError, match="holds no tables"):
        load(folder)
    monkeypatch.undo()
    assert Results({"heads": heads()}).save(folder).tables() == ["heads"]
    assert sorted(file.name for file in folder.iterdir()) == ["provenance.json", "study.yaml", "tables"]


def test_categories_are_read_as_their_values(tmp_path):
    """Files of other programs hold dictionaries of names and of numbers."""
    plain = heads()
    categories = plain.astype({"model": "category", "head": "category", "sink_token": "category"})
    run = Results({"heads": categories}).save(tmp_path / "run")
    pd.testing.assert_frame_equal(run["heads"], plain)
    for first, second in ((Results({"heads": categories}), Results({"heads": plain})), (run, run)):
        assert first.compare(second)["equal"].all()
        assert second.compare(first)["rows"].tolist() == [len(plain)] * 2


def test_lists_and_records_of_any_kind_are_json_in_csv(tmp_path):
    cells = [[[1.5, 2.0], [3.0]], {"a": [1], "b": None}, (True, "ä"), np.arange(2)]
    table = pd.DataFrame({"cell": pd.Series(cells, dtype=object), "name": ["x"] * 4})
    (file,) = Results({"odd": table}).to_csv(tmp_path)
    read = [json.loads(cell) for cell in pd.read_csv(file)["cell"]]
    assert read == [[[1.5, 2.0], [3.0]], {"a": [1], "b": None}, [True, "ä"], [0, 1]]


def test_infinite_measurements_are_left_out_of_means_as_in_the_report():
    rows = heads(steps=(0,), samples=3, layers=1, n_heads=0).assign(death=[1.0, np.inf, 2.0])
    rows["fiedler_value"] = [1.0, np.inf, 3.0]
    results = Results({"heads": rows})
    table = statistics(results, "heads", ["model"])
    assert table["fiedler_value"].tolist() == results.compare(results)["here"].tolist()[:1] == [2.0]
    assert table["death"].tolist() == [np.inf]


def test_flags_of_which_some_are_missing_are_compared():
    """They are no column of truth values for pandas, and a run could not be held against itself."""
    rows = heads(steps=(0,), samples=1).assign(causal=np.array([True, None, False] * 2, dtype=object))
    row = Results({"heads": rows}).compare(Results({"heads": rows})).set_index("metric").loc["causal"]
    assert (row["finite"], row["here"], row["equal"]) == (4, 0.5, True)


@pytest.mark.parametrize("by", [["model"], ["model", "metric"]])
def test_rows_of_several_quantities_have_no_mean(by):
    tall = pd.DataFrame(
        {
            "model": "m",
            "metric": ["entropy", "entropy", "sink_share"],
            "place": [0, 1, 0],
            "value": [1, 3, 0.5],
        }
    )
    tall.attrs["keys"] = ["model", "metric", "place"]
    means = statistics(Results({"tall": tall}), "tall", by)
    assert means[["metric", "value"]].values.tolist() == [["entropy", 2.0], ["sink_share", 0.5]]


@pytest.mark.parametrize(("kind", "largest"), [("int64", 2**62), ("Int64", 2**62), ("uint64", 2**63)])
def test_whole_numbers_that_floats_round_are_compared_exactly(kind, largest):
    """The difference of 2^62 and 2^62 + 1 was 0, and the two were equal."""
    rows = pd.DataFrame({"model": "m", "sample": [0, 1, 2], "layer": 0})
    rows["count"] = pd.Series([5, largest, largest + 3], dtype=kind)
    other = rows.assign(count=pd.Series([5, largest + 1, largest], dtype=kind))
    row = Results({"heads": rows}).compare(Results({"heads": other})).set_index("metric").loc["count"]
    assert (row["equal"], row["max_difference"]) == (False, 3.0)
    assert row["mean_difference"] == pytest.approx(-2 / 3)
    assert Results({"heads": rows}).compare(Results({"heads": rows}))["equal"].all()


@pytest.mark.parametrize("stored", [False, True])
def test_columns_are_listed_by_anything_that_lists_names(tmp_path, stored):
    """An iterator was at its end when the columns were read, and a single name was taken for letters."""
    places = {"sample": [0, 1], "layer": [0, 0], "head": [0, 0]}
    results = Results({"heads": pd.DataFrame({**places, "a": [1.0, 2.0], "ab": [3.0, 4.0]})})
    results = results.save(tmp_path / "run") if stored else results
    for lister in (list, iter, np.array, dict.fromkeys):
        assert list(results.table("heads", lister(["ab", "a"]))) == ["ab", "a"]
        assert results.arrow("heads", lister(["ab", "a"])).column_names == ["ab", "a"]
        assert list(results.to_xarray(metrics=lister(["ab", "a"]))) == ["ab", "a"]
        assert list(results.features(lister(["ab", "a"])).X) == ["a__l00h00", "ab__l00h00"]
        assert list(of_distinct_texts(results).table("heads", lister(["ab", "a"]))) == ["ab", "a"]
    assert list(results.table("heads", "ab")) == ["ab"]
    assert list(results.to_xarray(metrics="ab")) == ["ab"]
    assert list(results.features("ab").X) == ["ab__l00h00"]
    with pytest.raises(TypeError, match="table: columns must be a list of names, got 5"):
        results.table("heads", 5)
    with pytest.raises(TypeError, match=r"to_xarray: protocol must be the name of one, got \['exact'\]"):
        results.to_xarray(protocol=["exact"])
