# SPDX-License-Identifier: MIT
"""Selections of rows by the values of their columns agree with conditions of pandas."""

import numpy as np
import pandas as pd
import pytest

from attnscope.errors import NotDrawable
from attnscope.plots.selection import final, last_step
from attnscope.report.page import _checkpoints, _facts
from attnscope.results.results import Results
from attnscope.study_api.selection import where, without

TABLE = pd.DataFrame(
    {
        "model": ["a", "a", "b", "b", "b"],
        "step": [0, 5, 1, 2, 2],
        "design": ["within", "swap", "within", None, "swap"],
        "layer": [0, 1, 0, 1, 2],
        "value": [0.5, np.nan, 2.0, 3.0, -1.0],
    }
)


def rows(table):
    return list(table.index)


def test_where_takes_the_rows_with_every_value():
    assert rows(where(TABLE, model="b", layer=1)) == [3]
    assert rows(where(TABLE, model="b", layer=7)) == []
    assert rows(where(TABLE)) == [0, 1, 2, 3, 4]


def test_a_missing_entry_has_no_value():
    assert rows(where(TABLE, design="within")) == [0, 2]
    assert rows(without(TABLE, design="within")) == [1, 3, 4]


@pytest.mark.parametrize("values", [(0, 2), [0, 2], {0, 2}, {0: "", 2: ""}, np.array([0, 2]), range(0, 3, 2)])
def test_a_collection_means_any_of_its_values(values):
    assert rows(where(TABLE, layer=values)) == [0, 2, 4]
    assert rows(without(TABLE, layer=values)) == [1, 3]


def test_text_is_a_single_value():
    assert rows(where(TABLE, model="ab")) == []


def test_without_drops_the_rows_with_any_value():
    assert rows(without(TABLE, model="a", layer=2)) == [2, 3]


@pytest.mark.parametrize("dtype", ["string", "category", object])
def test_selections_of_every_kind_of_text_column(dtype):
    table = TABLE.astype({"design": dtype})
    assert rows(where(table, design="swap")) == [1, 4]
    assert rows(without(table, design="swap")) == [0, 2, 3]


@pytest.mark.parametrize("dtype", ["Int64", "int32", "float64"])
def test_selections_of_every_kind_of_number_column(dtype):
    assert rows(where(TABLE.astype({"layer": dtype}), layer=1)) == [1, 3]


def test_the_table_is_left_as_it_is():
    before = TABLE.copy()
    where(TABLE, model="a")["layer"].to_list()
    pd.testing.assert_frame_equal(TABLE, before)


@pytest.mark.parametrize("select", [where, without])
def test_a_column_that_is_not_there_is_an_error(select):
    with pytest.raises(KeyError, match="desing"):
        select(TABLE, desing="swap")


def test_final_takes_each_model_at_its_last_step():
    results = Results({"shifts": TABLE})
    assert final(results, "shifts")["value"].to_numpy() == pytest.approx([np.nan, 3.0, -1.0], nan_ok=True)
    assert final(results, "shifts", design="swap", model="b")["value"].tolist() == [-1.0]


def test_final_names_what_is_missing():
    results = Results({"shifts": TABLE})
    with pytest.raises(NotDrawable, match="the shifts table has no difference"):
        final(results, "shifts", "difference")
    with pytest.raises(NotDrawable, match="the shifts table has no protocol"):
        final(results, "shifts", protocol="exact")
    with pytest.raises(NotDrawable, match="no table 'words'"):
        final(results, "words")


def test_of_revisions_without_a_step_the_last_is_the_last_checkpoint():
    """Branches are different weights, whose mean is of no model."""
    steps = {"main": -1, "alpha": -1, "step2": 2, "step10": 10}
    table = pd.DataFrame({"model": "m", "revision": [*steps], "step": [*steps.values()], "value": range(4)})
    assert last_step(table)["value"].tolist() == [3]
    assert last_step(table[table["step"] < 0])["value"].tolist() == [0]
    others = table.assign(model="other", revision="")
    models = pd.concat([table[table["step"] < 0], others[others["step"] < 0]])
    assert last_step(models)[["model", "value"]].to_numpy().tolist() == [["m", 0], ["other", 0], ["other", 1]]
    assert last_step(table.drop(columns="revision"))["value"].tolist() == [3]


def test_the_report_counts_the_heads_of_every_layer():
    places = [(layer, head) for layer, heads in enumerate((4, 2, 4)) for head in range(heads)]
    heads = pd.DataFrame(places, columns=["layer", "head"]).assign(model="m")
    assert str(_facts({}, heads)["heads"]) == "3 layers of 2 to 4 heads; 10 maps measured"
    assert str(_facts({}, heads[heads["head"] < 2])["heads"]) == "3 layers of 2 heads; 6 maps measured"


@pytest.mark.parametrize(
    ("checkpoints", "words"),
    [
        ([("a", "", -1), ("b", "", -1)], ""),
        ([("a", "x", 0), ("a", "y", 8)], "2: steps 0, 8"),
        ([("a", "x", 0), ("a", "y", -1), ("b", "", -1)], "3: steps 0 and 2 of no step"),
        ([("a", "x", 0), ("b", "", -1)], "2: steps 0 and one of no step"),
        ([("a", "x", -1), ("a", "y", -1)], "2: 2 of no step; of several the last by name is described"),
        ([(model, f"step{step}", step) for model in "ab" for step in (0, 8)], "4: steps 0, 8"),
    ],
)
def test_the_report_counts_checkpoints_of_no_step(checkpoints, words):
    samples = pd.DataFrame(checkpoints * 2, columns=["model", "revision", "step"])
    assert _checkpoints(samples) == words
