# SPDX-License-Identifier: MIT
"""Derivatives of eigenvalues and singular values that are equal, which have none of their own."""

from __future__ import annotations

from torch import Tensor, where

from attnscope._warn import warn
from attnscope.errors import EqualEigenvaluesWarning

#: Gradients of equal values that differ by less than this part of the largest are equal themselves: values
#: that are equal to 1e-8 are rounded, and so is what a loss makes of them.
_TOLERANCE = 1e-6


def mean_over_equal(weight: Tensor, values: Tensor, reach: Tensor, takes_part: Tensor, name: str) -> Tensor:
    """Return gradients of values of which equal ones have the mean of theirs.

    A warning says so where that changes a gradient.

    Args:
        weight: gradient of each value [m, n].
        values: [m, n].
        reach: how near another value must be to be equal, [m, n] or [m, 1].
        takes_part: which values have equal ones at all, bool [m, n]; the gradients of others stay.
        name: what a value is called in the warning.
    """
    near = (values[:, :, None] - values[:, None, :]).abs() <= reach[:, :, None]
    is_equal = near & takes_part[:, :, None] & takes_part[:, None, :]
    count = is_equal.sum(-1).clamp(min=1)
    mean = where(is_equal, weight[:, None, :], 0.0).sum(-1) / count
    shared = where(takes_part & (count > 1), mean, weight)
    if bool(((weight - shared).abs() > _TOLERANCE * weight.abs().amax(-1, keepdim=True)).any()):
        words = f"{name} with a gradient is equal to its neighbour; its gradient is the mean over both"
        warn(words, EqualEigenvaluesWarning)
    return shared
