# SPDX-License-Identifier: MIT
"""Ways of telling positions apart: layer 0 has a residual where positions are absolute, and nowhere else."""

import pytest
import torch

import attnscope as asc
from attnscope.demo.encodings import ENCODINGS, PositionsRecipe
from models import sharpen

N, TEXTS, GROUPS = 32, 64, 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


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
