# SPDX-License-Identifier: MIT
"""Singular values in torch operations; the definition is `attnscope.singular_values`'."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.slab import Slab, refuse_float32
from attnscope.devices.slabs import per_map


def singular_values(attention: Tensor, lengths: Tensor | None) -> tuple[Tensor, int]:
    """Return all singular values of every map, descending; NaN behind the map's length.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        # a map of m tokens has at most m values that are not 0, and the padding adds zeros behind them
        return slab.undefined_outside(torch.linalg.svdvals(slab.wide)), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths)
    return result
