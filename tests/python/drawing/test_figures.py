# SPDX-License-Identifier: MIT
"""Figures are functions of tables: what the artists hold equals the tables' numbers."""

import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import attnscope as asc
import figure_tables as made
import study_tables
from attnscope.metrics.spectra.null_law import null_spectrum
from attnscope.plots import (
    LeftOut,
    NotDrawable,
    attention_map,
    betti_curve,
    depth_profile,
    draw,
    emergence_curve,
    figures,
    head_emergence,
    layer_head_map,
    persistence_diagram,
    spectrum_against_null,
    threshold_curve,
)
from attnscope.plots.axes import step_axis
from attnscope.plots.figure import _has_data, with_values
from attnscope.plots.maps import printable
from attnscope.plots.selection import estimate, measured_heads
from attnscope.results.results import Results
from attnscope.results.summaries import rows_of_protocol, uniform_value, with_groups
from attnscope.studies.attention_sinks.figures import FIGURES, METRICS

RESULTS = made.make_results()
#: Figures of tables that this run lacks; test_study_figures.py draws them.
OF_OTHER_TABLES = {
    "positions",
    "protocols",
    "sink_removal",
    "ablation",
    "reference",
    "fisher",
    "frames",
    "divergence",
}


@pytest.fixture
def heads() -> pd.DataFrame:
    return measured_heads(RESULTS, METRICS)


@pytest.fixture
def ax() -> matplotlib.axes.Axes:
    return Figure().subplots()


@pytest.fixture
def unarranged(monkeypatch) -> None:
    """For one test: figures whose panels are not arranged, which takes half of their time."""
    monkeypatch.setattr("attnscope.plots.figure.freeze_layout", lambda drawn: drawn.set_layout_engine("none"))


def line(axes, label: str):
    return next(line for line in axes.get_lines() if line.get_label() == label)


def artist(axes, gid: str):
    return next(child for child in axes.get_children() if child.get_gid() == gid)


