# SPDX-License-Identifier: MIT
"""Betti numbers of a head's thresholded graphs, without their whole persistent homology."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnscope import _checks, _core
from attnscope.metrics.persistence import Symmetrize, attention_of_topology


def betti_numbers(
    attention: torch.Tensor,
    thresholds: torch.Tensor | Sequence[float | str] | float | str,
    *,
    symmetrize: Symmetrize = "max",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    """β0 and β1 of each head at each threshold: how many pieces, how many loops.

    The clique complex over Z/2 of the graph {w_ij >= t}, w_ij = max(A_ij, A_ji) ("max"), their mean or their
    min; these are the bars of `persistence` with birth <= 1 − t < death, at a fraction of the cost.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        thresholds: numbers in (0, 1), or "k/n" for k divided by each map's own number of tokens; a "k/n" of
            1 or more gives the empty graph. Any order; the result follows it.
        symmetrize: how a directed head becomes a graph.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning −1 for that map.

    Returns:
        [..., T, 2] int64: β0 in 1..n, the number of connected components, and β1 >= 0.

    Raises:
        ValueError: not square, empty, wrong dtype, more than 65535 tokens, thresholds outside (0, 1).

    Example:
        A ring of five tokens is one loop while its edges are in, and five points when they are not.

        >>> import torch, attnscope as asc
        >>> ring = torch.zeros(5, 5); ring[range(5), [1, 2, 3, 4, 0]] = 0.5
        >>> asc.betti_numbers(ring, [0.25, 0.75]).tolist()
        [[1, 1], [5, 0]]

    References:
        Edelsbrunner, Harer, Computational Topology, 2010. Ruscio et al., What are you sinking?, 2025.
    """
    name = "betti_numbers"
    checked = attention_of_topology(name, attention, lengths, validate=validate)
    result, spoiled = _core.betti_numbers(
        checked.tensor,
        checked.lengths,
        _checks.thresholds_argument(name, thresholds, checked),
        _checks.choice_argument(name, "symmetrize", symmetrize, ("max", "mean", "min")),
    )
    return _checks.finished(name, checked, result, spoiled)  # type: ignore[no-any-return]
