# SPDX-License-Identifier: MIT
"""Results that are known up to an interval, of attention whose map never exists."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class IntervalEstimate(NamedTuple):
    """A number and the interval that holds the exact number of the map.

    Attributes:
        value: float64 [...].
        low, high: ends of the interval, float64 [...]; certain, or of 95 % where the function says so.
    """

    value: Tensor
    low: Tensor
    high: Tensor


@shown_by_shape
class LeadingSingularValues(NamedTuple):
    """The largest singular values of maps, descending, with certain bounds.

    Attributes:
        value: float64 [..., k]; NaN past the size of a map.
        low, high: bounds of each, float64 [..., k].
        energy: sum of all squared singular values, float64 [...].
    """

    value: Tensor
    low: Tensor
    high: Tensor
    energy: Tensor


def stable_rank_of_leading(sigma: LeadingSingularValues) -> IntervalEstimate:
    """Return ‖A‖_F²/σ1² with its bounds."""
    value, low, high = (
        sigma.energy / bound[..., 0].square() for bound in (sigma.value, sigma.high, sigma.low)
    )
    return IntervalEstimate(value, low.clamp(min=1.0), high)


def gap_of_leading(sigma: LeadingSingularValues) -> IntervalEstimate:
    """Return σ1 − σ2 with its bounds; NaN where there is no second."""
    value, low, high = _first_two(sigma)
    return IntervalEstimate(value[0] - value[1], (low[0] - high[1]).clamp(min=0.0), high[0] - low[1])


def ratio_of_leading(sigma: LeadingSingularValues) -> IntervalEstimate:
    """Return σ1/σ2 with its bounds; NaN where there is no second."""
    value, low, high = _first_two(sigma)
    return IntervalEstimate(value[0] / value[1], (low[0] / high[1]).clamp(min=1.0), high[0] / low[1])


def _first_two(sigma: LeadingSingularValues) -> tuple[tuple[Tensor, ...], ...]:
    return tuple(
        torch.nn.functional.pad(bound[..., :2], (0, 1), value=torch.nan)[..., :2].unbind(-1)
        for bound in sigma[:3]
    )
