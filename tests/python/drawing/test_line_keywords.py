# SPDX-License-Identifier: MIT
"""Drawing functions by hand: keywords of their lines, and errors that begin with the function's own name."""

import io
import logging

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import attnscope as asc
from attnscope.errors import NotDrawable
from attnscope.plots import (
    betti_curve,
    depth_profile,
    draw,
    emergence_curve,
    head_emergence,
    layer_head_map,
    persistence_diagram,
    spectrum_against_null,
    style,
    threshold_curve,
)
from attnscope.plots.lines import draw_curve

PLACES = {"model": "m", "revision": "", "step": -1, "protocol": "exact"}
BARS = pd.DataFrame({"dimension": [0, 0, 1], "birth": [0.0, 0.0, 0.2], "death": [0.5, np.inf, 0.4]})


@pytest.fixture
def rows():
    table = pd.DataFrame({"sample": [0, 0, 1, 1], "layer": [0, 1, 0, 1], "head": 0, **PLACES})
    return table.assign(sink_share=[0.1, 0.2, 0.3, 0.4], threshold=[0.1, 0.2, 0.1, 0.2])


@pytest.fixture
def trained(rows):
    return pd.concat([rows.assign(step=step) for step in (0, 1, 8)], ignore_index=True)


def shown(ax):
    return [
        line for line in ax.get_lines() if not (line.get_gid() or "").startswith(("uniform", "untrained"))
    ]


CALLS = {
    "depth_profile": lambda rows, **line: depth_profile(rows, "sink_share", **line),
    "emergence_curve": lambda rows, **line: emergence_curve(rows.assign(step=3), "sink_share", **line),
    "head_emergence": lambda rows, **line: head_emergence(rows.assign(step=3), "sink_share", **line),
    "threshold_curve": lambda rows, **line: threshold_curve(rows, "sink_share", **line),
    "betti_curve": lambda _, **line: betti_curve(BARS, **line),
    "spectrum_against_null": lambda _, **line: spectrum_against_null(np.eye(9) / 2 + 1 / 18, **line),
}


@pytest.mark.parametrize("function", CALLS)
def test_lines_take_matplotlib_s_keywords_under_each_of_their_names(function, rows):
    drawn = shown(CALLS[function](rows, c="#123456", lw=3, label="mine"))[0]
    assert (drawn.get_color(), drawn.get_linewidth(), drawn.get_label()) == ("#123456", 3, "mine")
    with pytest.raises(TypeError, match=f"^{function}: a line has no 'colour'; did you mean 'color'\\?"):
        CALLS[function](rows, colour="red")


def test_every_head_s_line_takes_the_keywords(trained):
    ax = head_emergence(trained, "sink_share", linestyle=":", color="red")
    assert {(line.get_linestyle(), line.get_color()) for line in shown(ax)} == {(":", "red")}


METRICS = {
    "depth_profile": depth_profile,
    "emergence_curve": emergence_curve,
    "head_emergence": head_emergence,
    "threshold_curve": threshold_curve,
    "layer_head_map": layer_head_map,
}


@pytest.mark.parametrize("function", METRICS)
def test_errors_begin_with_the_function_that_was_called(function, rows):
    call = METRICS[function]
    with pytest.raises(ValueError, match=f"^{function}: no column 'sinkshare'; did you mean 'sink_share'"):
        call(rows, "sinkshare")
    with pytest.raises(KeyError, match=f"^{function}: no column 'sinkshare'"):
        call(rows, "sinkshare")
    with pytest.raises(
        ValueError, match=f"^{function}: expected results, a table or numbers .*got shape \\(3,\\)"
    ):
        call([1.0, 2.0, 3.0], "sink_share")
    with pytest.raises(ValueError, match=f"^{function}: expected results.*, got set"):
        call({"a"}, "sink_share")
    with pytest.raises(NotDrawable, match=f"^{function}: the run has no table '(heads|graphs)'"):
        call(asc.Results({"samples": rows}), "sink_share")


def test_errors_without_a_step_or_a_column_of_bars_begin_with_the_function(rows):
    for function in (emergence_curve, head_emergence):
        with pytest.raises(
            NotDrawable, match=f"^{function.__name__}: none of 4 rows has a known training step"
        ):
            function(rows, "sink_share")
    for function in (persistence_diagram, betti_curve):
        with pytest.raises(ValueError, match=f"^{function.__name__}: the bars have no column 'dimension'"):
            function(pd.DataFrame({"birth": [0.0]}))


def test_a_map_without_a_law_is_refused_by_the_function():
    with pytest.raises(ValueError, match=r"^spectrum_against_null: fewer than eight tokens"):
        spectrum_against_null(np.eye(4))


def test_a_figure_s_name_alone_is_a_name(rows):
    assert list(draw(asc.Results({"heads": rows}), "depth")) == ["depth"]
    with pytest.raises(ValueError, match="figures: no figure 'dept'; did you mean 'depth'"):
        draw(asc.Results({"heads": rows}), "dept")


def test_words_of_the_style_give_way():
    ax = Figure().subplots()
    estimate = pd.DataFrame({"mean": [1.0, 2.0], "low": [0.0, 1.0], "high": [2.0, 3.0]})
    draw_curve(ax, [0, 1], estimate, "name", "blue", line={"label": "other"})
    assert ax.get_lines()[0].get_label() == "other"


def test_a_font_by_name_brings_no_complaint_about_others(monkeypatch):
    complaints = []
    logger = logging.getLogger("matplotlib.font_manager")
    monkeypatch.setattr(logger, "warning", lambda *words: complaints.append(words))
    with style("DejaVu Serif"):
        figure = Figure()
        figure.subplots().set_title(r"$\lambda_2$ and x")
        figure.savefig(io.BytesIO(), format="pdf")
    assert complaints == []
