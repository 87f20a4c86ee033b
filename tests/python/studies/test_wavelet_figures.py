# SPDX-License-Identifier: MIT
"""The wavelet study's figures and report: all drawn from stored tables."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.plots import draw, figures_of
from attnscope.results.results import Results
from attnscope.studies.wavelet_heads import figures
from attnscope.studies.wavelet_heads.figures import power_by_layer, scalogram
from attnscope.studies.wavelet_heads.sections import findings
from folders import sentences, series


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    home = tmp_path_factory.mktemp("figures")
    folder = series(home / "growing", steps=(0, 4))
    texts = sentences(home / "texts.txt", 3, shortest=50)
    study = RunConfig(
        study="wavelet_heads",
        models=str(folder / "step*"),
        texts=str(texts),
        name="a",
        output=str(home / "runs"),
        options={"nulls": ["row_permutation"], "prefixes": [0.8]},
    )
    return run(study, say=lambda text: None)


@pytest.mark.usefixtures("unarranged")
def test_the_study_brings_its_own_figures(results):
    assert set(figures_of(results)) == set(figures.FIGURES)
    assert set(draw(results)) == set(figures.FIGURES)
    assert set(figures_of(Results({}))) == {"metric_maps", "emergence", "depth", "thresholds", "examples"}


@pytest.mark.parametrize(("width", "layers"), [(2.0, 1), (3.2, 2)])
def test_scalograms_are_of_the_layers_that_fit(results, width, layers):
    drawn = draw(results, ["scalograms"], width=width)["scalograms"]
    assert len({ax.get_title(loc="left")[:2] for ax in drawn.axes} - {""}) == layers


def test_lines_hold_the_stored_means(results):
    spectra = results.table("spectra")
    last = spectra[spectra["step"] == 4]
    ax = power_by_layer(last)
    lines = {line.get_label(): line for line in ax.get_lines()}
    expected = last[last["layer"] == 1].groupby("frequency")["power_share"].mean()
    np.testing.assert_allclose(lines["layer 1"].get_xdata(), expected.index)
    np.testing.assert_allclose(lines["layer 1"].get_ydata(), expected, rtol=1e-12)


def test_a_share_of_0_is_in_the_drawn_mean(results):
    """Texts without power at a frequency were left out of its mean, which was that of the others."""
    tables = {name: results.table(name) for name in ("samples", "spectra")}
    spectra = tables["spectra"]
    rows = (spectra["step"] == 4) & (spectra["layer"] == 1)
    place = spectra.index[rows & (spectra["sample"] == 0)][0]
    spectra.loc[place, "power_share"] = 0.0
    study = {"study": "wavelet_heads"}
    drawn = draw(Results(tables, study=study), ["power_spectra"])["power_spectra"]
    lines = {line.get_label(): line for line in drawn.axes[0].get_lines()}
    expected = spectra[rows].groupby("frequency")["power_share"].mean()
    np.testing.assert_allclose(lines["layer 1"].get_ydata(), expected, rtol=1e-12)


def test_correlations_of_entropies_over_training_stand_beside_their_null(results):
    """A number of a whole text had no line of shuffled rows, as those of heads have."""
    drawn = draw(results, ["phases"])["phases"]
    (ax,) = (ax for ax in drawn.axes if "entropies" in ax.get_title(loc="left"))
    (line,) = (line for line in ax.get_lines() if line.get_gid() == "row_permutation")
    nulls = results.variants("uncertainty").query("metric == 'rho'")
    np.testing.assert_allclose(line.get_ydata(), nulls.groupby("step")["value"].mean(), rtol=1e-12)


def test_points_of_uncertainty_lie_above_both_bounds(results):
    drawn = draw(results, ["uncertainty"])["uncertainty"]
    left, right = drawn.axes[:2]
    bound = max(left.get_lines()[0].get_xdata())
    for ax, holds in ((left, lambda x, y: x + y >= bound - 0.2), (right, lambda x, y: y >= x - 1e-9)):
        points = np.concatenate(
            [
                collection.get_offsets()
                for collection in ax.collections
                if isinstance(collection, PathCollection)
            ]
        )
        assert len(points) >= 8
        assert all(holds(x, y) for x, y in points)


def test_a_scalogram_shows_a_tones_period():
    tone = 1 + np.cos(2 * np.pi * np.arange(128) / 8)
    mesh = scalogram(tone).collections[0]
    shown = np.asarray(mesh.get_array()).reshape(48, 128)
    periods = np.geomspace(2.0, 32.0, 48) * 4 * np.pi / (6 + np.sqrt(38))
    assert periods[shown[:, 64].argmax()] == pytest.approx(8, rel=0.06)


@pytest.mark.slow
def test_the_report_has_the_studys_sections(results, tmp_path):
    page = results.report(tmp_path / "report.html").read_text("utf-8")
    for section in ("spectra", "wavelets", "uncertainty", "scale-sensitivity", "phases", "harmonics"):
        assert f'id="{section}"' in page
    assert "of the power lies in the low band" in page
    assert "shuffled rows" in page
    assert 'id="topology"' not in page


def in_tables(results, **changed):
    """The run's tables with some of them changed."""
    tables = {name: results.table(name) for name in results.tables()} | changed
    return Results(tables, study={"study": "wavelet_heads"})


