# SPDX-License-Identifier: MIT
"""The wavelet study's figures and report: all drawn from stored tables."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.plots import draw, figures_of
from attnscope.results.results import Results
from attnscope.studies.wavelet_heads import figures
from attnscope.studies.wavelet_heads.figures import power_by_layer, scalogram
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
