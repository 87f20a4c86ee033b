# SPDX-License-Identifier: MIT
"""What the topology notebook calls Betti numbers."""

from __future__ import annotations

import torch

from attnscope.metrics._closed_forms import identity, ring
from attnscope.metrics.homology.barcodes import bar_count
from attnscope.metrics.quantity import Known
from attnscope.protocols.ruscio2025._maps import declared
from attnscope.protocols.ruscio2025.persistence import bars_of


def betti_numbers(attention: torch.Tensor) -> torch.Tensor:
    """Number of bars of the whole diagram, the infinite one included, which the topology notebook calls β.

    A Betti number belongs to one scale; the exact `betti_numbers` asks for it. On a causal map whose tokens
    all give themselves some attention this is (min(n, 30), 0) whatever else the model attends to.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [..., 2] int64; −1 for a map with a NaN or infinite entry.

    Raises:
        ValueError: as the exact `persistence`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.betti_numbers(torch.rand(40, 40).tril() + torch.eye(40)).tolist()
        [30, 0]
    """
    return bar_count(bars_of("betti_numbers", attention))


DERIVED = {"betti_numbers": ("persistence", bar_count)}

# Half of each query's attention on itself: tokens are born at 1/2, edges of the ring enter at 3/4.
_RING = (identity(4) + ring()) / 2
_COUNT = declared(
    "bar_count",
    "betti_numbers",
    "H{dimension} bars",
    "Number of bars of the whole diagram in dimension {dimension}, which the notebook calls β.",
    Known((4, 1), _RING),
    kind="count",
    low=0,
    axes=("dimension",),
)

QUANTITIES = (_COUNT.at(dimension=0), _COUNT.at(dimension=1))
