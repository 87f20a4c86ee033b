# SPDX-License-Identifier: MIT
"""The share of one text's scores that the offset explains, and the share that the position adds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.positions.toeplitz import finish_scores
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader


@shown_by_shape
class OffsetFit(NamedTuple):
    """Fits over the pairs j <= i of one map, each [...].

    Attributes:
        r2: of any function of i − j.
        adjusted: the same for its n degrees of freedom; 0 in expectation for noise.
        added: the increase of r2 from a term linear in i + j.
    """

    r2: Tensor
    adjusted: Tensor
    added: Tensor


@without_derivative("it is made for reading")
@memory_errors("offset_fit")
def offset_fit(
    scores: Tensor, *, precision: _checks.Precision = "exact", lengths: _checks.Lengths = None
) -> OffsetFit:
    """Fit the best function of the offset; return its R², and the ΔR² of the position.

    For one text both hold its content; `leakage_share` holds the part that texts have in common.

    Args:
        scores: [..., n, n], -inf where a key is invisible; entries above the diagonal play no part.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map, broadcast against the leading axes.

    Returns:
        OffsetFit, float64; r2 and added in [0, 1]. NaN where a number at j <= i is NaN or +inf, where scores
        do not vary, and `adjusted` where there are no more pairs than offsets.

    Raises:
        ValueError: not square, empty, wrong dtype.

    Example:
        i + j has the same mean at every offset: the offset explains nothing, the position all.

        >>> import torch, attnscope as asc
        >>> i = torch.arange(8.0)
        >>> fit = asc.offset_fit(i[:, None] + i)
        >>> round(fit.r2.item(), 12), round(fit.added.item(), 12)
        (0.0, 1.0)

    References:
        Ruscio, Once upon a token, 2025, with a linear function of the offset.
    """
    _checks.precision_argument("offset_fit", precision, scores)
    checked = _checks.attention_argument("offset_fit", scores, lengths, name="scores")
    _checks.require_map("offset_fit", checked)
    tensor = _powers.in_range(checked.tensor, checked.lengths)[0].double()
    n = tensor.shape[-1]
    row, column = torch.tril_indices(n, n, device="cpu").unbind()
    y = tensor[..., row, column]
    inside = torch.ones(y.shape, dtype=torch.bool, device="cpu")
    if checked.lengths is not None:
        inside = row < checked.lengths[..., None]
    bad = ~((y < torch.inf) | ~inside).all(-1)
    seen = (y > -torch.inf) & inside
    y = torch.where(seen, y, 0.0)
    at = (row - column).expand(y.shape)
    place = (row + column).double().expand(y.shape)

    def centred(x: Tensor, by: Tensor | None) -> Tensor:
        """Numbers less their mean over the visible pairs, or those of one offset."""
        if by is None:
            mean = torch.where(seen, x, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
            return torch.where(seen, x - mean, 0.0)
        sums = torch.zeros(*x.shape[:-1], n, dtype=torch.float64, device="cpu")
        counts = torch.zeros_like(sums).scatter_add_(-1, by, seen.double())
        sums.scatter_add_(-1, by, torch.where(seen, x, 0.0))
        return torch.where(seen, x - (sums / counts.clamp(min=1)).gather(-1, by), 0.0)

    total = centred(y, None).square().sum(-1)
    within, along = centred(y, at), centred(place, at)
    rest = within.square().sum(-1)
    pairs = seen.sum(-1)
    offsets = torch.zeros(*y.shape[:-1], n, dtype=torch.float64, device="cpu").scatter_add_(
        -1, at, seen.double()
    )
    freedom = pairs - (offsets > 0).sum(-1)
    is_defined = ~bad & (total > 1e-24 * y.square().sum(-1))
    added = (within * along).sum(-1) ** 2 / along.square().sum(-1).clamp(min=1e-300) / total
    adjusted = 1 - (rest / freedom) / (total / (pairs - 1))
    fit = OffsetFit(
        torch.where(is_defined, 1 - rest / total, torch.nan),
        torch.where(is_defined & (freedom > 0), adjusted, torch.nan),
        torch.where(is_defined, added, torch.nan),
    )
    return finish_scores("offset_fit", checked, fit, int(bad.sum()))


_N = torch.arange(6, dtype=torch.float64, device="cpu")

_SUM = _N[:, None] + _N
_SQUARE = (_N[:, None] - _N) ** 2

QUANTITIES = (
    Quantity(
        "offset_r2",
        "offset_fit",
        "R² of the offset",
        "How well any function of the offset fits the scores.",
        ClosedForm(1.0, torch.eye(6, device="cpu"), {"scores": _SQUARE[None]}),
        low=0,
        high=1,
        needs=("scores",),
        read=attribute_reader("r2"),
    ),
    Quantity(
        "offset_r2_adjusted",
        "offset_fit",
        "adjusted R² of the offset",
        "The same adjusted for its degrees of freedom, 0 in expectation for noise.",
        ClosedForm(1.0, torch.eye(6, device="cpu"), {"scores": _SQUARE[None]}),
        high=1,
        needs=("scores",),
        read=attribute_reader("adjusted"),
    ),
    Quantity(
        "offset_r2_added",
        "offset_fit",
        "ΔR² of the position",
        "What a term linear in i + j adds to any function of the offset.",
        # every diagonal has the same mean of i + j
        ClosedForm(1.0, torch.eye(6, device="cpu"), {"scores": _SUM[None]}),
        low=0,
        high=1,
        needs=("scores",),
        read=attribute_reader("added"),
    ),
)
