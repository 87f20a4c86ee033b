# SPDX-License-Identifier: MIT
"""Claims over several pairs, and the sentences at the top of a report of many."""

import math

import pandas as pd
import pytest

from attnscope.studies.pretraining_writes.claims import _over_pairs
from attnscope.studies.pretraining_writes.evidence import Mean
from attnscope.studies.pretraining_writes.sections import findings


class Pair:
    """A pair whose means are known."""

    def __init__(self, model, step, value):
        self.keys, self.value = {"model": model, "step": step}, value

    def mean(self, roles, side, subspace):
        return Mean(self.value if side == "in" else self.value / 10, math.nan, math.nan, 0.1)

    def contrast(self, *_):
        return None


def test_pairs_are_the_unit_and_a_series_counts_once():
    pairs = [Pair("a", 1, -5.0), Pair("a", 2, 1.0), Pair("b", -1, 2.0), Pair("c", -1, 3.0)]
    found = {one.claim: one for one in _over_pairs(pairs)}
    # mean 2, deviation 1, three pairs: t(.975, 2) = 4.302653
    assert found["C1"].value == pytest.approx(2.0)
    assert found["C1"].high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found["C1"].verdict == "undecided"
    assert found["C1"].reason.startswith("3 of 3 pairs above 0")
    assert found["C1b"].verdict == "not testable here"
    close = [Pair(name, -1, 0.1) for name in "abc"]
    found = {one.claim: one for one in _over_pairs(close)}
    assert found["C1"].verdict == "supported"
    assert found["C2"].verdict == "supported"  # 0.01 octaves: inside the band


class Results:
    """Stored claims of many models."""

    def __init__(self, models):
        columns = {"revision": "", "claim": "C1", "value": 2.0, "low": 1.0, "high": 3.0, "reason": ""}
        self._table = pd.DataFrame({"model": models}).assign(**columns, verdict="supported")

    def tables(self):
        return ["claims"]

    def table(self, _):
        return self._table


def test_the_top_of_the_report_speaks_of_a_few_pairs_or_of_all():
    said = findings(Results([f"m{at}" for at in range(9)]))
    assert len(said) == 7
    assert said[-1] == "3 more pairs are in the table of claims."
    said = findings(Results(["m0", "all arms", "m1"]))
    assert len(said) == 1
    assert said[0].startswith("all arms, C1")
