# SPDX-License-Identifier: MIT
"""What an untrained model has: the cut of equal scores, and a residual of its own that no two share."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.demo.encodings import PositionsRecipe
from attnscope.statistics.groups import jackknife_bounds, mean_product
from attnscope.studies.absolute_position.estimates import shared_residual
from attnscope.studies.absolute_position.sections import findings

N, TEXTS, GROUPS = 32, 256, 8


def profile(model):
    """Of tokens drawn alike at every place behind one first token."""
    ids = torch.randint(1, 200, (TEXTS, N), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    return asc.position_profile(model, {"input_ids": ids}, n=N, groups=GROUPS)


@pytest.fixture(scope="module")
def model():
    recipe = PositionsRecipe(layers=2, heads=4, width=128, inner_width=32, encoding="rope")
    return recipe.build().eval().double()


def test_the_mask_cuts_as_equal_scores_do(model):
    cut = profile(model).mean("mask_cut")
    m = N // 2
    equal = torch.log(m / torch.arange(1, m + 1, dtype=torch.float64))
    torch.testing.assert_close(cut[..., :-1], equal[:-1].expand_as(cut[..., :-1]), rtol=0.05, atol=0.0)


def sizes(model):
    """Residual by layer, mean over heads, with its interval."""
    products = profile(model).gram().mean(1).numpy()
    return jackknife_bounds(
        np.arange(GROUPS), lambda groups: mean_product(products[:, groups][:, :, groups])
    )[:3]


def test_beyond_layer_0_a_residual_of_its_own_comes_through_the_mask(model):
    """In float64, so that no rounding can be meant; where attention writes nothing there is none."""
    value, low, high = sizes(model)
    assert low[0] <= 0 <= high[0]
    assert low[1] > 0
    assert 1e-8 < value[1] < 1e-2
    np.testing.assert_allclose(sizes(model.float())[0][1], value[1], rtol=1e-3)
    written = model.double().model.layers[0].self_attn.o_proj.weight
    weights = written.detach().clone()
    try:
        with torch.no_grad():
            written.zero_()
        silent, low, high = sizes(model)
    finally:
        with torch.no_grad():
            written.copy_(weights)
    assert low[1] <= 0 <= high[1]
    assert abs(silent[1]) < value[1] / 3


def test_untrained_models_share_no_residual():
    """Over initialisations 0 lies within the interval in every layer, while that of each is far from it."""
    vectors, sizes_of_models = [], []
    for seed in range(6):
        recipe = PositionsRecipe(layers=2, heads=4, width=128, inner_width=32, encoding="rope", seed=seed)
        of = profile(recipe.build().eval())
        vectors.append(of.vectors((2, N // 2 - 1), "uniform", (), of).mean(0).numpy())
        sizes_of_models.append(mean_product(of.gram().mean(1).numpy())[1])
    value, low, high = shared_residual(np.stack(vectors))
    assert (low <= 0).all()
    assert (high >= 0).all()
    assert abs(value[1]) < min(sizes_of_models) / 3


def test_products_of_different_drawings_keep_what_all_have_and_nothing_of_one():
    """Twelve drawings of one vector of size 2 beside noise of size 8 each, in one layer and not the other."""
    draw = np.random.default_rng(0)
    common = draw.standard_normal((4, 200))
    common *= np.sqrt(2 / np.square(common).sum(-1, keepdims=True))
    drawings = np.sqrt(8 / 200) * draw.standard_normal((12, 2, 4, 200))
    drawings[:, 0] += common
    value, low, high = shared_residual(drawings)
    slow = [
        np.mean([(drawings[g, at] * drawings[f, at]).sum(-1).mean() for g in range(12) for f in range(g)])
        for at in range(2)
    ]
    np.testing.assert_allclose(value, slow, rtol=1e-12)
    assert low[0] < 2 < high[0]
    assert low[0] > 0
    assert low[1] < 0 < high[1]


class Stored:
    """Tables in memory."""

    def __init__(self, **tables):
        self.kept = tables

    def tables(self):
        return list(self.kept)

    def table(self, name):
        return self.kept[name]


def sentence(*shared):
    """What the report says of four drawings that share these residuals, each with its ends, by layer."""
    rows = [
        {
            "model": "a",
            "queries": "early",
            "layer": layer,
            "draw": draw,
            "residual": 6e-5 * layer,
            "mask_cut": 1.7,
            "uniform_cut": 1.7,
            "leakage_share": 0.04 * layer,
        }
        for layer in range(2)
        for draw in range(4)
    ]
    means = pd.DataFrame(
        [
            {
                "model": "a",
                "revision": "",
                "step": -1,
                "queries": "early",
                "arm": "base",
                "input": "windows",
                "layer": 0,
                "residual": 0.0,
                "residual_low": -1.0,
                "residual_high": 1.0,
            }
        ]
    )
    tables = {"layer_means": means, "controls": pd.DataFrame(rows)}
    if shared:
        names = ("residual_shared", "residual_shared_low", "residual_shared_high")
        tables["control_residuals"] = pd.DataFrame(
            [
                {"model": "a", "layer": layer} | dict(zip(names, residual, strict=True))
                for layer, residual in enumerate(shared)
            ]
        )
    (line,) = (text for text in findings(Stored(**tables)) if "random weights" in text)
    return line


def test_the_report_says_in_which_layers_zero_lies_within_the_interval():
    without, within = (1e-6, -2e-6, 4e-6), (6e-5, 5e-5, 7e-5)
    line = sentence(without, without)
    assert "0 is in the interval of every layer" in line
    assert "0 % apart" in line
    assert "at most 4 % of the variance of scores along keys" in line
    assert "have a small residual" not in line
    assert "0 is outside the intervals of layer 1)" in sentence(without, within)
    assert "fewer than three initialisations tell nothing" in sentence()
