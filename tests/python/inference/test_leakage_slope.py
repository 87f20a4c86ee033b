# SPDX-License-Identifier: MIT
"""The slope of the leakage share on the length, where the share is known."""

import pytest
import torch

import attnscope as asc
from attnscope.inference.leakage import leakage_slope

GROUPS, TEXTS = 8, 32


def profile_of(n, size, *, seed=0, noise=1.0):
    """Content of unit variance, and at every query a pattern along its keys of a given size."""
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.where(torch.arange(n) % 2 == 0, size, -size).double()
    s = noise * torch.randn(TEXTS, 2, n, n, dtype=torch.float64, generator=generator)
    s[..., : n // 2, :] += pattern
    profile = asc.PositionProfile(n, groups=GROUPS)
    profile.add(s, [text * GROUPS // TEXTS for text in range(TEXTS)])
    return profile


def test_a_share_that_falls_as_the_inverse_length_has_slope_minus_1():
    """Size² = 2/n beside content of variance 1 that dominates: the share is next to proportional to 1/n."""
    profiles = [profile_of(n, (2 / n) ** 0.5, seed=n) for n in (16, 32, 64)]
    found = leakage_slope(profiles)
    assert found.lengths == (16, 32, 64)
    assert found.share.estimate.shape == (3, 1)
    assert found.slope.estimate.item() == pytest.approx(-1, abs=0.25)
    assert found.slope.low.item() < found.slope.estimate.item() < found.slope.high.item() < -0.5


def test_a_share_of_1_at_every_length_has_slope_0():
    found = leakage_slope([profile_of(n, 1.0, noise=0.0) for n in (32, 16)])
    assert found.lengths == (16, 32)
    assert found.share.estimate.flatten().tolist() == pytest.approx([1, 1])
    assert found.slope.estimate.item() == pytest.approx(0, abs=1e-9)


def test_bad_profiles():
    with pytest.raises(ValueError, match=r"two different lengths or more, none below 6, got \[16\]"):
        leakage_slope([profile_of(16, 1.0)])
    with pytest.raises(ValueError, match="at least 4 groups"):
        leakage_slope([profile_of(16, 1.0), asc.PositionProfile(8, groups=2)])
