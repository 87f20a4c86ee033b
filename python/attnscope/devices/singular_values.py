# SPDX-License-Identifier: MIT
"""Singular values in torch operations; the definition is `attnscope.singular_values`'."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.slab import Slab, refuse_float32
from attnscope.devices.slabs import per_map


def singular_values(attention: Tensor, lengths: Tensor | Extent | None) -> tuple[Tensor, int]:
    """Return all singular values of every map, descending; NaN behind the map's length.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        # the padding adds zeros behind the values of a map's own block
        defined = slab.places_of_values() & slab.finite[:, None]
        return torch.where(defined, torch.linalg.svdvals(slab.wide), math.nan), slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths)
    return result
