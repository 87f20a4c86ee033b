# SPDX-License-Identifier: MIT
"""Panels of models and of other values, curves over layers, and tables of a report, against their rows."""

import numpy as np
import pandas as pd
import pytest

from attnscope.plots import Options
from attnscope.plots.panels import (
    ModelPanels,
    Panels,
    diverging,
    layer_axis,
    layer_line,
    layer_points,
    level_line,
    sparse_ticks,
)
from attnscope.plots.style import panels
from attnscope.report.report_tables import (
    count_cells,
    estimate_cells,
    frame_of,
    interval_cells,
    layer_keys,
    number_cells,
    show,
    spread_cells,
    text_cells,
)
from attnscope.report.section import Page, Section
from attnscope.results.results import Results


def table_of(*models, layers=2):
    return pd.DataFrame(
        [
            {"model": model, "layer": layer, "estimate": at + layer / 10, "low": at - 0.1, "high": at + 0.5}
            for at, model in enumerate(models)
            for layer in reversed(range(layers))
        ]
    )


def test_each_of_three_models_has_a_panel_and_others_are_named():
    table = table_of("b", "a", "d", "c", "e")
    drawn = ModelPanels.of(table, Options(), "ρ")
    assert [ax.get_title() for ax in drawn.axes] == ["b", "a", "d"]
    assert [ax.get_ylabel() for ax in drawn.axes] == ["ρ", "", ""]
    assert [rows["model"].unique().tolist() for _, rows in drawn.rows(table)] == [["b"], ["a"], ["d"]]
    assert drawn.captioned("A sentence.", "").left_out == ("model c", "model e")
    assert drawn.captioned("A sentence.", "").caption == "A sentence."


def test_a_single_model_has_no_title():
    assert [ax.get_title() for ax in ModelPanels.of(table_of("a"), Options(), "ρ").axes] == [""]


@pytest.mark.parametrize(("models", "inches"), [("a", 4.4), ("ab", 5.6), ("abc", 7.0)])
def test_a_row_is_as_wide_as_its_panels_and_never_wider_than_the_options(models, inches):
    assert ModelPanels.of(table_of(*models), Options(), "").figure.get_figwidth() == pytest.approx(inches)
    narrow = ModelPanels.of(table_of(*models), Options(width=3.4), "")
    assert narrow.figure.get_figwidth() == pytest.approx(3.4)


def test_panels_by_another_column_take_rows_of_another_table():
    table, control = table_of("a", layers=3), table_of("a", layers=2)
    drawn = Panels.by(table, "layer", Options(), height=2.0, panel_width=2.0, margin=0.5)
    assert drawn.names == [2, 1, 0]
    assert drawn.figure.get_size_inches() == pytest.approx([6.5, 2.0])
    assert [len(rows) for _, rows in drawn.rows(control)] == [0, 1, 1]


def test_panels_across_stand_in_several_rows():
    table = table_of("a", layers=5)
    drawn = Panels.by(table, "layer", Options(), height=2.0, panel_width=1.5, margin=0.5, across=2)
    assert drawn.figure.get_size_inches() == pytest.approx([3.5, 6.0])
    assert len(drawn.axes) == 5


def test_the_legend_is_of_the_first_panel():
    drawn = ModelPanels.of(table_of("a", "b"), Options(), "")
    for ax, rows in drawn.rows(table_of("a", "b")):
        layer_line(ax, rows, "within texts", "black")
    drawn.legend()
    (legend,) = drawn.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["within texts"]


def test_a_line_over_layers_is_sorted_and_has_its_interval():
    _, ((ax,),) = panels(1, 1, height=2)
    rows = table_of("a", layers=3)
    layer_line(ax, rows, "ρ", "black", band=0.2)
    (line,) = ax.get_lines()
    assert line.get_xydata().tolist() == [[0, 0], [1, 0.1], [2, 0.2]]
    (band,) = ax.collections
    assert {*band.get_paths()[0].vertices[:, 1]} == {-0.1, 0.5}
    layer_line(ax, rows, "lower end", "red", column="low")
    assert ax.get_lines()[1].get_ydata().tolist() == [-0.1] * 3
    assert len(ax.collections) == 1