#: Samples of the two input sets.
TEXT, COPYING = tuple(range(made.SAMPLES // 2)), tuple(range(made.SAMPLES // 2, made.SAMPLES))


def expected(step: int, samples: tuple[int, ...], layers=(0, 1), heads=(0, 1)) -> float:
    return np.mean([made.value(step, s, lay, h) for s in samples for lay in layers for h in heads])


def test_emergence_lines_are_the_means_over_samples(heads, ax) -> None:
    baselines = RESULTS.table("baselines")
    assert emergence_curve(heads, "fiedler_value", baselines=baselines, ax=ax) is ax
    for label, samples in (("text", TEXT), ("copying", COPYING)):
        drawn = line(ax, label)
        assert list(drawn.get_xdata()) == [0, 2, 64]
        means = [expected(step, samples) / 2 for step in made.STEPS]
        np.testing.assert_allclose(drawn.get_ydata(), means, rtol=1e-12)
        before = artist(ax, f"untrained:{label}").get_ydata()
        np.testing.assert_allclose(before, [means[0]] * 2, rtol=1e-12)
        band = artist(ax, f"interval:{label}").get_paths()[0].vertices
        lows = [
            min(made.value(s, x, lay, h) for lay in (0, 1) for h in (0, 1))
            for s in made.STEPS
            for x in samples
        ]
        assert band[:, 1].min() >= min(lows) / 2 - 1e-12
    assert set(artist(ax, "uniform").get_ydata()) == {0.5}
    assert ax.get_xscale() == "symlog"


def test_head_lines_carry_their_names_and_the_strongest_is_named(heads, ax) -> None:
    rows = heads[heads["series"] == "text"]
    head_emergence(rows, "sink_share", ax=ax, named=1)
    for layer in range(made.LAYERS):
        for head in range(made.HEADS):
            means = [expected(step, TEXT, (layer,), (head,)) for step in made.STEPS]
            np.testing.assert_allclose(line(ax, f"L{layer}H{head}").get_ydata(), means, rtol=1e-12)
    assert [text.get_text() for text in ax.texts] == ["L1H1"]
    assert artist(ax, "uniform").get_ydata()[0] == pytest.approx(made.UNIFORM)


def test_a_model_that_has_step_0_alone_is_not_drawn_as_untrained(heads, ax) -> None:
    """Checkpoints under names of their own are models of one step each."""
    first, last = (heads[heads["step"] == step] for step in (0, 64))
    apart = pd.concat([first.assign(model="a", series="a"), last.assign(model="b", series="b")])
    depth_profile(apart, "sink_share", ax=ax)
    assert not [drawn for drawn in ax.get_lines() if str(drawn.get_gid()).startswith("untrained")]


def test_colours_of_layers_can_be_those_of_another_panel(heads, ax) -> None:
    head_emergence(heads[heads["series"] == "text"], "sink_share", ax=ax, colors={0: "#111111", 1: "#222222"})
    assert line(ax, "L0H1").get_color() == "#111111"
    assert line(ax, "L1H0").get_color() == "#222222"


def test_depth_profile_is_of_the_last_step_with_the_untrained_one_dotted(heads, ax) -> None:
    assert depth_profile(heads, "sink_share", ax=ax) is ax
    drawn = line(ax, "copying")
    assert list(drawn.get_xdata()) == [0, 1]
    np.testing.assert_allclose(drawn.get_ydata(), [expected(64, COPYING, (lay,)) for lay in (0, 1)])
    before = artist(ax, "untrained:copying")
    np.testing.assert_allclose(before.get_ydata(), [expected(0, COPYING, (lay,)) for lay in (0, 1)])


def test_threshold_curve_has_a_baseline_per_threshold(ax) -> None:
    graphs = with_groups(rows_of_protocol(RESULTS.table("graphs")), RESULTS.table("samples"))
    assert threshold_curve(graphs, "density", baselines=RESULTS.table("baselines"), ax=ax) is ax
    drawn = line(ax, "text")
    assert list(drawn.get_xdata()) == list(made.THRESHOLDS)
    np.testing.assert_allclose(drawn.get_ydata(), [1 - t - expected(64, TEXT) / 10 for t in made.THRESHOLDS])
    np.testing.assert_allclose(artist(ax, "uniform").get_ydata(), [1 - t for t in made.THRESHOLDS])


def test_layer_head_map_cells_are_means_with_layer_zero_on_top(heads, ax) -> None:
    rows = heads[(heads["series"] == "text") & (heads["step"] == 2)]
    assert layer_head_map(rows, "sink_share", ax=ax) is ax
    cells = np.asarray(ax.collections[0].get_array()).reshape(made.LAYERS, made.HEADS)
    want = [[expected(2, TEXT, (lay,), (h,)) for h in (0, 1)] for lay in (0, 1)]
    np.testing.assert_allclose(cells, want, rtol=1e-12)
    assert ax.yaxis_inverted()
    assert len(ax.texts) == 4
    assert layer_head_map(rows.assign(sink_share=np.nan), "sink_share", ax=Figure().subplots())
    with pytest.raises(KeyError, match="layer_head_map: no column 'nonsense'"):
        layer_head_map(rows, "nonsense", ax=ax)


def test_attention_map_shows_the_matrix_and_escapes_tokens(ax) -> None:
    matrix = made.attention()
    tokens = ["$x$", "Ġthe", *["a"] * (made.N - 2)]
    assert attention_map(matrix, tokens, ax=ax, floor=1e-9) is ax
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0), matrix)
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == [r"\$x\$", "␣the"]
    ax.figure.canvas.draw()
    with pytest.raises(ValueError, match=r"got shape \(2, 3\)"):
        attention_map(np.zeros((2, 3)), ax=ax)
    with pytest.raises(ValueError, match="12 queries but 1 tokens"):
        attention_map(matrix, ["a"], ax=ax)


@pytest.mark.parametrize("token", ["$$", "\x00", "\u202e", "_^{}\\", "x" * 50, ""])
def test_any_token_can_be_drawn(token: str) -> None:
    figure = Figure()
    figure.text(0.5, 0.5, printable(token))
    figure.canvas.draw()
    assert len(printable(token)) <= 24


def test_betti_curve_and_diagram_hold_the_bars(ax) -> None:
    bars = RESULTS.table("bars").query("head == 0")
    betti_curve(bars, ax=ax)
    zero, first = ax.get_lines()[:2]

    def at(drawn, threshold: float) -> int:
        x, y = drawn.get_xdata(), drawn.get_ydata()
        return int(y[np.flatnonzero(x >= threshold)[-1]])

    assert [at(zero, t) for t in (0.9, 0.5, 0.2)] == [3, 2, 1]
    assert [at(first, t) for t in (0.9, 0.4, 0.1)] == [0, 1, 0]
    points = persistence_diagram(bars, ax=Figure().subplots()).collections
    np.testing.assert_allclose(points[0].get_offsets()[1:], [[0, 0.4], [0, 0.7]])
    assert points[0].get_offsets()[0][1] > 1
    np.testing.assert_allclose(points[1].get_offsets(), [[0.5, 0.8]])


