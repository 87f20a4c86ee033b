# SPDX-License-Identifier: MIT
"""Statistics of bars that topological classifiers of attention use beside their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import ring
from attnscope.metrics.homology.barcodes import DIMENSIONS, Barcodes
from attnscope.metrics.quantity import ClosedForm, Quantity

#: Scales at which born and died bars are counted.
LEVELS = (0.25, 0.5, 0.75)


@shown_by_shape
class BarStatistics(NamedTuple):
    """Statistics of the finite bars of each dimension.

    Attributes:
        deviation: population standard deviation of the lengths, [..., 2] float64; NaN without a bar.
        longest_birth: birth of the longest bar, the first on ties, [..., 2]; likewise.
        longest_death: its death, likewise.
        born: #{birth <= t} at each level t, [..., T, 2] int64; −1 for maps that are not finite.
        died: #{death >= t}, likewise.
    """

    deviation: Tensor
    longest_birth: Tensor
    longest_death: Tensor
    born: Tensor
    died: Tensor


@without_derivative("take `total_persistence` or `max_persistence`, which have one")
def bar_statistics(barcodes: Barcodes, levels: Sequence[float] | Tensor = LEVELS) -> BarStatistics:
    """Return spread, longest bar and counts of the finite bars of each dimension.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.
        levels: distances at which bars are counted; the level of an attention threshold t is 1 − t.

    Returns:
        BarStatistics. The classifiers of tda4atd renormalise rows, take weights <= 1e-3 as 0, and have 0
        where there is no bar.

    Raises:
        ValueError: no level, or one that is NaN.
        TypeError: levels that are no numbers.

    Example:
        A ring of four tokens at distance 1/2: three equal H0 bars, and one loop from 1/2 to 1.

        >>> import torch, attnscope as asc
        >>> ring = torch.zeros(4, 4); ring[range(4), [1, 2, 3, 0]] = 0.5
        >>> found = asc.bar_statistics(asc.persistence(ring))
        >>> found.deviation.tolist(), found.longest_birth.tolist(), found.longest_death.tolist()
        ([0.0, 0.0], [0.0, 0.5], [0.5, 1.0])
        >>> found.born.tolist()
        [[3, 0], [3, 1], [3, 1]]

    References:
        Kushnareva et al., Artificial text detection via examining the topology of attention maps, 2021.
    """
    name = "bar_statistics"
    if not isinstance(barcodes, Barcodes):
        raise TypeError(f"{name}: barcodes must be the result of persistence, got {type(barcodes).__name__}")
    level_tensor = _checks.as_tensor(name, "levels", levels, torch.float64).detach().cpu()
    scales = np.atleast_1d(level_tensor.numpy())
    if scales.ndim != 1 or scales.size == 0 or np.isnan(scales).any():
        raise ValueError(f"{name}: levels must be one or more numbers, got {levels!r}")
    by_dimension = [
        _of_dimension(barcodes.padded(dimension).numpy(), scales) for dimension in range(DIMENSIONS)
    ]
    columns = [np.stack(values, -1) for values in zip(*by_dimension, strict=True)]
    invalid = np.diff(barcodes.offsets.numpy()).reshape(barcodes.shape) == 0
    for values in columns:
        values[invalid] = np.nan if values.dtype == np.float64 else -1
    return BarStatistics(*map(torch.from_numpy, columns))


def _of_dimension(
    bars: np.ndarray[Any, Any], levels: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the five statistics of bars [..., K, 2], NaN behind the last of each map."""
    birth, death = bars[..., 0], bars[..., 1]
    finite = np.isfinite(death)
    if not bars.shape[-2]:
        birth = death = np.full((*bars.shape[:-2], 1), np.nan)
        finite = np.zeros(birth.shape, bool)
    count = finite.sum(-1)
    length = np.where(finite, death - np.where(finite, birth, 0.0), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = length.sum(-1, keepdims=True) / count[..., None]
        spread = np.where(finite, (length - mean) ** 2, 0.0).sum(-1) / count
    longest = np.where(finite, length, -np.inf).argmax(-1)[..., None]
    ends = [
        np.where(count > 0, np.take_along_axis(values, longest, -1)[..., 0], np.nan)
        for values in (birth, death)
    ]
    at = levels[:, None]
    born = (finite[..., None, :] & (birth[..., None, :] <= at)).sum(-1)
    died = (finite[..., None, :] & (death[..., None, :] >= at)).sum(-1)
    return np.sqrt(spread), *ends, born, died


DERIVED = {"bar_statistics": ("persistence", bar_statistics)}


def _column(name: str, field: str, label: str, meaning: str, expected: Any, place: int) -> Quantity:
    return Quantity(
        name,
        "bar_statistics",
        label,
        meaning,
        ClosedForm(expected, ring()),
        low=0,
        high=1,
        read=lambda result: getattr(result, field)[..., place],
    )


def _counts(field: str, label: str, meaning: str, expected: int, dimension: int) -> Quantity:
    return Quantity(
        f"bars_{field}_{dimension}",
        "bar_statistics",
        label,
        meaning,
        ClosedForm(expected, ring(), entry=(1,)),
        low=0,
        kind="count",
        options={"levels": LEVELS},
        read=lambda result: getattr(result, field)[..., dimension],
        axes=("level",),
    )


QUANTITIES = (
    *(
        _column(
            f"bar_deviation_{dimension}",
            "deviation",
            f"spread of H{dimension} bars",
            f"Standard deviation of the lengths of finite bars in dimension {dimension}.",
            0.0,
            dimension,
        )
        for dimension in range(DIMENSIONS)
    ),
    _column(
        "longest_death_0",
        "longest_death",
        "death of the longest H0 bar",
        "Scale at which the last two components merge.",
        0.5,
        0,
    ),
    _column(
        "longest_birth_1",
        "longest_birth",
        "birth of the longest H1 bar",
        "Scale at which the longest loop closes.",
        0.5,
        1,
    ),
    _column(
        "longest_death_1",
        "longest_death",
        "death of the longest H1 bar",
        "Scale at which the longest loop is filled.",
        1.0,
        1,
    ),
    *(
        _counts(field, f"H{dimension} bars {field}", meaning, expected[dimension], dimension)
        for field, meaning, expected in (
            ("born", "Finite bars born up to a scale.", (3, 1)),
            ("died", "Finite bars that die at a scale or beyond.", (3, 1)),
        )
        for dimension in range(DIMENSIONS)
    ),
)
