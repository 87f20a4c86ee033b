# SPDX-License-Identifier: MIT
"""Persistent homology as the topology notebook gets it from the ripser package."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.closed_forms import identity, ring
from attnscope.metrics.homology.barcodes import Barcodes
from attnscope.protocols.ruscio2025._maps import non_finite

Array = np.ndarray[Any, np.dtype[Any]]

# The notebook keeps so many tokens of a longer map.
TOKENS = 30
# Beyond every distance, all in [0, 1]: the place of edges that the notebook's conversion loses.
_NEVER = 3.0
# Half of each query's attention on itself: tokens are born at 1/2 and meet at 3/4, and the loop of four fills
# at 1.
RING = (identity(4) + ring()) / 2


@memory_errors("persistence")
@without_derivative("it is the published code's number, made for comparing")
def persistence(attention: torch.Tensor) -> Barcodes:
    """Return the topology notebook's bars of D = 1 − A in float32: not symmetrised, with its diagonal.

    As in the ripser package's treatment of a non-zero diagonal, vertex i is born at D_ii; only
    entries above the diagonal are read, and an edge enters at its own D_ij even before its ends; entries
    that are exactly 0 are lost in a sparse conversion, so a loop or a second component can be infinite. Bars
    whose death does not exceed their birth are dropped. If n > 30, 30 tokens are kept.

    On a causal map nothing above the diagonal differs: every edge enters at 1, so there are min(n, 30) bars
    of H0 of lengths A_ii and never a loop, for any attention.

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
    """Compute `persistence` for another function of the protocol, which errors and warnings name."""
    checked = _checks.attention_argument(function, attention)
    _checks.require_map(function, checked)
    # all up to 30, else int(linspace(0, n − 1, 30))
    token_places = torch.from_numpy(np.linspace(0, checked.n - 1, min(checked.n, TOKENS)).astype(np.int64))
    distance = (1.0 - checked.tensor.to(torch.float32))[..., token_places[:, None], token_places].double()
    birth_of_vertex = distance.diagonal(dim1=-2, dim2=-1)
    # A diagonal of zeros alone is not converted, and then no entry is lost.
    converted = (birth_of_vertex != 0).any(-1)[..., None, None]
    edges = torch.where(converted & (distance == 0), _NEVER, distance)
    # D is a float32 within 1e-2 of [0, 1]: one more, which the core takes, is not below 0 and not rounded.
    apart = (1.0 + edges).triu(1)
    apart[non_finite(checked.tensor)] = torch.nan
    *columns, offsets, count = _core.persistence(apart, None, 1, "max", "distance")
    bars = torch.column_stack(columns).numpy()  # birth, death, dimension, birth edge and death edge
    bars[:, :2] -= 1
    bars[bars[:, 1] >= _NEVER, 1] = np.inf
    born = birth_of_vertex.reshape(-1, len(token_places)).numpy()
    of_maps = zip(born, np.split(bars, offsets.numpy()[:-1])[1:], strict=True)
    parts = [
        _with_vertices(births, bars_of_map) if len(bars_of_map) else bars_of_map
        for births, bars_of_map in of_maps
    ]
    rows = torch.from_numpy(np.concatenate([bars[:0], *parts]))
    birth, death, dimension = rows[:, :3].mT.contiguous()
    place = rows[:, 3:].int()
    opens, closes = torch.where(place < 0, place, token_places[place].int()).hsplit(2)
    sizes = torch.tensor([0, *map(len, parts)], device="cpu")
    result = Barcodes(birth, death, dimension.to(torch.int8), opens, closes, sizes.cumsum(0), checked.leading)
    return _calls.warn_non_finite(function, checked, result, count)


def _with_vertices(births: Array, bars: Array) -> Array:
    """Return one map's bars with its vertices born at `births` instead of before all edges.

    The bars of H0 are found anew, by the elder rule over the tree of the edges that end them.
    """
    joins = bars[(bars[:, 2] == 0) & np.isfinite(bars[:, 1])]
    loops = bars[bars[:, 2] == 1]
    loops[np.isinf(loops[:, 1]), 5:] = -1
    born = births.tolist()
    oldest = list(range(len(born)))  # the first-born vertex of each one's component
    components = []
    for death, (a, b) in zip(joins[:, 1].tolist(), joins[:, 5:].astype(int).tolist(), strict=True):
        elder, younger = sorted((oldest[a], oldest[b]), key=born.__getitem__)
        if death > born[younger]:
            components.append((born[younger], death, 0, -1, -1, a, b))
        oldest = [elder if vertex == younger else vertex for vertex in oldest]
    components += [(born[vertex], np.inf, 0, -1, -1, -1, -1) for vertex in sorted(set(oldest))]
    return np.concatenate([sorted(components, key=lambda bar: bar[:2]), loops])


# Its bars are read by `betti` and `topology`.
SOURCES = (persistence,)
