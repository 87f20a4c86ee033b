# SPDX-License-Identifier: MIT
"""Numbers that are one number, summed in another order: their differences are no spread.

Attention over the same keys in another batch differs in its last bits. A test or an interval that took these
for variation would be surer than any data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnscope.statistics._arguments import Vector

#: Numbers that differ by less of themselves are one number, summed in another order.
ROUNDED = 2.0**-40


def is_one_number(values: Any, others: Any) -> npt.NDArray[np.bool_]:
    """Return where numbers differ from others by rounding alone."""
    with np.errstate(over="ignore"):  # the difference of the largest numbers is infinite
        return np.isclose(values, others, rtol=ROUNDED, atol=0.0)


def without_rounding(values: Vector) -> Vector:
    """Return the first of values for all of them where they differ by rounding alone."""
    if len(values) and is_one_number(values, values[0]).all():
        return np.full(len(values), values[0])
    return values


def varies(values: Any, axis: int = 0) -> npt.NDArray[np.bool_]:
    """Return where numbers along an axis differ by more than rounding."""
    return ~is_one_number(np.max(values, axis=axis), np.min(values, axis=axis))
