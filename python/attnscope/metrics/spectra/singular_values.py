# SPDX-License-Identifier: MIT
"""Singular values of a head, and the ranks and gaps that are read off them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.metrics.closed_forms import identity, uniform_map
from attnscope.metrics.estimates import (
    LeadingSingularValues,
    gap_of_leading,
    ratio_of_leading,
    stable_rank_of_leading,
)
from attnscope.metrics.quantity import ClosedForm, Quantity


def singular_values(
    attention: Tensor,
    largest: int | None = None,
    *,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> Tensor:
    """Singular values of each head, descending.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries. Of `LazyAttention`
            the largest with certain bounds, as `LeadingSingularValues`.
        largest: how many, from the largest on; all when None, of `LazyAttention` 8.
        precision: "fast" has an absolute error below 1e-5·σ1, and values that rounding cannot tell from 0 are
            0: those below n·2⁻²⁴·σ1 up to 96 tokens and below 2⁻²⁰·σ1 from 257 on, of float32, and between
            those below 2⁻²³·σ1, since σ² are the eigenvalues of A·Aᵀ there; in less time for square maps. Of
            a map with so many values near 0 that its effective
            rank would miss them, the values are the exact ones.
        lengths: keys per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [..., min(q, k)] float64, in [0, ‖A‖_F], absolute error below 1e-12·σ1; NaN past a map's own size.

    Raises:
        ValueError: empty, wrong dtype, a number of values below 1 or above min(q, k), and places as in
            `incoming_attention`.

    Example:
        A permutation is orthogonal.

        >>> import torch, attnscope as asc
        >>> asc.singular_values(torch.eye(4, dtype=torch.float64).roll(1, 0)).round(decimals=12)
        tensor([1., 1., 1., 1.], dtype=torch.float64)

        Three queries that share one row of four keys, a rectangle of rank one: σ1 = √3·‖row‖.

        >>> asc.singular_values(torch.full((3, 4), 0.25, dtype=torch.float64)).round(decimals=4)
        tensor([0.8660, 0.0000, 0.0000], dtype=torch.float64)

    References:
        Golub and Kahan, Calculating the singular values and pseudo-inverse of a matrix, 1965. Fernando and
        Parlett, Accurate singular values and differential qd algorithms, 1994.
    """
    places = _checks.places_argument("singular_values", query_positions, query_lengths, cross)
    return _values("singular_values", attention, lengths, validate, places, precision, largest)


@memory_errors("stable_rank")
def stable_rank(
    attention: Tensor,
    *,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> Tensor:
    """‖A‖_F²/σ1² of each head: how many directions as strong as the strongest its energy would fill.

    Args:
        attention: maps [..., q, k]; arguments and errors are those of `singular_values`.
        precision: "fast" has a relative error below 1e-5.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, in [1, min(q, k)]; NaN for a map of zeros; one token gives 1. Of `LazyAttention` an
        `IntervalEstimate` with certain bounds.

    Example:
        >>> import torch, attnscope as asc
        >>> round(asc.stable_rank(torch.eye(5)).item(), 12)
        5.0

    References:
        Rudelson and Vershynin, Sampling from large matrices, 2007. Ruscio et al., arXiv 2508.02546, 2025.
    """
    places = _checks.places_argument("stable_rank", query_positions, query_lengths, cross)
    return stable_rank_of(_values("stable_rank", attention, lengths, validate, places, precision))


@memory_errors("effective_rank")
def effective_rank(
    attention: Tensor,
    *,
    seed: int = 0,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> Tensor:
    """exp(−Σ p log p) of each head, p = σ/Σσ: the number of directions the singular values spread over.

    Args:
        attention: maps [..., q, k]; arguments and errors are those of `singular_values`.
        seed: of the random probes, for `LazyAttention` alone.
        precision: "fast" has a relative error below 1e-3.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, in [1, min(q, k)]; NaN for a map of zeros; one token gives 1; of `LazyAttention`,
        which must be square, an `IntervalEstimate` of 95 %.

    Example:
        >>> import torch, attnscope as asc
        >>> round(asc.effective_rank(torch.eye(5)).item(), 12)
        5.0

    References:
        Roy and Vetterli, The effective rank: a measure of effective dimensionality, 2007.
    """
    seed = scalars.at_least("effective_rank", "seed", seed, 0)
    places = _checks.places_argument("effective_rank", query_positions, query_lengths, cross)
    if isinstance(attention, Unmaterialized):
        _checks.precision_argument("effective_rank", precision, attention)
        checked = _checks.attention_argument(
            "effective_rank", attention, lengths, validate=validate, places=places
        )
        # lazy attention has a function of this name
        return _calls.call_and_warn(effective_rank, "effective_rank", checked, seed)
    return effective_rank_of(_values("effective_rank", attention, lengths, validate, places, precision))


@memory_errors("spectral_gap")
def spectral_gap(
    attention: Tensor,
    *,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> Tensor:
    """σ1 − σ2 of each head.

    Args:
        attention: maps [..., q, k]; arguments and errors are those of `singular_values`.
        precision: "fast" has an absolute error below 2e-5·σ1.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, >= 0; NaN for one token, which has no second singular value.

    Example:
        Uniform attention has rank one and σ1 = 1.

        >>> import torch, attnscope as asc
        >>> round(asc.spectral_gap(torch.full((4, 4), 0.25)).item(), 12)
        1.0

    References:
        Ruscio et al., What are you sinking?, 2025.
    """
    places = _checks.places_argument("spectral_gap", query_positions, query_lengths, cross)
    return spectral_gap_of(_values("spectral_gap", attention, lengths, validate, places, precision))


@memory_errors("spectral_ratio")
def spectral_ratio(
    attention: Tensor,
    *,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> Tensor:
    """σ1/σ2 of each head.

    Args:
        attention: maps [..., q, k]; arguments and errors are those of `singular_values`.
        precision: "fast" reads it off singular values that are off by up to 1e-5·σ1.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, >= 1; infinite for a map of rank one, that is σ2 <= min(q, k)·2⁻⁵²·σ1, below which
        rounding decides; NaN for a map of zeros and for one token.

    Example:
        >>> import torch, attnscope as asc
        >>> round(asc.spectral_ratio(torch.tensor([[1.0, 0.0], [0.0, 0.25]])).item(), 12)
        4.0

    References:
        Ruscio et al., What are you sinking?, 2025.
    """
    places = _checks.places_argument("spectral_ratio", query_positions, query_lengths, cross)
    return spectral_ratio_of(_values("spectral_ratio", attention, lengths, validate, places, precision))


def stable_rank_of(sigma: Tensor | LeadingSingularValues) -> Any:
    """Stable rank of descending singular values [..., n], NaN past a map's own length -> [...]."""
    if isinstance(sigma, LeadingSingularValues):
        return stable_rank_of_leading(sigma)
    filled = sigma.nan_to_num(0.0)
    largest = filled[..., :1]
    # divisors of maps without a value are 1: 0/0 has a gradient of NaN, whatever a loss leaves out
    is_defined = largest > 0
    relative = filled / torch.where(is_defined, largest, 1.0)
    return torch.where(is_defined[..., 0], _sum_in_order(relative.square()), torch.nan)