def test_points_over_layers_reach_to_the_ends_of_their_intervals():
    _, ((ax,),) = panels(1, 1, height=2)
    layer_points(ax, table_of("a"), "estimate", "black")
    segments = ax.containers[0].lines[2][0].get_segments()
    assert [segment[:, 1].tolist() for segment in segments] == [
        pytest.approx([-0.1, 0.5]),
        pytest.approx([-0.1, 0.5]),
    ]
    assert ax.get_xlabel() == "layer"
    assert [0.0, 0.0] in [list(line.get_ydata()) for line in ax.get_lines()]


def test_levels_are_dashed_lines_along_either_axis():
    _, ((ax,),) = panels(1, 1, height=2)
    layer_axis(ax)
    assert ax.get_lines()[:] == []
    level_line(ax, 1.5)
    level_line(ax, 2.5, along="x", color="red")
    across, upright = ax.get_lines()
    assert list(across.get_ydata()) == [1.5, 1.5]
    assert list(upright.get_xdata()) == [2.5, 2.5]
    assert upright.get_color() == "red"
    assert across.get_linestyle() == "--"


def test_a_diverging_scale_is_symmetric_and_never_empty():
    norm = diverging([pd.Series([-0.4, 0.2]), pd.Series([0.3])])
    assert (norm.vmin, norm.vcenter, norm.vmax) == (-0.4, 0, 0.4)
    assert diverging([pd.Series([0.0])]).vmax == 0.1


@pytest.mark.parametrize(("count", "labels"), [(3, 3), (8, 8), (15, 15), (16, 8), (40, 8)])
def test_few_places_of_many_are_labelled(count, labels):
    _, ((ax,),) = panels(1, 1, height=2)
    sparse_ticks(ax.set_xticks, [f"h{number}" for number in range(count)])
    assert len(ax.get_xticks()) == labels
    assert ax.get_xticklabels()[-1].get_text() == f"h{int(ax.get_xticks()[-1])}"


ROWS = pd.DataFrame(
    {
        "model": ["a", "b"],
        "layer": [0, 3],
        "mode": ["lowest", None],
        "estimate": [0.5, np.nan],
        "estimate_std": [0.25, np.nan],
        "low": [0.25, np.nan],
        "high": [0.75, np.nan],
        "n": [12.0, np.nan],
    }
)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (number_cells("estimate"), ["0.500", "–"]),
        (count_cells("n"), ["12", "–"]),
        (text_cells("mode"), ["lowest", "–"]),
        (text_cells("mode", ""), ["lowest", ""]),
        (interval_cells(), ["[0.250, 0.750]", "–"]),
        (estimate_cells("estimate"), ["0.500 [0.250, 0.750]", "–"]),
        (spread_cells("estimate"), ["0.500 (±0.250)", "–"]),
    ],
)
def test_cells_are_the_numbers_of_their_column(cells, expected):
    assert cells(ROWS) == expected


def test_a_number_without_an_interval_stands_alone():
    """A dash behind it would read as the beginning of a range."""
    rows = ROWS.assign(low=np.nan, high=np.nan)
    assert estimate_cells("estimate")(rows) == ["0.500", "–"]


def test_keys_are_columns_or_cells_under_headings():
    cells = {"ρ": number_cells("estimate")}
    frame = frame_of(ROWS, ["model", "layer"], cells)
    assert frame.to_numpy().tolist() == [["a", "0", "0.500"], ["b", "3", "–"]]
    frame = frame_of(ROWS, {"replaced by": text_cells("mode")}, cells)
    assert list(frame) == ["replaced by", "ρ"]


def test_the_model_is_a_key_of_layers_only_where_there_are_several():
    assert layer_keys(ROWS) == ["model", "layer"]
    assert layer_keys(ROWS[:1]) == ["layer"]


def test_a_table_is_shown_under_the_address_of_its_section():
    page = Page(Results({"rows": ROWS}), {})
    section = Section(
        "swap",
        "Exchange",
        ("rows",),
        lambda page: show(page, "layers", "By layer.", ROWS, ["model", "layer"], {"n": count_cells("n")}),
    )
    (block,) = page.written(section)
    assert (block.content.label, block.content.caption, block.content.names) == (
        "swap-layers",
        "By layer.",
        2,
    )
    assert block.content.frame["n"].tolist() == ["12", "–"]


def test_a_table_without_rows_is_not_shown():
    page = Page(Results({"rows": ROWS}), {})
    show(page, "layers", "By layer.", ROWS[:0], ["layer"], {"n": count_cells("n")})
    assert page.blocks == []
