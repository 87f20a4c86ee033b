# SPDX-License-Identifier: MIT
"""Figures of the whole study: what their artists hold equals the tables, in both protocols."""

import itertools
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import attnscope
import study_tables as made
from attnscope.plots import (
    NotDrawable,
    betti_curve,
    depth_profile,
    draw,
    draw_all,
    emergence_curve,
    layer_head_map,
    persistence_diagram,
)
from attnscope.plots.axes import depth_axis
from attnscope.plots.figure import Options, compared_with
from attnscope.plots.selection import measured_heads
from attnscope.plots.style import freeze_layout
from attnscope.results.results import Results
from attnscope.results.summaries import null_value, uniform_value, with_groups
from attnscope.studies.attention_sinks.figures import FIGURES
from attnscope.studies.attention_sinks.figures.layers import protocol_profile
from attnscope.studies.attention_sinks.figures.runs import fisher_profile, kl_by_threshold
from attnscope.studies.attention_sinks.figures.sinks import frame_shares

# arranged panels are tried in drawing/test_figures.py, and where titles stand below
pytestmark = pytest.mark.usefixtures("unarranged")
SINGLE_RUN = made.make_study()
SERIES = made.make_study(("a-1b", "b-7b"), steps=made.STEPS)
STUDY_FIGURES = {
    "protocols",
    "sink_removal",
    "ablation",
    "alignment",
    "spectra",
    "reference",
    "fisher",
    "frames",
}


@pytest.fixture
def ax() -> matplotlib.axes.Axes:
    return Figure().subplots()


def line(axes, label: str):
    return next(line for line in axes.get_lines() if line.get_label() == label)


def with_gid(axes, gid: str):
    return next((child for child in axes.get_children() if child.get_gid() == gid), None)


def panel(figure, title: str):
    return next(axis for axis in figure.axes if axis.get_title(loc="left") == title)


def over_samples(layer: int, head: int = -1, model: int = 0, step: int = -1) -> float:
    return float(np.mean([made.level(model, step, sample, layer, head) for sample in range(made.SAMPLES)]))


@pytest.mark.slow
def test_every_kind_of_run_has_its_figures() -> None:
    assert set(FIGURES) > STUDY_FIGURES
    training = {"sink_emergence", "emergence"}
    for results in (SINGLE_RUN, made.make_study(causal=False), made.make_study(("a-1b", "b-7b", "c"))):
        assert set(draw(results)) == set(FIGURES) - training - {"examples", "persistence", "positions"}
    assert set(draw(SERIES)) == set(FIGURES) - {"examples", "persistence", "positions"}


@pytest.mark.slow
def test_no_panel_is_empty_and_no_title_leaves_its_panel(monkeypatch) -> None:
    monkeypatch.setattr("attnscope.plots.figure.freeze_layout", freeze_layout)
    for name, figure in draw(SERIES).items():
        renderer = FigureCanvasAgg(figure).get_renderer()
        shown = [axis for axis in figure.axes if axis.axison]
        assert shown, name
        for drawing in shown:
            assert drawing.lines or drawing.collections or drawing.images, (
                name,
                drawing.get_title(loc="left"),
            )
        rows: dict[float, list] = {}
        for drawing in shown:
            if drawing.get_title(loc="left").strip():
                box = drawing._left_title.get_window_extent(renderer)
                rows.setdefault(round(box.y0), []).append(box)
        for boxes in rows.values():
            boxes.sort(key=lambda box: box.x0)
            for left, right in itertools.pairwise(boxes):
                assert left.x1 <= right.x0 + 1, f"{name}: titles overlap"


def test_both_protocols_stand_side_by_side_over_depth(ax) -> None:
    head_means = with_groups(SINGLE_RUN.table("head_means"), SINGLE_RUN.table("samples"))
    protocol_profile(head_means, "mean_persistence_0", ax)
    want = [over_samples(layer) for layer in range(made.LAYERS)]
    np.testing.assert_allclose(line(ax, "exact").get_ydata(), want, rtol=1e-12)
    np.testing.assert_allclose(line(ax, "as published").get_ydata(), np.array(want) / 4, rtol=1e-12)


