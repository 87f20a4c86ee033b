# SPDX-License-Identifier: MIT
"""Tables that lie about themselves: `view` shows what is right and refuses the rest in one line."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CHECKPOINT = {"model": "m", "revision": "", "step": -1}
MAPS = [{**CHECKPOINT, "sample": 0, "layer": layer, "head": head} for layer in (0, 1) for head in (0, 1)]
UNIFORM = [1.0, 0.0, 0.5, 0.5]
TABLES = {
    "heads": [{**place, "protocol": "exact", "support": "causal", "fiedler_value": 0.5} for place in MAPS],
    "graphs": [{**place, "protocol": "exact", "threshold": 0.1, "n_edges": 3} for place in MAPS],
    "samples": [
        {
            **CHECKPOINT,
            "sample": 0,
            "group": "text",
            "tokens": ["a", "b"],
            "token_ids": [5, 6],
            "n_tokens": 2,
            "causal": True,
        }
    ],
    "examples": [{**place, "n_tokens": 2, "attention": UNIFORM} for place in MAPS],
    "baselines": [
        {
            **CHECKPOINT,
            "n_tokens": 2,
            "support": "causal",
            "kind": "uniform",
            "scope": "heads",
            "protocol": "exact",
            "threshold": float("nan"),
            "metric": "fiedler_value",
            "value": 0.25,
        }
    ],
}
#: Values in the place of every cell of a column.
LIES = {
    "a text": "x",
    "an empty text": "",
    "none": None,
    "a fraction": 0.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a negative number": -5,
    "a number beyond 32 bits": 2**62,
    "a flag": True,
    "a list": [1, 2, 3],
    "nested lists": [[1], [2]],
    "an object": {"a": 1},
    "bytes": b"\xff\x00",
    "an empty list": [],
    "a list of texts": ["a"],
}
QUICK = ("a list",)


def stored(folder, tables, metadata=None):
    """A run folder that holds nothing but tables."""
    (folder / "tables").mkdir()
    for name, table in tables.items():
        if metadata:
            fields = [field.with_metadata(metadata) for field in table.schema]
            table = table.cast(pa.schema(fields))
        pq.write_table(table, folder / "tables" / f"{name}.parquet")
    return folder


def arrow(rows):
    return pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)


def page_or_line(call, folder):
    """The last line that `view` complains in, "" where it wrote the page; any other exception is raised."""
    code, _, err = call("view", folder)
    lines = [line for line in err.splitlines() if line.startswith("attnscope: error: ")]
    assert (code == 0) == (folder / "view.html").is_file()
    assert len(lines) == (code != 0), err
    return lines[0].removeprefix("attnscope: error: ") if lines else ""


def test_the_tables_are_shown_as_they_are(tmp_path, call):
    assert page_or_line(call, stored(tmp_path, {name: arrow(rows) for name, rows in TABLES.items()})) == ""
    page = (tmp_path / "view.html").read_text("utf-8")
    assert page.count('"entries"') == len(MAPS)


@pytest.mark.parametrize(
    "lie",
    [*QUICK, *(pytest.param(lie, marks=pytest.mark.slow) for lie in [*LIES, "left out"] if lie not in QUICK)],
)
@pytest.mark.parametrize("name", TABLES)
def test_a_column_that_holds_something_else_is_shown_or_refused_in_a_line(tmp_path, call, name, lie):
    refused = 0
    for place, column in enumerate(TABLES[name][0]):
        rows = [dict(row) for row in TABLES[name]]
        for row in rows:
            row.update({} if lie == "left out" else {column: LIES[lie]})
            if lie == "left out":
                del row[column]
        folder = tmp_path / str(place)
        folder.mkdir()
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        tables = {**{other: arrow(table) for other, table in TABLES.items()}, name: pa.table(columns)}
        refused += bool(page_or_line(call, stored(folder, tables)))
    assert refused or name == "baselines" or lie in ("an empty text", "none", "left out")


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("heads", "layer", "x", "view: column 'layer' of table 'heads' must hold a whole number, got 'x'"),
        ("heads", "head", None, "view: column 'head' of table 'heads' has a gap in row 0"),
        ("heads", "step", 2**62, "must lie between -1 and 2147483648"),
        ("graphs", "threshold", [1], "view: column 'threshold' of table 'graphs' must hold a number"),
        ("examples", "n_tokens", 3, "view: the matrix of layer 0, head 0 must hold 3² numbers, got 4"),
        ("examples", "n_tokens", 0, "view: the matrix of layer 0, head 0 must hold 0² numbers, got 4"),
        ("examples", "attention", ["a"], "view: the matrix of layer 0, head 0 must hold numbers"),
        ("samples", "model", 5, "view: column 'model' of table 'samples' must hold a text, got 5"),
    ],
)
def test_the_line_names_the_table_the_column_and_the_value(tmp_path, call, name, column, value, message):
    tables = {**TABLES, name: [{**row, column: value} for row in TABLES[name]]}
    folder = stored(tmp_path, {key: pa.Table.from_pylist(rows) for key, rows in tables.items()})
    assert message in page_or_line(call, folder)


def test_sizes_that_differ_between_rows_and_labels_that_are_no_text(tmp_path, call):
    rows = [{**row, "n_tokens": n} for row, n in zip(TABLES["examples"], (2, 2, 1, 2), strict=True)]
    tables = {name: arrow(rows_of_table) for name, rows_of_table in {**TABLES, "examples": rows}.items()}
    assert "must hold 1² numbers, got 4" in page_or_line(call, stored(tmp_path, tables))
    labelled = tmp_path / "labelled"
    labelled.mkdir()
    few = {name: arrow(TABLES[name]) for name in ("heads", "samples")}
    folder = stored(labelled, few, {"label": b"\xff", "kind": b"value"})
    assert page_or_line(call, folder) == ""


def test_a_study_that_says_anything_is_a_line(tmp_path, call):
    folder = stored(tmp_path, {name: arrow(rows) for name, rows in TABLES.items()})
    for number, study in enumerate(({"models": 5}, {"study": []}, {"models": "absent", "texts": "none"})):
        (folder / "study.yaml").write_text(json.dumps(study), "utf-8")
        code, _, err = call("view", folder, "--sample", "0")
        assert code in (1, 2), number
        assert len([line for line in err.splitlines() if "error: " in line]) == 1, err


def test_entries_reach_the_page_unchanged(tmp_path, call):
    import base64

    folder = stored(tmp_path, {name: arrow(rows) for name, rows in TABLES.items()})
    assert page_or_line(call, folder) == ""
    page = (folder / "view.html").read_text("utf-8")
    code = base64.b64encode(np.array([1.0, 0.5, 0.5], "<f4").tobytes()).decode()
    assert page.count(code) == len(MAPS)
