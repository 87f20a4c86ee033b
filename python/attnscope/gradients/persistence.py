# SPDX-License-Identifier: MIT
"""Derivatives of the births and deaths of bars, and of the sums over bars.

Each birth and death is one distance d_ij, that of the edge which the bar records, so its gradient goes to the
entries that make this distance: the larger of A_ij and A_ji under "max" (both by halves where they are
equal), both by halves under "mean", the smaller under "min". Edges of equal weight have an order, and the
gradient goes to the edge that the bar records.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from attnscope.gradients import operators


class Bars(Protocol):
    """Bars of a batch of maps, as `attnscope.persistence` returns them."""

    @property
    def birth(self) -> Tensor: ...
    @property
    def death(self) -> Tensor: ...
    @property
    def dimension(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def _distances(maps: Tensor, owner: Tensor, edges: Tensor, symmetrize: str, metric: str) -> Tensor:
    """Return the distances [m] of edges [m, 2] of the maps [count, n, n] that own them, with a gradient."""
    i, j = edges.long().unbind(-1)
    if metric == "hellinger":
        rows = [maps[owner, place].double().clamp(min=0) for place in (i, j)]
        # the root has no derivative at 0, where an entry gets none
        roots = [torch.where(row > 0, torch.where(row > 0, row, 1.0).sqrt(), 0.0) for row in rows]
        square = (roots[0] - roots[1]).square().sum(-1) / 2
        return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
    forth, back = maps[owner, i, j].double(), maps[owner, j, i].double()
    if symmetrize == "mean":
        weight = (forth + back) / 2
    else:
        weight = torch.maximum(forth, back) if symmetrize == "max" else torch.minimum(forth, back)
    return 1 - weight.clamp(max=1)


def _with_gradient(
    values: Tensor, maps: Tensor, owner: Tensor, edges: Tensor, symmetrize: str, metric: str
) -> Tensor:
    """Return `values` [m], bit by bit, with the gradient of the distances of their edges."""
    recorded = edges[:, 0] >= 0
    place = recorded.nonzero().squeeze(-1).to(maps.device)
    distances = _distances(
        maps, owner[recorded].to(maps.device), edges[recorded].to(maps.device), symmetrize, metric
    )
    change = torch.zeros(len(values), dtype=torch.float64, device=maps.device)
    change = change.index_put((place,), distances - distances.detach())
    # infinity plus 0 stays infinite, and every other value too
    return values + change.to(values.device)


def persistence(
    maps: Tensor, lengths: Tensor | None, max_dimension: int, symmetrize: str, metric: str
) -> tuple[Tensor, ...]:
    """Return the core's bars, whose births and deaths carry the gradient of the maps."""
    results = operators.evaluate("persistence", maps.detach(), lengths, max_dimension, symmetrize, metric)
    birth, death, dimension, birth_edge, death_edge, offsets, non_finite = results
    flat = maps.reshape(-1, *maps.shape[-2:])
    if lengths is not None and metric == "hellinger":
        # keys behind a map's length are no part of its rows
        sizes = lengths.reshape(-1, 1, 1).to(maps.device)
        flat = torch.where(torch.arange(maps.shape[-1], device=maps.device) < sizes, flat, 0.0)
    owner = torch.repeat_interleave(torch.arange(len(flat), device="cpu"), offsets.diff())
    return (
        _with_gradient(birth, flat, owner, birth_edge, symmetrize, metric),
        _with_gradient(death, flat, owner, death_edge, symmetrize, metric),
        dimension,
        birth_edge,
        death_edge,
        offsets,
        non_finite,
    )


def _finite_lengths(barcodes: Bars, dimensions: int) -> tuple[Tensor, Tensor, int]:
    """Return the place [map, dimension] of each finite bar, flattened, its length, and how many places."""
    maps = len(barcodes.offsets) - 1
    owner = torch.repeat_interleave(torch.arange(maps, device="cpu"), barcodes.offsets.diff())
    place = owner * dimensions + barcodes.dimension.long()
    length = barcodes.death - barcodes.birth
    finite = length.isfinite()
    return place[finite], length[finite], maps * dimensions


def _shaped(barcodes: Bars, values: Tensor, dimensions: int) -> Tensor:
    """Return [..., dimensions] with NaN for maps that are not finite, which hold no bars."""
    holds_bars = (barcodes.offsets.diff() > 0)[:, None]
    table = torch.where(holds_bars, values.reshape(-1, dimensions), torch.nan)
    return table.reshape(*barcodes.shape, dimensions)


def total_persistence(barcodes: Bars, dimensions: int) -> Tensor:
    """Return Σ (death − birth) of the finite bars, [..., dimensions]."""
    place, length, places = _finite_lengths(barcodes, dimensions)
    sums = torch.zeros(places, dtype=torch.float64, device="cpu").index_add(0, place, length)
    return _shaped(barcodes, sums, dimensions)


def max_persistence(barcodes: Bars, dimensions: int) -> Tensor:
    """Return the longest finite bar, [..., dimensions]; of equal ones the first has the gradient."""
    place, length, places = _finite_lengths(barcodes, dimensions)
    longest = torch.full((places,), -torch.inf, dtype=torch.float64, device="cpu")
    longest = longest.scatter_reduce(0, place, length.detach(), "amax")
    is_longest = length.detach() == longest[place]
    order = torch.arange(len(length), device="cpu")
    first = torch.full((places,), len(length), device="cpu")
    first = first.scatter_reduce(0, place[is_longest], order[is_longest], "amin")
    exists = first < len(length)
    chosen = first[exists]
    sums = torch.zeros(places, dtype=torch.float64, device="cpu").index_put(
        (exists.nonzero().squeeze(-1),), length[chosen]
    )
    return _shaped(barcodes, sums, dimensions)


def persistent_entropy(barcodes: Bars, dimensions: int) -> Tensor:
    """Return −Σ p log p of the shares of the finite bars, [..., dimensions]; a share of 0 has no gradient."""
    place, length, places = _finite_lengths(barcodes, dimensions)
    zeros = torch.zeros(places, dtype=torch.float64, device="cpu")
    share = length / zeros.index_add(0, place, length)[place]
    terms = torch.where(share > 0, -share * torch.where(share > 0, share, 1.0).log(), 0.0)
    return _shaped(barcodes, zeros.index_add(0, place, terms), dimensions)
