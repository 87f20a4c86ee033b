# SPDX-License-Identifier: MIT
"""`analyze(precision=)`: numbers near the exact ones, and a record of what was asked for."""

import numpy as np
import pytest

import attnscope as asc
from models import text, tiny


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", implementation="eager")


def test_fast_is_near_exact_and_said_in_the_provenance(llama):
    ids = text(llama, batch=2, n=9)["input_ids"]
    names = ["attention_entropy", "fiedler_value", "stable_rank", "head_divergence", "top_mass"]
    exact = asc.analyze(llama, ids, names)
    fast = asc.analyze(llama, ids, names, precision="fast")
    assert exact.provenance["precision"] == {"asked": "exact", "fell_back": {}}
    assert fast.provenance["precision"]["asked"] == "fast"
    for table in ("heads", "head_means", "layers"):
        ours, theirs = fast.table(table), exact.table(table)
        assert list(ours.columns) == list(theirs.columns)
        for column in theirs.select_dtypes("number"):
            np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-5, err_msg=column)


def test_queries_and_keys_are_taken_in_the_precision(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    words = []
    for precision in ("exact", "fast"):
        results = asc.analyze(llama, ids, ["attention_entropy"], precision=precision)
        words.append((results.provenance["attention"], results.provenance["precision"]["asked"]))
    assert words == [("queries and keys", "exact"), ("queries and keys", "fast")]


def test_an_unknown_precision_is_refused_by_name(llama):
    with pytest.raises(ValueError, match=r"^analyze: precision must be None, 'exact' or 'fast', got 'quick'"):
        asc.analyze(llama, ["a"], ["top_mass"], precision="quick")


def test_features_take_it(llama):
    ids = text(llama, batch=1, n=9)["input_ids"]
    exact, fast = (asc.features(llama, ids, ["top_mass"], precision=name) for name in ("exact", "fast"))
    assert list(fast.X) == list(exact.X)
    np.testing.assert_allclose(fast.X, exact.X, rtol=1e-5)
