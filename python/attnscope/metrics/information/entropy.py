# SPDX-License-Identifier: MIT
"""The spread of each query's attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from attnscope import _calls, _checks, _core
from attnscope.arguments import scalars
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.information._learned_sink import (
    sink_mass_argument,
    times_log,
    visible_key_counts,
)
from attnscope.metrics.quantity import ClosedForm, Quantity


def attention_entropy(
    attention: torch.Tensor,
    *,
    base: float = math.e,
    normalized: bool = False,
    sink_mass: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Shannon entropy of every query's attention over the keys it can see.

    H_i = −Σ_j A_ij log A_ij with 0·log 0 = 0. A head's value is the mean over its queries:
    ``.mean(-1)``, or ``.nanmean(-1)`` when normalized or ragged.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        base: of the logarithm: e for nats, 2 for bits. A normalized entropy does not depend on it.
        normalized: divide by the log of the number of visible keys; a query that sees one key or none is NaN.
        sink_mass: what a learned sink takes of each row, [..., q], `Layer.states("sink_mass")`: one more key,
            also in the number that normalises. Without it such rows are no distributions.
        support: which keys a query sees, as in `incoming_attention`.
        precision: "fast" computes logarithms of float32 and half maps in float32, with an error below 1e-5
            of Σ_j |A_ij log A_ij|; float64 maps are measured exactly.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [..., q] float64, in [0, log k], normalized in [0, 1]; NaN past a map's length and for queries with
        a negative entry. Rows are never renormalised. Error below 2⁻⁴⁸·Σ_j A_ij (1 + |log A_ij|).

    Raises:
        ValueError: a base that is not positive or is 1, and as `incoming_attention`.

    Example:
        Uniform causal attention: query i spreads over i + 1 keys.

        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(4, 4, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> asc.attention_entropy(uniform, base=2)
        tensor([0.0000, 1.0000, 1.5850, 2.0000], dtype=torch.float64)
        >>> asc.attention_entropy(uniform, normalized=True).round(decimals=9)
        tensor([nan, 1., 1., 1.], dtype=torch.float64)

        The step that decodes the fourth token, one query at the last of four keys:

        >>> asc.attention_entropy(uniform[3:], base=2)
        tensor([2.], dtype=torch.float64)

    References:
        Shannon, A mathematical theory of communication, 1948. Ruscio et al., What are you sinking?, 2025.
    """
    name = "attention_entropy"
    bare = (support, precision, lengths, query_positions, query_lengths, cross, validate)
    if base is math.e and normalized is False and sink_mass is None and _checks.is_bare(*bare):
        call = (_core.attention_entropy, name, attention, support, normalized)
        results = _calls.called_at_once(*call, precision=precision)
        if results is not None:
            return results[0]
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    base = scalars.real(name, "base", base)
    if not (0.0 < base < math.inf) or base == 1.0:
        raise ValueError(f"{name}: base must be a positive number other than 1, got {base!r}")
    seen = _checks.support_argument(name, support, checked)
    normalized = scalars.flag(name, "normalized", normalized)
    mass = None if sink_mass is None else sink_mass_argument(name, sink_mass, checked)
    kernel_arguments = (seen, normalized and mass is None)
    result = _calls.call_and_warn(
        _core.attention_entropy, name, checked, *kernel_arguments, precision=precision
    )
    if mass is not None:
        # not in place: results of lazy attention are shared by the metrics of one pass
        result = result - times_log(mass, mass)
        if normalized:
            counts = visible_key_counts(checked, seen) + 1
            # of the learned sink alone: a mass that is rounded would be divided by log 1
            result = torch.where(counts > 1, result / counts.double().log(), torch.nan)
    if base != math.e and not normalized:
        result = result / math.log(base)
    return result


QUANTITIES = (
    Quantity(
        "entropy",
        "attention_entropy",
        "entropy (nats)",
        "Mean over queries of the entropy of a row.",
        ClosedForm(math.log(4), uniform_map(4), entry=(0,)),
        low=0,
        high=math.log,
        axes=("query",),
    ),
    Quantity(
        "entropy_normalized",
        "attention_entropy",
        "entropy / maximum",
        "Row entropy over the logarithm of the number of visible keys, mean over queries.",
        ClosedForm(1.0, uniform_map(4), entry=(0,)),
        low=0,
        high=1,
        options={"normalized": True},
        axes=("query",),
    ),
)
