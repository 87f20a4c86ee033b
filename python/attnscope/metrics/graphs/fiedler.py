# SPDX-License-Identifier: MIT
"""Algebraic connectivity of a head seen as an undirected graph, and its eigenvector."""

from __future__ import annotations

import torch

from attnscope import _calls, _checks, _core
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.closed_forms import first_key_map, uniform_map
from attnscope.metrics.graphs.laplacian import Symmetrize, graph_arguments
from attnscope.metrics.quantity import ClosedForm, Quantity


def fiedler_value(
    attention: torch.Tensor,
    *,
    symmetrize: Symmetrize = "mean",
    threshold: float | None = None,
    normalized: bool = False,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    """Return λ2 of each head's graph Laplacian: how hard the graph is to cut in two.

    The second smallest eigenvalue of L = D − W, W = (A + Aᵀ)/2 ("mean") or max(A, Aᵀ) ("max") without its
    diagonal. It is exactly 0 when the graph is disconnected.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        symmetrize: how a directed head becomes a graph. Under "mean" a causal map is capped by
            n/(n−1)·min degree, about 0.5, for sink and diffuse heads alike: compare `normalized`.
        threshold: when given, the simple unweighted graph 1[max(A_ij, A_ji) >= threshold] instead.
        normalized: the symmetric normalised Laplacian instead.
        precision: "exact" has a relative error below 1e-9, or n·2⁻⁵⁰·max degree where that is more; "fast"
            below 1e-6, in less time for more than 96 tokens.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [...] float64, in [0, n/(n−1)·min degree] ([0, n/(n−1)] when normalized); one token gives 0.
        Negative weights, which `validate` refuses, give the second smallest eigenvalue as it is. Of
        `LazyAttention` without a threshold an `IntervalEstimate`, which holds λ2 with a probability of at
        least 1 − 10⁻⁶; the value is NaN, with a warning, where the interval is wider than 1 %.

    Raises:
        ValueError: not square, empty, wrong dtype, threshold outside (0, 1), lengths outside 1..n.

    Example:
        The causal star, every query on key 0: its mean-symmetrised weights are 1/2 and λ2 = 1/2.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(6, 6, dtype=torch.float64); star[:, 0] = 1
        >>> round(asc.fiedler_value(star).item(), 12)
        0.5

    References:
        Fiedler, Algebraic connectivity of graphs, 1973. Ruscio et al., What are you sinking?, 2025.
    """
    name = "fiedler_value"
    precision = _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    graph_options = graph_arguments(name, symmetrize, threshold, normalized)
    return _calls.call_and_warn(_core.fiedler_value, name, checked, *graph_options, precision=precision)


@without_derivative("the sign of an eigenvector and its place in an eigenspace are choices")
def fiedler_vector(
    attention: torch.Tensor,
    *,
    symmetrize: Symmetrize = "mean",
    threshold: float | None = None,
    normalized: bool = False,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    """Return the eigenvector of λ2: the smoothest way to split the tokens of each head in two.

    Unit norm, orthogonal to the null vector; its component of largest magnitude (the first on ties) is
    positive. Where λ2 is degenerate it is one unit vector of that eigenspace.

    Args:
        attention: maps [..., n, n]; arguments and errors are those of `fiedler_value`.
        precision: "fast" gives the exact value: it has no faster way.

    Returns:
        [..., n] float64, NaN past a map's own length and for one token.

    Example:
        A path of three nodes is cut between its ends.

        >>> import torch, attnscope as asc
        >>> path = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)
        >>> (asc.fiedler_vector(path) * 2**0.5).round().abs()
        tensor([1., 0., 1.], dtype=torch.float64)

    References:
        Fiedler, A property of eigenvectors of nonnegative symmetric matrices, 1975.
    """
    name = "fiedler_vector"
    _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    graph_options = graph_arguments(name, symmetrize, threshold, normalized)
    return _calls.call_and_warn(_core.fiedler_vector, name, checked, *graph_options)


QUANTITIES = (
    # the star under the mean has weights 1/2: its Laplacian has 0, 1/2 (n - 2 times) and n/2
    Quantity.of(
        "fiedler_value",
        "Fiedler value",
        "Second smallest eigenvalue of the Laplacian of the graph with weights (A + Aᵀ)/2: how hard the "
        "graph is to cut.",
        ClosedForm(0.5, first_key_map(6)),
        symbol=r"$\lambda_2$",
        low=0,
    ),
    Quantity(
        "fiedler_value_normalized",
        "fiedler_value",
        "normalised Fiedler",
        "The same for the degree-normalised Laplacian, which weak nodes cannot cap.",
        ClosedForm(1.0, first_key_map(6)),
        symbol=r"$\hat\lambda_2$",
        low=0,
        options={"normalized": True},
    ),
    Quantity.of(
        "fiedler_vector",
        "Fiedler vector",
        "Unit eigenvector of the second smallest eigenvalue: which tokens the weakest cut parts.",
        ClosedForm(0.5**0.5, uniform_map(2), entry=(0,)),
        low=-1,
        high=1,
        axes=("token",),
    ),
)
