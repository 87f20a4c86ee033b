# SPDX-License-Identifier: MIT
"""Intervals by leaving out one group at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class JackknifeInterval(NamedTuple):
    """A number computed of all groups, and its 95 % interval over them.

    Attributes:
        estimate: of all groups.
        low: NaN with fewer than two groups.
        high: likewise.
    """

    estimate: Tensor
    low: Tensor
    high: Tensor


def jackknife_interval(estimate: Tensor, rest: Iterable[Tensor], confidence: float) -> JackknifeInterval:
    """The interval of an estimate whose values without one group each are known.

    se² = (G − 1)/G·Σ(θ_i − mean)², and Student's t with G − 1 degrees of freedom.
    """
    from scipy.stats import t

    values = list(rest)
    count = len(values)
    if count < 2:
        nothing = torch.full_like(estimate, torch.nan)
        return JackknifeInterval(estimate, nothing, nothing)
    left_out = torch.stack(values)
    spread = (left_out - left_out.mean(0)).square().sum(0) * (count - 1) / count
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * spread.sqrt()
    return JackknifeInterval(estimate, estimate - half, estimate + half)
