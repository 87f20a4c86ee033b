# SPDX-License-Identifier: MIT
"""The shape of a head's Laplacian spectrum: how early it rises, how even it is, where its mass lies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.graphs.laplacian import Symmetrize, graph_arguments
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader


@shown_by_shape
class LaplacianShape(NamedTuple):
    """The spectrum of the Laplacian of each map, [...] float64; NaN without an edge.

    Attributes:
        ratio: λ2/λmax, in [0, 1].
        entropy: entropy of λ/Σλ over ln n, in [0, 1].
        upper_share: share of the ⌈n/2⌉ largest eigenvalues in Σλ, in [0, 1].
        largest: λmax.
    """

    ratio: Tensor
    entropy: Tensor
    upper_share: Tensor
    largest: Tensor


@memory_errors("laplacian_shape")
def laplacian_shape(
    attention: Tensor,
    *,
    symmetrize: Symmetrize = "mean",
    normalized: bool = False,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> LaplacianShape:
    """Return four numbers of all Laplacian eigenvalues of each head.

    Args:
        attention: maps [..., n, n], any strides.
        symmetrize: "mean" or "max", as in `laplacian_eigenvalues`.
        normalized: take I − D^{-1/2} W D^{-1/2} instead of D − W.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        LaplacianShape; NaN for maps without an edge, such as those of one token.

    Raises:
        ValueError: as `laplacian_eigenvalues`.

    Example:
        All eigenvalues of a complete graph but the first are equal.

        >>> import math, torch, attnscope as asc
        >>> found = asc.laplacian_shape(torch.full((4, 4), 0.25, dtype=torch.float64))
        >>> found.ratio.item(), round(found.entropy.item() * math.log(4) / math.log(3), 9)
        (1.0, 1.0)

    References:
        Noël, A graph signal processing framework for hallucination detection, 2025, per head.
    """
    name = "laplacian_shape"
    _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    _checks.require_map(name, checked)
    graph_options = graph_arguments(name, symmetrize, None, normalized)
    eigenvalues = _calls.call_and_warn(_core.laplacian_eigenvalues, name, checked, checked.n, *graph_options)
    sizes = checked.inside().sum(-1)
    values = eigenvalues.clamp_min(0.0)
    finite = ~eigenvalues[..., 0].isnan()
    values = torch.where(checked.inside() & finite[..., None], values, 0.0)
    total = values.sum(-1)
    defined = finite & (total > 0)
    largest = values.amax(-1)
    second = values[..., 1] if values.shape[-1] > 1 else torch.zeros_like(largest)
    place = torch.arange(values.shape[-1], device="cpu")
    upper = place >= (sizes // 2)[..., None]
    # divisors of maps without an edge, whose numbers are undefined, are 1: 0/0 has a gradient of NaN
    total, divisor = (torch.where(defined, number, 1.0) for number in (total, largest))
    shares = values / total[..., None]
    # the slope of x log x at 0 is infinite
    positive = torch.where(shares > 0, shares, 1.0)
    entropy = torch.special.entr(positive).sum(-1) / sizes.double().log()
    fields = (
        second / divisor,
        entropy,
        torch.where(upper, values, 0.0).sum(-1) / total,
        largest,
    )
    return LaplacianShape(*(torch.where(defined, field, torch.nan) for field in fields))


def _field(name: str, label: str, meaning: str, expected: float, high: Any) -> Quantity:
    return Quantity(
        f"laplacian_{name}",
        "laplacian_shape",
        label,
        meaning,
        ClosedForm(expected, uniform_map(4)),
        low=0,
        high=high,
        read=attribute_reader(name),
    )


QUANTITIES = (
    _field("ratio", "λ2/λmax of the Laplacian", "Connectivity over the largest eigenvalue.", 1.0, 1),
    _field(
        "entropy",
        "entropy of the Laplacian spectrum",
        "Entropy of the Laplacian's eigenvalues over their sum, over ln n.",
        math.log(3) / math.log(4),
        1,
    ),
    _field(
        "upper_share",
        "share of the upper half of the Laplacian spectrum",
        "Sum of the upper half of the Laplacian's eigenvalues over that of all.",
        2 / 3,
        1,
    ),
    _field("largest", "λmax of the Laplacian", "The largest eigenvalue of the Laplacian.", 1.0, None),
)
