# SPDX-License-Identifier: MIT
"""The topology notebook's "Betti numbers"."""

from __future__ import annotations

import torch

from attnscope._memory import memory_errors
from attnscope.metrics.homology import persistence as exact
from attnscope.metrics.homology.barcodes import bar_count
from attnscope.metrics.quantity import ClosedForm
from attnscope.protocols.ruscio2025._maps import as_exact
from attnscope.protocols.ruscio2025.persistence import RING, bars_of


@memory_errors("betti_numbers")
def betti_numbers(attention: torch.Tensor) -> torch.Tensor:
    """Return the number of bars of a head mean [..., n, n], which the topology notebook calls β.

    The bars are those of the whole diagram, the infinite bar included, where a Betti number belongs to one
    scale, as the exact `betti_numbers` has it. On a causal map whose tokens all give themselves some
    attention this is (min(n, 30), 0) for all other attention.

    Returns:
        [..., 2] int64; −1 for a map with a NaN or infinite entry.

    Raises:
        ValueError: as the exact `persistence`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.betti_numbers(torch.rand(40, 40).tril() + torch.eye(40)).tolist()
        [30, 0]

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, topology notebook.
    """
    return bar_count(bars_of("ruscio2025.betti_numbers", attention))


DERIVED = {"betti_numbers": ("persistence", bar_count)}

QUANTITIES = tuple(
    as_exact(
        exact,
        f"bar_count_{dimension}",
        metric="betti_numbers",
        meaning=f"Number of bars of the whole diagram in dimension {dimension}, which the notebook calls β.",
        closed_form=ClosedForm(count, RING),
    )
    for dimension, count in enumerate((4, 1))
)
