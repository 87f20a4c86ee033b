# SPDX-License-Identifier: MIT
"""Which statistic stands for a column: a position has no mean, a count and a ratio have a median."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.commands.stored import narrow, statistics
from attnscope.engine.reading import grouped, kinds_of, typical
from attnscope.engine.results import Results
from attnscope.engine.tables import Column, Rows, Table

KEYS = ("model", "sample", "layer", "head")
HEADS = Table(
    "heads",
    KEYS,
    (
        Column("share"),
        Column("place", kind="position"),
        Column("bars", kind="count"),
        Column("odds", kind="ratio"),
    ),
)


@pytest.fixture
def results():
    rows = Rows(HEADS, "heads")
    rows.add(
        model="m", sample=[0, 0, 0, 1, 1, 1], layer=[0] * 6, head=[0, 1, 2] * 2,
        share=[0.1, 0.2, np.nan, 0.3, 0.4, 0.5], place=[0, 0, 63, 0, 0, 7], bars=[1, 2, 9, 4, 4, 4],
        odds=[1.0, 2.0, 1e44, 1.0, 2.0, 3.0],
    )  # fmt: skip
    return Results({"heads": rows.arrow()})


def test_kinds_come_from_the_stored_file(results):
    assert kinds_of(results, "heads") == {
        "share": "value", "place": "position", "bars": "count", "odds": "ratio",
    }  # fmt: skip


def test_a_table_of_statistics(results):
    found = statistics(results, "heads", ["model", "layer"]).iloc[0]
    assert found["share"] == pytest.approx((0.15 + 0.4) / 2)
    assert found["place"] == 0
    assert found["bars"] == 3  # 2 and 4
    assert found["odds"] == 2
    assert list(statistics(results, "heads", ["layer"], "odds,share").columns) == ["layer", "odds", "share"]


def test_compare_names_the_statistic(results):
    found = results.compare(results).set_index("metric")
    assert dict(found["statistic"]) == {
        "share": "mean", "place": "most frequent", "bars": "median", "odds": "median",
    }  # fmt: skip
    assert found.loc["place", "here"] == 0
    assert np.isnan(found.loc["place", "mean_difference"])
    assert found["equal"].all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.sampled_from(["value", "count", "flag"]))
def test_groups_are_as_each_by_itself(values, kind):
    frame = pd.DataFrame({"layer": [0] * len(values) + [1], "x": [*values, 5.0]})
    found = grouped(frame, ["layer"], {"x": kind})["x"]
    assert found.tolist() == pytest.approx([typical(np.array(values), kind), 5.0], rel=1e-9, abs=1e-9)


def test_what_has_no_finite_value_has_no_statistic():
    assert np.isnan(typical(np.array([np.nan, np.inf]), "value"))


def test_columns_that_do_not_fit_are_counted(results):
    frame = statistics(results, "heads", ["model", "layer"])
    text, hidden = narrow(frame, kinds_of(results, "heads"), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "place (most frequent)" not in text
    assert hidden == 3
    text, hidden = narrow(frame, kinds_of(results, "heads"), 400)
    assert hidden == 0
    assert "place (most frequent)" in text
    assert "odds (median)" in text