def deeper(table, layers, name="deep"):
    """The rows of the last checkpoint, and those of a model that has more layers."""
    last = table[table["step"] == table["step"].max()]
    added = [last[last["layer"] == 0].assign(model=name, layer=layer) for layer in range(layers)]
    return pd.concat([last, *added], ignore_index=True)


def test_a_layer_has_the_legends_colour_in_every_panel(results):
    """Each panel chose colours for the layers of its own model."""
    spectra = deeper(results.table("spectra"), 8)
    spectra.loc[(spectra["model"] == "deep") & (spectra["layer"] == 7), "power_share"] = np.nan
    samples = results.table("samples")
    samples = pd.concat([samples, samples[samples["step"] == 4].assign(model="deep")], ignore_index=True)
    drawn = draw(in_tables(results, spectra=spectra, samples=samples), ["power_spectra"])["power_spectra"]
    assert len(drawn.axes) == 2
    of_legend = {
        text.get_text(): line.get_color()
        for text, line in zip(drawn.legends[0].get_texts(), drawn.legends[0].get_lines(), strict=True)
    }
    seen = [line for ax in drawn.axes for line in ax.get_lines() if line.get_label() in of_legend]
    assert {line.get_label() for line in seen} == set(of_legend)
    assert "layer 7" not in of_legend
    for line in seen:
        assert line.get_color() == of_legend[line.get_label()]


def test_a_scalogram_holds_its_whole_signal_beside_those_of_windows(results):
    """Panels shared the range of the last one, which cut the signals of layers without a window."""
    signals = results.table("signals")
    window = signals["layer"] == 1
    signals.loc[window, "signal"] = signals.loc[window, "signal"].map(lambda signal: signal[-20:])
    drawn = draw(in_tables(results, signals=signals), ["scalograms"])["scalograms"]
    n = int(signals["n_tokens"].iloc[0])
    ranges = {ax.get_title(loc="left")[:2]: ax.get_xlim() for ax in drawn.axes if ax.get_title(loc="left")}
    assert ranges == {"L0": (-0.5, n - 0.5), "L1": (-0.5, 19.5)}
    assert {ax.get_xlabel() for ax in drawn.axes} == {"", "key", "visible key"}


def test_no_head_lies_where_no_signal_can_be(results):
    """The region was bounded by the mean over heads, above the bound of a layer with a window."""
    heads = results.table("heads")
    window = heads["layer"] == 1
    for name in ("entropy_bound", "position_entropy", "fourier_entropy"):
        heads.loc[window, name] /= 2
    drawn = draw(in_tables(results, heads=heads), ["uncertainty"])["uncertainty"]
    bound = max(drawn.axes[0].get_lines()[0].get_xdata())
    points = np.concatenate([dots.get_offsets() for dots in dots_of(drawn.axes[0])])
    assert (points.sum(1) >= bound - 1e-9).all()
    last = heads[heads["step"] == 4]
    untrained = draw(in_tables(results, heads=last.assign(step=0)), ["uncertainty"])["uncertainty"]
    assert "before training" not in [text.get_text() for text in untrained.legends[0].get_texts()]


