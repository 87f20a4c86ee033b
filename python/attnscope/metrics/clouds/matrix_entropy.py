# SPDX-License-Identifier: MIT
"""Entropy of the squared singular values of states: how many directions a text takes up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.metrics import _powers
from attnscope.metrics.clouds.cloud_distances import bytes_of_spectrum, points_argument, visible_points
from attnscope.metrics.quantity import ClosedForm, Quantity, Site


@memory_errors("matrix_entropy")
def matrix_entropy(
    points: Tensor,
    *,
    center: bool = False,
    unit: bool = False,
    normalized: bool = False,
    lengths: _checks.Lengths = None,
) -> Tensor:
    """Return −Σ p ln p of the squared singular values, p = σ²/Σσ².

    `effective_rank` is the exponential of the same sum with p = σ/Σσ. Skean et al. center, take rows of unit
    length, and set negative entries of the Gram matrix to 0, which is no option here.

    Args:
        points: clouds [..., n, d], four float types, any strides.
        center: subtract the mean of the points.
        unit: divide each point by its norm, after centring; a point at 0 stays there.
        normalized: divide by ln min(n, d); NaN where that is 0.
        lengths: points per cloud, broadcast against the leading axes.

    Returns:
        [...] float64 in [0, ln min(n, d)], or in [0, 1]; NaN for a cloud of zeros, and for one that is not
        finite, with one warning.

    Raises:
        ValueError: fewer than two dimensions, no point, lengths outside 1..n.
        TypeError: an option without a truth value.

    Example:
        >>> import math, torch, attnscope as asc
        >>> math.isclose(asc.matrix_entropy(torch.eye(5, dtype=torch.float64)).item(), math.log(5))
        True

    References:
        Skean et al., Layer by layer: uncovering hidden representations in language models, 2025.
    """
    name = "matrix_entropy"
    centred, of_unit, over_most = (
        scalars.flag(name, option, value)
        for option, value in (("center", center), ("unit", unit), ("normalized", normalized))
    )
    checked = points_argument(name, points, lengths)
    value, finite = placement.per_cloud(
        name,
        lambda points, ends: _entropies(points, ends, center=centred, unit=of_unit, normalized=over_most),
        checked.tensor,
        checked.lengths,
        bytes_of_one=bytes_of_spectrum(checked.tensor),
        decomposition="singular_values",
    )
    return _calls.warn_non_finite(name, checked, value, int((~finite).sum()), "clouds")


def _entropies(
    points: Tensor, lengths: Tensor | None, *, center: bool, unit: bool, normalized: bool
) -> tuple[Tensor, Tensor]:
    """Return the entropies of clouds [..., n, d], and which clouds are finite."""
    tensor, _ = _powers.in_range(points, lengths)
    inside = visible_points(points, lengths)
    finite = (tensor.isfinite().all(-1) | ~inside).all(-1)
    visible = (inside & finite[..., None])[..., None]
    rows = torch.where(visible, tensor.double(), 0.0)
    if center:
        # From the first point on, so that equal points are at exactly 0 whatever their mean rounds to.
        rows = torch.where(visible, rows - rows[..., :1, :], 0.0)
        rows = torch.where(visible, rows - rows.sum(-2, keepdim=True) / inside.sum(-1)[..., None, None], 0.0)
    if unit:
        norms = rows.norm(dim=-1, keepdim=True)
        rows = torch.where(norms > 0, rows / torch.where(norms > 0, norms, 1.0), 0.0)
    squares = torch.linalg.svdvals(rows).square()
    total = squares.sum(-1, keepdim=True)
    shares = squares / torch.where(total > 0, total, 1.0)
    # the slope of x log x at 0 is infinite
    entropy = torch.special.entr(torch.where(shares > 0, shares, 1.0)).sum(-1).clamp_min(0.0)
    value = torch.where((total[..., 0] > 0) & finite, entropy, torch.nan)
    if normalized:
        most = inside.sum(-1).clamp_max(tensor.shape[-1]).double().log()
        value = torch.where(most > 0, value / most, torch.nan)
    return value, finite


QUANTITIES = (
    Quantity.of(
        "matrix_entropy",
        "matrix entropy",
        "Entropy of the squared singular values of the points, over their sum.",
        ClosedForm(
            math.log(5),
            torch.eye(2, device="cpu"),
            {"points": torch.eye(5, dtype=torch.float64, device="cpu")},
        ),
        options={"points": Site("points")},
        scope="cloud",
        needs=("points",),
        low=0,
        high=lambda n: math.log(n) if n > 1 else 1.0,
    ),
)