def test_the_published_topology_is_held_against_its_bound() -> None:
    figure = draw(SINGLE_RUN, ["protocols"])["protocols"]
    bars = panel(figure, r"H0 bars ($\beta_0$)")
    assert set(line(bars, "as published").get_ydata()) == {30.0}
    assert set(line(bars, "exact").get_ydata()) == {float(made.N)}
    assert set(with_gid(bars, "bound").get_ydata()) == {30.0}
    loops = panel(figure, r"H1 bars ($\beta_1$)")
    assert set(line(loops, "as published").get_ydata()) == {0.0}
    assert list(line(loops, "exact").get_ydata()) == [5 + layer for layer in range(made.LAYERS)]
    encoder = draw(made.make_study(causal=False), ["protocols"])["protocols"]
    assert with_gid(panel(encoder, r"H0 bars ($\beta_0$)"), "bound") is None
    only = Results(
        {"head_means": SINGLE_RUN.table("head_means").query("protocol == 'exact'")}, study=SINGLE_RUN.study
    )
    with pytest.raises(NotDrawable, match="the run has one protocol"):
        draw(only, ["protocols"])


def test_infinite_ratios_are_left_out_of_means(ax) -> None:
    means = SINGLE_RUN.table("head_means")
    first = (means["sample"] == 0) & (means["layer"] == 2)
    means.loc[first & (means["protocol"] == "ruscio2025"), "spectral_ratio"] = np.inf
    head_means = with_groups(means, SINGLE_RUN.table("samples"))
    protocol_profile(head_means, "spectral_ratio", ax)
    expected_mean = np.mean([1.5 + made.level(0, -1, sample, 2) for sample in range(1, made.SAMPLES)])
    assert line(ax, "as published").get_ydata()[2] == pytest.approx(expected_mean, abs=1e-12)


def test_kl_falls_over_the_percentile_of_a_sink() -> None:
    layers = with_groups(SINGLE_RUN.table("layers"), SINGLE_RUN.table("samples"))
    mean = np.mean([over_samples(layer) for layer in range(made.LAYERS)])
    for protocol, factor in (("exact", 1), ("ruscio2025", 2)):
        axes = Figure().subplots()
        kl_by_threshold(layers[layers["protocol"] == protocol], {"tiny": "black"}, axes)
        drawn = line(axes, "tiny")
        assert list(drawn.get_xdata()) == [80, 90, 95]
        np.testing.assert_allclose(drawn.get_ydata(), mean * factor * np.array([0.2, 0.1, 0.05]), rtol=1e-12)
    band = with_gid(axes, "interval:tiny").get_paths()[0].vertices[:, 1]
    assert band.min() < drawn.get_ydata().min()


def test_the_share_of_kl_stands_beside_that_of_shuffled_rows() -> None:
    figure = draw(SINGLE_RUN, ["sink_removal"])["sink_removal"]
    shares = next(ax for ax in figure.axes if with_gid(ax, "shuffled:tiny") is not None)
    assert " ".join(shares.get_title(loc="left").split()) == "share of KL, keys ≥ 90th percentile"
    drawn = line(shares, "tiny")
    expected = [over_samples(layer) / 50 for layer in range(made.LAYERS)]
    np.testing.assert_allclose(drawn.get_ydata(), expected)
    shuffled = with_gid(shares, "shuffled:tiny")
    assert shuffled.get_linestyle() == ":"
    np.testing.assert_allclose(shuffled.get_ydata(), 0.01)


def dashes(figure) -> set[str]:
    """Return how the lines of a figure that carry numbers are broken: "solid", "dashed" or "dotted"."""
    lines = [line for ax in figure.axes for line in ax.get_lines()]
    patterns = [line._unscaled_dash_pattern[1] for line in lines if line.get_linestyle() != "None"]
    return {
        "solid" if pattern is None else "dotted" if min(pattern[::2]) <= 1.2 else "dashed"
        for pattern in patterns
    }


