# SPDX-License-Identifier: MIT
"""The tail of a weight matrix's spectrum: a power law, norms, and the edge of a random matrix."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope import _core
from attnscope._memory import memory_errors
from attnscope._warn import warn
from attnscope.arguments import scalars
from attnscope.errors import NonFiniteWarning
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader
from attnscope.metrics.weights.delta_statistics import weights_argument

Array = np.ndarray[Any, np.dtype[np.float64]]
#: Places of a tail that are looked at first: a tail that is far from its law there needs no closer look.
_LOOKS = 17


@shown_by_shape
class WeightSpectrum(NamedTuple):
    """Statistics of the squared singular values λ of every matrix, float64 but the counts.

    Attributes:
        alpha: exponent of the power law of the tail, 1 + tail/Σ ln(λ/xmin); NaN with fewer than two distinct
            values.
        alpha_error: (alpha − 1)/√tail.
        xmin: the smallest value of the tail.
        ks: Kolmogorov–Smirnov distance of the tail from its law.
        tail: values of the tail, int64; 0 without one.
        alpha_hat: alpha·log10 λ1.
        log_alpha_norm: log10 Σ λ^alpha.
        log_norm: log10 Σ λ.
        log_spectral_norm: log10 λ1.
        stable_rank: Σλ/λ1.
        mp_soft_rank: min(1, λ₊/λ1), of the upper edge λ₊ of the Marchenko–Pastur law of the same median.
        spikes: values beyond λ₊(1 + N^(−2/3)), int64; −1 for a matrix that is 0 or not finite.
    """

    alpha: Tensor
    alpha_error: Tensor
    xmin: Tensor
    ks: Tensor
    tail: Tensor
    alpha_hat: Tensor
    log_alpha_norm: Tensor
    log_norm: Tensor
    log_spectral_norm: Tensor
    stable_rank: Tensor
    mp_soft_rank: Tensor
    spikes: Tensor


class _Tail(NamedTuple):
    """The power law of a tail, and how many values it has."""

    alpha: float
    xmin: float
    ks: float
    size: int


@memory_errors("weight_spectrum")
@without_derivative("where a tail begins is a choice among singular values")
def weight_spectrum(matrix: Tensor, *, cdf: Literal["both", "lower"] = "both") -> WeightSpectrum:
    """Fit the power law of Clauset et al. to the squared singular values, and return it with norms.

    λ = σ², not divided by N; values at or below (Nε)²λ1 are rounding and dropped. Each distinct value but
    the largest is tried as xmin: alpha = 1 + n/Σ ln(λ/xmin) over the n values λ >= xmin, and the distance of
    their distribution from 1 − (λ/xmin)^(1 − alpha). The least distance wins, the smallest xmin on ties.

    Args:
        matrix: [..., m, n], any of the four float types, any strides.
        cdf: "both" takes the distance to both sides of each step; "lower" to the lower side alone, as the
            packages powerlaw and WeightWatcher do.

    Returns:
        WeightSpectrum, each field [...]; NaN for a matrix that is 0 or not finite, the latter with one
        warning, and the fit NaN where all values are equal, as of an orthogonal matrix: singular values that
        are Nε·σ1 apart or less are rounding and count as equal. WeightWatcher drops λ <= 1e-5 whatever the
        scale, and its soft rank is another fit.

    Raises:
        ValueError: fewer than two dimensions, an empty matrix, another dtype, an unknown cdf.
        TypeError: no tensor.

    Example:
        Values 1, e and e², whose law from 1 on has the exponent 1 + 3/(0 + 1 + 2).

        >>> import math, torch, attnscope as asc
        >>> found = asc.weight_spectrum(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64).exp().diag())
        >>> round(found.alpha.item(), 9), round(found.xmin.item(), 9), round(found.ks.item(), 9)
        (2.0, 1.0, 0.333333333)

    References:
        Martin, Peng and Mahoney, Predicting trends in the quality of state-of-the-art neural networks without
        access to training or testing data, 2021. Clauset et al., Power-law distributions in empirical data,
        2009.
    """
    name = "weight_spectrum"
    weights = weights_argument(name, "matrix", matrix)
    lower = scalars.choice_argument(name, "cdf", cdf, ("both", "lower")) == "lower"
    leading, (rows, columns) = tuple(weights.shape[:-2]), weights.shape[-2:]
    wide = weights.detach().reshape(-1, rows, columns).double()
    finite = wide.isfinite().all((-2, -1))
    values = torch.linalg.svdvals(torch.where(finite[:, None, None], wide, 0.0)).numpy()
    results = [_statistics(singular, max(rows, columns), min(rows, columns), lower) for singular in values]
    counts = ("tail", "spikes")
    fields = {
        field: torch.tensor(
            [result[field] for result in results],
            dtype=torch.int64 if field in counts else torch.float64,
            device="cpu",
        ).reshape(leading)
        for field in WeightSpectrum._fields
    }
    if bad := int((~finite).sum()):
        message = f"{name}: {bad} of {math.prod(leading)} matrices hold NaN or infinite entries; NaN"
        warn(NonFiniteWarning(message, name, bad))
    return WeightSpectrum(**fields)


def _statistics(singular: Array, longer: int, shorter: int, lower: bool) -> dict[str, float]:
    """Return the fields of one matrix from its singular values, falling."""
    result = {**dict.fromkeys(WeightSpectrum._fields, math.nan), "tail": 0, "spikes": -1}
    largest = float(singular[0])
    if not largest > 0:
        return result
    # over the largest, so that squares stay in range
    ascending = singular[::-1] / largest
    rounding = longer * np.finfo(np.float64).eps
    share = _without_rounding(ascending[ascending > rounding], rounding) ** 2
    log_largest = 2 * math.log10(largest)
    edge = _upper_edge(share, longer, shorter)
    result |= {
        "log_norm": log_largest + math.log10(share.sum()),
        "log_spectral_norm": log_largest,
        "stable_rank": float(share.sum()),
        "mp_soft_rank": min(1.0, edge),
        "spikes": int((share > edge * (1 + longer ** (-2 / 3))).sum()),
    }
    tail = _fit_tail(share, lower)
    if tail is None:
        return result
    log_norm = tail.alpha * log_largest + math.log10((share**tail.alpha).sum())
    return result | {
        "alpha": tail.alpha,
        "alpha_error": (tail.alpha - 1) / math.sqrt(tail.size),
        "xmin": tail.xmin * (largest * largest),
        "ks": tail.ks,
        "tail": tail.size,
        "alpha_hat": tail.alpha * log_largest,
        "log_alpha_norm": log_norm,
    }


def _without_rounding(ascending: Array, rounding: float) -> Array:
    """Return values of which those that differ from the one before by rounding are the first of their run.

    A power law of values that are equal, as of an orthogonal matrix, would have an exponent of 1e15.
    """
    begins = np.diff(ascending, prepend=-np.inf) > rounding
    return np.asarray(ascending[begins][np.cumsum(begins) - 1])


def _fit_tail(values: Array, lower: bool) -> _Tail | None:
    """Return the best power law of ascending values, None with fewer than two distinct ones."""
    distinct, first = np.unique(values, return_index=True)
    if len(distinct) < 2:
        return None
    first = first[:-1]
    logs, total = np.log(values), len(values)
    # sums from each value on, the smallest terms last
    sums = np.cumsum(logs[::-1])[::-1][first]
    sizes = total - first
    exponents = 1 + sizes / (sums - sizes * logs[first])
    place = np.minimum(first[:, None] + np.rint(np.linspace(0, 1, _LOOKS) * (sizes[:, None] - 1)), total - 1)
    bounds = _apart(logs, first[:, None], sizes[:, None], exponents[:, None], place.astype(int), lower).max(
        -1
    )
    best, least = -1, math.inf
    for candidate in np.argsort(bounds, kind="stable").tolist():
        if bounds[candidate] > least * (1 + 1e-12):
            break
        start, size = int(first[candidate]), int(sizes[candidate])
        tail = np.arange(start, total)
        distance = float(_apart(logs, start, size, exponents[candidate], tail, lower).max())
        if (distance, candidate) < (least, best):
            best, least = candidate, distance
    return _Tail(float(exponents[best]), float(distinct[best]), least, int(sizes[best]))


def _apart(logs: Array, start: Any, size: Any, exponent: Any, place: Any, lower: bool) -> Array:
    """Return the distances of the law from the steps of the tail at some of its places."""
    law = -np.expm1((1 - exponent) * (logs[place] - logs[start]))
    step = (place - start) / size
    below = np.abs(law - step)
    return below if lower else np.maximum(below, np.abs(law - step - 1 / size))


def _upper_edge(values: Array, longer: int, shorter: int) -> float:
    """Return the upper edge of the Marchenko–Pastur law that has the median of the values."""
    aspect = shorter / longer
    scale = float(np.median(values)) / _median(aspect)
    return scale * (1 + math.sqrt(aspect)) ** 2


@functools.lru_cache(maxsize=256)
def _median(aspect: float) -> float:
    """Return the median of the Marchenko–Pastur law of variance 1 and that aspect ratio, by bisection."""
    low, high = (1 - math.sqrt(aspect)) ** 2, (1 + math.sqrt(aspect)) ** 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if _core.null_law_cdf([middle], aspect, False)[0] < 0.5:
            low = middle
        else:
            high = middle


_DIAGONAL = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, device="cpu").exp().diag()


def _field(field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    return Quantity(
        f"weight_{field}",
        "weight_spectrum",
        label,
        meaning,
        ClosedForm(expected, torch.eye(2, device="cpu"), {"weights": _DIAGONAL}),
        options={"matrix": Site("weights")},
        read=attribute_reader(field),
        scope="weights",
        needs=("weights",),
        **fields,
    )


_SUM = 1 + math.e + math.e**2

QUANTITIES = (
    _field("alpha", "exponent of the spectrum's tail", "Exponent of the best power law.", 2.0, low=1),
    _field(
        "alpha_error", "error of the exponent", "(alpha − 1)/√n over n values of the tail.", 3**-0.5, low=0
    ),
    _field("ks", "distance from the power law", "Distance of the tail from its law.", 1 / 3, low=0, high=1),
    _field("tail", "values of the tail", "Squared singular values in the tail.", 3.0, low=0, kind="count"),
    _field("alpha_hat", "alpha times log norm", "Exponent times log10 λ1.", 4 / math.log(10)),
    _field("log_norm", "log norm", "log10 of the sum of squared singular values.", math.log10(_SUM)),
    _field(
        "log_spectral_norm",
        "log spectral norm",
        "log10 of the largest squared singular value.",
        2 / math.log(10),
    ),
    _field(
        "log_alpha_norm",
        "log alpha norm",
        "log10 of the sum of squared singular values to the power alpha.",
        math.log10(1 + math.e**2 + math.e**4),
    ),
    _field(
        "stable_rank",
        "stable rank of the weights",
        "Sum of squared singular values over the largest.",
        _SUM / math.e**2,
        low=1,
    ),
    _field(
        "mp_soft_rank",
        "edge of a random matrix / largest",
        "Upper edge of the Marchenko–Pastur law of the same median, over the largest value; at most 1.",
        1.0,
        low=0,
        high=1,
    ),
    _field(
        "spikes",
        "values beyond a random matrix",
        "Squared singular values beyond the edge of the Marchenko–Pastur law of the same median.",
        0.0,
        low=0,
        kind="count",
    ),
)
