# SPDX-License-Identifier: MIT
"""The sharpness of a softmax at several temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape

TEMPERATURES = (0.5, 1.0, 2.0)


@shown_by_shape
class SoftmaxStatistics(NamedTuple):
    """Means over rows, each [..., T] by temperature.

    Attributes:
        entropy: of a row, nats.
        top_1: largest probability.
        top_5: sum of the five largest.
        margin: the largest less the second.
    """

    entropy: Tensor
    top_1: Tensor
    top_5: Tensor
    margin: Tensor


@without_derivative("it is the published code's number, made for comparing")
def softmax_statistics(
    scores: Tensor, *, temperatures: Sequence[float] = TEMPERATURES, first_row: int = 5
) -> SoftmaxStatistics:
    """Entropy, largest probabilities and margin of softmax(s/T) over the keys j <= i.

    Differs from `attention_entropy`: rows from 5 on, in which the five largest are fewer than all. It is
    inferred that the notebook leaves out the same rows here as in its ablation.

    Args:
        scores: scaled arguments of the softmax [..., n, n]; entries above the diagonal play no part.
        temperatures: each above 0.
        first_row: of the means.

    Returns:
        SoftmaxStatistics, float64; NaN without such rows.

    Raises:
        ValueError: not square, wrong dtype, no temperature or one that is not above 0, a `first_row` below 0.

    Example:
        Only row 5 of equal scores: six keys of 1/6.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025once
        >>> result = ruscio2025once.softmax_statistics(torch.zeros(6, 6))
        >>> result.top_5.mul(6).round(decimals=9).tolist()
        [5.0, 5.0, 5.0]

    References:
        Ruscio, Once upon a token, 2025: softmax at several temperatures.
    """
    name = "softmax_statistics"
    tensor = _checks.square_tensor(name, "scores", scores).double()
    first_row = scalars.at_least(name, "first_row", first_row, 0)
    if not len(temperatures):
        raise ValueError(f"{name}: temperatures must hold at least one, got {temperatures!r}")
    n = tensor.shape[-1]
    visible = torch.ones(n, n, dtype=torch.bool, device="cpu").tril()
    means: dict[str, list[Tensor]] = {field: [] for field in SoftmaxStatistics._fields}
    for temperature in temperatures:
        heat = scalars.real(name, "temperatures", temperature)
        if not heat > 0:
            raise ValueError(f"{name}: temperatures must be above 0, got {temperature!r}")
        p = torch.softmax((tensor / heat).masked_fill(~visible, -torch.inf), -1)[..., first_row:, :]
        top = torch.nn.functional.pad(p, (0, 5)).topk(5, -1).values
        means["entropy"].append(torch.special.entr(p).sum(-1).mean(-1))
        means["top_1"].append(top[..., 0].mean(-1))
        means["top_5"].append(top.sum(-1).mean(-1))
        means["margin"].append((top[..., 0] - top[..., 1]).mean(-1))
    return SoftmaxStatistics(*(torch.stack(values, -1) for values in means.values()))
