# SPDX-License-Identifier: MIT
"""Every figure of every study from tables with next to nothing in them: drawn, or refused with a reason.

The drawing functions are called directly, so that an error is an error here and no figure left out. Studies
are those that discovery finds: a folder that is added is tested by being there.
"""

import contextlib
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from degenerate_runs import NAMES, RUNS, declared_tables, whole_run
from matplotlib.figure import Figure

import figure_tables as made
from attnscope.plots import NotDrawable, emergence_curve, figures_of, head_emergence
from attnscope.plots import figure as figure_module
from attnscope.report import report
from attnscope.results.results import Results
from attnscope.studies.attention_sinks.figures import FIGURES

#: How often the columns are dealt into groups, and into how many.
ROUNDS, GROUPS = 3, 6


#: Runs take seconds each; without one, the tables are as the study declares them.
FULL_RUNS = [pytest.param(name, marks=[pytest.mark.slow] if name in RUNS else []) for name in NAMES]


@pytest.fixture(scope="module", params=FULL_RUNS)
def full_run(request, tmp_path_factory) -> Results:
    return whole_run(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(params=NAMES)
def declared(request) -> Results:
    return Results(declared_tables(request.param), study={"study": request.param, "models": [{"path": "m"}]})


def with_tables(results: Results, **changed: pd.DataFrame | None) -> Results:
    tables = {name: changed.get(name, results.table(name)) for name in results.tables()}
    return Results({name: table for name, table in tables.items() if table is not None}, study=results.study)


def outcomes(results: Results, only: set[str] | None = None) -> dict[str, str]:
    """Draws every figure; "" where it was drawn, else the reason. Empty panels and warnings are faults."""
    result = {}
    for name, draw in figures_of(results).items():
        if only is not None and name not in only:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                drawn = draw(results)
            except NotDrawable as reason:
                result[name] = str(reason)
                assert result[name]
                continue
        result[name] = ""
        assert drawn.caption, name
        panels = [ax for ax in drawn.figure.axes if ax.axison and ax.get_visible()]
        assert panels, name
        for ax in panels:
            assert holds_something(ax), (name, ax.get_title(loc="left"), ax.get_ylabel())
    return result


def holds_something(ax) -> bool:
    """Whether a line, a point, a cell or a bar with a finite place stands on the axes."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()]
    cells = [
        np.ma.filled(np.ma.asarray(collection.get_array(), dtype=float), np.nan)
        for collection in [*ax.collections, *ax.images]
        if collection.get_array() is not None
    ]
    points = [np.asarray(collection.get_offsets(), dtype=float) for collection in ax.collections]
    heights = [
        patch.get_height() if hasattr(patch, "get_height") else patch.get_data().values
        for patch in ax.patches
    ]
    bars = [np.ravel(np.asarray(height, dtype=float)) for height in heights]
    return any(np.isfinite(artist).any() for artist in [*lines, *cells, *points, *bars])


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
        with contextlib.suppress(NotDrawable):
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
    keys = results.key_columns(name)
    return [column for column in results.table(name).columns if column not in keys]


@pytest.fixture
def unarranged(monkeypatch):
    """Figures are drawn without arranging their panels, which takes most of the time."""

    def leave_layout(figure):
        figure.set_layout_engine("none")
        figure.draw_without_rendering()
        return figure

    monkeypatch.setattr(figure_module, "freeze_layout", leave_layout)


@pytest.mark.usefixtures("unarranged")
def test_whole_tables_give_every_figure(full_run):
    result = outcomes(full_run)
    if full_run.study["study"] in RUNS:
        assert not {figure: reason for figure, reason in result.items() if reason}


@pytest.mark.slow
def test_whole_tables_give_every_figure_arranged(full_run):
    outcomes(full_run)


@pytest.mark.slow
@pytest.mark.usefixtures("unarranged")
def test_each_table_empty_or_missing(full_run):
    seen = read_by(full_run)
    for name in seen:
        for changed in (None, full_run.table(name).iloc[:0]):
            outcomes(with_tables(full_run, **{name: changed}), seen[name])


def test_no_tables_and_no_rows(declared):
    for empty in ({name: declared.table(name).iloc[:0] for name in declared.tables()}, {}):
        assert all(outcomes(Results(empty, study=declared.study)).values())


@pytest.mark.slow
def test_no_rows_of_a_run(full_run):
    empty = {name: full_run.table(name).iloc[:0] for name in full_run.tables()}
    assert all(outcomes(Results(empty, study=full_run.study)).values())


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


ONE_OF_EVERYTHING = ["one text", "one layer", "one head", "one step", "exact", "one threshold"]


@pytest.mark.usefixtures("unarranged")
@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param([name], marks=pytest.mark.slow) for name in SUBSETS),
        pytest.param(["one text", "one layer", "one head", "one step"], marks=pytest.mark.slow),
        ONE_OF_EVERYTHING,
    ],
    ids=", ".join,
)
def test_one_of_a_kind(full_run, names):
    outcomes(subsets(full_run, *names))


@pytest.mark.usefixtures("unarranged")
@pytest.mark.parametrize(
    "value",
    [np.nan, *(pytest.param(value, marks=pytest.mark.slow) for value in (np.inf, -np.inf, 0.0, -1.0))],
)
def test_tables_without_a_number(full_run, value):
    result = outcomes(of_one_value(full_run, value))
    if not np.isfinite(value):
        assert all(result.values())


def of_one_value(results: Results, value: float) -> Results:
    """The tables with one value in every measured cell."""
    changed = {}
    for name in results.tables():
        columns = [column for column in measured(results, name) if column != "n_tokens"]
        changed[name] = replaced(results.table(name), columns, value)
    return with_tables(results, **changed)


@pytest.mark.usefixtures("unarranged")
@pytest.mark.parametrize("declared", ["attention_likelihood", "wavelet_heads"], indirect=True)
def test_one_of_everything_and_no_number_of_tables_as_declared(declared):
    outcomes(subsets(declared, *ONE_OF_EVERYTHING))
    assert all(outcomes(of_one_value(declared, np.nan)).values())


@pytest.mark.slow
@pytest.mark.usefixtures("unarranged")
def test_a_column_that_every_row_lacks(full_run):
    """Columns in groups dealt anew each time, so that each is missing in company that differs."""
    columns = [(name, column) for name in full_run.tables() for column in measured(full_run, name)]
    for turn in range(ROUNDS):
        groups = np.random.default_rng(turn).integers(0, GROUPS, len(columns))
        for group in range(GROUPS):
            value = (np.nan, np.inf, -np.inf, 0.0, None)[(turn + group) % 5]
            chosen = [
                pair for pair, group_of_pair in zip(columns, groups, strict=True) if group_of_pair == group
            ]
            changed = {}
            for name in dict.fromkeys(name for name, _ in chosen):
                columns_of_table = [column for table, column in chosen if table == name]
                table = full_run.table(name)
                changed[name] = (
                    table.drop(columns=columns_of_table)
                    if value is None
                    else replaced(table, columns_of_table, value)
                )
            outcomes(with_tables(full_run, **changed))


@pytest.mark.slow
@pytest.mark.usefixtures("unarranged")
def test_half_of_the_cells_missing(full_run):
    for seed in range(4):
        draw = np.random.default_rng(seed)
        changed = {}
        for name in full_run.tables():
            table = full_run.table(name)
            for column in measured(full_run, name):
                if table[column].dtype.kind == "f":
                    table[column] = table[column].where(draw.random(len(table)) < (0.5, 0.05)[seed % 2])
            changed[name] = table.sample(frac=(1.0, 0.4)[seed // 2], random_state=seed)
        outcomes(with_tables(full_run, **changed))


#: Studies whose run takes any texts, by what they are given.
OF_TEXTS = (pytest.param("attention_sinks", marks=pytest.mark.slow), "wavelet_heads")


@pytest.mark.parametrize("name", OF_TEXTS)
@pytest.mark.parametrize(
    "options",
    [
        {"text": "cat\n", "bos": "drop"},
        pytest.param({"text": "the cat sat on the mat\n"}, marks=pytest.mark.slow),
        pytest.param({"text": "the cat\nhome\nsea and old town\n"}, marks=pytest.mark.slow),
        pytest.param({"count": 1, "layers": [1]}, marks=pytest.mark.slow),
    ],
    ids=["one token", "one text", "three short texts", "one layer"],
)
def test_small_runs_end_with_a_report(tmp_path, name, options):
    results = RUNS[name](tmp_path, steps=None, **options)
    outcomes(results)
    page = report(results).read_text("utf-8")
    assert "not drawn" in page


def test_checkpoints_of_unknown_step_are_left_out_and_named() -> None:
    run, ax = made.make_results(), Figure().subplots()
    tables = {name: run.table(name) for name in ("heads", "samples")}
    for name, table in tables.items():
        final = table[table["step"] == 64].assign(step=-1, revision="main")
        tables[name] = pd.concat([table, final], ignore_index=True)
    results = Results(tables)
    for draw_one in (emergence_curve, head_emergence):
        ax.clear()
        draw_one(results, "sink_share", ax=ax)
        assert {tuple(line.get_xdata()) for line in ax.get_lines() if not line.get_gid()} == {(0, 2, 64)}
        assert ax.get_xlim()[0] <= 0 < 64 < ax.get_xlim()[1]
    for name in ("emergence", "sink_emergence"):
        assert FIGURES[name](results).left_out == ("tiny main (step unknown)",)
    with pytest.raises(NotDrawable, match=r"none of 48 rows has a known training step, all steps are -1"):
        emergence_curve(made.make_results(steps=(-1,)), "sink_share", ax=ax)
