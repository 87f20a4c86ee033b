# SPDX-License-Identifier: MIT
"""The fit of waves along the text to the states of its tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class PositionProbe(NamedTuple):
    """R² of the probe, [...], and that of white noise, 2·harmonics/(n − 1)."""

    r2: Tensor
    null: Tensor


@without_derivative("it is the published code's number, made for comparing")
def position_probe(states: Tensor, *, harmonics: int = 8) -> PositionProbe:
    """Return the in-sample R² of states on sin and cos of the first harmonics of n, mean over their
    dimensions.

    Differs from the exact `position_share`: of one text, whose content varies along it too; in sample, so
    that white noise gives 16/(n − 1), .063 at n = 256; the notebook's is .108.

    Args:
        states: [..., n, D].
        harmonics: number of waves.

    Returns:
        PositionProbe, float64; NaN for no more tokens than regressors, and where no dimension varies.

    Raises:
        ValueError: another shape.

    Example:
        >>> import torch
        >>> from attnscope.protocols.ruscio2025once import position_probe
        >>> wave = torch.sin(2 * torch.pi * 3 * torch.arange(64.0) / 64)[:, None]
        >>> round(position_probe(wave).r2.item(), 6)
        1.0

    References:
        Ruscio, Once upon a token, 2025: position probe of MLP inputs and outputs.
    """
    name = "position_probe"
    tensor = _checks.float_tensor(name, "states", states).double().cpu()
    if tensor.ndim < 2:
        raise ValueError(f"{name}: states must have shape [..., n, D], got {tuple(tensor.shape)}")
    waves = scalars.whole_number(name, "harmonics", harmonics)
    n = tensor.shape[-2]
    null = torch.tensor(
        2 * waves / (n - 1) if n > 2 * waves + 1 else math.nan, dtype=torch.float64, device="cpu"
    )
    if n <= 2 * waves + 1:
        return PositionProbe(
            torch.full(tensor.shape[:-2], torch.nan, dtype=torch.float64, device="cpu"), null
        )
    phase = (
        2
        * math.pi
        * torch.arange(n, dtype=torch.float64, device="cpu")[:, None]
        * torch.arange(1, waves + 1, device="cpu")
        / n
    )
    # Over n tokens these waves are orthogonal to each other and to a constant, and of square n/2.
    basis = torch.cat([phase.sin(), phase.cos()], -1) * (2 / n) ** 0.5
    centred = tensor - tensor.mean(-2, keepdim=True)
    total = centred.square().sum(-2)
    fitted = (basis.T @ centred).square().sum(-2)
    # a mean of equal numbers may be off by a rounding
    varies = total > 1e-24 * tensor.square().sum(-2)
    return PositionProbe(torch.where(varies, fitted / total, torch.nan).nanmean(-1), null)
