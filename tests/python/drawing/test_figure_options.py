# SPDX-License-Identifier: MIT
"""What an author changes of a figure: width, letters, words, colours, formats; captions for LaTeX."""

import logging
import math
import re
import warnings
from itertools import pairwise

import matplotlib as mpl
import matplotlib.font_manager
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

import figure_tables as made
from attnscope import plots
from attnscope.plots import Options, draw, figures, threshold_curve
from attnscope.plots.figure_options import adapt, wrap_titles
from attnscope.plots.standard import examples
from attnscope.plots.style import (
    PALETTE,
    font_settings,
    freeze_layout,
    legend_above,
    legend_columns,
    legend_row,
    panels,
    style,
)
from attnscope.results.results import Results


@pytest.fixture(scope="module")
def results():
    return made.make_results()


def texts_of(figure):
    return [text for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.slow
def test_a_column_has_its_width_and_the_panels_stand_in_more_rows(results):
    for width, inches in (("single", 3.4), ("double", 7.0), (5, 5.0), ("3.2", 3.2)):
        figure = draw(results, ["depth"], width=width)["depth"]
        assert figure.get_figwidth() == pytest.approx(inches)
        ends = [ax._left_title.get_window_extent().x1 for ax in figure.axes if ax.get_title(loc="left")]
        assert max(ends) <= inches * figure.dpi + 3
    single, double = (draw(results, ["depth"], width=width)["depth"] for width in ("single", "double"))
    assert len(single.axes) == len(double.axes)
    assert single.get_figheight() > double.get_figheight()


def test_folded_panels_keep_their_places_and_shared_axes():
    _, wide = panels(2, 4, height=2.0, width=7.0, sharey="row")
    figure, axes = panels(2, 4, height=2.0, width=3.4, sharey="row")
    assert [len(row) for row in axes] == [len(row) for row in wide] == [4, 4]
    assert len(figure.axes) == 8
    axes[0][0].set_ylim(0, 5)
    axes[1][0].set_ylim(0, 9)
    assert [ax.get_ylim() for ax in axes[0]] == [(0, 5)] * 4
    assert [ax.get_ylim() for ax in axes[1]] == [(0, 9)] * 4
    figure, axes = panels(1, 3, height=2.0, width=3.4)
    assert len(figure.axes) == 3, "an axis too many is left on the page"


def test_letters_words_and_colours(results):
    plain = draw(results, ["depth"])["depth"]
    changed = draw(
        results, ["depth"], letters=True, labels={"layer": "Schicht"}, palette=["#aa0000"], font_size=10.0
    )["depth"]
    words = [text.get_text() for text in texts_of(changed)]
    shown = sum(ax.axison for ax in changed.axes)
    assert [word for word in words if word in "abcdefgh"] == list("abcdefgh"[:shown])
    assert "Schicht" in words
    assert "layer" not in words
    colours = {to_hex(line.get_color()) for ax in changed.axes for line in ax.get_lines()}
    before = {to_hex(line.get_color()) for ax in plain.axes for line in ax.get_lines()}
    assert PALETTE[0] in before
    assert PALETTE[0] not in colours
    assert "#aa0000" in colours
    label = {text.get_text(): text.get_fontsize() for text in texts_of(plain)}["layer"]
    larger = {text.get_text(): text.get_fontsize() for text in texts_of(changed)}["Schicht"]
    assert larger == pytest.approx(label * 10 / 8)


def test_words_inside_of_a_formula_are_no_words(results):
    """`--label a=b=c` made \\lbmbdb_2 of \\lambda_2, which is no formula, and the figure was left out."""
    words = [text.get_text() for text in texts_of(draw(results, ["depth"], labels={"a": "b"})["depth"])]
    assert r"$\lambda_2$" in " ".join(words)
    assert "lbyer" in words
    renamed = texts_of(draw(results, ["depth"], labels={r"$\lambda_2$": "gap"})["depth"])
    assert "gap" in " ".join(text.get_text() for text in renamed)


def test_a_missing_threshold_is_no_tick(results):
    graphs = results.table("graphs").copy()
    graphs["threshold"] = graphs["threshold"].where(graphs["sample"] > 0)
    ax = threshold_curve(graphs, "density")
    ax.figure.draw_without_rendering()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.02", "0.1"]


def test_letters_go_on_after_z():
    figure, axes = panels(6, 10, height=6.0, width=20.0)
    adapt(figure, Options(letters=True))
    names = [text.get_text() for row in axes for ax in row for text in ax.texts]
    assert names[24:28] == ["y", "z", "aa", "ab"]
    assert names[50:54] == ["ay", "az", "ba", "bb"]


def test_a_font_is_taken_and_the_users_own_settings_win(results):
    family = draw(results, ["depth"], font="DejaVu Serif")["depth"].axes[0].title.get_fontfamily()
    assert family == ["DejaVu Serif"]
    with mpl.rc_context({"font.size": 13.0}), style():
        assert mpl.rcParams["font.size"] == 13.0
        assert mpl.rcParams["pdf.fonttype"] == 42
    with style():
        assert mpl.rcParams["font.size"] == 8.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"width": "triple"},
            "width must be inches, a number with in, cm, mm or pt, 'single' or 'double', got",
        ),
        ({"width": 0.5}, "between 2 and 20 inches, got 0.5"),
        ({"font_size": 0}, "font_size must be positive, got 0"),
        ({"font_size": math.inf}, "font_size must be positive, got inf"),
        ({"font_size": 1e9}, "font_size must be at most 72 points, got 1000000000.0"),
        ({"palette": ["bleu"]}, "palette holds 'bleu', which is no colour"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Options(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"dpi": dpi}, f"dpi must be positive, got {dpi}") for dpi in (0, -5, math.nan, math.inf)),
        ({"dpi": 1e9}, "dpi must be at most 4800, got 1000000000.0"),
        ({"formats": ["pngg"]}, "there is no format 'pngg'; did you mean 'png'?"),
        ({"formats": ["png", ""]}, "there is no format ''; there are: "),
    ],
)
def test_files_that_cannot_be_are_refused_before_anything_is_drawn(results, tmp_path, options, words):
    with pytest.raises(ValueError, match=re.escape(f"figures: {words}")):
        figures(results, tmp_path / "figures", ["depth"], **{"formats": ["png"], **options})
    assert not (tmp_path / "figures").exists()


