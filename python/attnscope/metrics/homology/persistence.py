# SPDX-License-Identifier: MIT
"""Persistent homology of a head: the Vietoris–Rips bars of its tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch

from attnscope import _calls, _checks, _core
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.metrics.closed_forms import ring
from attnscope.metrics.homology import barcodes
from attnscope.metrics.homology.barcodes import DIMENSIONS, Barcodes
from attnscope.metrics.quantity import ClosedForm, Quantity

Symmetrize = Literal["max", "mean", "min"]
Metric = Literal["attention", "hellinger"]

#: What most calls ask for, options that need no check: those of each dimension, as words and numbers.
USUAL_OPTIONS = [(dimension, "max", "attention", "exact") for dimension in (0, 1)]


def persistence(
    attention: torch.Tensor,
    *,
    max_dimension: int = 1,
    symmetrize: Symmetrize = "max",
    metric: Metric = "attention",
    at_least: float | None = None,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> Barcodes:
    """Bars of H0 (components) and H1 (loops) of each head, with the edges that open and close them.

    Tokens are points at d_ij = 1 − w_ij, w_ij = max(A_ij, A_ji) ("max"), their mean or their min, a weight
    above 1 counting as 1; the Vietoris–Rips (clique) filtration over Z/2, dimensions 0 and 1. Edges enter in
    the order of w in the input's own precision, ties by (row, column), row > column; births and deaths are
    1.0 − float64(w), and bars of length 0 are left out.

    The field matters: clique complexes of dense maps can have torsion, and then Z/2 pairs (or counts) loops
    otherwise than a field of odd characteristic. GUDHI computes over Z/11 unless it is given
    `homology_coeff_field=2`; ripser.py and giotto-ph compute over Z/2.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        max_dimension: 0 for components alone, which is much cheaper, 1 for loops too.
        symmetrize: how a directed head becomes a graph. Under "mean" every finite death (and H1 birth) d of
            a causal map is (1 + d)/2 of what "max" gives.
        metric: "attention" as above; "hellinger" takes d_ij = ‖√a_i − √a_j‖/√2 between the rows instead, a
            true metric between attention distributions (negative entries count as 0, no symmetrization).
        at_least: of `LazyAttention`: bars with births below 1 − at_least, from the entries of at least this
            weight. A bar that is still open there has that death and a death edge of −1.
        precision: "exact" takes the entries as they are; "fast" gives exactly the bars of
            `attention.float()`, at a bottleneck distance of at most 2⁻²⁵ for weights in [0, 1]. Only float64
            maps are rounded; of other types both give the same.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries.

    Returns:
        Barcodes, one slice per map; exactly one H0 bar of each is infinite. One token has only that bar. A
        map with NaN or infinite entries has an empty slice.

    Raises:
        ValueError: not square, empty, wrong dtype, more than 65535 tokens, an unknown choice, a
            `max_dimension` other than 0 and 1, lengths outside 1..n.

    Example:
        A cycle of four tokens, each attending to the next with 0.75: one loop, open from 0.25 until the
        diagonals of weight 0 fill it at 1.

        >>> import torch, attnscope as asc
        >>> ring = torch.zeros(4, 4); ring[range(4), [1, 2, 3, 0]] = 0.75
        >>> for bars in asc.persistence(ring)[()]:
        ...     print(bars.tolist())
        [[0.0, 0.25], [0.0, 0.25], [0.0, 0.25], [0.0, inf]]
        [[0.25, 1.0]]

    References:
        Koyama, Mémoli, Robins, Turner, Faster computation of degree-1 persistent homology using the reduced
        Vietoris–Rips filtration, 2023 (arXiv 2307.16333). Ruscio et al., What are you sinking?, 2025.
    """
    name = "persistence"
    options = (max_dimension, symmetrize, metric, precision)
    is_plain = lengths is at_least is None and validate is False
    if is_plain and [*map(type, options)] == [int, str, str, str] and options in USUAL_OPTIONS:
        results = _calls.called_at_once(_core.persistence, name, attention, *options[:-1])
        if results is not None:
            return Barcodes(*(*results[:-1], tuple(attention.shape[:-2])))
    checked = attention_of_topology(name, attention, lengths, validate=validate, precision=precision)
    dimension = scalars.whole_number(name, "max_dimension", max_dimension)
    if isinstance(max_dimension, bool) or dimension not in (0, 1):
        raise ValueError(f"{name}: max_dimension must be 0 or 1, got {max_dimension!r}")
    scalars.choice_argument(name, "symmetrize", symmetrize, ("max", "mean", "min"))
    scalars.choice_argument(name, "metric", metric, ("attention", "hellinger"))
    arguments: tuple[Any, ...] = (dimension, symmetrize, metric)
    if at_least is not None:
        if not isinstance(attention, Unmaterialized):
            raise ValueError(f"{name}: at_least is for LazyAttention, got {at_least!r} with a map")
        arguments = (*arguments, scalars.fraction_argument(name, "at_least", at_least))
    bars = _calls.call_and_warn(_core.persistence, name, checked, *arguments)
    return Barcodes(*(*bars, checked.leading))


def attention_of_topology(
    function: str,
    attention: torch.Tensor,
    lengths: _checks.Lengths,
    *,
    validate: bool,
    precision: _checks.Precision = "exact",
) -> _checks.Attention:
    """Check `attention` as every metric does, and that its tokens can be numbered in 16 bits.

    "fast" rounds float64 maps to float32.
    """
    _checks.precision_argument(function, precision, attention)
    checked = _checks.attention_argument(function, attention, lengths, validate=validate)
    if checked.n > _core.max_vertices:
        raise ValueError(
            f"{function}: attention must have at most {_core.max_vertices} tokens, got {checked.n}"
        )
    tensor = checked.tensor
    if precision == "fast" and not isinstance(tensor, Unmaterialized) and tensor.dtype == torch.float64:
        return checked._replace(tensor=tensor.float())
    return checked


OF_BARS = (
    *(barcodes.betti_curve, barcodes.bar_count, barcodes.total_persistence),
    *(barcodes.max_persistence, barcodes.persistent_entropy),
)
SOURCES = (persistence,)
DERIVED = {function.__name__: ("persistence", function) for function in OF_BARS}
DERIVED["_mean_persistence"] = ("persistence", barcodes.mean_persistence)


def _of_bars(metric: str, label: str, meaning: str, expected: tuple[float, float], **fields: Any) -> Quantity:
    """Declare a number of each dimension, with its values on the ring of four tokens.

    The tokens are at distance 1/2 from their neighbours and 1 from the token across: three bars of length 1/2
    in dimension 0 and one loop from 1/2 to 1.
    """
    name, closed_form = metric.removeprefix("_"), ClosedForm(expected, ring())
    return Quantity(name, metric, label, meaning, closed_form, low=0, axes=("dimension",), **fields)


_BAR_COUNT = _of_bars(
    "bar_count",
    "H{dimension} bars",
    "Number of loops that appear anywhere in the filtration.",
    (4, 1),
    kind="count",
)
_LENGTHS = (
    ("total_persistence", "total H{dimension} persistence", "Sum of the lengths of finite bars", (1.5, 0.5)),
    ("max_persistence", "longest H{dimension} bar", "Length of the longest finite bar", (0.5, 0.5)),
    (
        "persistent_entropy",
        "persistent entropy H{dimension}",
        "Entropy of the lengths of finite bars",
        (math.log(3), 0.0),
    ),
    ("_mean_persistence", "mean H{dimension} bar", "Mean length of finite bars", (0.5, 0.5)),
)
QUANTITIES = (
    replace(_BAR_COUNT.at(dimension=0), meaning="Number of bars in dimension 0, the infinite one included."),
    _BAR_COUNT.at(dimension=1),
    *(
        _of_bars(metric, label, f"{phrase} in dimension {{dimension}}.", expected).at(dimension=dimension)
        for metric, label, phrase, expected in _LENGTHS
        for dimension in range(DIMENSIONS)
    ),
    Quantity.of(
        "betti_curve",
        "bars alive",
        "Number of bars alive at a scale, which is 1 minus a threshold of attention.",
        ClosedForm(1, ring(), entry=(1, 1)),
        kind="count",
        low=0,
        options={"scales": (0.4, 0.6, 0.8)},
        axes=("scale", "dimension"),
    ),
)
