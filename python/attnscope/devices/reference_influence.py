# SPDX-License-Identifier: MIT
"""Part of a head's output that comes from reference tokens, in torch operations.

The definition is that of `attnscope.reference_influence`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import multiply, norms_of, sum_along
from attnscope.devices.slab import Slab, states_by_head
from attnscope.devices.slabs import per_map


def reference_influence(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    states: Tensor,
    reference: Tensor,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return relative magnitude, direction and change of every query outside the reference, [..., q]."""

    def compute(slab: Slab, vectors: Tensor, marked: Tensor) -> list[Tensor]:
        wide = torch.where(slab.inside[..., None], vectors, 0).to(slab.dtype)
        finite = wide.isfinite().flatten(1).all(-1)
        wide = torch.where(finite[:, None, None], wide, 0.0)
        finite = finite & slab.finite
        from_reference = multiply(torch.where(marked[:, None, :], slab.attention, 0.0), wide)
        from_others = multiply(torch.where(marked[:, None, :], 0.0, slab.attention), wide)
        output = from_reference + from_others
        norm_r, norm_n, norm = (norms_of(part) for part in (from_reference, from_others, output))
        across = sum_along(from_reference * from_others)
        relative = torch.where(norm > 0, norm_r / norm, math.nan)
        direction = torch.where(
            (norm > 0) & (norm_r > 0), ((norm_r**2 + across) / norm_r / norm).clamp(-1, 1), math.nan
        )
        # half the squared distance of the unit vectors, in terms that do not cancel where c_R is small
        turn = -(norm_r**2 + 2 * across) / (norm + norm_n) / norm
        part = norm_r / norm
        change = 0.5 * (part**2 + 2 * (across / norm / norm_n) * turn + turn**2)
        change = torch.where((norm > 0) & (norm_n > 0), change.clamp(0, 2), math.nan)
        answered = slab.rows_inside & ~slab.at_queries(marked) & finite[:, None]
        return [*(torch.where(answered, rows, math.nan) for rows in (relative, direction, change)), finite]

    marks = reference.expand(*attention.shape[:-2], attention.shape[-1])
    vectors = states_by_head(states, attention)
    result: tuple[Tensor, Tensor, Tensor, int] = per_map(
        compute, attention, lengths, support, (vectors, marks)
    )
    return result
