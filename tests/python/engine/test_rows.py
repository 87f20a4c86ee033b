# SPDX-License-Identifier: MIT
"""Rows as objects have the values of their table, in declared types, and name the column that is missing."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from attnscope.errors import MissingError
from attnscope.study_api.claims import ClaimRow
from attnscope.study_api.rows import first_as, rows_as


@dataclass(frozen=True)
class Measured:
    model: str
    layer: int
    value: float
    holds: bool
    note: str = "none"


TABLE = pd.DataFrame(
    {
        "value": [0.5, None, np.inf],
        "model": ["a", None, "ünï"],
        "layer": np.array([3, -1, 2], np.int32),
        "holds": [True, False, True],
        "other": 1,
    }
)


def test_rows_have_the_values_of_the_table_in_order():
    first, second, third = rows_as(Measured, TABLE)
    assert first == Measured("a", 3, 0.5, True)
    assert (second.model, second.layer, second.holds) == ("", -1, False)
    assert math.isnan(second.value)
    assert third.value == math.inf
    assert [type(cell) for cell in vars(first).values()] == [str, int, float, bool, str]


@pytest.mark.parametrize("dtypes", [{}, {"model": "string", "layer": "Int64", "value": "Float64"}])
def test_missing_cells_of_every_kind_of_column(dtypes):
    (row,) = rows_as(Measured, TABLE.iloc[1:2].astype(dtypes))
    assert row.model == ""
    assert math.isnan(row.value)


@pytest.mark.parametrize("dtype", ["boolean", object])
def test_a_missing_flag_is_false(dtype):
    flags = pd.Series([True, None, False], dtype=dtype)
    assert [row.holds for row in rows_as(Measured, TABLE.assign(holds=flags))] == [True, False, False]


def test_a_default_stands_for_a_column_that_is_missing_and_only_then():
    assert first_as(Measured, TABLE).note == "none"
    assert first_as(Measured, TABLE.assign(note="of the table")).note == "of the table"


def test_a_table_without_rows_has_none():
    assert rows_as(Measured, TABLE[:0]) == []
    with pytest.raises(IndexError):
        first_as(Measured, TABLE[:0])


def test_a_column_that_is_missing_is_named_with_the_nearest_one():
    with pytest.raises(
        MissingError, match=r"Measured: the table has no column 'layer'; did you mean 'layers'"
    ):
        rows_as(Measured, TABLE.rename(columns={"layer": "layers"}))


def test_other_types_of_columns_are_refused():
    @dataclass
    class Listed:
        value: list

    with pytest.raises(TypeError, match="a column is str, float, int or bool, got <class 'list'>"):
        rows_as(Listed, TABLE)


def test_stored_claims_are_read_as_they_were_written():
    claim = ClaimRow("C1", "mean", "supported", "for a reason", 1.0, 0.5, 1.5, 0.0, 0.01, p_adjusted=0.02)
    assert str(first_as(ClaimRow, pd.DataFrame([vars(claim)]))) == str(claim)
