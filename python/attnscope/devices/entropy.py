# SPDX-License-Identifier: MIT
"""Entropy of each query in torch operations; the definition is `attnscope.attention_entropy`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def attention_entropy(
    attention: Tensor, lengths: Tensor | Extent | None, support: str | Tensor, normalized: bool
) -> tuple[Tensor, int]:
    """Return the entropy of every query [..., q] and how many maps are not finite."""

    def compute(slab: Slab) -> tuple[Tensor, ...]:
        entropy = slab.row_entropy
        if normalized:
            visible = slab.visible_keys
            entropy = torch.where(visible > 1, entropy / visible.to(slab.dtype).log(), torch.nan)
        return slab.undefined_outside_rows(entropy), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, support, needs_entropy=True)
    return result
