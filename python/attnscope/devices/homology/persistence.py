# SPDX-License-Identifier: MIT
"""Bars of H0 on a device: one minimum spanning tree for each map, by Prim's algorithm in Triton.

One program grows the tree of one map. It keeps the largest weight from the tree to every token outside in
registers, and each of its n − 1 steps reads one row of the map. Edges and ties are those of the core, so that
equal weights give equal bars to the bit. Bars of H1, Hellinger distances and larger maps are the core's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnscope.devices.slab import NotOnDevice, Slab
from attnscope.devices.slabs import per_map, runs_triton

#: Tokens of the largest map whose tree one program holds in registers.
MOST_TOKENS = 8192
#: Copies of a slab that are alive at a time: the symmetric weights, in the maps' type or in float64.
TEMPORARIES = 2

Bars = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]


def persistence(
    attention: Tensor, lengths: Tensor | None, max_dimension: int, symmetrize: str, metric: str
) -> Bars:
    """Return the H0 bars of every map, as the core returns them.

    Returns:
        birth, death, dimension, birth edge, death edge and offsets, as `Barcodes` holds them, and the number
        of maps that are not finite.

    Raises:
        NotOnDevice: H1, Hellinger distances, more than `MOST_TOKENS` tokens, or no Triton there.
    """
    if max_dimension != 0 or metric != "attention" or attention.shape[-1] > MOST_TOKENS:
        raise NotOnDevice
    if not runs_triton(attention.device):
        raise NotOnDevice
    try:
        from attnscope.devices.homology.spanning_tree import grow
    except ImportError:
        raise NotOnDevice from None

    def compute(slab: Slab) -> tuple[Tensor, ...]:
        # a map that is not finite has no bars, and a tree of one token has no edge
        sizes = torch.where(slab.finite, slab.lengths, 1)
        edges, weights = grow(_similarities(slab.maps, symmetrize), sizes)
        return edges, weights, sizes, slab.finite, slab.finite

    edges, weights, sizes, finite, not_finite = per_map(compute, attention, lengths, temporaries=TEMPORARIES)
    count, steps = finite.numel(), attention.shape[-1] - 1
    edges, weights = edges.reshape(count, steps), weights.reshape(count, steps)
    return *_bars(edges, weights, sizes.flatten(), finite.flatten()), not_finite


def _similarities(maps: Tensor, symmetrize: str) -> Tensor:
    """Return min(1, w) of all pairs [m, n, n] in float32 or wider; means are formed in float64."""
    wide = torch.float64 if symmetrize == "mean" or maps.dtype == torch.float64 else torch.float32
    maps = maps.to(wide)
    across = maps.mT
    if symmetrize == "mean":
        weights = (maps + across) / 2
    else:
        weights = torch.maximum(maps, across) if symmetrize == "max" else torch.minimum(maps, across)
    return weights.clamp(max=1.0).contiguous()


def _bars(edges: Tensor, weights: Tensor, sizes: Tensor, finite: Tensor) -> tuple[Tensor, ...]:
    """Return the bars of all maps one after the other, those of a map by death and death edge.

    Args:
        edges: row·2^16 + column of each edge in the order of growth [count, n − 1], the first `sizes` − 1 of
            them valid.
        weights: of the edges.
        sizes: tokens of each map [count].
        finite: maps that have bars [count].
    """
    deaths = 1.0 - weights.double().numpy()
    keys = edges.long().numpy()
    # a component that joins at distance 0 has no bar
    valid = (np.arange(keys.shape[1]) < sizes.numpy()[:, None] - 1) & (deaths != 0.0)
    owner, step = np.nonzero(valid)
    deaths, keys = deaths[owner, step], keys[owner, step]
    order = np.lexsort((keys, deaths, owner))
    counts = valid.sum(1) + finite.numpy()
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    # every finite map ends with the component that never joins another one
    total = int(offsets[-1])
    joins = np.ones(total, dtype=bool)
    joins[offsets[1:][finite.numpy()] - 1] = False
    death = np.full(total, np.inf)
    death[joins] = deaths[order]
    death_edge = np.full((total, 2), -1, dtype=np.int32)
    death_edge[joins] = np.stack([keys[order] >> 16, keys[order] & 0xFFFF], -1)
    return (
        torch.zeros(total, dtype=torch.float64, device="cpu"),
        torch.from_numpy(death),
        torch.zeros(total, dtype=torch.int8, device="cpu"),
        torch.full((total, 2), -1, dtype=torch.int32, device="cpu"),
        torch.from_numpy(death_edge),
        torch.from_numpy(offsets),
    )