@pytest.mark.parametrize("run", ["single", "series"])
def test_a_caption_speaks_of_no_broken_line_that_is_not_drawn(run: str) -> None:
    for name, drawn in draw_all({"single": SINGLE_RUN, "series": SERIES}[run]).items():
        spoken = {
            word for word in ("dashed", "dotted") if re.search(rf"\b{word}\b(?! edges)", drawn.caption, re.I)
        }
        if "dash-dotted" in drawn.caption.lower():
            spoken.discard("dotted")
        assert spoken <= dashes(drawn.figure), f"{name}: {drawn.caption}"


def test_a_caption_speaks_of_no_line_without_values(ax) -> None:
    ax.plot([0, 1], [np.nan, np.nan], gid="untrained:a")
    ax.plot([0, 1], [np.nan, 2.0], gid="uniform")
    assert compared_with(ax.figure) == "Dashed: uniform attention of the same lengths."


def test_masked_keys_carry_means_and_intervals() -> None:
    figure = draw(SINGLE_RUN, ["ablation"])["ablation"]
    axes = panel(figure, "KL of the output (nats)")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        *("sinks", "random, as many", "first key", "one random"),
    ]
    dots = axes.containers[0].lines[0]
    np.testing.assert_allclose(dots.get_ydata(), np.array([0.4, 0.05, 0.3, 0.04]) + 0.025, rtol=1e-12)


def test_fisher_has_a_line_per_group_and_a_level_outside_the_blocks(ax) -> None:
    table = SINGLE_RUN.table("fisher").assign(series="text")
    fisher_profile(table[table["protocol"] == "exact"], "trace", ax)
    samples = 1 + 0.01 * np.mean(range(made.SAMPLES))
    for name, base in (("attention", 2.0), ("MLP", 3.0), ("norm", 0.5)):
        want = [base * (samples + 0.1 * layer) for layer in range(made.LAYERS)]
        np.testing.assert_allclose(line(ax, name).get_ydata(), want, rtol=1e-12)
    assert with_gid(ax, "outside:embedding").get_ydata()[0] == pytest.approx(4.0 * (samples - 0.1), abs=1e-12)
    assert ax.get_yscale() == "log"


def test_fisher_has_a_level_for_the_norm_behind_the_last_block(ax) -> None:
    """The norms of the blocks have a line, and the last norm stands in no block."""
    table = SINGLE_RUN.table("fisher").assign(series="text")
    table = table[table["protocol"] == "exact"]
    last = table[table["group"] == "embedding"].assign(group="norm", trace=7.0)
    fisher_profile(pd.concat([table, last]), "trace", ax)
    assert len(line(ax, "norm").get_xdata()) == made.LAYERS
    assert with_gid(ax, "outside:norm").get_ydata()[0] == 7.0
    assert with_gid(ax, "outside:norm").get_color() == line(ax, "norm").get_color()


def test_frames_show_positions_against_tokens(ax) -> None:
    evidence = SINGLE_RUN.table("frame_evidence")
    exact_evidence = evidence[evidence["protocol"] == "exact"]
    exact_evidence.loc[exact_evidence["kind"] == "token", "top"] = "$a_1$"
    frame_shares(exact_evidence, ax)
    assert list(line(ax, "by position").get_ydata()) == [0.9, 0.8, 0.7]
    assert {"key 0", r"“\$a_1\$”"} <= {text.get_text() for text in ax.texts}
    assert with_gid(ax, "centralized").get_ydata()[0] == 0.8
    answer = draw(SINGLE_RUN, ["frames"])["frames"].axes[0].get_title(loc="left")
    assert answer.endswith(": centralized (90%)\nby token: distributed")


def test_reference_and_alignment_follow_the_heads() -> None:
    figure = draw(SINGLE_RUN, ["alignment"])["alignment"]
    single = [
        np.mean([over_samples(layer, head) for head in range(made.HEADS)]) for layer in range(made.LAYERS)
    ]
    np.testing.assert_allclose(line(panel(figure, "values"), "tiny").get_ydata(), np.array(single) - 0.5)
    np.testing.assert_allclose(
        line(panel(figure, "states, no sinks"), "tiny").get_ydata(), np.array(single) - 0.25
    )
    published = [-over_samples(layer) for layer in range(made.LAYERS)]
    np.testing.assert_allclose(line(panel(figure, "as published"), "tiny").get_ydata(), published)
    lows = [axis.get_ylim() for axis in figure.axes]
    assert len(set(lows)) == 1
    assert lows[0][0] < min(published)
    figure = draw(SINGLE_RUN, ["reference"])["reference"]
    np.testing.assert_allclose(
        line(panel(figure, r"size, $\|c_R\|/\|c\|$"), "tiny").get_ydata(), 0.6 + np.array(single) / 10
    )


