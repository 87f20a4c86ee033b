# SPDX-License-Identifier: MIT
"""Detection of maps that hold entries which are not finite."""

from __future__ import annotations

from torch import Tensor

from attnscope.devices.slabs import per_map


def finite_matrices(attention: Tensor, lengths: Tensor | None) -> Tensor:
    """Return True for every map of finite entries inside its length, [...]."""
    finite, _ = per_map(lambda slab: (slab.finite, slab.finite), attention, lengths, temporaries=1)
    result: Tensor = finite
    return result
