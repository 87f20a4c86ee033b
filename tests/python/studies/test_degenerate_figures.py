# SPDX-License-Identifier: MIT
"""Every figure of every study from tables with next to nothing in them: drawn, or refused with a reason.

The drawing functions are called directly, so that an error is an error here and no figure left out.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest

from attnscope.engine.config import Study
from attnscope.engine.results import Results
from attnscope.engine.run import run
from attnscope.plots import NotDrawable, figures_of
from attnscope.report import report
from folders import model_folder, sentences, series

WHOLE = {
    "sink_study": {
        "thresholds": [0.02, 0.1], "protocols": "both", "bars": True, "options": {"extra": "all"},
    },
    "wavelet_study": {"options": {"nulls": ["row_permutation"], "prefixes": [0.8]}},
}  # fmt: skip
#: Tokens that a whole set of figures needs: eight for a spectrum, sixteen of a beginning for a signal.
SHORTEST = {"sink_study": 12, "wavelet_study": 50}


def tiny_run(home, name: str, *, steps=(0, 4), count=3, shortest=None, text=None, **options) -> Results:
    models = f"{series(home / 'series', steps=steps)}/step*" if steps else model_folder(home / "one")
    texts = sentences(home / "texts.txt", count, shortest=shortest or SHORTEST[name])
    if text is not None:
        texts.write_text(text, "utf-8")
    study = Study(
        study=name, models=str(models), texts=str(texts), name="a", output=str(home / "runs"),
        **{**WHOLE[name], **options},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(study, say=lambda text: None, progress=False)


@pytest.fixture(scope="module", params=sorted(WHOLE))
def whole(request, tmp_path_factory) -> Results:
    results = tiny_run(tmp_path_factory.mktemp(request.param), request.param)
    tables = {name: results.table(name) for name in results.tables()}
    return Results(tables, study=results.study, provenance=results.provenance)


def with_tables(results: Results, **changed: pd.DataFrame | None) -> Results:
    tables = {name: changed.get(name, results.table(name)) for name in results.tables()}
    return Results({name: table for name, table in tables.items() if table is not None}, study=results.study)


def outcomes(results: Results, only: set[str] | None = None) -> dict[str, str]:
    """Draws every figure; "" where it was drawn, else the reason. Empty panels and warnings are faults."""
    found = {}
    for name, draw in figures_of(results).items():
        if only is not None and name not in only:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                drawn = draw(results)
            except NotDrawable as reason:
                found[name] = str(reason)
                assert found[name]
                continue
        found[name] = ""
        assert drawn.caption, name
        panels = [ax for ax in drawn.figure.axes if ax.axison]
        assert panels, name
        for ax in panels:
            assert holds_something(ax), (name, ax.get_title(loc="left"), ax.get_ylabel())
    return found


def holds_something(ax) -> bool:
    """Whether a line, a point, a cell or a bar with a finite place stands on the axes."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()]
    cells = [
        np.ma.filled(np.ma.asarray(one.get_array(), dtype=float), np.nan)
        for one in [*ax.collections, *ax.images]
        if one.get_array() is not None
    ]
    points = [np.asarray(one.get_offsets(), dtype=float) for one in ax.collections]
    bars = [np.array([patch.get_height()], dtype=float) for patch in ax.patches]
    return any(np.isfinite(one).any() for one in [*lines, *cells, *points, *bars])


def read_by(results: Results) -> dict[str, set[str]]:
    """Which figures read which table, by watching them."""

    class Watched(Results):
        def table(self, name, columns=None):
            read.append(name)
            return super().table(name, columns)

    read: list[str] = []
    seen: dict[str, set[str]] = {}
    watched = Watched({name: results.table(name) for name in results.tables()}, study=results.study)
    for figure, draw in figures_of(watched).items():
        read.clear()
        draw(watched)
        for table in read:
            seen.setdefault(table, set()).add(figure)
    return seen


def replaced(table: pd.DataFrame, columns: list[str], value: float) -> pd.DataFrame:
    """The table with columns of numbers, of lists and of texts replaced by a value or by nothing."""
    table = table.copy()
    for column in columns:
        if pd.api.types.is_numeric_dtype(table[column]):
            table[column] = float(value)
        elif isinstance(table[column].iloc[0], (list, np.ndarray)):
            if column in ("signal", "attention"):
                table[column] = [np.full(len(cell), value) for cell in table[column]]
        else:
            table[column] = None
    return table