def test_a_format_is_short_for_a_list_of_it(results, tmp_path):
    files = figures(results, tmp_path, ["depth"], formats="svg")
    assert [file.name for file in files] == ["depth.svg", "captions.tex"]


def test_a_figure_that_is_drawn_again_leaves_the_captions_of_the_others(results, tmp_path, monkeypatch):
    """The file of captions held those of the last call alone, and those of figures that were not written."""
    names = ["depth", "emergence"]
    figures(results, tmp_path, names, formats="svg")
    together = (tmp_path / "captions.tex").read_text("utf-8")
    for name in names:
        figures(results, tmp_path, [name], formats="svg")
        captions = (tmp_path / "captions.tex").read_text("utf-8")
        assert sorted(captions.splitlines()) == sorted(together.splitlines())
    (tmp_path / "emergence.svg").unlink()
    figures(results, tmp_path, ["depth"], formats="svg")
    assert "attnscope:emergence" not in (tmp_path / "captions.tex").read_text("utf-8")
    written = plots.save

    def save_some(figure, path, *arguments, **options):
        if path.name == "emergence":
            raise ValueError("no such letter")
        return written(figure, path, *arguments, **options)

    monkeypatch.setattr(plots, "save", save_some)
    figures(results, tmp_path, names, formats="svg", left_out=[])
    assert "attnscope:emergence" not in (tmp_path / "captions.tex").read_text("utf-8")


@pytest.mark.slow
def test_formats_titles_and_captions(results, tmp_path):
    files = figures(results, tmp_path, ["depth", "emergence"], formats=["svg", "png", "eps"], dpi=50)
    assert sorted(file.name for file in files) == sorted(
        [
            "captions.tex",
            *(f"{name}.{kind}" for name in ("depth", "emergence") for kind in ("svg", "png", "eps")),
        ]
    )
    assert b"<dc:title>depth</dc:title>" in (tmp_path / "depth.svg").read_bytes()
    captions = (tmp_path / "captions.tex").read_text("utf-8")
    assert captions.startswith("% \\input{captions}")
    assert captions.splitlines()[1].startswith(r"\newcommand{\figurecaption}[1]")
    assert captions.count(r"\expandafter\def\csname attnscope:") == 2
    assert r"95 \% intervals" in captions
    assert captions.isascii()