def test_nulls_stand_in_every_emergence_plot() -> None:
    for name in ("emergence", "sink_emergence"):
        figure = draw(SERIES, [name])[name]
        axes = figure.axes[0]
        for gid, kind in (("random_weights", "random_weights"), ("row_permutation", "row_permutation")):
            drawn = with_gid(axes, gid)
            assert list(drawn.get_xdata()) == list(made.STEPS), (name, gid)
            np.testing.assert_allclose(drawn.get_ydata(), 0.107 * made.DRIFT[kind])
        assert with_gid(axes, "uniform").get_ydata()[0] == pytest.approx(0.107)
        names = {text.get_text() for text in figure.legends[0].get_texts()}
        assert {"uniform attention", "random weights", "rows shuffled"} <= names


@pytest.mark.parametrize("name", ["emergence", "metric_depth"])
def test_each_model_is_held_against_its_own_references(name: str) -> None:
    """One line was the mean over all models, weighted by their heads: the null of none of them."""
    stored = {table: SERIES.table(table) for table in ("samples", "heads", "baselines")}
    baselines, heads = stored["baselines"], stored["heads"]
    other = baselines["model"] == "b-7b"
    baselines.loc[other, "value"] *= 3
    results = Results(stored, study=SERIES.study)
    rows = measured_heads(results)
    if name == "emergence":
        drawn = emergence_curve(rows, "sink_share", baselines=baselines)
    else:
        drawn = depth_profile(rows, "sink_share", baselines=baselines)
    colors = {str(line.get_label()): line.get_color() for line in drawn.get_lines()}
    for kind in ("random_weights", "row_permutation"):
        first, second = (with_gid(drawn, f"{kind}:{model}") for model in ("a-1b", "b-7b"))
        assert with_gid(drawn, kind) is None
        np.testing.assert_allclose(first.get_ydata(), 0.107 * made.DRIFT[kind])
        np.testing.assert_allclose(second.get_ydata(), 3 * 0.107 * made.DRIFT[kind])
        assert (first.get_color(), second.get_color()) == (colors["a-1b"], colors["b-7b"])
    assert with_gid(drawn, "uniform") is not None
    assert heads["model"].nunique() == 2


@pytest.mark.parametrize("name", ["metric_maps", "sink_maps"])
def test_the_mark_of_uniform_attention_is_a_mean_over_all_that_share_the_scale(name: str) -> None:
    """One mark is on the scale of all models, whose texts may have other lengths."""
    for results, over in ((SINGLE_RUN, "layers"), (SERIES, "layers and models")):
        caption = FIGURES[name].draw(results, Options()).caption
        assert caption.endswith(f"The mark on a colour scale is uniform attention, mean over {over}.")


@pytest.mark.parametrize("samples", [6, 12])
def test_a_caption_speaks_of_intervals_that_are_drawn(samples) -> None:
    """Few texts have none that hold for all heads at once."""
    rows = pd.concat(
        pd.DataFrame(
            {"step": [0, 8], "sample": sample, "sink_share": 0.1 + 0.01 * sample + 0.02 * head}
        ).assign(model="m", revision="", layer=0, head=head, protocol="exact")
        for sample in range(samples)
        for head in range(2)
    )
    drawn = FIGURES["sink_emergence"].draw(Results({"heads": rows}), Options())
    bands = [band for band in drawn.figure.axes[0].collections if str(band.get_gid()).startswith("interval")]
    assert bool(bands) == (samples == 12)
    assert ("hold at once" in drawn.caption) == bool(bands)