def test_few_bars_are_counted_on_an_axis_that_can_be_read(ax) -> None:
    betti_curve(RESULTS.table("bars").query("head == 0"), ax=ax)
    low, high = ax.get_ylim()
    assert [tick for tick in ax.get_yticks() if low <= tick <= high] == [0, 1, 2, 3]


def test_spectrum_against_null_draws_eigenvalues_and_distance(ax) -> None:
    matrix = made.attention(2.0)
    spectrum_against_null(matrix, ax=ax)
    result = null_spectrum(torch.from_numpy(matrix))
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), result.values)
    distance = float(asc.marchenko_pastur_deviation(torch.from_numpy(matrix)))
    assert any(text.get_text() == f"KS {distance:.2f}" for text in ax.texts)
    # the bar that marks the distance has its length, but for the points that the law's curve is drawn with
    assert np.ptp(ax.get_lines()[2].get_ydata()) == pytest.approx(distance, abs=2e-4)


def test_estimate_averages_inside_a_sample_first_and_resamples_samples() -> None:
    table = pd.DataFrame({"sample": [0, 0, 0, 1], "x": [0.0, 0.0, 0.0, 1.0], "k": 1})
    row = estimate(table, "x", ["k"]).iloc[0]
    assert row["mean"] == 0.5
    assert np.isnan([row["low"], row["high"]]).all()
    three = estimate(table.assign(sample=[0, 0, 1, 2]), "x", ["k"]).iloc[0]
    assert (three["mean"], three["samples"]) == (pytest.approx(1 / 3), 3)
    gaps = pd.DataFrame({"sample": range(6), "x": [1.0, 2, 3, np.nan, 5, 6], "k": [0, 0, 0, 1, 1, 1]})
    estimates = estimate(gaps, "x", ["k"])
    assert estimates["mean"].tolist() == [2.0, 5.5]
    assert estimates["samples"].tolist() == [3, 2]
    assert estimates["missing"].tolist() == [0, 1]
    single = estimate(gaps[gaps["sample"] == 0], "x", ["k"]).iloc[0]
    assert np.isnan(single["low"])
    pd.testing.assert_frame_equal(estimates, estimate(gaps, "x", ["k"]))
    with pytest.raises(KeyError, match="no column 'y'"):
        estimate(gaps, "y", ["k"])


def test_interval_ends_where_the_values_of_a_quantity_do() -> None:
    shares = [0.0, 0.0, 0.0, 0.001, 0.002, 0.9]
    table = pd.DataFrame({"sample": range(6), "sink_share": shares, "x": shares, "k": 0})
    free, bounded = (estimate(table, column, ["k"]).iloc[0] for column in ("x", "sink_share"))
    assert free["low"] < 0.0
    assert free["high"] > 1.0
    assert (bounded["low"], bounded["high"]) == (0.0, 1.0)
    # numbers that are not of this definition keep their interval
    beyond = estimate(table.assign(sink_share=table["x"] - 0.5), "sink_share", ["k"]).iloc[0]
    assert beyond["low"] == pytest.approx(free["low"] - 0.5)


def test_interval_covers_as_often_as_it_says() -> None:
    draw_ = np.random.default_rng(0)
    values = draw_.normal(size=(400, 30))
    table = pd.DataFrame(
        {"k": np.repeat(np.arange(400), 30), "sample": np.tile(np.arange(30), 400), "x": values.ravel()}
    )
    result = estimate(table, "x", ["k"])
    covered = ((result["low"] <= 0) & (result["high"] >= 0)).mean()
    assert 0.89 < covered < 0.97


def test_baseline_is_averaged_over_the_lengths_there_are() -> None:
    frame = pd.DataFrame({"n_tokens": [4, 8]})
    rows = [(4, "x", 1.0, "uniform", "causal", np.nan), (8, "x", 3.0, "uniform", "causal", np.nan)]
    baselines = pd.DataFrame(rows, columns=["n_tokens", "metric", "value", "kind", "support", "threshold"])
    assert uniform_value(frame, baselines, "x") == 2.0
    assert np.isnan(uniform_value(frame, baselines, "y"))
    assert np.isnan(uniform_value(frame, baselines, "x", 0.1))
    assert np.isnan(uniform_value(frame, None, "x"))


def test_step_axis_ticks_are_checkpoints(ax) -> None:
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 143000]
    step_axis(ax, steps)
    ticks = [int(tick) for tick in ax.get_xticks()]
    assert set(ticks) <= set(steps)
    assert {0, 143000} <= set(ticks)
    assert ax.get_xlim()[0] <= 0


@pytest.fixture(scope="module")
def all_figures() -> dict[str, Figure]:
    return draw(RESULTS)