def test_titles_stay_off_their_neighbours(results):
    figure = draw(results, ["depth"], width=3.2)["depth"]
    titles = [ax._left_title.get_window_extent() for ax in figure.axes if ax.get_title(loc="left")]
    rows = {}
    for ax, title in zip(figure.axes, titles, strict=False):
        rows.setdefault(round(ax.get_window_extent().y0), []).append((title.x0, title.x1))
    assert all(len(row) > 1 for row in rows.values())
    for row in rows.values():
        assert all(left[1] <= right[0] for left, right in pairwise(sorted(row)))


def test_titles_of_one_figure_have_one_size(results):
    figure = draw(results, ["depth"], width=3.2)["depth"]
    sizes = {ax._left_title.get_fontsize() for ax in figure.axes if ax.get_title(loc="left")}
    assert len(sizes) == 1
    assert sizes.pop() < 8.5  # one of them would not fit


@pytest.mark.parametrize(
    ("width", "words", "shown"),
    [
        (3.2, "Fiedler value of the graph $\\lambda_2$", "Fiedler value of the\ngraph $\\lambda_2$"),
        (7.0, "Fiedler value of the graph $\\lambda_2$", "Fiedler value of the graph $\\lambda_2$"),
        (4.2, "turn without, $1 - \\cos(c, c_N)$", "turn without, $1 - \\cos(c, c_N)$"),
        (2.2, "the turn without, $1 - \\cos(c, c_N)$", "the turn without,\n$1 - \\cos(c, c_N)$"),
    ],
)
def test_long_titles_of_narrow_panels_have_two_lines(width, words, shown):
    figure, axes = panels(1, 2, height=2.0, width=width, narrowest=1.0)
    axes[0][0].set_title(words, loc="left", fontsize=8)
    wrap_titles(figure)
    assert axes[0][0].get_title(loc="left").replace("\N{NO-BREAK SPACE}", " ") == shown


@pytest.mark.parametrize(("width", "rows"), [(3.2, 2), (7.0, 1)])
def test_a_legend_above_wraps_where_it_would_leave_the_page(width, rows):
    figure, axes = panels(1, 2, height=2.0, width=width)
    for ax in axes[0]:
        for name in ("the first of them", "the second of them"):
            ax.plot([0, 1], [0, 1], label=name)
        legend_above(ax)
    freeze_layout(figure)
    for ax in axes[0]:
        legend = ax.get_legend()
        assert legend.get_window_extent().x1 <= width * figure.dpi + 2
        heights = {round(text.get_window_extent().y0) for text in legend.get_texts()}
        assert len(heights) == rows


