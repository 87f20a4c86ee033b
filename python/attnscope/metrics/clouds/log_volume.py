# SPDX-License-Identifier: MIT
"""The logarithm of the volume that a few embeddings span: whether sampled answers agree."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.metrics.clouds.cloud_distances import bytes_of_spectrum, points_argument, visible_points
from attnscope.metrics.quantity import ClosedForm, Quantity, Site


@memory_errors("log_volume")
def log_volume(points: Tensor, *, alpha: float = 1e-3, lengths: _checks.Lengths = None) -> Tensor:
    """Return the mean logarithm of the eigenvalues of Z Zᵀ + αI, the rows of Z centred over dimensions.

    mean_i ln(σ_i² + α) over the k rows of Z, where a rank below k gives ln α: the scale of the points
    matters. Rows are k sampled answers (EigenScore of INSIDE) or the tokens of one (LLM-Check).

    Args:
        points: [..., k, d], one row for each embedding; four float types, any strides.
        alpha: added to each eigenvalue, above 0.
        lengths: rows per cloud, broadcast against the leading axes.

    Returns:
        [...] float64, at least ln α; NaN for a cloud that is not finite, with one warning. The code of
        INSIDE takes Z/√(d − 1), and logarithms of base 10.

    Raises:
        ValueError: fewer than two dimensions, no row, an alpha that is not above 0, lengths outside 1..k.

    Example:
        The identity, centred, has the eigenvalues 1, 1 and 0.

        >>> import math, torch, attnscope as asc
        >>> value = asc.log_volume(torch.eye(3, dtype=torch.float64)).item()
        >>> math.isclose(value, (2 * math.log(1.001) + math.log(0.001)) / 3)
        True

    References:
        Chen et al., INSIDE: LLMs' internal states retain the power of hallucination detection, 2024.
        Sriramanan et al., LLM-Check, 2024.
    """
    name = "log_volume"
    ridge = scalars.real(name, "alpha", alpha)
    if not 0 < ridge < math.inf:
        raise ValueError(f"{name}: alpha must be above 0 and finite, got {alpha!r}")
    checked = points_argument(name, points, lengths)
    value, finite = placement.per_cloud(
        name,
        lambda points, ends: _log_volumes(points, ends, ridge),
        checked.tensor,
        checked.lengths,
        bytes_of_one=bytes_of_spectrum(checked.tensor),
        decomposition="singular_values",
    )
    return _calls.warn_non_finite(name, checked, value, int((~finite).sum()), "clouds")


def _log_volumes(points: Tensor, lengths: Tensor | None, ridge: float) -> tuple[Tensor, Tensor]:
    """Return the log volumes of clouds [..., k, d], and which clouds are finite."""
    rows, inside = points.double(), visible_points(points, lengths)
    finite = (rows.isfinite().all(-1) | ~inside).all(-1)
    rows = torch.where((inside & finite[..., None])[..., None], rows, 0.0)
    centred = rows - rows.mean(-1, keepdim=True)
    singular_values = torch.linalg.svdvals(centred)
    k = inside.sum(-1)
    # ln(σ² + α), of singular values too large to be squared as well
    terms = 2 * torch.hypot(singular_values, singular_values.new_tensor(math.sqrt(ridge))).log()
    # singular values fall, so those behind the cloud's rows are zeros of the padding
    place = torch.arange(terms.shape[-1], device=points.device)
    total = torch.where(place < k[..., None], terms, 0.0).sum(-1)
    missing = (k - terms.shape[-1]).clamp_min(0).double()
    return torch.where(finite, (total + missing * math.log(ridge)) / k, torch.nan), finite


QUANTITIES = (
    Quantity.of(
        "log_volume",
        "log volume",
        "Mean logarithm of the eigenvalues of the Gram matrix of rows centred over dimensions.",
        ClosedForm(
            (2 * math.log(1.001) + math.log(0.001)) / 3,
            torch.eye(2, device="cpu"),
            {"points": torch.eye(3, dtype=torch.float64, device="cpu")},
        ),
        options={"points": Site("points")},
        scope="cloud",
        needs=("points",),
        low=math.log(1e-3),
    ),
)