def measured(results: Results, name: str) -> list[str]:
    keys = results.keys(name)
    return [column for column in results.table(name).columns if column not in keys]


def test_whole_tables_give_every_figure(whole):
    # a tiny random model has no sink by the test, and without one there is no influence of a reference
    assert {name for name, reason in outcomes(whole).items() if reason} <= {"reference"}


@pytest.mark.slow
def test_each_table_empty_or_missing(whole):
    seen = read_by(whole)
    for name in seen:
        for changed in (None, whole.table(name).iloc[:0]):
            outcomes(with_tables(whole, **{name: changed}), seen[name])


def test_no_tables_and_no_rows(whole):
    for empty in (Results({name: whole.table(name).iloc[:0] for name in whole.tables()}, study=whole.study),
                  Results({}, study=whole.study)):  # fmt: skip
        assert all(outcomes(empty).values())


SUBSETS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "one text": lambda table: table["sample"] == 0,
    "one layer": lambda table: table["layer"] == 1,
    "one head": lambda table: table["head"] == 0,
    "head mean": lambda table: table["head"] == -1,
    "one step": lambda table: table["step"] == table["step"].max(),
    "first step": lambda table: table["step"] == 0,
    "exact": lambda table: table["protocol"] == "exact",
    "as published": lambda table: table["protocol"] == "ruscio2025",
    "one threshold": lambda table: table["threshold"] == table["threshold"].max(),
}


def subsets(results: Results, *names: str) -> Results:
    tables = {}
    for table in results.tables():
        rows = results.table(table)
        for name in names:
            try:
                rows = rows[SUBSETS[name](rows)]
            except KeyError:
                continue
        tables[table] = rows
    return Results(tables, study=results.study)


@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param([name], marks=pytest.mark.slow) for name in SUBSETS),
        ["one text", "one layer", "one head", "one step"],
        ["one text", "one layer", "one head", "one step", "exact", "one threshold"],
    ],
    ids=", ".join,
)  # fmt: skip
def test_one_of_a_kind(whole, names):
    outcomes(subsets(whole, *names))


@pytest.mark.parametrize(
    "value",
    [np.nan, *(pytest.param(value, marks=pytest.mark.slow) for value in (np.inf, -np.inf, 0.0, -1.0))],
)
def test_tables_without_a_number(whole, value):
    changed = {}
    for name in whole.tables():
        table = whole.table(name)
        changed[name] = replaced(table, [one for one in measured(whole, name) if one != "n_tokens"], value)
    found = outcomes(with_tables(whole, **changed))
    if not np.isfinite(value):
        assert all(found.values())


def columns_of(results: Results) -> Iterator[tuple[str, str]]:
    for name in results.tables():
        yield from ((name, column) for column in measured(results, name))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(6))
def test_each_column_missing_infinite_or_gone(whole, part):
    seen = read_by(whole)
    columns = [(name, column) for name, column in columns_of(whole) if name in seen]
    for place, (name, column) in list(enumerate(columns))[part::6]:
        table = whole.table(name)
        value = (np.nan, np.inf, -np.inf, 0.0)[place % 4]
        for changed in (replaced(table, [column], value), table.drop(columns=column)):
            outcomes(with_tables(whole, **{name: changed}), seen[name])


@pytest.mark.slow
def test_half_of_the_cells_missing(whole):
    for seed in range(4):
        draw = np.random.default_rng(seed)
        changed = {}
        for name in whole.tables():
            table = whole.table(name)
            for column in measured(whole, name):
                if table[column].dtype.kind == "f":
                    table[column] = table[column].where(draw.random(len(table)) < (0.5, 0.05)[seed % 2])
            changed[name] = table.sample(frac=(1.0, 0.4)[seed // 2], random_state=seed)
        outcomes(with_tables(whole, **changed))


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize(
    "options",
    [
        {"text": "cat\n", "bos": "drop"},
        pytest.param({"text": "the cat sat on the mat\n"}, marks=pytest.mark.slow),
        {"text": "the cat\nhome\nsea and old town\n"},
        pytest.param({"count": 1, "layers": [1]}, marks=pytest.mark.slow),
    ],
    ids=["one token", "one text", "three short texts", "one layer"],
)  # fmt: skip
def test_small_runs_end_with_a_report(tmp_path, name, options):
    results = tiny_run(tmp_path, name, steps=None, **options)
    outcomes(results)
    page = report(results).read_text("utf-8")
    assert "not drawn" in page