def test_the_uniform_baseline_follows_the_kind_of_attention() -> None:
    two_inputs = pd.concat(
        [SINGLE_RUN.table("baselines"), made.make_study(causal=False).table("baselines")], ignore_index=True
    )
    heads = measured_heads(SINGLE_RUN)
    assert uniform_value(heads, two_inputs, "fiedler_value") == 0.5
    encoder = measured_heads(made.make_study(causal=False))
    assert uniform_value(encoder, two_inputs, "fiedler_value") == pytest.approx(0.45)
    mixed = pd.concat([heads, encoder])
    assert uniform_value(mixed, two_inputs, "fiedler_value") == pytest.approx(0.475)
    # who does not say of which kind it is gets no baseline rather than a wrong one
    assert np.isnan(uniform_value(heads.drop(columns="causal"), two_inputs, "fiedler_value"))
    assert null_value(heads, two_inputs, "random_weights", "fiedler_value") == pytest.approx(0.55)
    assert np.isnan(null_value(heads.assign(model="other"), two_inputs, "random_weights", "fiedler_value"))


def test_models_of_different_depth_share_an_axis(ax) -> None:
    shallow = measured_heads(SINGLE_RUN).assign(series="shallow")
    shallow = shallow[shallow["layer"] < 3]
    deep = measured_heads(SINGLE_RUN).assign(series="deep")
    depth_profile(pd.concat([shallow, deep]), "sink_share", ax=ax)
    assert list(line(ax, "shallow").get_xdata()) == [0, 0.5, 1]
    assert list(line(ax, "deep").get_xdata()) == [0, 0.25, 0.5, 0.75, 1]
    place = depth_axis(Figure().subplots(), deep)
    assert list(place("deep", [0, 3])) == [0, 3]


def test_the_axis_holds_intervals_whole(ax) -> None:
    rows = pd.DataFrame(
        {"sample": [*range(5)] * 2, "layer": [0] * 5 + [1] * 5, "x": [0.0, 1, 0, 1, 0, 2, 8, 3, 2, 4]}
        | {"series": "s", "step": -1, "model": "m", "head": 0}
    )
    depth_profile(rows, "x", ax=ax)
    band = with_gid(ax, "interval:s").get_paths()[0].vertices[:, 1]
    low, high = ax.get_ylim()
    assert low < band.min()
    assert high > band.max()


def test_maps_take_colours_and_labels(ax) -> None:
    heads = SINGLE_RUN.table("heads")
    heads = heads[heads["protocol"] == "exact"]
    layer_head_map(heads, "sink_share", ax=ax, cmap="Greys", label="share")
    cells = np.asarray(ax.collections[0].get_array())
    assert cells.size == made.LAYERS * made.HEADS
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2"]
    assert ax.collections[0].cmap.name == "Greys"
    assert "share" in {axis.get_ylabel() for axis in ax.figure.axes}


def test_barcodes_are_drawn_as_they_are() -> None:
    matrix = torch.tensor(np.tril(np.random.default_rng(0).random((9, 9))))
    codes = attnscope.persistence(matrix / matrix.sum(-1, keepdim=True))
    points = persistence_diagram(codes, ax=Figure().subplots()).collections[0].get_offsets()
    assert len(points) == int((codes.dimension == 0).sum())
    finite = codes.death[(codes.dimension == 0) & codes.death.isfinite()]
    np.testing.assert_allclose(np.sort(points[points[:, 1] <= 1][:, 1]), np.sort(finite))
    curve = betti_curve(codes, ax=Figure().subplots()).get_lines()[0]
    assert curve.get_ydata()[0] == 9
    with pytest.raises(ValueError, match="no column 'birth'"):
        persistence_diagram(pd.DataFrame({"dimension": [0]}))


def test_colours_follow_series_in_every_figure_of_a_run() -> None:
    drawn = draw(SERIES, ["emergence", "alignment", "sink_removal"])
    colors = {to_hex(line(figure.axes[0], "b-7b").get_color()) for figure in drawn.values()}
    assert len(colors) == 1
    heads = measured_heads(SERIES)
    assert len(emergence_curve(heads, "sink_share", ax=Figure().subplots()).get_lines()) >= 2


