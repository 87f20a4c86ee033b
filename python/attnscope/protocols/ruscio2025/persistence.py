# SPDX-License-Identifier: MIT
"""Persistent homology as the topology notebook gets it from the ripser package."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnscope import _checks, _core
from attnscope.metrics.homology.barcodes import Barcodes
from attnscope.metrics.quantity import identity, ring
from attnscope.protocols.ruscio2025._maps import non_finite

Array = np.ndarray[Any, np.dtype[Any]]

# The notebook keeps so many tokens of a longer map.
TOKENS = 30
# Beyond every distance, which lie in [0, 1]: where edges go that the notebook's conversion loses.
_NEVER = 3.0
# Half of each query's attention on itself: tokens are born at 1/2 and meet at 3/4, and the loop of four fills
# at 1.
RING = (identity(4) + ring()) / 2


def persistence(attention: torch.Tensor) -> Barcodes:
    """The topology notebook's bars of D = 1 − A in float32: not symmetrised, with its diagonal.

    What the ripser package makes of a matrix with a non-zero diagonal: vertex i is born at D_ii; only
    entries above the diagonal are read, and an edge enters at its own D_ij even before its ends; entries
    that are exactly 0 are lost in a sparse conversion, so a loop or a second component can be infinite. Bars
    whose death does not exceed their birth are dropped. Of n > 30 tokens 30 are kept.

    On a causal map nothing above the diagonal differs: every edge enters at 1, so there are min(n, 30) bars
    of H0 of lengths A_ii and never a loop, whatever the model attends to.

    Args:
        attention: head mean [..., n, n] (the notebook cuts texts to 48 tokens before).

    Returns:
        Barcodes; edges name the original tokens. A map with NaN or infinite entries has an empty slice.

    Raises:
        ValueError: as the exact `persistence`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
        >>> ruscio2025.persistence(uniform)[()][0].round(6).tolist()
        [[0.0, inf], [0.5, 1.0], [0.666667, 1.0], [0.75, 1.0]]

    References:
        Tralie, Saul, Bar-On, Ripser.py, 2018.
    """
    return bars_of("ruscio2025.persistence", attention)


def bars_of(function: str, attention: torch.Tensor) -> Barcodes:
    """`persistence` for another function of the protocol, which errors and warnings name."""
    checked = _checks.attention_argument(function, attention)
    # all up to 30, else int(linspace(0, n − 1, 30))
    kept = torch.from_numpy(np.linspace(0, checked.n - 1, min(checked.n, TOKENS)).astype(np.int64))
    distance = (1.0 - checked.tensor.to(torch.float32))[..., kept[:, None], kept].double()
    birth_of_vertex = distance.diagonal(dim1=-2, dim2=-1)
    # A diagonal of zeros alone is not converted, and then no entry is lost.
    converted = (birth_of_vertex != 0).any(-1)[..., None, None]
    edges = torch.where(converted & (distance == 0), _NEVER, distance).triu(1)
    # As similarities that the exact kernel turns back into (1 + D)/2, without rounding: D is a float32
    # within 1e-2 of [0, 1].
    similarity = 1.0 - (1.0 + edges + edges.transpose(-1, -2)) / 2
    similarity[non_finite(checked.tensor)] = torch.nan
    birth, death, dimension, opens, closes, offsets, count = _core.persistence(
        similarity, None, 1, "max", "attention"
    )
    birth, death = 2 * birth - 1, 2 * death - 1
    death[death >= _NEVER] = torch.inf
    columns = [one.numpy() for one in (birth, death, dimension, opens, closes)]
    each = zip(birth_of_vertex.reshape(-1, len(kept)).numpy(), pairwise(offsets.tolist()), strict=True)
    parts = [
        _with_vertices(vertices, *(column[begin:end] for column in columns))
        for vertices, (begin, end) in each
    ]
    if parts:
        birth, death, dimension, opens, closes = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)
        )
    for edge in (opens, closes):
        known = edge >= 0
        edge[known] = kept[edge[known].long()].to(torch.int32)
    sizes = torch.tensor([0, *(len(part[0]) for part in parts)])
    bars = Barcodes(birth, death, dimension, opens, closes, sizes.cumsum(0), checked.leading)
    return _checks.finished(function, checked, bars, count)


def _with_vertices(
    vertices: Array, birth: Array, death: Array, dimension: Array, opens: Array, closes: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """One map's bars with its vertices born at `vertices` instead of before all edges."""
    if len(birth) == 0:
        return birth, death, dimension, opens, closes
    joins = (dimension == 0) & np.isfinite(death)
    loops = dimension == 1
    components = _components(vertices, death[joins], closes[joins])
    none = np.full((len(components[0]), 2), -1, np.int32)
    endless = np.isinf(death[loops])[:, None]
    return (
        np.concatenate([components[0], birth[loops]]),
        np.concatenate([components[1], death[loops]]),
        np.concatenate([np.zeros(len(none), np.int8), dimension[loops]]),
        np.concatenate([none, opens[loops]]),
        np.concatenate([components[2], np.where(endless, np.int32(-1), closes[loops])]),
    )


def _components(births: Array, deaths: Array, edges: Array) -> tuple[Array, Array, Array]:
    """H0 bars (birth, death, death edge) of vertices that are born late, by the elder rule over the tree."""
    oldest = births.tolist()
    parent = list(range(len(oldest)))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    bars: list[tuple[float, float, int, int]] = []
    for death, (a, b) in zip(deaths.tolist(), edges.tolist(), strict=True):
        first, second = root(a), root(b)
        if oldest[first] > oldest[second]:
            first, second = second, first
        if death > oldest[second]:
            bars.append((oldest[second], death, a, b))
        parent[second] = first
    bars += [(oldest[v], np.inf, -1, -1) for v in range(len(oldest)) if parent[v] == v]
    bars.sort(key=lambda bar: bar[:2])
    table = np.array(bars, dtype=np.float64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2:].astype(np.int32)


# Its bars are read by `betti` and `topology`.
SOURCES = (persistence,)
