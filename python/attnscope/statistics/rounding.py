# SPDX-License-Identifier: MIT
"""Numbers that are one number, summed in another order: their differences are no spread.

Attention over the same keys in another batch differs in its last bits. A test or an interval that took these
for variation would be surer than any data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnscope.arguments.scalars import real
from attnscope.statistics._arguments import Vector

#: Numbers that differ by less of themselves are one number, summed in another order.
ROUNDED = 2.0**-40
#: The same of what a model computes in float32: eight of its roundings, of 2⁻²³ each. Norms of normalised
#: states, which are one number, differ by about one.
ROUNDED_FLOAT32 = 2.0**-20


def resolution_argument(function: str, value: Any) -> float:
    """Return a relative resolution that was checked."""
    resolution = real(function, "resolution", value)
    if not 0.0 <= resolution < 1.0:
        raise ValueError(f"{function}: resolution must lie in [0, 1), got {resolution!r}")
    return resolution


def is_one_number(values: Any, others: Any, resolution: float = ROUNDED) -> npt.NDArray[np.bool_]:
    """Return where numbers differ from others by rounding alone."""
    with np.errstate(over="ignore"):  # the difference of the largest numbers is infinite
        return np.isclose(values, others, rtol=resolution, atol=0.0)


def without_rounding(values: Vector, resolution: float = ROUNDED) -> Vector:
    """Return the first of values for all of them where they differ by rounding alone."""
    if len(values) and is_one_number(values, values[0], resolution).all():
        return np.full(len(values), values[0])
    return values


def varies(values: Any, axis: int = 0, resolution: float = ROUNDED) -> npt.NDArray[np.bool_]:
    """Return where numbers along an axis differ by more than rounding."""
    return ~is_one_number(np.max(values, axis=axis), np.min(values, axis=axis), resolution)


def least_spread(values: Any, axis: int = 0) -> Any:
    """Return the standard deviation from which on drawn numbers differ by more than rounding.

    Most draws of numbers that are alike but for an outlier hold the former alone. In units of what these
    differ by in float32, the deviation of the outlier is millions, which says nothing of the mean.
    """
    values = np.asarray(values, dtype=np.float64)
    deviations = np.abs(values - values.mean(axis=axis, keepdims=True)).max(axis=axis)
    return np.maximum(ROUNDED * np.abs(values).max(axis=axis), ROUNDED_FLOAT32 * deviations)
