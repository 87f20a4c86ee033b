# SPDX-License-Identifier: MIT
"""Small runs of both studies against the tables that were stored before the engine was built anew.

The stored tables have schema 1. Both sides are read as they are read today: head means and controls stand in
tables of their own, and what has no value is null.

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
from attnscope.engine.reading.migration import migrated
from attnscope.engine.schema import keys_in

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))
import runs

MADE_BY_UNITS = (
    *("samples", "heads", "graphs", "layers", "bars", "examples", "fisher", "ablation"),
    *("head_means", "head_mean_graphs", "head_mean_bars", "head_mean_scale_sensitivity"),
    *("heads_variants", "graphs_variants", "layers_variants"),
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
    now = {name: results.arrow(name) for name in results.tables()}
    return frames(present(stored)), about, frames(present(now) if "nulls" in now else now)


def present(tables):
    """Tables of schema 1 as they are read today."""
    return {new: made for name, old in tables.items() for new, made in migrated(name, old, 1).items()}


def frames(tables):
    """As DataFrames; controls in the order of their keys, for they are stored unit by unit."""
    made = {name: table.to_pandas() for name, table in tables.items()}
    for name in made:
        if name.endswith("_variants"):
            made[name] = made[name].sort_values(keys_in(tables[name].schema), ignore_index=True)
    return made


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
