# SPDX-License-Identifier: MIT
"""Near over far attention in torch operations; the definition is `attnscope.local_global_ratio`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import sum_all
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def local_global_ratio(
    attention: Tensor, lengths: Tensor | Extent | None, support: str | Tensor, window: float, drop_first: bool
) -> tuple[Tensor, int]:
    """Return attention to keys at most `window` away over attention to all others, of every map."""

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        # a window below 1 is a fraction of each map's own number of tokens, 1e-9 more than rounding takes
        if window < 1:
            # in float64 on the CPU, because not every device has it
            width = (window * slab.lengths.cpu().double() + 1e-9).to(slab.lengths.device, torch.int64)
        else:
            width = torch.full_like(slab.lengths, int(window))
        apart = (slab.places[..., None] - slab.positions).abs()
        near = apart <= width[:, None, None]
        entries = slab.attention[..., 1:] if drop_first else slab.attention
        near = near[..., 1:] if drop_first else near
        local = sum_all(torch.where(near, entries, 0.0))
        distant = sum_all(torch.where(near, 0.0, entries))
        return slab.undefined_where_not_finite(local / distant), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, support)
    return result
