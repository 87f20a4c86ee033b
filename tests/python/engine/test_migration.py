# SPDX-License-Identifier: MIT
"""Runs that were stored with schema 1, read as if they were written today."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attnscope
from attnscope.engine import migration

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference"))
import runs

from attnscope.engine.reading import uniform_value
from attnscope.plots import draw_all
from attnscope.plots.selection import measured_heads

#: Numbers of thresholded graphs that schema 1 called as those of the map.
GRAPHS = {"fiedler_value": "graph_fiedler_value", "laplacian_gap": "graph_laplacian_gap"}
KEYS = ["model", "revision", "step", "sample", "layer", "head", "protocol"]
#: Figures that need single heads, head means, controls or tables made of them.
FIGURES = {
    "wavelets-stories": ("power_spectra", "band_shares", "scalograms", "uncertainty", "scale_sensitivity"),
    "sinks-stories": ("protocols", "metric_maps", "depth", "thresholds", "alignment", "sink_maps"),
}


def stored(name, home):
    """A run folder of schema 1 from a stored run, and its tables as they stand there."""
    tables, _ = runs.stored(runs.HERE / f"{name}.parquet")
    return runs.older(name, home), {table: rows.to_pandas() for table, rows in tables.items()}


@pytest.fixture(scope="module", params=["sinks-stories", "wavelets-stories"])
def both(request, tmp_path_factory):
    return stored(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def sinks(tmp_path_factory):
    return stored("sinks-stories", tmp_path_factory.mktemp("sinks"))


def test_head_means_are_a_table_of_their_own(both):
    run, old = both
    for name, means in (("heads", "head_means"), ("scale_sensitivity", "head_mean_scale_sensitivity")):
        if name not in old:
            continue
        before, heads, mean = old[name], run.table(name), run.table(means)
        assert (heads["head"] >= 0).all()
        assert "head" not in mean
        assert len(heads) == (before["head"] >= 0).sum()
        assert len(mean) == (before["head"] == -1).sum() > 0
        assert run.keys(means) == [key for key in run.keys(name) if key != "head"]
        column = before.select_dtypes("float").columns[-1]
        np.testing.assert_array_equal(mean[column], before.loc[before["head"] == -1, column])
    assert run.keys("heads") == KEYS
    assert "head_mean_signals" not in run.tables()
    assert f"head_means {len(run.table('head_means')):,}" in repr(run)


def test_controls_are_columns_and_every_number_is_there(both):
    run, old = both
    before = old["nulls"]
    graphs = before["threshold"].notna()
    before["metric"] = before["metric"].mask(graphs, before["metric"].replace(GRAPHS))
    assert "nulls" not in run.tables()
    assert {"heads_variants"} <= set(run.tables())
    assert "head_mean" in set(run.table("heads_variants")["scope"]) or "sink_share" not in old["heads"]
    rows = run.variants()
    keys = ["model", "revision", "step", "sample", "protocol", "scope", "metric", "threshold"]
    same = before.merge(
        rows.rename(columns={"variant": "kind"}), on=[*keys, "kind"], suffixes=("", "_now"), validate="1:1"
    )
    assert len(same) == len(before) == len(rows)
    np.testing.assert_array_equal(same["value"], same["value_now"])
    assert (rows.loc[rows["threshold"].notna(), "table"] == "graphs").all()
    assert (rows.loc[rows["scope"] == "layers", "table"] == "layers").all()


def test_uniform_attention_names_the_keys_that_it_is_among(both):
    run, old = both
    before, found = old["baselines"], run.table("baselines")
    uniform = before["kind"].str.startswith("uniform_")
    assert set(found.loc[uniform, "kind"]) == {"uniform"}
    assert (found.loc[uniform, "support"] == before.loc[uniform, "kind"].str.removeprefix("uniform_")).all()
    assert (found.loc[~uniform, "kind"] == before.loc[~uniform, "kind"]).all()
    assert {"kind", "support"} <= set(run.keys("baselines"))


def test_the_first_runs_of_schema_2_keep_their_uniform_attention(sinks, tmp_path):
    """Their tables of maps name no support, and their baselines name it in the kind."""
    run, _ = sinks
    again = run.save(tmp_path / "again")
    file = tmp_path / "again" / "tables" / "baselines.parquet"
    table = pq.read_table(file)
    frame = table.to_pandas()
    uniform = frame["kind"] == "uniform"
    frame["kind"] = frame["kind"].mask(uniform, "uniform_" + frame["support"])
    old = pa.Table.from_pandas(frame.drop(columns="support"), preserve_index=False)
    about = {"name": "baselines", "version": 1, "keys": ["n_tokens", "metric", "kind", "threshold"]}
    metadata = {"attnscope_schema": "2", "attnscope_table": json.dumps(about)}
    pq.write_table(old.replace_schema_metadata(metadata), file)
    (again.path / "provenance.json").unlink()  # those runs had no hashes of tables
    found = attnscope.load(again.path)
    assert found.keys("baselines") == ["n_tokens", "metric", "kind", "support", "threshold"]
    columns = ["n_tokens", "metric", "kind", "support", "value"]
    pd.testing.assert_frame_equal(found.table("baselines", columns), run.table("baselines", columns))
    heads = measured_heads(found)
    level = uniform_value(heads, found.table("baselines"), "entropy")
    assert level == uniform_value(measured_heads(run), run.table("baselines"), "entropy") > 0


def test_what_has_no_value_is_null(sinks):
    run, old = sinks
    heads, before = run.table("heads"), old["heads"][old["heads"]["head"] >= 0].reset_index(drop=True)
    for name in ("sink_position", "mp_outliers", "strongest_key"):
        assert heads[name].dtype == "Int64" or (before[name] >= 0).all()
        np.testing.assert_array_equal(heads[name].isna(), before[name] == -1)
    assert heads["mp_outliers"].isna().any()
    assert not heads["mp_outliers"].isna().all()
    graphs, before = run.table("graphs"), old["graphs"]
    assert graphs["betti_1"].isna().any()
    assert (before["betti_1"] == -1).any()
    # a flag that one protocol has and the other lacks
    for flag in ("effective", "degenerate"):
        true = before.groupby("protocol")[flag].any()
        if true.any():
            assert set(graphs.loc[graphs[flag].isna(), "protocol"]) == set(true.index[~true])
    assert (run.table("heads")["step"] == -1).all()
    assert (run.table("samples")["step"] == -1).all()


def test_an_older_run_is_compared_and_taken_as_arrays(sinks, tmp_path):
    run, _ = sinks
    again = run.save(tmp_path / "again")
    assert again.tables() == run.tables()
    assert all(again.keys(name) == run.keys(name) for name in run.tables())
    for name in ("heads", "head_means", "graphs", "head_mean_graphs", "layers"):
        assert again.compare(run, name)["equal"].all(), name
    cube = run.to_xarray("head_means", metrics=["sink_share"])
    assert set(cube.sizes) == {"model", "revision", "sample", "layer"}
    assert int(run.to_xarray().sizes["head"]) == run.table("heads")["head"].nunique()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wavelets-stories", "sinks-stories"])
def test_an_older_run_is_drawn_and_reported(tmp_path, name):
    (tmp_path / "run").mkdir()
    run = runs.older(name, tmp_path / "run")
    left_out = []
    drawn = draw_all(run, left_out=left_out)
    assert [one for one in left_out if one.failed] == []
    assert {*FIGURES[name]} <= set(drawn), left_out
    assert "data:image" in run.report(tmp_path / "report.html").read_text("utf-8")


def test_names_are_found_by_a_column_or_two(sinks, monkeypatch):
    run, _ = sinks
    expected, read, asked = run.tables(), pq.read_table, []

    def watched(file, columns=None):
        asked.append(columns)
        return read(file, columns=columns)

    monkeypatch.setattr(pq, "read_table", watched)
    migration._names_in.cache_clear()
    assert run.tables() == expected
    assert {"heads_variants", "graphs_variants", "layers_variants", "head_mean_graphs"} <= set(expected)
    assert asked
    assert all(columns in (["head"], ["scope", "threshold"]) for columns in asked)


def test_a_column_under_the_name_of_another_quantity_is_read_under_its_own():
    old = pa.table(
        {"sample": [0], "entropy": [1.5]}, metadata={"attnscope_schema": str(migration.SCHEMA_VERSION)}
    )
    assert not migration.is_present("words", old.schema)
    found = migration.migrated("words", old, 2)["words"]
    assert found.to_pydict() == {"sample": [0], "prediction_entropy": [1.5]}
    assert migration.is_present("words", found.schema)
    assert migration.is_present("heads", old.schema)


def test_what_runs_of_this_schema_wrote_for_none_is_null_too(tmp_path):
    """And what belongs to all layers from 1 on stands at the first of them; texts of a source stay."""
    fields = [
        *(("scope", "", pa.string()), ("layer", "", pa.int64()), ("mode", "text", pa.string())),
        *(("reason", "text", pa.string()), ("partner", "position", pa.int64()), ("answer", "", pa.string())),
    ]
    schema = pa.schema([pa.field(name, kind, metadata={"kind": k}) for name, k, kind in fields])
    about = {"name": "removed", "version": 1, "keys": ["scope", "layer", "mode"]}
    schema = schema.with_metadata({"attnscope_schema": "2", "attnscope_table": json.dumps(about)})
    columns = [["from_1", "layer"], [-1, 0], ["", "mid"], ["", "short"], [-1, 4], ["", "yes"]]
    (tmp_path / "tables").mkdir()
    table = pa.Table.from_arrays([pa.array(one) for one in columns], schema=schema)
    pq.write_table(table, tmp_path / "tables" / "removed.parquet")
    found = attnscope.load(tmp_path)
    assert found.arrow("removed").to_pydict() == {
        "scope": ["from_1", "layer"], "layer": [1, 0], "mode": ["", "mid"], "reason": [None, "short"],
        "partner": [None, 4], "answer": ["", "yes"],
    }  # fmt: skip
    assert found.table("removed", ["reason"])["reason"].isna().tolist() == [True, False]