def test_persistence_shows_the_heads_at_both_ends() -> None:
    heads = SINGLE_RUN.table("heads")
    keys = {"model": "tiny", "revision": "", "step": -1, "sample": 0, "protocol": "exact"}
    rows = [
        {
            **keys,
            "layer": layer,
            "head": head,
            "dimension": 0,
            "birth": 0.0,
            "death": 0.1 * layer + 0.01 * head,
        }
        for layer in range(made.LAYERS)
        for head in range(-1, made.HEADS)
    ]
    figure = draw(
        Results({"heads": heads, "bars": pd.DataFrame(rows)}, study=SINGLE_RUN.study), ["persistence"]
    )["persistence"]
    points = [axes.collections[0].get_offsets().tolist() for axes in figure.axes[::2]]
    assert points == [[[0.0, pytest.approx(0.42)]], [[0.0, 0.0]]]
    assert figure.axes[0].get_ylabel().startswith("L4H2, first key 0.38")
    with pytest.raises(NotDrawable, match="no table 'bars'"):
        draw(SINGLE_RUN, ["persistence"])


def test_persistence_takes_two_heads_of_the_sample_with_the_strongest_sink() -> None:
    edges = {0: [(1, 0)], 3: [(1, 0), (2, 1)], 5: [(0, 1), (1, 2), (4, 0)]}
    keys = {"model": "tiny", "revision": "", "step": -1, "protocol": "exact"}
    rows = [
        {**keys, "sample": sample, "layer": layer, "head": head, "dimension": 0, "birth": 0.0, "death": 0.5}
        for sample, maps in edges.items()
        for layer, head in maps
    ]

    def titles(bars: list[dict]) -> list[str]:
        tables = {"heads": SINGLE_RUN.table("heads"), "bars": pd.DataFrame(bars)}
        figure = draw(Results(tables, study=SINGLE_RUN.study), ["persistence"])["persistence"]
        return [axes.get_ylabel().partition("\n")[0] for axes in figure.axes[::2]]

    strongest, weakest = made.level(0, -1, 5, 4, 0), made.level(0, -1, 5, 0, 1)
    assert titles(rows) == [f"L4H0, first key {strongest:.2f}", f"L0H1, first key {weakest:.2f}"]
    strongest, weakest = made.level(0, -1, 3, 2, 1), made.level(0, -1, 3, 1, 0)
    assert titles(rows[:3]) == [f"L2H1, first key {strongest:.2f}", f"L1H0, first key {weakest:.2f}"]
    with pytest.raises(NotDrawable, match="no sample has the bars of two heads"):
        titles(rows[:1])


@pytest.mark.slow
def test_captions_say_what_is_drawn_and_nothing_else() -> None:
    captions = {name: drawn.caption for name, drawn in draw_all(SERIES).items()}
    assert all(captions.values())
    assert "(top), and the published" in captions["reference"]
    assert "as published (head mean" in captions["alignment"]
    assert "random weights" in captions["emergence"]
    assert "shuffled rows" in captions["emergence"]
    assert "before training" in captions["depth"]
    assert "mark on a colour scale" in captions["metric_maps"]
    heads = SINGLE_RUN.table("heads")
    single_table = Results(
        {
            "heads": heads[heads["protocol"] == "exact"],
            "layers": SINGLE_RUN.table("layers").query("protocol == 'exact'"),
        },
        study=SINGLE_RUN.study,
    )
    few = {name: drawn.caption for name, drawn in draw_all(single_table).items()}
    assert few["reference"] == (
        "c is what a head writes, c_R the part that comes from reference points, c_N the rest. By layer: "
        "single heads with their value vectors. Bands: 95 % intervals over texts."
    )
    absent = ("published", "random weights", "shuffled", "before training")
    assert "shuffled rows" in few.pop("sink_removal")
    assert not [word for caption in few.values() for word in absent if word in caption]
    assert "uniform" in few["sink_maps"]
    assert "uniform" not in few["spectra"]
    removal = draw(single_table, ["sink_removal"])["sink_removal"]
    assert [axis.get_title(loc="left") for axis in removal.axes] == [
        "ΔKL by percentile",
        "share of KL, keys ≥ 90th percentile",
    ]
