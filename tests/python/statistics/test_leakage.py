# SPDX-License-Identifier: MIT
"""The leakage share of a layer: its interval is of the mean over heads."""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope import PositionProfile
from attnscope.statistics.leakage import layer_share, leakage_share, leakage_slope, overall_share
from attnscope.statistics.residuals import removal_intervals, removal_replicates
from attnscope.studies.absolute_position.estimates import _at_offset, over_heads

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
    single = leakage_slope([profile_of(scores[:, :, :1]) for scores in texts])
    np.testing.assert_allclose(slopes.share.estimate, single.share.estimate, rtol=1e-12)


def profiles_with_and_without_a_head_that_lacks_a_group():
    """Three heads in layers 0 and 1, of which the last has no finite map in the texts of group 2; and two."""
    drawn = torch.Generator().manual_seed(5)
    profiles = [PositionProfile(12, groups=GROUPS) for _ in range(2)]
    for layer in (0, 1):
        shared = torch.randn(3, 12, 12, generator=drawn, dtype=torch.float64)
        noise = torch.randn(GROUPS, TEXTS, 3, 12, 12, generator=drawn, dtype=torch.float64)
        texts = shared + noise
        texts[:, :, 2] *= 5
        texts[2, :, 2] = torch.nan
        for profile, heads in zip(profiles, (3, 2), strict=True):
            for group, scores in enumerate(texts):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    profile.add(scores[:, :heads], group=[group] * TEXTS, layer=layer)
    return profiles


def test_a_head_that_lacks_a_group_is_left_out_of_every_number_of_its_layer():
    """Also where that group is left out: it came back there, and the interval was of its difference."""
    profile, without = profiles_with_and_without_a_head_that_lacks_a_group()
    for share in (layer_share, overall_share):
        for value, expected in zip(share(profile), share(without), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-9)
    sizes = [
        over_heads(part, (2, 5), {"residual": np.zeros((2, 1)), "felt": np.zeros((2, 1))})
        for part in (profile, without)
    ]
    for name, values in sizes[1].items():
        assert np.isfinite(values).all()
        np.testing.assert_allclose(sizes[0][name], values, rtol=1e-9, err_msg=name)
    ends = [_at_offset(part, np.arange(2, 6), 1)[2] for part in (profile, without)]
    for name, values in ends[1].items():
        np.testing.assert_allclose(ends[0][name], values, rtol=1e-9, err_msg=name)


def test_shares_that_an_arm_removes_are_of_the_same_heads_before_and_after():
    drawn = torch.Generator().manual_seed(6)
    base = 5 + torch.randn(GROUPS, 2, 3, 20, generator=drawn, dtype=torch.float64)
    arm = 0.5 * base + torch.randn(base.shape, generator=drawn, dtype=torch.float64)
    arm[:, :, 2] *= 9
    base[1, :, 2] = torch.nan
    shares, expected = (
        removal_intervals(removal_replicates(base[:, :, :heads], arm[:, :, :heads], [0, 1]))
        for heads in (3, 2)
    )
    np.testing.assert_allclose(shares, expected, rtol=1e-9)
