# SPDX-License-Identifier: MIT
"""Sums over units: folded by keys, of all keys or of those with one value."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from attnscope.engine.reductions import Partials, folded


@pytest.fixture
def files(tmp_path):
    """Two units with sums of shape [2, 3] by group and layer."""
    made = []
    for unit in range(2):
        partials = Partials()
        for group in "ab":
            for layer in range(3):
                term = np.full((2, 3), 100.0 * unit + 10 * layer + (group == "b"))
                partials.add("x", term, group=group, layer=layer)
        made.append(tmp_path / f"{unit}.parquet")
        pq.write_table(partials.tables()["reduced-x"], made[-1])
    return made


def test_sums_are_folded_over_units_and_over_the_keys_that_are_not_kept(files):
    found = folded(files, ("layer",))
    assert set(found) == {(0,), (1,), (2,)}
    assert found[2,].count == 4
    assert (found[2,].sum == 2 * (20 + 120) + 2).all()
    assert found[2,].sum.shape == (2, 3)


def test_only_sums_of_one_value_are_read(files):
    found = folded(files, ("group",), {"layer": 1})
    assert {key: one.sum[0, 0] for key, one in found.items()} == {("a",): 120.0, ("b",): 122.0}
    assert folded(files, ("group",), {"layer": 7}) == {}
    assert folded(files, (), {"layer": 1, "group": "b"})[()].mean[1, 2] == 61.0
