# SPDX-License-Identifier: MIT
"""Gain and shares of directions in what logits read, against plain linear algebra."""

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope as asc
import models


@pytest.fixture(scope="module")
def read():
    return asc.readout(models.tiny("llama"))


def test_gain_is_that_of_the_unembedding(read):
    model = models.tiny("llama")
    rows = model.lm_head.weight.detach().double().numpy() * model.model.norm.weight.detach().double().numpy()
    rows = rows - rows.mean(0)
    b = np.random.default_rng(0).standard_normal(96)
    gain = np.sum((rows @ b) ** 2) / (b @ b) / (np.sum(rows**2) / 96)
    assert read.gain(torch.tensor(b)).item() == pytest.approx(gain, rel=1e-6)
    whole = asc.alignment_gain(torch.tensor(np.outer(b, b)), read.gram, side="in").gain
    assert read.gain(torch.tensor(b)).item() == pytest.approx(whole.item(), rel=1e-9)
    axes = np.linalg.svd(rows)[2]
    for k in (1, 16, 95):
        share = np.sum((axes[:k] @ b) ** 2) / (b @ b)
        assert read.share(torch.tensor(b), k).share == pytest.approx(share, rel=1e-6)
        below = np.sum((axes[-k:] @ b) ** 2) / (b @ b)
        assert read.share(torch.tensor(b), k, "bottom").share == pytest.approx(below, rel=1e-6)


def test_the_mean_gain_is_one_and_all_axes_hold_everything(read):
    assert read.gain(read.axes.T).mean().item() == pytest.approx(1.0, abs=1e-12)
    found = read.share(torch.randn(96), 96)
    assert found.share == pytest.approx(1.0)
    assert (found.chance, found.p_value) == (1.0, 1.0)


def test_p_values_of_isotropic_directions_are_uniform(read):
    draws = torch.randn(400, 96, generator=torch.Generator().manual_seed(1))
    p = [read.share(one, 20).p_value for one in draws]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_bad_arguments(read):
    with pytest.raises(ValueError, match=r"readout: k must lie in 1 .. 96, got 0"):
        read.share(torch.ones(96), 0)
    with pytest.raises(ValueError, match="which must be"):
        read.share(torch.ones(96), 3, "middle")
    with pytest.raises(ValueError, match=r"got norm 0\.0"):
        read.gain(torch.zeros(96))
    with pytest.raises(ValueError, match=r"a direction must be \[..., 96\], got \(95,\)"):
        read.gain(torch.ones(95))
