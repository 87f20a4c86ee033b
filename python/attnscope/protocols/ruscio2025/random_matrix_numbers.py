# SPDX-License-Identifier: MIT
"""The numbers of the random-matrix notebook, as columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attnscope.metrics._closed_forms import causal, identity, star
from attnscope.metrics.quantity import Known, field_of
from attnscope.protocols.ruscio2025._maps import declared, named
from attnscope.protocols.ruscio2025.random_matrix import (
    ASPECT,
    BINS,
    sink_concentration,
    spectral_numbers,
)


def _reading(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda numbers: numbers[name]


SOURCES = (spectral_numbers, sink_concentration)
DERIVED: dict[str, tuple[str, Callable[..., Any]]] = {
    name: ("spectral_numbers", _reading(name))
    for name in (
        "participation_ratio",
        "stable_rank",
        "spectral_ratio",
        "spectral_norm",
        "marchenko_pastur_deviation",
        "bulk",
    )
}


def _harmonic(n: int, power: int) -> float:
    return math.fsum(1 / k**power for k in range(1, n + 1))


def _deviation_of_equal_values() -> float:
    """The divergence where all values are equal: their bin is the eleventh of 20 over [1/2, 3/2]."""
    low, high = (1 - math.sqrt(ASPECT)) ** 2, (1 + math.sqrt(ASPECT)) ** 2
    centres = [0.525 + 0.05 * k for k in range(BINS)]
    law = [math.sqrt((high - x) * (x - low)) / x for x in centres]
    return -math.log(law[10] / sum(law))


# Eigenvalues of uniform causal attention are 1, 1/2, 1/3, 1/4; below the edge of 3/4 lie the last three.
_BELOW = (1 / 2, 1 / 3, 1 / 4)
_MEAN = sum(_BELOW) / 3

QUANTITIES = (
    named(
        "participation_ratio",
        "participation ratio",
        "(Σ|λ|)²/Σ|λ|² over the eigenvalues of the map: of a causal one, its diagonal.",
        Known(_harmonic(10, 1) ** 2 / _harmonic(10, 2), causal(10)),
        symbol="PR",
        low=1,
        high=float,
    ),
    named(
        "stable_rank",
        "stable rank",
        "Squared Frobenius norm over squared spectral norm.",
        Known(4.0, identity(4)),
        low=1,
        high=float,
    ),
    named(
        "spectral_ratio",
        "eigenvalue ratio",
        "First over second |eigenvalue|.",
        Known(2.0, causal(4)),
        kind="ratio",
        low=1,
    ),
    named(
        "spectral_norm",
        "spectral norm",
        "Largest singular value.",
        Known(math.sqrt(6), star(6)),
        symbol=r"$\sigma_1$",
        low=0,
    ),
    named(
        "marchenko_pastur_deviation",
        "KL from Marchenko-Pastur",
        "KL of the histogram of the ten largest |eigenvalues| from a Marchenko-Pastur density.",
        Known(_deviation_of_equal_values(), identity(12)),
        low=0,
    ),
    declared(
        "bulk_edge",
        "bulk",
        "bulk edge",
        "Middle of the largest gap between consecutive |eigenvalues|.",
        Known(0.75, causal(4)),
        low=0,
        read=field_of("edge"),
    ),
    declared(
        "bulk_mean",
        "bulk",
        "bulk mean",
        "Mean of the |eigenvalues| below that edge.",
        Known(_MEAN, causal(4)),
        low=0,
        read=field_of("mean"),
    ),
    declared(
        "bulk_std",
        "bulk",
        "bulk deviation",
        "Standard deviation of the |eigenvalues| below that edge.",
        Known(math.sqrt(sum((value - _MEAN) ** 2 for value in _BELOW) / 3), causal(4)),
        low=0,
        read=field_of("std"),
    ),
    named(
        "sink_concentration",
        "mass of the top columns",
        "Share of mass on columns whose sum reaches the 90th percentile of column sums.",
        Known(1.0, star(6)),
        low=0,
        high=1,
    ),
)