def effective_rank_of(sigma: Tensor) -> Tensor:
    """Effective rank of descending singular values [..., n], NaN past a map's own length -> [...]."""
    filled = sigma.nan_to_num(0.0)
    total = _sum_in_order(filled).unsqueeze(-1)
    is_defined = total > 0
    share = filled / torch.where(is_defined, total, 1.0)
    # 0·log 0 is 0, and so is its derivative
    entropy = -_sum_in_order(share * torch.where(share == 0, 1.0, share).log())
    return torch.where(is_defined[..., 0], entropy.exp(), torch.nan)


def spectral_gap_of(sigma: Tensor | LeadingSingularValues) -> Any:
    """σ1 − σ2 of descending singular values [..., n] -> [...]; NaN where there is no second."""
    if isinstance(sigma, LeadingSingularValues):
        return gap_of_leading(sigma)
    first, second = _first_two(sigma)
    return first - second


def spectral_ratio_of(sigma: Tensor | LeadingSingularValues) -> Any:
    """σ1/σ2 of descending singular values [..., n] -> [...]; NaN with no second, inf at rank one."""
    if isinstance(sigma, LeadingSingularValues):
        return ratio_of_leading(sigma)
    first, second = _first_two(sigma)
    count = sigma.isfinite().sum(-1)
    rank_one = (second <= count * torch.finfo(torch.float64).eps * first) & (first > 0)
    is_defined = ~rank_one & (second > 0)
    ratio = torch.where(is_defined, first / torch.where(is_defined, second, 1.0), torch.nan)
    return torch.where(rank_one, torch.inf, ratio)


