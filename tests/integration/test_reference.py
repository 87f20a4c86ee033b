# SPDX-License-Identifier: MIT
"""Small runs of both studies against the tables that were stored before the engine was built anew.

What units write is the same to the bit on the same instruction set; elsewhere, and in what is derived from
it, to 1e-12. Intervals and p-values are drawn, and corrected p-values belong to a family: they are
held to the error of their draws, or left to their own tests.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnscope import _isa

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))
import runs

MADE_BY_UNITS = (
    *("samples", "heads", "graphs", "layers", "bars", "examples", "fisher", "ablation", "nulls"),
    *("spectra", "signals", "scale_sensitivity", "harmonics"),
)
#: Columns that come out of random draws, and how far they may move.
DRAWN = {"low": 0.1, "high": 0.1, "p_value": 0.1, "probability": 0.1, "margin": 0.1}
CORRECTED = ("p_holm", "p_bh", "q_value", "significant")


@pytest.fixture(scope="module", params=sorted(runs.RUNS))
def both(request, tmp_path_factory):
    file = runs.HERE / f"{request.param}.parquet"
    if request.param.endswith("stories") and not runs.STORIES.is_dir():
        pytest.skip("shared data are not here")
    stored, about = runs.read(file)
    results = runs.made(request.param, tmp_path_factory.mktemp(request.param))
    return stored, about, {name: results.table(name) for name in results.tables()}


def numbers(values):
    return pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)


def test_the_same_tables_with_the_same_columns(both):
    stored, _, now = both
    assert set(stored) <= set(now)
    for name, table in stored.items():
        assert set(table) <= set(now[name]), name


def test_the_same_numbers(both):
    stored, about, now = both
    same_machine = about["instructions"] == _isa.live()
    for name, table in stored.items():
        assert len(table) == len(now[name]), name
        for column in table:
            if column in CORRECTED:
                continue
            a, b = table[column], now[name][column]
            if a.dtype.kind not in "fiub":
                texts = [["" if one is None or one is pd.NA else str(one) for one in side] for side in (a, b)]
                assert texts[0] == texts[1], (name, column)
                continue
            x, y = numbers(a), numbers(b)
            if column in DRAWN:
                np.testing.assert_allclose(x, y, atol=DRAWN[column], err_msg=f"{name}.{column}")
            elif name in MADE_BY_UNITS and same_machine:
                np.testing.assert_array_equal(x, y, err_msg=f"{name}.{column}")
            else:
                np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12, err_msg=f"{name}.{column}")
