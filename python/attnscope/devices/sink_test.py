# SPDX-License-Identifier: MIT
"""The sums that `attnscope.sink_test` rests on, in torch operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def far_attention(
    attention: Tensor, lengths: Tensor | Extent | None, support: str | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Return mass, expected mass, variance, largest entry, uniform mass and number of far queries by key."""

    def compute(slab: Slab) -> list[Tensor]:
        size = slab.lengths
        distance = torch.maximum((size + 9) // 10, (size // 4).clamp(max=4)).clamp(min=1)[:, None, None]
        places = slab.places[..., None]
        # of queries that stand at no key each key is far
        far = slab.seen & (((places - slab.positions).abs() >= distance) | (places < 0))
        entries = torch.where(far, slab.wide, 0.0)
        count = far.sum(-1, keepdim=True).to(slab.dtype)
        mean = sum_along(entries, keepdim=True) / count.clamp(min=1)
        squares = torch.where(far, slab.wide - mean, 0.0).square()
        variance = sum_along(squares, keepdim=True) / count.clamp(min=1)
        largest = torch.where(far, slab.wide, -math.inf).amax(-1, keepdim=True)
        uniform = 1 / slab.visible_keys.clamp(min=1).to(slab.dtype)[..., None]
        sums = [sum_along(entries, -2)]
        sums += [sum_along(torch.where(far, of_row, 0.0), -2) for of_row in (mean, variance)]
        sums.append(torch.where(far, largest, 0.0).amax(-2).clamp(min=0))
        sums.append(sum_along(torch.where(far, uniform, 0.0), -2))
        queries = far.sum(-2) * slab.finite[:, None]
        has_queries = (slab.queries > 0)[:, None]
        defined = (torch.where(has_queries, slab.undefined_outside(part), math.nan) for part in sums)
        return [*defined, queries, slab.finite]

    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int] = per_map(
        compute, attention, lengths, support
    )
    return result
