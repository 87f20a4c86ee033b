# SPDX-License-Identifier: MIT
"""What an untrained model has: the cut of equal scores, and what the mask writes into the states."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.demo.encodings import PositionsRecipe
from attnscope.inference.groups import jackknife_bounds, mean_product
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
    return jackknife_bounds(np.arange(GROUPS), lambda kept: mean_product(products[:, kept][:, :, kept]))[:3]


def test_beyond_layer_0_a_residual_comes_through_the_mask(model):
    """In float64, so that no rounding can be meant; where attention writes nothing there is none."""
    value, low, high = sizes(model)
    assert low[0] <= 0 <= high[0]
    assert low[1] > 0
    assert 1e-8 < value[1] < 1e-2
    np.testing.assert_allclose(sizes(model.float())[0][1], value[1], rtol=1e-3)
    written = model.double().model.layers[0].self_attn.o_proj.weight
    kept = written.detach().clone()
    try:
        with torch.no_grad():
            written.zero_()
        silent, low, high = sizes(model)
    finally:
        with torch.no_grad():
            written.copy_(kept)
    assert low[1] <= 0 <= high[1]
    assert abs(silent[1]) < value[1] / 3


class Stored:
    """Tables in memory."""

    def __init__(self, **tables):
        self.kept = tables

    def tables(self):
        return list(self.kept)

    def table(self, name):
        return self.kept[name]


def sentence(residuals):
    """What the report says of drawings with these residuals by layer."""
    rows = [
        {"model": "a", "queries": "early", "layer": layer, "draw": draw, "residual": value, "mask_cut": 1.7,
         "uniform_cut": 1.7, "leakage_share": 0.04}
        for layer, values in enumerate(residuals)
        for draw, value in enumerate(values)
    ]  # fmt: skip
    means = pd.DataFrame(
        [{"model": "a", "revision": "", "step": -1, "queries": "early", "arm": "base", "input": "windows",
          "layer": 0, "residual": 0.0, "residual_low": -1.0, "residual_high": 1.0}]
    )  # fmt: skip
    (found,) = (
        one
        for one in findings(Stored(layer_means=means, controls=pd.DataFrame(rows)))
        if "random weights" in one
    )
    return found


def test_the_report_says_in_which_layers_zero_lies_within_the_interval():
    nothing, some = [1e-6, -1e-6, 2e-6, -2e-6], [6e-5, 7e-5, 6e-5, 7e-5]
    assert "0 lies within that of every layer" in sentence([nothing, nothing])
    assert "0 % apart" in sentence([nothing, nothing])
    found = sentence([nothing, some])
    assert "0 lies outside those of layer 1 alone, where the residual is up to 4 % of the variance" in found
    assert "no rounding" in found
    assert "one drawing has no interval" in sentence([[1e-6], [6e-5]])