def test_heads_that_a_logarithmic_axis_cannot_hold_are_counted(results):
    """All attention on one key is a signal without a variance: its product of variances and bound are 0."""
    heads = results.table("heads")
    last = heads[heads["step"] == heads["step"].max()]
    alike = (heads["layer"] == last["layer"].iloc[0]) & (heads["head"] == last["head"].iloc[0])
    heads.loc[alike, ["uncertainty_product", "uncertainty_bound"]] = 0.0
    uncertainty = figures.FIGURES["uncertainty"]
    assert "not drawn" not in uncertainty(results).caption
    caption = uncertainty(in_tables(results, heads=heads)).caption
    assert "1 head with a product or bound of 0, or near it, not drawn." in caption


def dots_of(ax):
    """The points of a panel."""
    return [collection for collection in ax.collections if isinstance(collection, PathCollection)]


def test_sentences_are_of_one_checkpoint_of_a_model_without_steps(results):
    """Branches of unknown step ended the report, and their shuffled rows were averaged."""
    last = {name: results.table(name) for name in ("samples", "phases", "uncertainty_variants")}
    last = {name: table[table["step"] == 4].assign(step=-1) for name, table in last.items()}
    branches = {
        name: pd.concat([table.assign(revision="main"), table.assign(revision="alpha")], ignore_index=True)
        for name, table in last.items()
    }
    for name, column in (("phases", "mean"), ("uncertainty_variants", "rho")):
        branches[name].loc[branches[name]["revision"] == "alpha", column] += 0.5
    main = {name: table[table["revision"] == "main"] for name, table in branches.items()}
    study = {"study": "wavelet_heads"}
    lines = [findings(Results(tables, study=study)) for tables in (main, branches)]
    assert "shuffled rows" in str(lines[0][1])
    assert list(map(str, lines[0])) == list(map(str, lines[1]))


def test_sentences_over_several_input_sets_say_so(results):
    """Tables and figures are of each input set, the sentences of all texts."""
    tables = {name: results.table(name) for name in ("samples", "phases", "uncertainty_variants")}
    once = findings(Results(tables))
    halves = tables["samples"].assign(group=np.where(tables["samples"]["sample"] % 2, "texts", "copies"))
    apart = findings(Results({**tables, "samples": halves}))
    name = tables["samples"]["model"].iloc[0]
    beginning = f"{name}: over the texts of all 2 input sets, "
    assert [str(line) for line in apart] == [str(line).replace(f"{name}: ", beginning) for line in once]


@pytest.mark.parametrize(("heads", "middle"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (8, 3)])
def test_the_middling_head_has_as_many_below_as_above(results, heads, middle):
    """The middling head was one too low of an odd number of heads: the narrowest of three."""
    row = results.table("signals").iloc[:1].drop(columns=["head", "signal"])
    widths = range(1, heads + 1)
    signals = [[1.0 / width] * width + [0.0] * (40 - width) for width in widths]
    signals = row.merge(pd.DataFrame({"head": range(heads), "signal": signals}), how="cross")
    drawn = draw(in_tables(results, signals=signals), ["scalograms"])["scalograms"]
    titles = [title for ax in drawn.axes if (title := ax.get_title(loc="left"))]
    assert titles == [f"L0H{heads - 1}", f"L0H{middle}"]


def test_harmonics_have_no_colour_of_the_bars_and_no_words_of_training(results):
    """The third harmonic had the colour of bars half a turn apart, the dotted line the name of training."""
    drawn = figures.FIGURES["harmonics"](results)
    powers, *bars = drawn.figure.axes
    of_lines = {to_hex(line.get_color()) for line in powers.get_lines()}
    of_bars = {to_hex(patch.get_facecolor()) for ax in bars for patch in ax.patches}
    assert len(of_lines) == 5
    assert len(of_bars) == 2
    assert not of_lines & of_bars
    activation = powers.get_title(loc="left").removeprefix("behind ")
    assert f"before {activation}" in powers.get_legend_handles_labels()[1]
    assert f"Dotted: all harmonics together in front of {activation}" in drawn.caption
    assert "the lowest to the highest mean over heads" in drawn.caption


@pytest.mark.parametrize("name", ["scalograms", "harmonics"])
def test_a_figure_of_the_first_model_says_that_there_are_more(results, name):
    """The captions of a run of several models name the model that is drawn."""
    source = "signals" if name == "scalograms" else name
    table = results.table(source)
    caption = figures.FIGURES[name](results).caption
    of_two = in_tables(results, **{source: pd.concat([table, table.assign(model="b")], ignore_index=True)})
    model = table["model"].iloc[0]
    assert figures.FIGURES[name](of_two).caption == f"{caption} Drawn: {model}; the run holds 1 more."
