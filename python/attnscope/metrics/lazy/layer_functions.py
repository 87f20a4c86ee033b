# SPDX-License-Identifier: MIT
"""Functions of the core about all heads of a layer, for lazy attention, in slabs of rows of all heads.

The mean of the heads needs a row of each of them at once, so these go through queries and keys twice: for
log Z, and for the rows. A slab takes a fixed amount of memory at any length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.lazy.core_functions import prepare
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.passes import HEAD_MEAN


def head_divergence(
    heads: LazyAttention, lengths: Tensor | None, support: Any, entropy: Tensor | None
) -> tuple[Tensor, int]:
    """Return each head's divergence from the head mean, the mean over its queries, [..., h]."""
    heads = prepare(heads, lengths, support)
    require_layer("head_divergence", heads)
    (rows,) = heads.take([(HEAD_MEAN, ("divergence", None))])
    real = heads.visibility.real
    total = torch.where(real, rows, 0.0).sum(-1)
    non_finite = _non_finite_layers(heads, rows)
    return torch.where(non_finite[..., None], math.nan, total / real.sum(-1)), int(non_finite.sum())


def sink_removal(
    heads: LazyAttention,
    lengths: Tensor | None,
    support: Any,
    keys: Tensor,
    keep_attention: bool,
    sink_mass: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, None, int]:
    """Return divergences of rows before and after keys are taken out, and the rows with nothing left."""
    if keep_attention or sink_mass is not None:
        raise ValueError(
            "sink_removal: lazy attention has no rescaled maps and takes no sink_mass; give "
            "keep_attention=False"
        )
    heads = prepare(heads, lengths, support)
    require_layer("sink_removal", heads)
    before, after, survived = (
        torch.empty(heads.shape[:-1], dtype=dtype, device="cpu")
        for dtype in (torch.float64, torch.float64, torch.bool)
    )
    for begin, maps in heads.row_slabs():
        inside = slice(begin, begin + maps.shape[-2])
        left = torch.where(keys[..., None, None, :], 0.0, maps)
        mass = left.sum(-1, keepdim=True)
        survives = mass > 0
        rescaled = torch.where(survives, left / torch.where(survives, mass, 1.0), 0.0)
        survivors = survives.sum(-3, keepdim=True).clamp(min=1)
        before[..., inside] = _divergence(maps, maps.mean(-3, keepdim=True))
        after[..., inside] = _divergence(rescaled, rescaled.sum(-3, keepdim=True) / survivors)
        survived[..., inside] = survives.squeeze(-1)
    non_finite = _non_finite_layers(heads, before)
    valid = heads.visibility.real & ~non_finite[..., None, None]
    before, after = (
        torch.where(valid, torch.where(survived, rows, 0.0), math.nan) for rows in (before, after)
    )
    return before, after, ~survived & valid, None, int(non_finite.sum())


def require_layer(function: str, heads: LazyAttention) -> None:
    """Raise where the heads of a layer differ in their tokens, so that no row has a mean over heads."""
    lengths, positions = heads.visibility.lengths, heads.visibility.positions
    if bool((lengths != lengths[..., :1]).any()):
        raise ValueError(
            f"{function}: lengths of the heads of one layer must be equal, got {lengths.tolist()}"
        )
    if heads.query_positions is None:
        return
    differs = positions != positions[..., :1, :]
    if bool(differs.any()):
        first, other = positions[..., :1, :].expand(differs.shape)[differs][0], positions[differs][0]
        raise ValueError(
            f"{function}: query_positions of the heads of one layer must be equal, got {int(first)} and "
            f"{int(other)} of one query"
        )


def _divergence(rows: Tensor, mean: Tensor) -> Tensor:
    """Return Σ_j x_j (log x_j − log mean_j) over the last axis, with 0·log 0 = 0."""
    return (torch.xlogy(rows, rows) - torch.xlogy(rows, mean)).sum(-1)


def _non_finite_layers(heads: LazyAttention, rows: Tensor) -> Tensor:
    """Return which layers have a real query that is NaN, bool [...]."""
    return (rows.isnan() & heads.visibility.real).flatten(-2).any(-1)
