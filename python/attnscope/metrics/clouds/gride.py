# SPDX-License-Identifier: MIT
"""Dimension of a cloud from the ratio of the distances of two neighbours of ranks n1 and 2·n1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.clouds.cloud_distances import distances_or_euclidean

#: Logarithms of ratios up to this are rounding of equal distances, as in a turned grid.
_ROUNDING = 1e-12


@memory_errors("gride")
@without_derivative("its root is found by bisection")
def gride(
    points: Tensor | None,
    n1: int,
    *,
    distances: Tensor | None = None,
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Return the dimension that makes the ratios μ = r_{2·n1}/r_{n1} likely, at the scale that n1 sets.

    The root D of Σ ((1 − n1)/(1 − μ^{−D}) + 2·n1 − 1) ln μ = (N − 1)/D over the N points whose ratio is
    defined. n1 = 1 is `two_nn`.

    Args:
        points: clouds [..., n, d], four float types, any strides; None with `distances`.
        n1: rank of the nearer neighbour; 2·n1 is at most n − 1.
        distances: [..., n, n] symmetric instead of the Euclidean ones of `points`.
        lengths: points per cloud, broadcast against the leading axes.

    Returns:
        [...] float64, above 0; points at distance 0 are no neighbours. NaN where fewer than two points have
        2·n1 neighbours, or all ratios are 1 to 1e-12, and for a cloud that is not finite, with one warning.

    Raises:
        ValueError: n1 below 1 or 2·n1 above n − 1, and as `two_nn`.

    Example:
        The numbers 0, 1 and e: log ratios 1, log(e − 1) and 1 − log(e − 1), whose sum is 2.

        >>> import math, torch, attnscope as asc
        >>> line = torch.tensor([[0.0], [1.0], [math.e]], dtype=torch.float64)
        >>> round(asc.gride(line, 1).item(), 12)
        1.0

    References:
        Denti et al., The generalized ratios intrinsic dimension estimator, 2022.
    """
    name = "gride"
    rank = scalars.at_least(name, "n1", n1, 1)
    checked = distances_or_euclidean(name, points, distances, lengths)
    if 2 * rank > checked.n - 1:
        raise ValueError(f"{name}: 2·n1 must be at most n - 1 = {checked.n - 1}, got n1 = {n1}")
    maps = checked.tensor.detach().double().reshape(-1, checked.n, checked.n).numpy()
    ends = [checked.n] * len(maps)
    if checked.lengths is not None:
        ends = checked.lengths.flatten().tolist()
    finite = [not np.isnan(apart[:end, :end]).any() for apart, end in zip(maps, ends, strict=True)]
    values = [_dimension(apart[:end, :end], rank) for apart, end in zip(maps, ends, strict=True)]
    dimensions = torch.tensor(values, dtype=torch.float64, device="cpu").reshape(checked.leading)
    return _calls.warn_non_finite(name, checked, dimensions, finite.count(False), "clouds")


def _dimension(distances: np.ndarray[Any, Any], n1: int) -> float:
    """Return the root for one cloud."""
    from scipy.optimize import brentq

    if np.isnan(distances).any():
        return np.nan
    apart = np.where(distances > 0, distances, np.inf)
    apart.sort(axis=1)
    if apart.shape[1] < 2 * n1:
        return np.nan
    near, far = apart[:, n1 - 1], apart[:, 2 * n1 - 1]
    defined = np.isfinite(far)
    logs = np.log(far[defined] / near[defined])
    logs[logs <= _ROUNDING] = 0.0
    count = len(logs)
    if count < 2 or not logs.sum() > 0:
        return np.nan
    if n1 == 1:
        return (count - 1) / logs.sum()
    positive = logs[logs > 0]
    ties = count - len(positive)

    def slope(log_dimension: float) -> float:
        """Return the likelihood equation times D; a ratio of 1 contributes its limit, (1 − n1)/D."""
        d = np.exp(log_dimension)
        terms = ((1 - n1) / -np.expm1(-d * positive) + 2 * n1 - 1) * positive
        return float(d * terms.sum() + ties * (1 - n1) - (count - 1))

    low, high = -10.0, 2.0
    while slope(high) < 0 and high < 60:
        high += 4.0
    if slope(low) > 0 or slope(high) < 0:
        return np.nan
    return float(np.exp(brentq(slope, low, high, xtol=1e-13, rtol=8.9e-16)))
