# SPDX-License-Identifier: MIT
"""The number of directions that carry the spread of a cloud of points."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.clouds.cloud_distances import bytes_of_spectrum, points_argument, visible_points
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader

#: Share of the variance that `pca_dimension` counts components for.
VARIANCE = 0.95


@shown_by_shape
class CloudSpectrum(NamedTuple):
    """The spectrum of every cloud, float64; no field exceeds n − 1 but `isotropy`, so only clouds of equal n
    compare.

    Attributes:
        effective_rank: exp(−Σ p log p), p = σ/Σσ; 0 without variance.
        participation_ratio: (Σσ²)²/Σσ⁴; NaN without variance.
        isotropy: λ2/λ1 of the covariance, in [0, 1]; NaN without variance.
        pca_dimension: fewest components with 95 % of the variance; 0 without variance.
        singular_values: of the centred points, falling, [..., min(n, d)]; 0 beyond those of a shorter cloud.
    """

    effective_rank: Tensor
    participation_ratio: Tensor
    isotropy: Tensor
    pca_dimension: Tensor
    singular_values: Tensor


@memory_errors("cloud_spectrum")
@without_derivative("it is made for reading; `torch.linalg.svdvals` has one")
def cloud_spectrum(points: Tensor, *, center: bool = True, lengths: _checks.Lengths = None) -> CloudSpectrum:
    """Return the spectrum of a cloud about its mean, in float64, and four numbers of it.

    All grow with the number of points: one law at n = 500 and 1,000 gives effective ranks that differ by a
    factor near two where d is larger. Compare clouds of one n.

    Args:
        points: clouds [..., n, d], four float types, any strides, CPU or CUDA.
        center: subtract the mean; False takes the points as they are.
        lengths: points per cloud, broadcast against the leading axes; each cloud is its first points.

    Returns:
        `CloudSpectrum`; NaN for a cloud with NaN or infinite coordinates, with one warning.

    Raises:
        ValueError: fewer than two dimensions, no point, wrong dtype, lengths outside 1..n.
        TypeError: no array, a `center` without a truth value.

    Example:
        Plus and minus each of three axes: the same spread in all three directions.

        >>> import torch, attnscope as asc
        >>> result = asc.cloud_spectrum(torch.cat([torch.eye(3), -torch.eye(3)]))
        >>> [round(value.item(), 9) for value in result[:4]]
        [3.0, 3.0, 1.0, 3.0]

    References:
        Roy and Vetterli, The effective rank, 2007. Bell and Dean, Atomic vibrations in vitreous silica, 1970,
        for the participation ratio.
    """
    name = "cloud_spectrum"
    checked = points_argument(name, points, lengths)
    centred = scalars.flag(name, "center", center)
    *fields, finite = placement.per_cloud(
        name,
        lambda points, ends: _spectra(points, ends, center=centred),
        checked.tensor,
        checked.lengths,
        bytes_of_one=bytes_of_spectrum(checked.tensor),
        decomposition="singular_values",
    )
    result, bad = CloudSpectrum(*fields), int((~finite).sum())
    if bad:
        result = CloudSpectrum(*(torch.where(_like(finite, values), values, torch.nan) for values in result))
    return _calls.warn_non_finite(name, checked, result, bad, "clouds")


def _spectra(points: Tensor, lengths: Tensor | None, *, center: bool) -> tuple[Tensor, ...]:
    """Return the fields of `CloudSpectrum` of clouds [..., n, d], and which clouds are finite."""
    tensor, scales = _powers.in_range(points, lengths)
    wide, sees = tensor.double(), visible_points(points, lengths)[..., None]
    finite = (wide.isfinite() | ~sees).all((-2, -1))
    wide = torch.where(sees & finite[..., None, None], wide, 0)
    if center:
        # From the first point on, so that equal points are at exactly 0 whatever their mean rounds to.
        wide = torch.where(sees, wide - wide[..., :1, :], 0)
        wide = torch.where(sees, wide - wide.sum(-2, keepdim=True) / sees.sum(-2, keepdim=True), 0)
    sigma = torch.linalg.svdvals(wide)
    squares = sigma.square()
    total = squares.sum(-1)
    spread = total > 0
    p = sigma / sigma.sum(-1, keepdim=True)
    variance = squares.cumsum(-1) / total[..., None]
    # A share that reaches 95 % but for rounding has reached it.
    short = (variance < VARIANCE - 1e-12).sum(-1) + 1
    second = squares[..., 1] if squares.shape[-1] > 1 else torch.zeros_like(total)
    undefined = torch.full_like(total, torch.nan)
    return (
        torch.where(spread, torch.special.entr(p).sum(-1).exp(), 0.0),
        torch.where(spread, total.square() / squares.square().sum(-1), undefined),
        torch.where(spread, second / squares[..., 0], undefined),
        torch.where(spread, short.double(), 0.0),
        _powers.unscaled(sigma, scales),
        finite,
    )


def _like(finite: Tensor, values: Tensor) -> Tensor:
    return finite if values.ndim == finite.ndim else finite[..., None]


_AXES = torch.cat(
    [torch.eye(3, dtype=torch.float64, device="cpu"), -torch.eye(3, dtype=torch.float64, device="cpu")]
)


def _of_a_cloud(name: str, field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    return Quantity(
        name,
        "cloud_spectrum",
        label,
        meaning,
        ClosedForm(expected, torch.eye(2, device="cpu"), {"points": _AXES}),
        read=attribute_reader(field),
        options={"points": Site("points")},
        scope="cloud",
        needs=("points",),
        low=0,
        **fields,
    )


QUANTITIES = (
    _of_a_cloud(
        "cloud_effective_rank",
        "effective_rank",
        "effective rank of the cloud",
        "Exponential of the entropy of the normalised singular values of the centred points; at most n − 1.",
        3.0,
    ),
    _of_a_cloud(
        "cloud_participation_ratio",
        "participation_ratio",
        "participation ratio of the cloud",
        "(Σλ)²/Σλ² over the variances λ of the centred points; at most n − 1.",
        3.0,
    ),
    _of_a_cloud(
        "isotropy", "isotropy", "isotropy λ2/λ1", "Second largest variance over the largest.", 1.0, high=1
    ),
    _of_a_cloud(
        "pca_dimension",
        "pca_dimension",
        "components for 95 % of the variance",
        "Fewest principal components that hold 95 % of the variance; at most n − 1.",
        3.0,
    ),
)
