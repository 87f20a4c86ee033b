# SPDX-License-Identifier: MIT
"""The sink study's numbers against the stored tables of small runs."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))

import runs

from attnscope import _isa

#: Columns of the stored `graphs` -> what they are called.
GRAPHS = {"fiedler_value": "graph_fiedler_value", "laplacian_gap": "graph_laplacian_gap"}
CHECKPOINT = ["model", "revision", "step"]


@pytest.fixture(scope="module", params=["sinks-tiny", "sinks-stories"])
def both(request, tmp_path_factory):
    """The stored tables, the same run, and the tolerance: of other instructions sums have another order."""
    if request.param.endswith("stories") and not runs.STORIES.is_dir():
        pytest.skip(f"there is no {runs.STORIES}")
    stored, about = runs.read(REFERENCE / f"{request.param}.parquet")
    made = runs.made(request.param, tmp_path_factory.mktemp("reference"))
    same = about["instructions"] == _isa.live()
    return stored, made, {"rtol": 1e-12, "atol": 1e-13} if same else {"rtol": 1e-4, "atol": 1e-5}


def without_sentinels(table, keys):
    """Null where the stored tables say "no value" by −1 or ""."""
    rest = table.drop(columns=keys)
    whole = list(rest.select_dtypes("integer"))
    texts = list(rest.select_dtypes("string"))
    table = table.astype(dict.fromkeys(whole, float))
    table[whole] = table[whole].where(table[whole] >= 0)
    table[texts] = table[texts].replace("", np.nan)
    return table


def assert_same(stored, made, keys, tolerance, skip=()):
    """Every stored number stands in the table that was made; where the stored one has none, none does."""
    stored, made = (one.sort_values(keys).reset_index(drop=True) for one in (stored, made))
    assert len(stored) == len(made)
    for name in stored.columns:
        if name in skip:
            continue
        here, there = made[name], stored[name]
        if pd.api.types.is_numeric_dtype(there):
            here, there = (column.to_numpy(float, na_value=np.nan) for column in (here, there))
            np.testing.assert_allclose(here, there, **tolerance, err_msg=name)
        elif name == "attention":
            for mine, theirs in zip(here, there, strict=True):
                np.testing.assert_allclose(mine, theirs, **tolerance)
        else:
            assert here.fillna("").tolist() == there.fillna("").tolist(), name


@pytest.mark.parametrize("table", ["heads", "graphs", "bars"])
def test_heads_and_their_means(both, table):
    stored, made, tolerance = both
    keys = made.keys(table)
    old = without_sentinels(stored[table], keys)
    # of the exact protocol no graph is called degenerate: a stored False meant "not measured"
    skip = ("degenerate",)
    if table == "graphs":
        old = old.rename(columns=GRAPHS)
        theirs = made.table(table).query("protocol == 'ruscio2025'")["degenerate"].astype(bool)
        assert theirs.tolist() == old.query("protocol == 'ruscio2025' and head >= 0")["degenerate"].tolist()
    assert_same(old[old["head"] >= 0], made.table(table), keys, tolerance, skip)
    means = old[old["head"] < 0].drop(columns="head")
    name = "head_means" if table == "heads" else f"head_mean_{table}"
    assert_same(means, made.table(name), [key for key in keys if key != "head"], tolerance, skip)


@pytest.mark.parametrize(
    "table",
    [
        *("layers", "examples", "fisher", "ablation", "frames", "frame_evidence", "specialization"),
        *("layer_tests", "removal_tests", "null_tests", "graph_depth"),
    ],
)
def test_other_tables(both, table):
    stored, made, tolerance = both
    keys = made.keys(table)
    skip = ()
    if table in ("layer_tests", "null_tests"):
        # a p-value of rounding errors alone is no number
        tolerance = {"rtol": 1e-6, "atol": 1e-9}
    assert_same(without_sentinels(stored[table], keys), made.table(table), keys, tolerance, skip)


def test_controls_are_averages_as_they_were(both):
    stored, made, tolerance = both
    old = stored["nulls"].rename(columns={"kind": "variant"})
    old = named(old[old["metric"] != "degenerate"])
    new = made.variants()
    new = new[new["metric"] != "degenerate"].drop(columns=["seed", "table"])
    keys = [*CHECKPOINT, "sample", "variant", "protocol", "scope", "metric", "threshold"]
    assert_same(old, new, keys, tolerance)


def test_baselines(both):
    stored, made, tolerance = both
    old = named(stored["baselines"].query("metric != 'degenerate'"))
    new = made.table("baselines").query("metric != 'degenerate'")
    keys = ["n_tokens", "metric", "kind", "threshold", "protocol", "scope", *CHECKPOINT]
    assert_same(old, new, keys, tolerance)


def named(tall):
    """Rows of a metric each, metrics of graphs as they are called."""
    of_graphs = tall["threshold"].notna()
    return tall.assign(metric=tall["metric"].where(~of_graphs, tall["metric"].replace(GRAPHS)))
