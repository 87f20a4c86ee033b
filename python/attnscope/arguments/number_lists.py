# SPDX-License-Identifier: MIT
"""A checked argument: numbers of any container, as an array of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def number_array(function: str, name: str, values: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
    """Return values as an array; entries that are missing in pandas or hidden in a masked array are NaN.

    Args:
        function: whose name errors begin with.
        name: of the argument.
        values: a list, an array, a series, a tensor, ...
        dtype: of the array; None takes that of the values.

    Raises:
        TypeError: what is no number, and tensors that NumPy cannot read, as those that require a gradient.
    """
    try:
        if dtype is np.float64 and hasattr(values, "isna") and hasattr(values, "to_numpy"):
            # a missing whole number is NaN; older versions of pandas refuse to convert it
            return np.asarray(values.to_numpy(dtype=dtype, na_value=np.nan))
        if np.ma.is_masked(values) and np.ma.asarray(values).dtype.kind in "biuf":
            return np.ma.asarray(values, dtype=np.float64).filled(np.nan)
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        expectation = "numbers" if dtype else "an array"
        raise TypeError(f"{function}: {name} must be {expectation}: {error}") from None
