# SPDX-License-Identifier: MIT
"""The gain of fitting scores with positions over fitting them with the offset."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader

#: Tokens that the notebook reads of a text.
MOST_TOKENS = 256
#: Lengths that the notebook compares, in characters.
CHARACTERS = (64, 512, 1024)


@shown_by_shape
class Leakage(NamedTuple):
    """In-sample fits over the pairs j <= i, each [...].

    Attributes:
        r2_relative: R² of [i − j, 1].
        r2_full: R² of [i − j, i, j, 1].
        leakage: their difference.
    """

    r2_relative: Tensor
    r2_full: Tensor
    leakage: Tensor


@without_derivative("it is the published code's number, made for comparing")
def leakage(scores: Tensor) -> Leakage:
    """ΔR² of positions over the offset, as the notebook's least squares give it.

    i − j, i and j have rank 2, so one regressor is added, and over all pairs j <= i the sum i + j is
    uncorrelated with i − j: ΔR² is the squared correlation of the scores with i + j, and no least squares
    are needed.

    Differs from the exact `leakage_share`: of one text, which measures its content too; linear in the
    positions; plain, so that it is above 0 for noise; the first 256 tokens only. The notebook's scores are
    unscaled q·k behind the rotation, without BOS.

    Args:
        scores: [..., n, n]; entries above the diagonal play no part.

    Returns:
        Leakage, float64 [...]; NaN for scores that do not vary, fewer than three tokens, or numbers at j <= i
        that are not finite.

    Raises:
        ValueError: not square, empty, wrong dtype.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025once
        >>> i = torch.arange(8.0)
        >>> round(ruscio2025once.leakage(i[:, None] + i).leakage.item(), 12)
        1.0

    References:
        Ruscio, Once upon a token, 2025: leakage.
    """
    tensor = _checks.square_tensor("leakage", "scores", scores)
    n = min(int(tensor.shape[-1]), MOST_TOKENS)
    row, column = torch.tril_indices(n, n, device="cpu").unbind()
    y = tensor[..., row, column].double()
    y = y - y.mean(-1, keepdim=True)
    total = (y * y).sum(-1)
    # a mean of equal numbers may be off by a rounding
    varies = total > 1e-24 * tensor[..., row, column].double().square().sum(-1)

    def squared_correlation(x: Tensor) -> Tensor:
        x = x.double() - x.double().mean()
        return torch.where(varies, (y @ x) ** 2 / (total * (x @ x)), torch.nan)

    relative, added = squared_correlation(row - column), squared_correlation(row + column)
    if n < 3:
        relative, added = torch.full_like(relative, torch.nan), torch.full_like(added, torch.nan)
    return Leakage(relative, relative + added, added)


def first_characters(text: str, length: int) -> str:
    """Return the notebook's text of `length`: its first characters, not tokens.

    So its lengths 64, 512 and 1024 are of 15 to 250 tokens, and differ from text to text.

    Args:
        text: any.
        length: number of characters.
    """
    return text[:length]


_N = torch.arange(6, dtype=torch.float64, device="cpu")
_SUM, _TWICE_QUERY = _N[:, None] + _N, 2 * _N[:, None].expand(6, 6)

QUANTITIES = tuple(
    Quantity(
        name,
        "leakage",
        label,
        meaning,
        ClosedForm(expected, torch.eye(6, device="cpu"), {"scores": scores[None]}),
        low=0,
        high=1,
        needs=("scores",),
        read=attribute_reader(name),
        protocol="ruscio2025once",
    )
    for name, label, meaning, expected, scores in (
        ("r2_relative", "R² of the offset", "In-sample fit of the scores by the offset.", 0.0, _SUM),
        (
            "r2_full",
            "R² of the positions",
            "In-sample fit of the scores by offset and positions.",
            1.0,
            _TWICE_QUERY,
        ),
        ("leakage", "leakage ΔR²", "What positions add to the fit by the offset.", 1.0, _SUM),
    )
)
