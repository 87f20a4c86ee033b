# SPDX-License-Identifier: MIT
"""The size of the mean residual of scores, and the part of it that a change in the run removes.

The square of a noisy mean never vanishes: E‖R̂‖² = ‖R‖² + noise/N. Products of different groups of texts
share no noise, so their mean is unbiased, and negative without a residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from attnscope.arguments.scalars import fraction_argument
from attnscope.metrics.positions.position_profile import PositionProfile, Weights
from attnscope.statistics.comparisons import benjamini_hochberg
from attnscope.statistics.groups import (
    Array,
    jackknife_bounds,
    jackknife_interval,
    mean_product,
    sign_flips,
)
from attnscope.statistics.intervals import Interval

Queries = tuple[int, int]


class ResidualSize(NamedTuple):
    """Squared size of a mean residual, arrays [L, h].

    Attributes:
        estimate: unbiased; negative values are kept.
        plain: the square of the mean, noise included.
        low: of the jackknife interval.
        high: likewise.
        p_value: of 0, by sign flips of whole groups.
        p_adjusted: Benjamini–Hochberg over layers and heads.
        reliability: cosine of the means of odd and even groups.
    """

    estimate: Array
    plain: Array
    low: Array
    high: Array
    p_value: Array
    p_adjusted: Array
    reliability: Array

    @property
    def floor(self) -> Array:
        """Noise in `plain`."""
        return self.plain - self.estimate


class Removal(NamedTuple):
    """A removed share: of each layer (mean over its heads), and of all layers but the first."""

    layers: tuple[Interval, ...]
    overall: Interval


class Removed(NamedTuple):
    """The part of the base's residual that a condition removes; 0 is no change, negative values are more than
    before.

    Attributes:
        energy: 1 − ĉ'²/ĉ².
        size: 1 − ĉ'/ĉ; a negative ĉ² counts as 0.
        pattern: 1 − <R', R>/<R, R>: the share of the base's pattern that is removed.
    """

    energy: Removal
    size: Removal
    pattern: Removal


class MovedDistance(NamedTuple):
    """Total variation between mean early body attention and that of late queries cut alike, [L, h].

    Attributes:
        value: mean over queries of ½ Σ_j |E δ_ij|, noise included.
        floor: its mean over sign flips of whole groups, the value of noise.
        p_value: the share of those flips that move as much or more; NaN if nothing can be moved.
    """

    value: Array
    floor: Array
    p_value: Array


def residual_size(
    profile: PositionProfile,
    *,
    queries: Queries = (2, 32),
    weights: Weights = "uniform",
    without: Sequence[int] = (),
    confidence: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
) -> ResidualSize:
    """Return the squared size of the mean residual of every layer and head, unbiased over groups of texts.

    Args:
        profile: of at least four groups and four texts a group.
        queries: first and last, cut to m − 1.
        weights: of the body keys: "uniform", "felt" (by cut late attention; half of it is about the KL
            divergence between the body attentions), or "moved" for the squared distance of the attentions.
        without: positions whose keys and queries are left out.
        confidence: of the jackknife interval.
        draws: of signs.
        seed: of the draws.

    Returns:
        ResidualSize, float64 [L, h], nats² for scores in nats; NaN for a head without texts in a group.

    Raises:
        ValueError: fewer than four groups, fewer texts than four a group, no such query, and as
            `PositionProfile.gram`.

    Example:
        Sixteen texts that share the residual (−1, 1) on the keys 1 and 2 of query 2.

        >>> import torch, attnscope as asc
        >>> scores = torch.zeros(16, 1, 6, 6, dtype=torch.float64)
        >>> scores[:, 0, 2, 1:3] = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        >>> profile = asc.PositionProfile(6, groups=4)
        >>> profile.add(scores, group=[text // 4 for text in range(16)])
        >>> size = asc.residual_size(profile)
        >>> round(size.estimate.item(), 9), round(size.plain.item(), 9)
        (1.0, 1.0)

    References:
        Efron and Stein, The jackknife estimate of variance, 1981, for the interval.
    """
    require_groups("residual_size", profile)
    gram = profile.gram(queries, weights=weights, without=without).numpy()
    estimate, low, high, _ = _of_groups(
        lambda groups: mean_product(_among_groups(gram, groups)), len(gram[0, 0]), confidence
    )
    p_value = sign_flips(gram, draws=draws, seed=seed)
    odd, even = slice(1, None, 2), slice(0, None, 2)
    across = gram[..., odd, even].mean((-2, -1))
    sizes = gram[..., odd, odd].mean((-2, -1)) * gram[..., even, even].mean((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        reliability = across / np.sqrt(sizes)
    adjusted = benjamini_hochberg(p_value.ravel()).reshape(p_value.shape)
    return ResidualSize(
        estimate,
        gram.mean((-2, -1)),
        low,
        high,
        p_value,
        adjusted,
        np.where(sizes > 0, reliability, math.nan),
    )


def removed(
    base: PositionProfile,
    arm: PositionProfile,
    *,
    queries: Queries = (2, 32),
    weights: Weights = "uniform",
    without: Sequence[int] = (),
    confidence: float = 0.95,
) -> Removed:
    """Return how much of the residual a change in the run removes, from the same texts in the same groups.

    Energy and pattern differ: a replacement can remove the base's pattern and write one of its own.

    Args:
        base: the run without the change.
        arm: the run with it.
        queries: first and last, cut to m − 1.
        weights: as `residual_size` takes them; "felt" are the base's for both.
        without: positions whose keys and queries are left out of both.
        confidence: of the jackknife intervals, of the ratios.

    Returns:
        Removed; an Interval of NaN where the lower bound of the base's ĉ² is not above 0, which has
        nothing that could be removed. With one layer `whole` is of no layer and NaN.

    Raises:
        ValueError: other groups, layers or numbers of texts, and as `residual_size`.

    Example:
        An arm with half the scores keeps a quarter of the energy and half the pattern.

        >>> import torch, attnscope as asc
        >>> scores = torch.zeros(16, 1, 6, 6, dtype=torch.float64)
        >>> scores[:, 0, 2, 1:3] = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        >>> base, arm = asc.PositionProfile(6, groups=4), asc.PositionProfile(6, groups=4)
        >>> for profile, factor in ((base, 1.0), (arm, 0.5)):
        ...     profile.add(factor * scores, group=[text // 4 for text in range(16)])
        >>> shares = asc.removed(base, arm)
        >>> [round(share.layers[0].estimate, 9) for share in shares]
        [0.75, 0.5, 0.5]

    References:
        arXiv 2606.06160, 2026, for the question; the estimator is attnscope's.
    """
    for profile in (base, arm):
        require_groups("removed", profile)
    base_counts, arm_counts = base.counts(), arm.counts()
    if base.present != arm.present or base.layers != arm.layers or base_counts.shape != arm_counts.shape:
        raise ValueError(
            f"removed: both need the same groups, layers and heads, got {tuple(base_counts.shape)} and "
            f"{tuple(arm_counts.shape)} in groups {base.present} and {arm.present}"
        )
    confidence = fraction_argument("removed", "confidence", confidence)
    vectors = base.vectors(queries, weights, without, base), base.vectors(queries, weights, without, arm)
    replicates = removal_replicates(*vectors, base.layers)
    *layers, together = removal_intervals(replicates, confidence=confidence)
    parts = zip(*layers, strict=True) if layers else ((), (), ())
    return Removed(*(Removal(part, overall) for part, overall in zip(parts, together, strict=True)))


def removal_replicates(base: Tensor, arm: Tensor, layers: Sequence[int]) -> Array:
    """Return the shares that an arm removes, from all groups and without each in turn.

    Args:
        base: `PositionProfile.vectors` of the base, [G, L, h, X].
        arm: those of the arm under the base's weights, of the same shape.
        layers: their numbers; those from 1 on are also taken together.

    Returns:
        [1 + G, 3, L + 1]: with all groups, then without each; energy, size and pattern; of each layer, then
        of the layers from 1 on. NaN where the lower bound of the base's size is not above 0. Heads that have
        no number in every group, of the base or of the arm, are left out of both.
    """
    first, second = base.permute(1, 2, 0, 3), arm.permute(1, 2, 0, 3)
    grams = [
        (first_vectors @ second_vectors.mT).numpy()
        for first_vectors, second_vectors in ((first, first), (second, second), (first, second))
    ]
    groups = grams[0].shape[-1]
    has_all = np.isfinite(np.stack(grams)).all((0, -2, -1))
    later = [place for place, layer in enumerate(layers) if layer >= 1]
    scopes = [[place] for place in range(len(layers))] + [later]

    def sizes(groups: np.ndarray) -> Array:
        """Return the mean over the heads of each scope, of base, arm and their product, [scopes, 3]."""
        means = np.stack([mean_product(_among_groups(gram, groups)) for gram in grams], -1)
        means = np.where(has_all[..., None], means, 0.0)
        heads = np.array([has_all[scope].sum() for scope in scopes])
        with np.errstate(invalid="ignore"):  # 0/0 where a scope has no head
            rows: Array = np.stack([means[scope].sum((0, 1)) for scope in scopes]) / heads[:, None]
        return rows

    all_groups = np.arange(groups)
    of_groups = np.stack([sizes(all_groups), *(sizes(np.delete(all_groups, group)) for group in all_groups)])
    before, after, shared = np.moveaxis(of_groups, -1, 0)
    lowest = jackknife_interval(before[0], before[1:])[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        roots = np.sqrt(np.maximum(after, 0)) / np.sqrt(np.maximum(before, 0))
        shares = np.stack([1 - after / before, 1 - roots, 1 - shared / before], axis=1)
    return np.where(lowest > 0, shares, math.nan)


def removal_intervals(replicates: Array, *, confidence: float = 0.95) -> list[tuple[Interval, ...]]:
    """Return energy, size and pattern of every scope of `removal_replicates`, with intervals."""
    estimate, low, high = jackknife_interval(replicates[0], replicates[1:], confidence=confidence)
    groups = len(replicates) - 1
    return [
        tuple(
            Interval(float(estimate[part, at]), float(low[part, at]), float(high[part, at]), groups)
            for part in range(3)
        )
        for at in range(estimate.shape[-1])
    ]


def moved_distance(
    profile: PositionProfile,
    *,
    queries: Queries = (2, 32),
    without: Sequence[int] = (),
    draws: int = 200,
    seed: int = 0,
) -> MovedDistance:
    """Return the total variation by which early attention is moved, and the value of noise.

    Args:
        profile: of at least four groups and four texts a group.
        queries: first and last among those whose attention is kept.
        without: positions whose keys and queries are left out.
        draws: of signs.
        seed: of the draws.

    Returns:
        MovedDistance, float64 [L, h], in [0, 1]; compare `value` with `floor`.

    Raises:
        ValueError: as `residual_size`.

    Example:
        >>> import torch
        >>> from attnscope import PositionProfile
        >>> from attnscope.statistics.residuals import moved_distance
        >>> profile = PositionProfile(6, groups=4)
        >>> profile.add(torch.zeros(16, 1, 6, 6), group=[text // 4 for text in range(16)])
        >>> round(moved_distance(profile).value.item(), 12)
        0.0
    """
    require_groups("moved_distance", profile)
    rows = profile.rows_of(queries, attention_stored=True, without=without)
    places = [profile.queries.index(row) for row in rows]
    moved = profile.group_means("moved")[..., places, :].numpy()
    keys = [key for key in range(1, profile.m) if key not in without]
    moved = moved[..., keys]

    def distance(signs: Array) -> Array:
        mean = np.tensordot(signs, moved, (0, 0)) / len(moved)
        return np.abs(mean).sum(-1).mean(-1) / 2

    drawn = np.random.default_rng(seed).integers(0, 2, (draws, len(moved))) * 2.0 - 1
    flipped = np.array([distance(signs) for signs in drawn])
    value = distance(np.ones(len(moved)))
    # equal distances that were added up in another order still count as equal
    as_far = (flipped >= value * (1 - 1e-12)).sum(0)
    p_value = np.where(np.isnan(value), math.nan, (1 + as_far) / (1 + draws))
    return MovedDistance(value, flipped.mean(0), p_value)


def require_groups(function: str, profile: PositionProfile) -> None:
    """Raise ValueError unless a size can be estimated: four groups, and four texts in each on average."""
    if not isinstance(profile, PositionProfile):
        raise TypeError(f"{function}: a PositionProfile is needed, got {type(profile).__name__}")
    groups, texts = len(profile.present), profile.texts
    if groups < 4:
        raise ValueError(f"{function}: at least 4 groups must hold texts, got {groups}")
    if texts < 4 * groups:
        raise ValueError(f"{function}: {groups} groups need at least {4 * groups} texts, got {texts}")


def _of_groups(
    function: Callable[[np.ndarray], Array], groups: int, confidence: float
) -> tuple[Array, Array, Array, int]:
    return jackknife_bounds(np.arange(groups), function, confidence=confidence)


def _among_groups(gram: Array, groups: np.ndarray) -> Array:
    return gram[..., groups, :][..., groups]
