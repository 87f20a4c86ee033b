# SPDX-License-Identifier: MIT
"""Selections of rows by the values of their columns agree with conditions of pandas."""

import numpy as np
import pandas as pd
import pytest

from attnscope.errors import NotDrawable
from attnscope.plots.selection import final
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
