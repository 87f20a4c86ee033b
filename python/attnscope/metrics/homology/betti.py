# SPDX-License-Identifier: MIT
"""Betti numbers of a head's thresholded graphs, without full persistent homology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics.closed_forms import ring
from attnscope.metrics.homology.barcodes import Barcodes, count_alive
from attnscope.metrics.homology.persistence import Symmetrize, attention_of_topology
from attnscope.metrics.quantity import ClosedForm, Quantity


@memory_errors("betti_numbers")
def betti_numbers(
    attention: torch.Tensor,
    thresholds: torch.Tensor | Sequence[float | str] | float | str,
    *,
    symmetrize: Symmetrize = "max",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    """β0 and β1 of each head at each threshold: how many pieces, how many loops.

    The clique complex over Z/2 of the graph {w_ij >= t}, w_ij = max(A_ij, A_ji) ("max"), their mean or their
    min; these are the bars of `persistence` with birth <= 1 − t < death, at a fraction of the cost.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        thresholds: in any order, numbers in (0, 1), or "k/n" for k over each map's own number of tokens; a
            "k/n" of 1 or more gives the empty graph.
        symmetrize: how a directed head becomes a graph.
        precision: "exact" takes the entries as they are; "fast" gives exactly the numbers of
            `attention.float()`. Only float64 maps are rounded; of other types both give the same.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning −1 for that map.

    Returns:
        [..., T, 2] int64: β0 in 1..n, the number of connected components, and β1 >= 0; −1 for a map that is
        not finite.

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
    checked = attention_of_topology(name, attention, lengths, validate=validate, precision=precision)
    levels = _checks.thresholds_argument(name, thresholds, checked)
    scalars.choice_argument(name, "symmetrize", symmetrize, ("max", "mean", "min"))
    return _calls.call_and_warn(_core.betti_numbers, name, checked, levels, symmetrize)


# Weights of these types can be read back from births and deaths, 1.0 − w in float64, to the last tie from
# 2^-29 on, and thresholds are to be above that.
EXACT_IN_BARS = frozenset({torch.float32, torch.float16, torch.bfloat16})
_SMALLEST_FROM_BARS = 1e-6


def bars_hold(options: Mapping[str, Any], bars: Mapping[str, Any]) -> bool:
    """Return True if bars of maps of a type in `EXACT_IN_BARS` determine all of a call's Betti numbers."""
    thresholds = options["thresholds"]
    values = thresholds if isinstance(thresholds, (tuple, list)) else [thresholds]
    return (
        bars["metric"] == "attention"
        and type(bars["max_dimension"]) is int
        and bars["max_dimension"] == 1
        and options["symmetrize"] in ("max", "min")  # a mean has more digits than its two weights
        and all(options[option] == bars[option] for option in ("symmetrize", "precision", "validate"))
        and len(values) > 0
        and all(type(value) is float and _SMALLEST_FROM_BARS <= value < 1.0 for value in values)
    )


def betti_numbers_of(barcodes: Barcodes, thresholds: Sequence[float] | float) -> torch.Tensor:
    """`betti_numbers` of maps whose bars are known, as far as `bars_hold`: bars born and not yet dead."""
    # births and deaths are 1 − w of weights, and a weight is in the graphs of all thresholds up to itself
    birth, death = barcodes.birth.numpy() - 1.0, barcodes.death.numpy() - 1.0
    return count_alive(barcodes, birth, death, -np.ravel(thresholds))


_BETTI = Quantity(
    "betti",
    "betti_numbers",
    "loops",
    "Independent loops of the pairs at or above the threshold, cliques filled in.",
    ClosedForm((1, 1), ring(), entry=(0,), options={"thresholds": (0.4,)}),
    symbol=r"$\beta_{dimension}$",
    kind="count",
    low=0,
    axes=("threshold", "dimension"),
)

QUANTITIES = (
    replace(
        _BETTI.at(dimension=0),
        label="components",
        meaning="Connected components of the pairs at or above the threshold.",
    ),
    _BETTI.at(dimension=1),
)
