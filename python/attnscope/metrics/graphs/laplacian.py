# SPDX-License-Identifier: MIT
"""Laplacian spectrum of a head seen as an undirected graph."""

from __future__ import annotations

from typing import Literal

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics.closed_forms import first_key_map
from attnscope.metrics.quantity import ClosedForm, Quantity

Symmetrize = Literal["mean", "max"]


def graph_arguments(
    function: str, symmetrize: str, threshold: float | None, normalized: bool
) -> tuple[str, float | None, bool]:
    """Check how a head becomes a graph; return the options in the order in which the core takes them."""
    return (
        scalars.choice_argument(function, "symmetrize", symmetrize, ("mean", "max")),
        None if threshold is None else scalars.fraction_argument(function, "threshold", threshold),
        scalars.flag(function, "normalized", normalized),
    )


def laplacian_eigenvalues(
    attention: torch.Tensor,
    k: int | None = None,
    *,
    symmetrize: Symmetrize = "mean",
    threshold: float | None = None,
    normalized: bool = False,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    r"""Return the `k` smallest eigenvalues of the graph Laplacian of each head, ascending.

    L = D − W with W = (A + Aᵀ)/2 ("mean") or max(A, Aᵀ) ("max"), zero diagonal. At least as many
    eigenvalues are exactly 0 as the graph has connected components; weights that rounding of the largest
    degree swallows can leave more (two cliques joined by 1e-15), which `fiedler_value` resolves.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        k: how many; all n when None.
        symmetrize: how a directed head becomes a graph. Under "mean" causal maps are capped near 0.5.
        threshold: when given, the simple unweighted graph 1[max(A_ij, A_ji) >= threshold] instead.
        normalized: I − D^{-1/2} W D^{-1/2} instead of D − W; the row of an isolated node is 0.
        precision: "fast" has an error below 1e-5 of the largest eigenvalue, in less time for up to 256
            tokens.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [..., k] float64, in [0, 2·max degree] ([0, 2] when normalized); NaN past a map's own length. Error
        below n·2⁻⁵⁰·max degree (n·2⁻⁵⁰ when normalized).

    Raises:
        ValueError: not square, empty, wrong dtype, `k` outside 1..n, threshold outside (0, 1).

    Example:
        A complete graph on n nodes has one zero and n − 1 times n; here every weight is 1/5.

        >>> import torch, attnscope as asc
        >>> asc.laplacian_eigenvalues(torch.full((5, 5), 0.2, dtype=torch.float64)).round(decimals=12)
        tensor([0., 1., 1., 1., 1.], dtype=torch.float64)

    References:
        Fiedler, Algebraic connectivity of graphs, 1973. Ruscio et al., What are you sinking?, 2025.
    """
    name = "laplacian_eigenvalues"
    precision = _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    count = checked.n if k is None else scalars.whole_number(name, "k", k)
    if not 1 <= count <= checked.n:
        raise ValueError(f"{name}: k must lie between 1 and n = {checked.n}, got {k}")
    graph_options = graph_arguments(name, symmetrize, threshold, normalized)
    kernel_arguments = (count, *graph_options)
    return _calls.call_and_warn(
        _core.laplacian_eigenvalues, name, checked, *kernel_arguments, precision=precision
    )


@memory_errors("laplacian_gap")
def laplacian_gap(
    attention: torch.Tensor,
    *,
    symmetrize: Symmetrize = "mean",
    threshold: float | None = None,
    normalized: bool = False,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> torch.Tensor:
    """Return the gap λ3 − λ2 of the graph Laplacian of each head.

    Args:
        attention: maps [..., n, n]; arguments and errors are those of `laplacian_eigenvalues`.
        precision: "fast" has an error below 2e-5 of the largest eigenvalue.

    Returns:
        [...] float64, >= 0; NaN for maps of fewer than three tokens, which have no third eigenvalue.

    Example:
        A star with edges of weight 1 has the spectrum {0, 1, …, 1, n}.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(4, 4); star[:, 0] = 1
        >>> round(asc.laplacian_gap(star, symmetrize="max").item(), 12)
        0.0

    References:
        Ruscio et al., What are you sinking?, 2025, section on spectral graph analysis.
    """
    name = "laplacian_gap"
    precision = _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    graph_options = graph_arguments(name, symmetrize, threshold, normalized)
    kernel_arguments = (min(checked.n, 3), *graph_options)
    return gap_of(
        _calls.call_and_warn(
            _core.laplacian_eigenvalues, name, checked, *kernel_arguments, precision=precision
        )
    )


def gap_of(eigenvalues: torch.Tensor) -> torch.Tensor:
    """λ3 − λ2 of ascending eigenvalues [..., k]; NaN where there are fewer than three."""
    # padded, so that what has no gap keeps its gradient, which is 0
    pair = torch.nn.functional.pad(eigenvalues[..., 1:3], (0, 2), value=torch.nan)[..., :2]
    return pair[..., 1] - pair[..., 0]


DERIVED = {"laplacian_gap": ("laplacian_eigenvalues", gap_of)}

QUANTITIES = (
    Quantity.of(
        "laplacian_gap",
        "Laplacian gap",
        "Distance from the second to the third eigenvalue of the Laplacian.",
        ClosedForm(1.0, first_key_map(3)),
        symbol=r"$\lambda_3-\lambda_2$",
        low=0,
    ),
    Quantity.of(
        "laplacian_eigenvalues",
        "Laplacian eigenvalue",
        "Eigenvalues of the Laplacian, ascending.",
        ClosedForm(3.0, first_key_map(6), entry=(-1,)),
        low=0,
        axes=("rank",),
    ),
)
