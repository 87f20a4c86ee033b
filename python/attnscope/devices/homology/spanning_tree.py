# SPDX-License-Identifier: MIT
"""Prim's algorithm as a Triton kernel: one program grows the maximum spanning tree of one map."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Number of an edge that comes behind every edge.
NO_EDGE = tl.constexpr(2**62)


@triton.jit
def _edge(vertex, other):
    """Return row·2^16 + column of the edge between two vertices, the larger one its row."""
    row, column = tl.maximum(vertex, other), tl.minimum(vertex, other)
    return row.to(tl.int64) * 65536 + column


@triton.jit
def _grow(similarities, lengths, edges, weights, n, VERTICES: tl.constexpr):
    """Grow the tree of a map from vertex 0; each step joins the nearest vertex outside and reads its row."""
    index = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + index)
    square, first = similarities + index * n * n, index * (n - 1)
    j = tl.arange(0, VERTICES)
    outside = (j > 0) & (j < length)
    largest = tl.load(square + j, mask=outside, other=-float("inf"))
    source = tl.zeros([VERTICES], tl.int32)  # the vertex of the tree that has the largest similarity
    for step in range(1, length):
        nearest = tl.max(largest, 0)
        edge = _edge(j, source)
        chosen = tl.min(tl.where(outside & (largest == nearest), edge, NO_EDGE), 0)
        tl.store(edges + first + step - 1, chosen)
        tl.store(weights + first + step - 1, nearest)
        vertex = tl.max(tl.where(outside & (edge == chosen), j, 0), 0)
        outside = outside & (j != vertex)
        similarity = tl.load(square + vertex.to(tl.int64) * n + j, mask=outside, other=-float("inf"))
        # of two edges to one vertex that from the smaller vertex comes first in (row, column)
        takes = (similarity > largest) | ((similarity == largest) & (vertex < source))
        largest = tl.where(outside & ~takes, largest, similarity)
        source = tl.where(takes, vertex, source)


def grow(similarities: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of the maximum spanning tree of every map, in the order of growth.

    Args:
        similarities: symmetric and finite inside each map's length, contiguous [m, n, n] float32 or float64.
        lengths: vertices of each map, at least 1, [m].

    Returns:
        Edges as row·2^16 + column, int64 [m, n − 1], and their similarities [m, n − 1]; numbers behind the
        first `lengths` − 1 of a map have no meaning. Of equal similarities the edge that comes first by (row,
        column) is taken.
    """
    count, n = similarities.shape[:2]
    edges = torch.zeros((count, n - 1), dtype=torch.int64, device=similarities.device)
    weights = torch.zeros((count, n - 1), dtype=similarities.dtype, device=similarities.device)
    if n > 1 and count:
        vertices = triton.next_power_of_2(n)
        warps = min(16, max(1, vertices // 128))
        _grow[(count,)](similarities, lengths, edges, weights, n, VERTICES=vertices, num_warps=warps)
    return edges, weights
