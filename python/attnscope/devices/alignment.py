# SPDX-License-Identifier: MIT
"""Correlation of attention with the cosines of states, in torch operations.

The definition is that of `attnscope.geometric_semantic_alignment`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope._placement import NotOnDevice
from attnscope.devices.slab import Slab, states_by_head
from attnscope.devices.slabs import per_map

#: Cosines of float64 states are known to this much; less variation than that is none.
ROUNDING = 4e-15


def geometric_semantic_alignment(
    attention: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Return Pearson's r between A_ij and cos(s_i, s_j) over visible pairs i ≠ j of every map.

    Raises:
        NotOnDevice: states of the queries, which only the core reads.
    """
    if query_states is not None:
        raise NotOnDevice

    def compute(slab: Slab, vectors: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor]:
        wide, finite = states_in_block(slab, vectors)
        finite &= slab.finite
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        has_direction = norm.squeeze(-1) > 0
        unit = wide / torch.where(norm > 0, norm, 1.0)
        cosines = unit @ unit.mT
        pairs = slab.seen & (slab.positions[:, None] != slab.positions)
        pairs = pairs & has_direction[:, :, None] & has_direction[:, None, :]
        if left_out is not None:
            pairs = pairs & ~left_out[:, None, :]
        count = pairs.flatten(1).sum(-1).to(slab.dtype)

        def centred(values: Tensor) -> Tensor:
            mean = torch.where(pairs, values, 0.0).flatten(1).sum(-1) / count
            return torch.where(pairs, values - mean[:, None, None], 0.0).flatten(1)

        a, c = centred(slab.wide), centred(cosines)
        aa, cc, ac = (a * a).sum(-1), (c * c).sum(-1), (a * c).sum(-1)
        # a constant is subtracted from itself with an error of one rounding of its size
        size = torch.where(pairs, slab.wide.abs(), 0.0).flatten(1).amax(-1)
        varies = (count >= 2) & (aa > count * (torch.finfo(slab.dtype).eps * size) ** 2)
        varies &= cc > count * ROUNDING**2
        r = torch.where(varies & finite, (ac / aa.sqrt() / cc.sqrt()).clamp(-1, 1), math.nan)
        return r, finite

    result: tuple[Tensor, int] = per_map(
        compute, attention, lengths, support, (states_by_head(states, attention), without)
    )
    return result


def states_in_block(slab: Slab, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return states [m, n, d] in the arithmetic's type, 0 behind the lengths, and which of them are finite,
    [m].

    Their largest entry is taken out, so that no square overflows.
    """
    wide = torch.where(slab.inside[..., None], states, 0).to(slab.dtype)
    finite = wide.isfinite().flatten(1).all(-1)
    wide = torch.where(finite[:, None, None], wide, 0.0)
    largest = wide.abs().amax(-1, keepdim=True)
    return wide / torch.where(largest > 0, largest, 1.0), finite
