# SPDX-License-Identifier: MIT
"""The leakage share of a layer: its interval is of the mean over heads."""

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope import PositionProfile
from attnscope.statistics.leakage import layer_share, leakage_share, leakage_slope

GROUPS, TEXTS = 6, 4


def profile_of(texts, without=None):
    """A profile of groups of texts [group, text, head, n, n], one of them left out."""
    profile = PositionProfile(texts.shape[-1], groups=GROUPS)
    for group, scores in enumerate(texts):
        if group != without:
            profile.add(scores, group=[group] * TEXTS)
    return profile


def test_the_interval_of_a_layer_is_that_of_its_mean():
    """The errors of two heads with opposite noise cancel in the mean; a head without a share is left out."""
    drawn = torch.Generator().manual_seed(2)
    noise = torch.randn(GROUPS, TEXTS, 12, 12, generator=drawn, dtype=torch.float64)
    shared = torch.randn(12, 12, generator=drawn, dtype=torch.float64)
    heads = [shared + noise, shared - 0.9 * noise, torch.zeros_like(noise)]
    texts = torch.stack(heads, 2)
    profile = profile_of(texts)
    of_layer, of_heads = layer_share(profile), leakage_share(profile)
    assert np.isnan(of_heads.estimate[0, 2])
    mean = of_heads.estimate[0, :2].mean()
    without = np.array(
        [leakage_share(profile_of(texts, group)).estimate[0, :2].mean() for group in range(GROUPS)]
    )
    spread = np.sqrt((GROUPS - 1) / GROUPS * ((without - without.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, GROUPS - 1) * spread
    assert of_layer.estimate[0] == pytest.approx(mean)
    assert of_layer.low[0] == pytest.approx(mean - half)
    assert of_layer.high[0] == pytest.approx(mean + half)
    assert of_layer.low[0] != pytest.approx(np.nanmean(of_heads.low[0]))


def test_a_layer_without_a_share_has_none():
    profile = profile_of(torch.zeros(GROUPS, TEXTS, 2, 8, 8, dtype=torch.float64))
    assert np.isnan([part[0] for part in layer_share(profile)]).all()


def test_lengths_leave_out_the_heads_that_layers_leave_out():
    """A head whose scores do not vary has no share at any length: the mean is that of the others."""
    drawn = torch.Generator().manual_seed(3)
    texts = {}
    for n in (8, 12):
        noise = torch.randn(GROUPS, TEXTS, 2, n, n, generator=drawn, dtype=torch.float64)
        shared = torch.randn(n, n, generator=drawn, dtype=torch.float64)
        texts[n] = torch.cat([shared + noise, torch.zeros(GROUPS, TEXTS, 1, n, n, dtype=torch.float64)], 2)
    slopes = leakage_slope([profile_of(scores) for scores in texts.values()])
    without = leakage_slope([profile_of(scores[:, :, :2]) for scores in texts.values()])
    for part, expected in zip(slopes[1:], without[1:], strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)
    assert np.isfinite(slopes.overall).all()
    for row, (n, scores) in enumerate(texts.items()):
        share = layer_share(profile_of(scores), queries=(2, n // 2 - 1))
        assert slopes.share.estimate[row] == pytest.approx(share.estimate)
        assert slopes.share.low[row] == pytest.approx(share.low)


def test_a_head_that_one_length_lacks_is_in_no_length():
    drawn = torch.Generator().manual_seed(4)
    texts = [torch.randn(GROUPS, TEXTS, 2, n, n, generator=drawn, dtype=torch.float64) for n in (8, 12)]
    texts[0][:, :, 1] = 0
    slopes = leakage_slope([profile_of(scores) for scores in texts])
    alone = leakage_slope([profile_of(scores[:, :, :1]) for scores in texts])
    np.testing.assert_allclose(slopes.share.estimate, alone.share.estimate, rtol=1e-12)