def test_every_figure_draws_from_the_tables_alone(all_figures) -> None:
    assert set(all_figures) == set(FIGURES) - OF_OTHER_TABLES


def test_head_mean_rows_are_never_drawn(all_figures) -> None:
    # the head mean holds 99 in every column
    for name, figure in all_figures.items():
        for axes in figure.axes:
            for line in axes.get_lines():
                assert not np.any(np.asarray(line.get_ydata(), dtype=float) > 50), name


def test_columns_without_a_value_are_not_said_to_be_missing():
    with pytest.raises(NotDrawable, match="the heads table has no value of share"):
        with_values(pd.DataFrame({"share": [np.nan]}), "heads", ["share"])


@pytest.mark.slow
def test_a_single_checkpoint_has_no_emergence_but_everything_else() -> None:
    results = made.make_results(steps=(-1,))
    assert set(FIGURES) - set(draw(results)) == {"sink_emergence", "emergence"} | OF_OTHER_TABLES
    with pytest.raises(NotDrawable, match="emergence: the run has one checkpoint"):
        draw(results, ["emergence"])


@pytest.mark.usefixtures("unarranged")
def test_missing_tables_and_wrong_names_are_errors() -> None:
    only = Results({"heads": RESULTS.table("heads").drop(columns=["sink_share", "mp_ks", "alignment_value"])})
    assert set(draw(only)) == {"metric_maps", "emergence", "depth"}
    with pytest.raises(NotDrawable, match="thresholds: the run has no table 'graphs'"):
        draw(only, ["thresholds"])
    with pytest.raises(ValueError, match="no figure 'nonsense'; there are: fisher, frames"):
        draw(RESULTS, ["nonsense"])
    with pytest.raises(ValueError, match="no run folder"):
        figures(RESULTS)
    assert draw(Results({})) == {}


@pytest.mark.usefixtures("unarranged")
def test_an_error_of_one_figure_leaves_the_others(tmp_path: Path, monkeypatch) -> None:
    def broken(*_):
        raise ZeroDivisionError("nothing\nto divide by")

    for name in set(FIGURES) - {"depth", "examples", "protocols"}:
        monkeypatch.delitem(FIGURES, name)
    monkeypatch.setitem(FIGURES, "depth", broken)
    left_out: list[LeftOut] = []
    assert set(draw(RESULTS, left_out=left_out)) == {"examples"}
    failed = [omission for omission in left_out if omission.failed]
    assert [str(omission) for omission in failed] == [
        "figure depth is left out: ZeroDivisionError: nothing to divide by"
    ]
    assert {omission.name for omission in left_out} == {"depth", "protocols"}
    with pytest.warns(UserWarning, match="figure depth is left out: ZeroDivisionError"):
        draw(RESULTS, ["depth"])

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: broken(None))
    with pytest.warns(UserWarning, match="figure examples is left out: ZeroDivisionError"):
        assert figures(RESULTS, tmp_path, ["examples"]) == []
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: full())
    with pytest.raises(OSError, match="No space left"):
        figures(RESULTS, tmp_path, ["examples"])


@pytest.mark.slow
def test_files_are_vector_pdfs_with_text_and_the_same_each_time(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    first = figures(RESULTS, tmp_path / "a", ["sink_maps", "sink_emergence"])
    assert [file.name for file in first] == [
        "sink_maps.pdf",
        "sink_maps.png",
        "sink_emergence.pdf",
        "sink_emergence.png",
        "captions.tex",
    ]
    pdf = first[0].read_bytes()
    assert b"/Type /Font" in pdf
    assert b"/Subtype /Type0" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert b"/Subtype /Image" not in pdf
    again = figures(RESULTS, tmp_path / "b", ["sink_maps"], formats=["pdf"])
    assert again[0].read_bytes() == pdf
    assert dict(matplotlib.rcParams) == before


def test_drawing_without_axes_makes_some_and_leaves_rcparams_alone(heads) -> None:
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    made_axes = emergence_curve(heads, "sink_share")
    assert plt.fignum_exists(made_axes.figure.number)
    plt.close(made_axes.figure)
    assert dict(matplotlib.rcParams) == before


def test_importing_the_package_loads_no_matplotlib() -> None:
    code = "import sys, attnscope, attnscope.results.results; print('matplotlib' in sys.modules)"
    path = str(Path(__file__).resolve().parents[3] / "python")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=False
    )
    assert done.stdout.strip() == "False", done.stderr


