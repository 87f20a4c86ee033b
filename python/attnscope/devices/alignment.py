# SPDX-License-Identifier: MIT
"""Correlation of attention with the cosines of states, in torch operations.

The definition is that of `attnscope.geometric_semantic_alignment`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import multiply, norms_of, sum_all, sum_along
from attnscope.devices.slab import Slab, states_by_head
from attnscope.devices.slabs import per_map

#: Cosines of float64 states are known to this much; less variation than that is none.
ROUNDING = 4e-15


def geometric_semantic_alignment(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Return Pearson's r between A_ij and cos(s_i, s_j) over visible pairs i ≠ j of every map."""

    def compute(
        slab: Slab, vectors: Tensor, left_out: Tensor | None, of_queries: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        keys = read_directions(vectors, slab.inside, slab.dtype)
        queries = keys
        if of_queries is not None:
            queries = read_directions(of_queries, slab.rows_inside, slab.dtype)
        finite = slab.finite & keys.finite & queries.finite
        cosines = multiply(queries.unit, keys.unit.mT)
        pairs = pairs_of_states(slab, queries, keys, left_out)
        count = pairs.flatten(1).sum(-1).to(slab.dtype)

        def centred(values: Tensor) -> Tensor:
            # of equal entries nothing is left, whatever their mean rounds to
            largest = torch.where(pairs, values, -math.inf).flatten(1).amax(-1)
            moved = torch.where(pairs, values - largest[:, None, None], 0.0)
            mean = sum_all(moved) / count
            return torch.where(pairs, moved - mean[:, None, None], 0.0).flatten(1)

        a, c = centred(slab.wide), centred(cosines)
        aa, cc, ac = (sum_along(part) for part in (a * a, c * c, a * c))
        # a constant is subtracted from itself with an error of one rounding of its size
        size = torch.where(pairs, slab.wide.abs(), 0.0).flatten(1).amax(-1)
        varies = (count >= 2) & (aa > count * (torch.finfo(slab.dtype).eps * size) ** 2)
        varies &= cc > count * ROUNDING**2
        r = torch.where(varies & finite, (ac / aa.sqrt() / cc.sqrt()).clamp(-1, 1), math.nan)
        return r, finite

    beside = (
        states_by_head(states, attention),
        None if without is None else without.expand(*attention.shape[:-2], attention.shape[-1]),
        None if query_states is None else states_by_head(query_states, attention),
    )
    result: tuple[Tensor, int] = per_map(compute, attention, lengths, support, beside)
    return result


class Directions(NamedTuple):
    """Unit vectors of states.

    Attributes:
        unit: [m, n, d]; 0 behind the lengths and for states of 0.
        norms: of the states, [m, n, 1].
        exists: True for states that are not 0, [m, n].
        finite: True for maps whose states are finite, [m].
    """

    unit: Tensor
    norms: Tensor
    exists: Tensor
    finite: Tensor


def read_directions(states: Tensor, inside: Tensor, dtype: torch.dtype) -> Directions:
    """Return the directions of states [m, n, d] that lie `inside` their maps, [m, n].

    The largest entry of a state is taken out first, so that no square overflows.
    """
    wide = torch.where(inside[..., None], states, 0).to(dtype)
    finite = wide.isfinite().flatten(1).all(-1)
    wide = torch.where(finite[:, None, None], wide, 0.0)
    largest = wide.abs().amax(-1, keepdim=True)
    wide = wide / torch.where(largest > 0, largest, 1.0)
    norm = norms_of(wide)[..., None]
    unit = wide / torch.where(norm > 0, norm, 1.0)
    return Directions(unit, norm * largest, norm.squeeze(-1) > 0, finite)


def pairs_of_states(slab: Slab, queries: Directions, keys: Directions, left_out: Tensor | None) -> Tensor:
    """Return the visible pairs of a query and another key that both have a direction, [m, q, k]."""
    pairs = slab.seen & (slab.places[..., None] != slab.positions)
    pairs = pairs & queries.exists[:, :, None] & keys.exists[:, None, :]
    return pairs if left_out is None else pairs & ~left_out[:, None, :]
