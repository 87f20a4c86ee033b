# SPDX-License-Identifier: MIT
"""Divergence of heads from the mean of their layer, and removal of keys, in torch operations.

The definitions are those of `attnscope.head_divergence` and `attnscope.sink_removal`. All heads of a layer
are in one slab.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def _by_layer(tensor: Tensor, heads: int) -> Tensor:
    return tensor.reshape(-1, heads, *tensor.shape[1:])


def _finite_layers(slab: Slab, heads: int) -> Tensor:
    return _by_layer(slab.finite, heads).all(1)


def _divergence(rows: Tensor, mean: Tensor) -> Tensor:
    """Return Σ_j x_j (log x_j − log mean_j) over the last axis, with 0·log 0 = 0."""
    return sum_along(torch.xlogy(rows, rows) - torch.xlogy(rows, mean))


def head_divergence(
    heads: Tensor, lengths: Tensor | Extent | None, support: str | Tensor, entropy: Tensor | None
) -> tuple[Tensor, int]:
    """Return each head's divergence from the head mean, the mean over its queries [..., h]."""
    count = heads.shape[-3]

    def compute(slab: Slab, entropy_of_rows: Tensor | None) -> tuple[Tensor, ...]:
        maps = _by_layer(slab.attention, count)
        mean = sum_along(maps, 1, keepdim=True) / count
        if entropy_of_rows is None:
            entropy_of_rows = slab.row_entropy
        entropies = _by_layer(torch.where(slab.rows_inside, entropy_of_rows, 0.0), count)
        rows = -entropies - sum_along(torch.xlogy(maps, mean))
        rows = torch.where(_by_layer(slab.rows_inside, count), rows, 0.0)
        means = sum_along(rows) / _by_layer(slab.queries, count)
        finite = _finite_layers(slab, count)
        means = torch.where(finite[:, None], means, math.nan)
        return means.flatten(), finite

    divergence, non_finite = per_map(
        compute,
        heads,
        lengths,
        support,
        (entropy,),
        maps_together=count,
        temporaries=10,
        needs_entropy=entropy is None,
    )
    return divergence, non_finite


def sink_removal(
    heads: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    keys: Tensor,
    keep_attention: bool,
    sink_mass: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
    """Return divergences before and after the removal, excluded rows, and the rescaled maps or None."""
    count, n = heads.shape[-3], heads.shape[-1]
    removed = keys.expand(*heads.shape[:-3], n).unsqueeze(-2).expand(*heads.shape[:-2], n)

    def compute(slab: Slab, is_removed: Tensor, mass: Tensor | None) -> list[Tensor]:
        maps = _by_layer(slab.attention, count)
        remaining = torch.where(_by_layer(is_removed, count)[:, :, None], 0.0, maps)
        if mass is None:
            learned = torch.zeros(maps.shape[:-1], dtype=slab.dtype, device=maps.device)
        else:
            learned = _by_layer(mass, count).to(slab.dtype)
        left = sum_along(remaining) + learned
        survives = left > 0
        scale = torch.where(survives, left, 1.0)
        rescaled = torch.where(survives[..., None], remaining / scale[..., None], 0.0)
        survivors = survives.sum(1, keepdim=True).clamp(min=1)
        before = _divergence(maps, sum_along(maps, 1, keepdim=True) / count)
        after = _divergence(rescaled, sum_along(rescaled, 1, keepdim=True) / survivors[..., None])
        if mass is not None:
            rest = torch.where(survives, learned / scale, 0.0)
            mean_mass = sum_along(learned, 1, keepdim=True) / count
            before = before + torch.xlogy(learned, learned) - torch.xlogy(learned, mean_mass)
            mean_rest = sum_along(rest, 1, keepdim=True) / survivors
            after = after + torch.xlogy(rest, rest) - torch.xlogy(rest, mean_rest)
        finite = _finite_layers(slab, count)
        valid = _by_layer(slab.rows_inside, count) & finite[:, None, None]
        numbers = [
            torch.where(valid, torch.where(survives, part, 0.0), math.nan).flatten(0, 1)
            for part in (before, after)
        ]
        results = [*numbers, (~survives & valid).flatten(0, 1)]
        if keep_attention:
            block = valid[..., None] & _by_layer(slab.inside, count)[:, :, None]
            results.append(torch.where(block, rescaled, math.nan).flatten(0, 1))
        return [*results, finite]

    *results, non_finite = per_map(
        compute, heads, lengths, support, (removed, sink_mass), maps_together=count, temporaries=14
    )
    return results[0], results[1], results[2], results[3] if keep_attention else None, non_finite