def _sum_in_order(values: Tensor) -> Tensor:
    """Return sums over the last axis, in order, so that zeros behind them change no bit."""
    return values.cumsum(-1)[..., -1]


def _first_two(sigma: Tensor) -> tuple[Tensor, ...]:
    return torch.nn.functional.pad(sigma[..., :2], (0, 1), value=torch.nan)[..., :2].unbind(-1)


def _values(
    function: str,
    attention: Tensor,
    lengths: _checks.Lengths,
    validate: bool,
    places: _checks.Places,
    precision: _checks.Precision,
    largest: int | None = None,
) -> Tensor:
    precision = _checks.precision_argument(function, precision, attention)
    rows = function != "singular_values"  # those of any matrix are asked for
    checked = _checks.attention_argument(
        function, attention, lengths, validate=validate, rows=rows, places=places
    )
    most = min(checked.query_count, checked.n)
    count = most if largest is None else scalars.whole_number(function, "largest", largest)
    if not 1 <= count <= most:
        raise ValueError(f"{function}: largest must lie between 1 and {most}, got {largest}")
    if isinstance(checked.tensor, Unmaterialized):
        return _calls.call_and_warn(_core.singular_values, function, checked, largest)
    values = _calls.call_and_warn(_core.singular_values, function, checked, precision=precision)
    return values if largest is None else values[..., :count]


DERIVED = {
    "stable_rank": ("singular_values", stable_rank_of),
    "effective_rank": ("singular_values", effective_rank_of),
    "spectral_gap": ("singular_values", spectral_gap_of),
    "spectral_ratio": ("singular_values", spectral_ratio_of),
}


def _rank(metric: str, label: str, meaning: str) -> Quantity:
    return Quantity.of(metric, label, meaning, ClosedForm(4.0, identity(4)), low=1, high=float)


QUANTITIES = (
    _rank("stable_rank", "stable rank", "Squared Frobenius norm over squared spectral norm."),
    _rank(
        "effective_rank", "effective rank", "Exponential of the entropy of the normalised singular values."
    ),
    Quantity.of(
        "spectral_gap",
        "spectral gap",
        "First minus second singular value.",
        ClosedForm(1.0, uniform_map(4)),
        symbol=r"$\sigma_1-\sigma_2$",
        low=0,
    ),
    Quantity.of(
        "spectral_ratio",
        "spectral ratio",
        "First over second singular value.",
        ClosedForm(2.0, torch.diag(torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64, device="cpu"))),
        symbol=r"$\sigma_1/\sigma_2$",
        kind="ratio",
        low=1,
    ),
    Quantity.of(
        "singular_values",
        "singular value",
        "Singular values of the map, descending.",
        ClosedForm(1.0, uniform_map(4), entry=(0,)),
        symbol=r"$\sigma$",
        low=0,
        axes=("rank",),
    ),
)
