# SPDX-License-Identifier: MIT
"""Ways of telling positions apart: layer 0 has a residual where positions are absolute, and nowhere else."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.demo.encodings import ENCODINGS, PositionsRecipe, compare_encodings, residual_summary
from attnscope.results.results import Results
from attnscope.studies.absolute_position.encodings import encoding_of
from attnscope.studies.absolute_position.figures import FIGURES
from models import sharpen, tiny

N, TEXTS, GROUPS = 32, 64, 8


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layer_0_on_exchangeable_tokens(encoding):
    """Tokens drawn alike at every place: content tells no positions apart; a residual is the encoding's."""
    model = PositionsRecipe(layers=2, heads=2, width=32, inner_width=16, encoding=encoding).build().eval()
    sharpen(model)
    ids = torch.randint(1, 40, (TEXTS, N), generator=torch.Generator().manual_seed(0))
    profile = asc.position_profile(model, {"input_ids": ids}, n=N, groups=GROUPS, layers=[0])
    size = asc.residual_size(profile)
    if encoding == "learned":
        assert (size.low > 0).all()
        assert size.p_value.max() < 0.02
    else:
        assert size.p_value.min() > 0.02


def test_a_window_limits_what_the_mask_cuts():
    model = PositionsRecipe(layers=1, heads=2, width=32, inner_width=16, encoding="rope").build().eval()
    ids = torch.randint(1, 40, (TEXTS, N), generator=torch.Generator().manual_seed(0))
    with asc.edit(model, asc.edits.LimitWindow(6)):
        profile = asc.position_profile(model, {"input_ids": ids}, n=N, groups=GROUPS)
    cut = profile.mean("mask_cut")[0]
    assert (cut[:, :5] > 0.01).all()
    assert (cut[:, 5:].abs() < 1e-12).all()
    assert asc.residual_size(profile).p_value.min() > 0.02


def test_another_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be wavelet_heads or absolute_position, got 'sinks'"):
        compare_encodings(tmp_path, study="sinks")


@pytest.mark.slow
def test_learned_positions_alone_show_in_layer_0_of_trained_models(tmp_path):
    options = {
        "groups": 8,
        "permutations": 999,
        "leakage": False,
        "bands": 0,
        "inputs": ["windows", "shuffled"],
    }
    results = compare_encodings(
        tmp_path, study="absolute_position", steps=4, samples=64, progress=False, options=options
    )
    rows = results.table("layer_means").query("layer == 0 and queries == 'early' and arm == 'base'")
    size = rows.groupby("model")["residual"].mean()
    assert set(size.index) == set(ENCODINGS)
    assert size["learned"] > 1e-3
    assert size.drop("learned").abs().max() < 1e-4
    assert len(residual_summary(results)) == 1 + len(ENCODINGS)
    named = results.table("depth_slopes").query("measure == 'moved_l2'").set_index("model")["encoding"]
    assert named["ntk"] == "rope 1e+06"
    assert named["window"] == "rope 10000 window 32"
    assert named["alibi"] == "alibi"
    claims = results.table("claims").query("claim == 'C7'")
    assert list(claims["model"]) == ["all models"]
    assert "two trainings or more" in claims["reason"].iloc[0]
    drawn = FIGURES["encodings"](results)
    assert len(drawn.figure.axes) == 3
    assert {label.get_text() for label in drawn.figure.axes[2].get_yticklabels()} == set(named)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        *((name, "learned") for name in ("gpt2", "opt")),
        *((name, "alibi") for name in ("bloom", "mpt", "falcon_alibi")),
        *((name, "rope") for name in ("falcon", "llama", "gptj")),
        ("jamba", "other"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_is_called_by_what_its_scores_know_of_positions(name, encoding):
    assert encoding_of(tiny(name)) == encoding


def test_depth_is_a_share_of_the_layers_that_a_model_has():
    """The axis is a share of all layers, for models of other depths and for some layers alone."""
    keys = {"revision": "", "step": -1}
    measured = {"a": [0, 2], "b": [0, 1, 2], "failed": [0]}
    rows = [
        {"model": model, **keys, "layer": layer, "queries": "early", "arm": "base", "input": "windows"}
        | {"felt": 0.1 * layer, "felt_low": 0.0, "felt_high": 1.0, "moved_tv": 0.2, "moved_floor": 0.1}
        for model, layers in measured.items()
        for layer in layers
    ]
    tables = {
        "layer_means": pd.DataFrame(rows),
        "encodings": pd.DataFrame([{"model": "a", **keys, "layers": 5}, {"model": "b", **keys, "layers": 3}]),
        "depth_slopes": pd.DataFrame(
            [
                {"model": model, "measure": "moved_l2", "encoding": "rope", "slope": slope}
                for model, slope in (("a", 0.4), ("b", 0.2))
            ]
        ),
    }
    drawn = FIGURES["encodings"](Results(tables))
    felt, _, slopes = drawn.figure.axes
    line = felt.get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(line.get_ydata(), [0.0, 0.15, 0.2])
    assert [label.get_text() for label in slopes.get_yticklabels()] == ["rope"]


@pytest.mark.parametrize(
    ("residual", "words"), [(0.3, "their ratio, 0.75"), (-0.1, "nothing of the picture")]
)
def test_no_share_of_a_picture_is_negative(residual, words):
    """Pattern and noise have no ratio where the unbiased variance is below 0."""
    keys = {"model": "m", "revision": "", "step": -1, "layer": 1, "head": 0}
    row = {"residual": residual, "residual_low": -0.2, "residual_high": 0.5, "plain": 0.4}
    place = {"queries": "early", "arm": "base", "input": "windows"}
    rest = [keys | {"query": 2, "key": key, "mean": 0.1 * key, "profile": 0.2} for key in (1, 2)]
    tables = {"position": pd.DataFrame([keys | place | row]), "residual_maps": pd.DataFrame(rest)}
    caption = FIGURES["score_split"](Results(tables)).caption
    assert words in caption
    assert ("ratio" in caption) == (residual > 0)


def test_heads_without_a_residual_are_none_of_those_that_were_tested():
    keys = {"model": "m", "revision": "", "step": -1, "layer": 1}
    place = {"queries": "early", "arm": "base", "input": "windows", "sink_advantage": 0.5}
    values = {"residual": [0.3, 0.1, np.nan], "p_adjusted": [0.01, 0.5, np.nan]}
    table = pd.DataFrame({**keys, **place, "head": [0, 1, 2], **values})
    assert "0.05): 1 of 2." in FIGURES["residual_maps"](Results({"position": table})).caption


def test_a_negative_residual_sets_no_colour_scale():
    """An estimate of −5 beside .3 made a thousandth of 5 the least that is seen."""
    keys = {"model": "m", "revision": "", "step": -1, "layer": 1}
    place = {"queries": "early", "arm": "base", "input": "windows", "sink_advantage": 0.5, "p_adjusted": 0.5}
    table = pd.DataFrame({**keys, **place, "head": [0, 1], "residual": [0.3, -5.0]})
    image = FIGURES["residual_maps"](Results({"position": table})).figure.axes[0].images[0]
    assert image.norm.vmax == pytest.approx(0.3)
