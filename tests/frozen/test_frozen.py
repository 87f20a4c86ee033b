# SPDX-License-Identifier: MIT
"""Tables, claims, reports and figures of small runs of every study are those that were stored.

The stored ones are of one instruction set and one version of torch; sums of numbers are compared to a
millionth. What is meant to change is stored anew by `python tests/frozen/frozen_runs.py STUDY`, in a commit
whose message names the tables, columns, claims and blocks that moved.
"""

import copy
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import frozen_runs

STORED = json.loads(frozen_runs.FILE.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(STORED))
def test_a_run_has_the_stored_tables_claims_report_and_figures(study, unarranged):
    measured = json.loads(json.dumps(frozen_runs.digest_run(study)))
    assert frozen_runs.differences(STORED[study], measured) == []


def test_what_differs_is_named():
    study = min(STORED, key=lambda name: len(json.dumps(STORED[name])))
    changed = copy.deepcopy(STORED[study])
    assert frozen_runs.differences(STORED[study], changed) == []
    table = next(name for name, table in changed["tables"].items() if isinstance(digest(table)[2], float))
    digest(changed["tables"][table])[2] += 1.0
    figure = next(iter(changed["figures"]))
    del changed["figures"][figure]
    named = frozen_runs.differences(STORED[study], changed)
    assert f"figures: {figure} is gone" in named
    assert len(named) == 2
    assert f"tables: {table}" in " ".join(named)


def digest(table):
    """Return the digest of the first column of numbers of a table, or three nothings."""
    return next((sums for sums in table["columns"].values() if isinstance(sums, list)), [0, 0, None])
