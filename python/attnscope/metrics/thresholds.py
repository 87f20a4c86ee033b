# SPDX-License-Identifier: MIT
"""Thresholds of a metric that reads graphs or Betti numbers off maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# What a metric that needs thresholds gets when the caller names none (Ruscio et al. 2025).
THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def resolve_thresholds(thresholds: Sequence[float | str], n: int) -> list[float]:
    """Return thresholds as numbers for a map of n tokens.

    >>> resolve_thresholds((0.5, "2/n"), 8)
    [0.5, 0.25]
    """
    return [
        float(threshold.partition("/")[0]) / n if isinstance(threshold, str) else float(threshold)
        for threshold in thresholds
    ]


def first_equal(thresholds: Sequence[float | str], n: int) -> list[int]:
    """Return for each threshold the place of the first that is the same number for a map of n tokens.

    >>> first_equal((0.5, 0.25, "2/n"), 8), first_equal((0.5, 0.25, "2/n"), 10)
    ([0, 1, 1], [0, 1, 2])
    """
    levels = resolve_thresholds(thresholds, n)
    return [levels.index(level) for level in levels]


def levels_of_maps(thresholds: Sequence[float | str], lengths: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return thresholds as numbers for maps of these lengths, [maps, thresholds].

    >>> levels_of_maps((0.5, "2/n"), [8, 10, 8]).tolist()
    [[0.5, 0.25], [0.5, 0.2], [0.5, 0.25]]
    """
    levels = {n: resolve_thresholds(thresholds, n) for n in set(lengths)}
    return np.array([levels[n] for n in lengths])


def first_equal_of_maps(thresholds: Sequence[float | str], lengths: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the places of `first_equal` for maps of these lengths, [maps, thresholds].

    >>> first_equal_of_maps((0.5, 0.25, "2/n"), [8, 10]).tolist()
    [[0, 1, 1], [0, 1, 2]]
    """
    places = {n: first_equal(thresholds, n) for n in set(lengths)}
    return np.array([places[n] for n in lengths])