def test_a_legend_names_no_line_without_values():
    figure, axes = panels(1, 2, height=2.0)
    for ax in axes[0]:
        for name in ("text", "copying"):
            ax.plot([0, 1], [0, 1], label=name)
    lines = [ax.plot([0, 1], [float("nan")] * 2, gid="untrained:text")[0] for ax in axes[0]]
    legend_row(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["text", "copying"]
    lines[0].set_ydata([0.2, 0.3])
    legend_row(figure)
    assert [text.get_text() for text in figure.legends[1].get_texts()][-1] == "before training"


def test_rows_of_a_legend_have_one_length():
    figure, _ = panels(1, 1, height=2.0, width=6.75)
    assert legend_columns(figure, ["q", "k", "v", "o", "gate", "up", "down"]) == 7
    assert legend_columns(figure, [f"an encoding {at}" for at in range(7)]) == 4


@pytest.mark.slow
def test_folded_panels_leave_no_hole(results):
    figure = draw(results, ["thresholds"], width=3.2)["thresholds"]
    lefts = sorted(round(ax.get_position().x0, 2) for ax in figure.axes if ax.axison)
    assert abs(lefts.count(lefts[0]) - lefts.count(lefts[-1])) <= 1


KEYS = {"model": "m", "revision": "", "step": -1, "sample": 0, "layer": 0, "protocol": "exact"}
N = 16


def maps(window):
    """A random map whose queries see so many keys, flattened."""
    draw = np.random.default_rng(0).uniform(0.1, 1.0, (N, N))
    seen = np.array([[0 <= i - j < window for j in range(N)] for i in range(N)])
    held = np.where(seen, draw, 0.0)
    return (held / held.sum(1, keepdims=True)).ravel().tolist()


def test_no_law_is_drawn_where_none_was_used():
    stored = [{**KEYS, "head": head, "n_tokens": N, "attention": maps(w)} for head, w in enumerate((N, 5))]
    heads = [{**KEYS, "head": head, "support": name} for head, name in enumerate(("causal", "window 5"))]
    results = Results({"examples": pd.DataFrame(stored), "heads": pd.DataFrame(heads)})
    drawn = examples().draw(results, Options())
    spectra = [ax for ax in drawn.figure.axes if ax.get_xlabel() == "eigenvalue"]
    assert [ax.get_lines()[1].get_label() for ax in spectra] == ["triangular law"]
    panel_texts = [text.get_text() for ax in drawn.figure.axes for text in ax.texts]
    assert any("where queries see a window 5" in text for text in panel_texts)


@pytest.mark.parametrize(("width", "inches"), [("single", 3.4), ("3.25in", 3.25), ("8.6cm", 8.6 / 2.54)])
def test_a_picture_is_as_wide_as_asked(results, tmp_path, width, inches):
    files = figures(results, tmp_path, ["depth"], formats=["pdf"], width=width)
    box = re.search(rb"/MediaBox \[ ?([\d. ]+)\]", files[0].read_bytes())[1].split()
    assert float(box[2]) / 72 == pytest.approx(inches, abs=1e-6)


def test_counts_of_nothing_are_drawn_at_zero_and_not_at_rounding():
    with style():
        _, axes = panels(1, 1, height=2, width=3.4)
    ax = axes[0][0]
    ax.plot([0, 1], [0.0, 0.0])
    ax.fill_between([0, 1], [-1.5e-17, 0.0], [0.0, 0.0])
    plots.lines._limits(ax, "betti_1")
    assert ax.get_ylim() == (-0.05, 0.05)


@pytest.mark.parametrize("dpi", [60, 110, 150, 200, 300])
def test_no_letter_is_cut_whatever_the_resolution(tmp_path, dpi):
    """In coarse pixels letters are wider than in those of the layout."""
    with style():
        figure, _ = panels(1, 1, height=2, width=3.4)
        figure.axes[0].set_yticks([0, 1], ["key 0 unread: all heads", "another special token"])
        freeze_layout(figure)
        plots.save(figure, tmp_path / "a", ["png"], dpi=dpi)
        figure.savefig(tmp_path / "b.png", bbox_inches="tight", pad_inches=1, dpi=dpi)
    pictures = [mpl.image.imread(tmp_path / name)[..., :3] for name in ("a.png", "b.png")]
    ours, with_room = (np.flatnonzero((picture < 0.99).any((0, 2))) for picture in pictures)
    assert np.ptp(ours) >= np.ptp(with_room) - 1  # a column of pixels may fall on the edge


def test_formulas_have_the_letters_of_the_text():
    with style("DejaVu Serif"):
        assert mpl.rcParams["mathtext.fontset"] == "custom"
        assert mpl.rcParams["mathtext.it"] == "DejaVu Serif:italic"
    with style("serif"):
        assert mpl.rcParams["mathtext.fontset"] == "dejavuserif"
    assert mpl.rcParams["mathtext.fontset"] == "dejavusans"


def test_a_missing_font_is_said_once(results, tmp_path, monkeypatch):
    font_settings.cache_clear()
    logged = []
    monkeypatch.setattr(logging.getLogger("matplotlib.font_manager"), "handle", logged.append)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures(results, tmp_path, ["depth"], formats=["pdf"], font="DejaVu Sanz")
    messages = [str(warning.message) for warning in caught]
    assert messages == [
        "figures: there is no font 'DejaVu Sanz'; did you mean 'DejaVu Sans'?; the style's is taken"
    ]
    assert logged == []