def test_numbers_tables_and_results_are_drawn_alike(heads, ax) -> None:
    numbers = np.arange(24.0).reshape(2, 3, 4)  # layer, sample, head
    cells = layer_head_map(torch.tensor(numbers), "sink_share", ax=ax).collections[0].get_array()
    np.testing.assert_allclose(np.asarray(cells).ravel(), numbers.mean(1).ravel())
    profile = depth_profile(numbers, "sink_share", ax=Figure().subplots()).get_lines()[0]
    assert list(profile.get_ydata()) == list(numbers.mean((1, 2)))
    course = emergence_curve(
        numbers[None] * np.array([1, 2])[:, None, None, None], "x", ax=Figure().subplots()
    )
    assert list(course.get_lines()[0].get_ydata()[:2]) == [numbers.mean(), 2 * numbers.mean()]
    for source in (RESULTS, RESULTS.table("heads")):
        drawn = depth_profile(source, "sink_share", ax=Figure().subplots())
        assert len(drawn.get_lines()) >= 1
    of_results = depth_profile(RESULTS, "sink_share", ax=Figure().subplots())
    expected_lines = depth_profile(heads, "sink_share", ax=Figure().subplots())
    for line, other in zip(of_results.get_lines(), expected_lines.get_lines(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), other.get_ydata())
    with pytest.raises(ValueError, match=r"\[layer, head\], .* got shape \(5,\)"):
        depth_profile(np.zeros(5), "x", ax=ax)


def test_a_baseline_far_above_what_was_measured_makes_the_axis_logarithmic(heads) -> None:
    baselines = RESULTS.table("baselines")
    far = depth_profile(
        heads.assign(fiedler_value=heads["fiedler_value"] / 100),
        "fiedler_value",
        baselines=baselines,
        ax=Figure().subplots(),
    )
    near = depth_profile(heads, "fiedler_value", baselines=baselines, ax=Figure().subplots())
    assert (far.get_yscale(), near.get_yscale()) == ("log", "linear")


def test_a_scale_is_as_tall_as_its_maps() -> None:
    figure = draw(RESULTS, ["metric_maps"], width=3.2)["metric_maps"]
    for ax in figure.axes:
        if info := getattr(ax, "_colorbar_info", None):
            boxes = [parent.get_position() for parent in info["parents"]]
            place = ax.get_position()
            assert place.y0 == pytest.approx(min(box.y0 for box in boxes))
            assert place.y1 == pytest.approx(max(box.y1 for box in boxes))


def test_a_panel_of_steps_is_not_empty(ax) -> None:
    assert not _has_data(ax)
    ax.stairs([np.nan, np.nan])
    assert not _has_data(ax)
    ax.stairs([1.0, 2.0])
    assert _has_data(ax)


def test_no_two_figures_of_a_study_share_a_caption():
    captions = [figure.caption for figure in FIGURES.values()]
    assert len(set(captions)) == len(captions)


def test_sink_maps_begin_with_the_first_step_and_end_with_a_model_of_none():
    last = RESULTS.table("heads").query("step == 64")
    trained = [last.assign(model="trained", step=step) for step in (0, 1, 2, 64, 128, 256, 512)]
    table = pd.concat([*trained, last.assign(model="finished", step=-1)], ignore_index=True)
    figure = draw(Results({"heads": table}, study=RESULTS.study), ["sink_maps"])["sink_maps"]
    shown = [ax for ax in figure.axes if ax.axison and ax.get_title("left")]
    assert [ax.get_title("left").replace("\n", " ") for ax in shown] == [
        "trained, step 0",
        "step 64",
        "step 128",
        "step 256",
        "step 512",
        "finished",
    ]
    # a model without a step stands where training ends, and what is leftmost or lowest has its labels
    assert shown[-1].get_position().x0 == pytest.approx(shown[-2].get_position().x0)
    assert [bool(ax.get_ylabel()) for ax in shown] == [True, False, False, False, False, True]
    assert [bool(ax.get_xlabel()) for ax in shown] == [True, True, True, True, False, True]


def test_an_ablation_of_one_text_has_no_interval() -> None:
    """Bars of length 0 stood where one text gives no interval."""
    ablation = study_tables.make_study().table("ablation")
    lengths = {}
    for texts in (1, 6):
        chosen = Results(
            {"ablation": ablation[ablation["sample"] < texts]}, study={"study": "attention_sinks"}
        )
        ax = draw(chosen, ["ablation"])["ablation"].axes[0]
        segments = [segment for bars in ax.containers for segment in bars.lines[2][0].get_segments()]
        ends = [segment[:, 1] for segment in segments if len(segment) and np.isfinite(segment).all()]
        lengths[texts] = [float(high - low) for low, high in ends]
    assert lengths[1] == []
    assert min(lengths[6]) > 0
