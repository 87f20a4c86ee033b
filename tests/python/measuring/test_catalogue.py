# SPDX-License-Identifier: MIT
"""The catalogue of metrics: every column once, with the range, null and source that the column declares."""

import math
import warnings

import numpy as np
import pytest

import attnscope as asc
from attnscope.metrics.discovery import registry


@pytest.fixture(scope="module")
def table():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return asc.metrics(n=16)


def test_every_column_of_the_exact_protocol_has_one_row(table):
    declared = [quantity for quantity in registry().quantities if quantity.protocol == "exact"]
    assert sorted(table.index) == sorted(quantity.name for quantity in declared)
    assert (table["protocol"] == "exact").all()
    assert (table["label"].str.len() > 0).all()
    assert (table["low"] <= table["high"]).all()
    public = table[~table["metric"].str.startswith("_")]
    assert (public["source"].str.len() > 0).mean() > 0.9


def test_nulls_are_those_of_uniform_causal_attention(table):
    uniform = np.tril(np.ones((16, 16))) / np.arange(1, 17)[:, None]
    assert table.loc["sink_share", "null"] == pytest.approx(uniform[:, 0].mean())
    singular = np.linalg.svd(uniform, compute_uv=False)
    assert table.loc["stable_rank", "null"] == pytest.approx((singular**2).sum() / singular[0] ** 2)
    assert table.loc["entropy", "shape"] == "[text, head][query]" or not math.isnan(
        table.loc["entropy", "null"]
    )
    assert math.isnan(table.loc["offset_r2", "null"])  # it needs scores
    with_null = table.dropna(subset=["null"])
    assert (
        (with_null["null"] >= with_null["low"] - 1e-9) & (with_null["null"] <= with_null["high"] + 1e-9)
    ).all()


def test_other_protocols_and_bad_arguments():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protocols = set(asc.metrics(n=8, protocol=None)["protocol"])
    assert {"exact", "ruscio2025"} <= protocols
    with pytest.raises(ValueError, match="no protocol 'ruscio2024'; did you mean 'ruscio2025'"):
        asc.metrics(protocol="ruscio2024")
    for n in (0, -3, 2.5, "16"):
        with pytest.raises(ValueError, match="whole number of tokens"):
            asc.metrics(n)
