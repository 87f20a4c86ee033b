# SPDX-License-Identifier: MIT
"""The share of the variance of scores that texts have in common beyond the offset, and its test.

Scores that depend on the offset alone still vary with position where residuals share something over texts.
Products of residuals of different texts keep the shared part on average and lose the part of each single
text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.statistics.comparisons import benjamini_hochberg
from attnscope.statistics.groups import Array, jackknife_bounds, mean_product, sign_flips
from attnscope.statistics.residuals import Queries, require_groups


class LeakageShare(NamedTuple):
    """Estimate and jackknife interval, arrays [L, h]."""

    estimate: Array
    low: Array
    high: Array


class OverallShare(NamedTuple):
    """The share of all heads of the layers from 1 on: estimate, jackknife interval and p of sign flips."""

    estimate: float
    low: float
    high: float
    p_value: float


class LeakageSlope(NamedTuple):
    """The share at K lengths, [K, L], and the slope of its logarithm on the length's, [L].

    `overall` is the slope of the mean over layers, with the ends of its interval.
    """

    lengths: tuple[int, ...]
    share: LeakageShare
    slope: LeakageShare
    overall: LeakageShare


class LeakageTest(NamedTuple):
    """Leakage of texts less that of texts turned round, arrays [...] of the heads.

    Attributes:
        gap: mean difference.
        low: of the jackknife interval over texts.
        high: likewise.
        p_value: two-sided sign flips.
        p_adjusted: Benjamini–Hochberg over the heads.
    """

    gap: Array
    low: Array
    high: Array
    p_value: Array
    p_adjusted: Array


def leakage_share(
    profile: PositionProfile,
    *,
    queries: Queries = (2, 32),
    without: Sequence[int] = (),
    confidence: float = 0.95,
) -> LeakageShare:
    """Return the unbiased size of the mean residual over the variance of scores along a query's keys.

    Args:
        profile: of at least four groups and four texts a group.
        queries: first and last, cut to m − 1.
        without: positions whose keys and queries are left out of the residual.
        confidence: of the jackknife interval, of the ratio.

    Returns:
        LeakageShare, float64 [L, h]; may be negative without an effect. NaN where scores do not vary.

    Raises:
        ValueError: as `residual_size`.

    Example:
        All that varies along the keys is the same in every text.

        >>> import torch, attnscope as asc
        >>> from attnscope.statistics.leakage import leakage_share
        >>> scores = torch.zeros(16, 1, 6, 6, dtype=torch.float64)
        >>> scores[:, 0, 2, 1:3] = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        >>> profile = asc.PositionProfile(6, groups=4)
        >>> profile.add(scores, group=[text // 4 for text in range(16)])
        >>> round(leakage_share(profile).estimate.item(), 9)
        1.0

    References:
        Efron and Stein, The jackknife estimate of variance, 1981, for the interval.
    """
    require_groups("leakage_share", profile)
    share = _share(profile, queries, without)
    groups = np.arange(len(profile.present))
    return LeakageShare(*jackknife_bounds(groups, share, confidence=confidence)[:3])


def _share(
    profile: PositionProfile, queries: Queries, without: Sequence[int]
) -> Callable[[np.ndarray[Any, Any]], Array]:
    """Return the share [L, h] as a function of the groups that are kept."""
    gram = profile.gram(queries, without=without).numpy()
    rows = profile.rows_of(queries, attention_stored=False, without=without)
    variance = profile.group_means("body_variance")[..., rows].mean(-1).numpy()

    def share(groups: np.ndarray[Any, Any]) -> Array:
        total_variance = variance[groups].mean(0)
        size = mean_product(gram[..., groups, :][..., groups])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total_variance > 0, size / total_variance, math.nan)

    return share


def layer_share(profile: PositionProfile, *, queries: Queries = (2, 32)) -> LeakageShare:
    """Return the share that `leakage_share` gives each head, mean over the heads of a layer that have one.

    The interval is of the mean, and no mean of intervals.

    Args:
        profile: of at least four groups and four texts a group.
        queries: first and last, cut to m − 1.

    Returns:
        LeakageShare, float64 [L]; NaN for a layer without a head whose scores vary.

    Example:
        >>> import torch, attnscope as asc
        >>> from attnscope.statistics.leakage import layer_share
        >>> scores = torch.zeros(16, 2, 6, 6, dtype=torch.float64)
        >>> scores[:, 0, 2, 1:3] = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        >>> profile = asc.PositionProfile(6, groups=4)
        >>> profile.add(scores, group=[text // 4 for text in range(16)])
        >>> layer_share(profile).estimate.round(9).tolist()
        [1.0]
    """
    require_groups("layer_share", profile)
    share, groups = _share(profile, queries, ()), np.arange(len(profile.present))
    # of all groups: a mean over other heads where a group is left out would differ by these
    has_share = np.isfinite(share(groups))
    return LeakageShare(*jackknife_bounds(groups, lambda chosen: _mean_of(share(chosen), has_share))[:3])


def _mean_of(values: Array, defined: Any) -> Array:
    """Return the mean over the last axis of those that have a value; NaN where none has."""
    defined = defined & np.isfinite(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)


def overall_share(
    profile: PositionProfile, *, queries: Queries = (2, 32), draws: int = 9999, seed: int = 0
) -> OverallShare:
    """Return the share that `leakage_share` gives each head, mean over the heads of layers from 1 on.

    Free of the scale of the scores, so that models can be compared. The p-value is of 0, by sign flips of
    whole groups; both are NaN for a model without a layer from 1 on.

    Args:
        profile: of at least four groups and four texts a group.
        queries: first and last, cut to m − 1.
        draws: of signs.
        seed: of the draws.

    Example:
        >>> import torch
        >>> from attnscope import PositionProfile
        >>> from attnscope.statistics.leakage import overall_share
        >>> scores = torch.zeros(16, 1, 6, 6, dtype=torch.float64)
        >>> scores[:, 0, 2, 1:3] = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        >>> profile = PositionProfile(6, groups=4)
        >>> profile.add(scores, group=[text // 4 for text in range(16)], layer=1)
        >>> round(overall_share(profile).estimate, 9)
        1.0
    """
    require_groups("overall_share", profile)
    later = [place for place, layer in enumerate(profile.layers) if layer >= 1]
    if not later:
        return OverallShare(*[math.nan] * 4)
    share = _share(profile, queries, ())

    groups = np.arange(len(profile.present))
    has_share = np.isfinite(share(groups))[later].ravel()
    estimate, low, high, _ = jackknife_bounds(
        groups, lambda chosen: _mean_of(share(chosen)[later].ravel(), has_share)
    )
    rows = profile.rows_of(queries, attention_stored=False)
    variance = profile.group_means("body_variance")[..., rows].mean(-1).numpy().mean(0)[later]
    gram = profile.gram(queries).numpy()[later]
    defined = np.isfinite(gram).all((-2, -1)) & (variance > 0)
    scaled = gram[defined] / variance[defined][:, None, None]
    p_value = sign_flips(scaled.mean(0)[None], draws=draws, seed=seed)[0] if defined.any() else math.nan
    return OverallShare(float(estimate), float(low), float(high), float(p_value))


def leakage_slope(profiles: Sequence[PositionProfile], *, confidence: float = 0.95) -> LeakageSlope:
    """Return how the share changes with the length of texts: the slope of its logarithm on that of the
    length.

    Queries are 2 … m − 1 of every length, and the share is the mean over the heads of a layer that have one
    at every length, so that what differs is the length and not the heads.

    Args:
        profiles: of two lengths or more, with the same groups, layers and heads; a group should hold the
            same tokens at every length, so that what differs is the length.
        confidence: of the jackknife intervals.

    Returns:
        LeakageSlope, float64; a slope is NaN where a share is not above 0, and a layer without a head whose
        scores vary at every length is NaN and left out of `overall`.

    Raises:
        ValueError: fewer than two lengths, a length below 6, other groups or heads, or as `residual_size`.

    Example:
        Texts of 8 and of 16 tokens without anything in common have no slope.

        >>> import torch, attnscope as asc
        >>> from attnscope.statistics.leakage import leakage_slope
        >>> profiles = [asc.PositionProfile(n, groups=4) for n in (8, 16)]
        >>> for profile in profiles:
        ...     profile.add(torch.zeros(16, 1, profile.n, profile.n), group=[text // 4 for text in range(16)])
        >>> leakage_slope(profiles).slope.estimate.tolist()
        [nan]

    References:
        Efron and Stein, The jackknife estimate of variance, 1981, for the interval.
    """
    name = "leakage_slope"
    lengths = tuple(sorted({profile.n for profile in profiles}))
    if len(lengths) < 2 or len(lengths) < len(profiles) or lengths[0] < 6:
        raise ValueError(
            f"{name}: profiles must be of two different lengths or more, none below 6, got "
            f"{[profile.n for profile in profiles]}"
        )
    ordered = sorted(profiles, key=lambda profile: profile.n)
    first = ordered[0]
    for profile in ordered:
        require_groups(name, profile)
        is_alike = (profile.present, profile.layers) == (first.present, first.layers)
        if not is_alike or profile.counts().shape != first.counts().shape:
            raise ValueError(
                f"{name}: every length needs the same groups, layers and heads, got "
                f"{tuple(first.counts().shape)} and {tuple(profile.counts().shape)}"
            )
    shares = [_share(profile, (2, profile.m - 1), ()) for profile in ordered]
    at = np.log(lengths) - np.log(lengths).mean()

    groups = np.arange(len(first.present))
    has_share = np.isfinite([share(groups) for share in shares]).all(0)

    def statistics(chosen: np.ndarray[Any, Any]) -> Array:
        means = _mean_of(np.stack([share(chosen) for share in shares]), has_share)
        means = np.concatenate([means, _mean_of(means, np.isfinite(means))[..., None]], axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.where(means > 0, np.log(means), math.nan)
        return np.concatenate([means, (at @ logs / (at @ at))[None]])

    bounds = jackknife_bounds(groups, statistics, confidence=confidence)[:3]
    return LeakageSlope(
        lengths,
        LeakageShare(*(values[:-1, :-1] for values in bounds)),
        LeakageShare(*(values[-1, :-1] for values in bounds)),
        LeakageShare(*(values[-1, -1] for values in bounds)),
    )


def leakage_test(
    real: Any, null: Any, *, confidence: float = 0.95, draws: int = 9999, seed: int = 0
) -> LeakageTest:
    """Test whether leakage of texts exceeds that of the same texts turned round, for every head.

    Each text counts once, every pair of positions is in its fit, flips have two sides, and the adjustment is
    Benjamini and Hochberg's. A rotation keeps all effects of position that ignore content.

    Args:
        real: leakage of each text, [texts, ...] with the heads behind.
        null: of the same texts with their tokens rotated.
        confidence: of the interval.
        draws: of signs.
        seed: of the draws.

    Returns:
        LeakageTest, float64 [...]; a head with NaN in a text is NaN.

    Raises:
        ValueError: other shapes, fewer than two texts.

    Example:
        >>> import numpy as np
        >>> from attnscope.statistics.leakage import leakage_test
        >>> test = leakage_test(np.full((12, 1), 0.3), np.full((12, 1), 0.1))
        >>> round(test.gap.item(), 9), bool(test.p_value < 0.01)
        (0.2, True)

    References:
        Benjamini and Hochberg, Controlling the false discovery rate, 1995.
    """
    name = "leakage_test"
    a, b = (np.asarray(values, dtype=np.float64) for values in (real, null))
    if a.shape != b.shape or a.ndim == 0 or len(a) < 2:
        raise ValueError(
            f"{name}: real and null must hold the same heads of at least two texts, got {a.shape} and "
            f"{b.shape}"
        )
    difference = a - b
    gap, low, high, _ = jackknife_bounds(difference, lambda texts: texts.mean(0), confidence=confidence)
    flat = difference.reshape(len(difference), -1)
    p_value = np.array([sign_flips(head, draws=draws, seed=seed) for head in flat.T], dtype=np.float64)
    adjusted = benjamini_hochberg(p_value)
    return LeakageTest(gap, low, high, p_value.reshape(gap.shape), adjusted.reshape(gap.shape))
