# SPDX-License-Identifier: MIT
"""Declared tables: types, nulls, the tables of head means and of controls, and what is refused."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from attnscope.engine.results import Results
from attnscope.engine.tables import Column, Rows, Table, control_rows

HEADS = Table(
    "heads",
    ("sample", "layer", "head"),
    (
        *(Column("share", label="share"), Column("ratio", kind="ratio"), Column("bars", kind="count")),
        *(Column("place", kind="position"), Column("sharp", kind="flag"), Column("token", "string", "text")),
        Column("signal", "list<float64>"),
    ),
)


def rows(table=HEADS, **columns):
    made = Rows(table, "toy")
    made.add(**columns)
    return made


def test_what_has_no_value_is_null_and_types_stay():
    table = rows(
        sample=0, layer=0, head=[1, 0], share=[math.nan, 1.5], ratio=[math.inf, 2.0],
        bars=np.ma.MaskedArray([7, 3], [True, False]), place=pd.Series([None, 4], dtype="Int64"),
        token=[None, "a"], signal=[[1.0], [2.0, 3.0]],
    ).arrow()  # fmt: skip
    assert table.to_pydict() == {
        "sample": [0, 0], "layer": [0, 0], "head": [0, 1], "share": [1.5, None], "ratio": [2.0, math.inf],
        "bars": [3, None], "place": [4, None], "sharp": [None, None], "token": ["a", None],
        "signal": [[2.0, 3.0], [1.0]],
    }  # fmt: skip
    assert [table.schema.field(name).type for name in ("bars", "place", "sharp", "token")] == [
        pa.int64(), pa.int64(), pa.bool_(), pa.string(),
    ]  # fmt: skip


def test_rows_of_tables_without_declared_columns_lack_values_too():
    made = Rows(Table("any", ("sample",), None), "toy")
    made.add(sample=0, count=3, name="a", flag=True)
    made.add(sample=1, share=0.5)
    assert made.arrow().to_pylist()[1] == {
        "sample": 1, "count": None, "name": None, "flag": None, "share": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"head": 0, "shares": 1.0}, "declares no column 'shares'; did you mean 'share'"),
        ({"share": 1.0}, "the key 'head' is missing"),
        ({"head": [0, 1], "share": [1.0, 2.0, 3.0]}, r"columns of different lengths: .*\(3,\)"),
    ],
)
def test_what_a_table_does_not_declare_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        rows(sample=0, layer=0, **columns)


def test_a_key_is_never_null():
    with pytest.raises(ValueError, match="a key is never null"):
        rows(sample=0, layer=0, head=np.ma.MaskedArray([0, 1], [False, True])).arrow()


def test_head_means_are_the_same_columns_without_a_head():
    means = HEADS.head_means()
    assert (means.name, means.keys, means.columns) == ("head_means", ("sample", "layer"), HEADS.columns)
    graphs = Table("graphs", ("sample", "head", "threshold")).head_means()
    assert (graphs.name, graphs.keys) == ("head_mean_graphs", ("sample", "threshold"))


def test_controls_of_heads_and_of_their_means_stand_together():
    heads = rows(
        sample=[0, 0, 1], layer=[0, 1, 0], head=0, share=[1.0, 2.0, math.nan], ratio=[math.inf, 3.0, 1.0],
        bars=[1, 2, 3], place=5, sharp=[True, False, True], token="a",
    )  # fmt: skip
    means = rows(HEADS.head_means(), sample=0, layer=[0, 1], share=[4.0, 6.0])
    made = control_rows([(heads, "shuffled"), (means, "shuffled"), (means, "random")], 2)
    assert made.table.name == "heads_variants"
    assert made.table.keys == ("sample", "variant", "seed", "scope")
    assert made.arrow().to_pylist() == [
        {"sample": 0, "variant": "random", "seed": 2, "scope": "head_mean", "share": 5.0, "ratio": None,
         "bars": None, "sharp": None},
        {"sample": 0, "variant": "shuffled", "seed": 2, "scope": "head_mean", "share": 5.0, "ratio": None,
         "bars": None, "sharp": None},
        # what is infinite has no part in a mean; a position and a text have none
        {"sample": 0, "variant": "shuffled", "seed": 2, "scope": "heads", "share": 1.5, "ratio": 3.0,
         "bars": 1.5, "sharp": 0.5},
        {"sample": 1, "variant": "shuffled", "seed": 2, "scope": "heads", "share": None, "ratio": 1.0,
         "bars": 3.0, "sharp": 1.0},
    ]  # fmt: skip
    listed = Results({"heads_variants": made.arrow()}).variants()
    assert len(listed) == 2 + 4 + 3
    one = listed[(listed["scope"] == "heads") & (listed["metric"] == "bars")]
    assert one["value"].tolist() == [1.5, 3.0]
    assert set(listed["table"]) == {"heads"}
    assert Results({"heads_variants": made.arrow()}).variants("layers").empty


def test_whole_rows_of_controls_are_kept_where_a_table_says_so():
    table = Table("tokens", ("sample", "position"), (Column("log_p"),), variants="full")
    made = control_rows([(rows(table, sample=0, position=[0, 1], log_p=[1.0, 3.0]), "random_weights")], 1)
    assert made.table.keys == ("sample", "position", "variant", "seed")
    assert made.arrow()["log_p"].to_pylist() == [1.0, 3.0]
    # which are no averages
    assert Results({"tokens_variants": made.arrow()}).variants().empty
