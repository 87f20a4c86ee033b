# SPDX-License-Identifier: MIT
"""The H0 bars of whole maps of lazy attention, by Borůvka's passes in memory of n numbers and one tile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope.metrics.lazy.lazy_attention import LazyAttention

Array = np.ndarray[Any, np.dtype[Any]]

#: Entries of a tile of rows that is looked at together.
_TILE_ENTRIES = 1 << 22


class Candidates(NamedTuple):
    """For each token of one map the heaviest pair that leaves its component: weight and the other token."""

    weights: Array
    partners: Array

    def take(self, tokens: slice, weights: Array, partners: Array) -> None:
        """Take heavier pairs of some tokens; of equal ones those that came first stay."""
        heavier = weights > self.weights[tokens]
        self.weights[tokens] = np.where(heavier, weights, self.weights[tokens])
        self.partners[tokens] = np.where(heavier, partners, self.partners[tokens])


def spanning_trees(attention: LazyAttention) -> list[tuple[Array, Array, Array]]:
    """Return each map's tree of heaviest pairs max(A_ij, A_ji): rows, columns and weights, heavy to light.

    Each pass visits all entries and joins every component to the one it is heaviest joined to, so log n
    passes are enough. Rows are above columns, and ties are decided by (row, column), as in `persistence`. A
    map with NaN has no tree.
    """
    lengths = attention.sizes.flatten().tolist()
    labels = [np.arange(length) for length in lengths]
    edges: list[list[tuple[int, int, float]]] = [[] for _ in lengths]
    non_finite = (attention.log_z.isnan() & attention.visibility.real).any(-1).flatten().tolist()
    pending = [head for head, length in enumerate(lengths) if length > 1 and not non_finite[head]]
    while pending:
        candidates = _find_candidates(attention, labels, pending, lengths)
        for head in pending:
            _join(labels[head], candidates[head], edges[head])
        pending = [head for head in pending if len(edges[head]) < lengths[head] - 1]
    return [_sort(tree) for tree in edges]


def _find_candidates(
    attention: LazyAttention, labels: list[Array], pending: list[int], lengths: list[int]
) -> dict[int, Candidates]:
    rows_of = {
        head: Candidates(np.full(lengths[head], -1.0), np.zeros(lengths[head], int)) for head in pending
    }
    columns_of = {
        head: Candidates(np.full(lengths[head], -1.0), np.zeros(lengths[head], int)) for head in pending
    }
    n, heads = attention.shape[-1], max(1, attention.shape[:-2].numel())
    step = max(1, _TILE_ENTRIES // (n * heads))
    for begin in range(0, n, step):
        slab = attention.rows(slice(begin, begin + step)).flatten(0, -3).numpy()
        for head in pending:
            length, label = lengths[head], labels[head]
            tile = slab[head, : max(0, length - begin), :length]
            if not len(tile):
                continue
            inside = slice(begin, begin + len(tile))
            leaving = np.where(label[inside, None] != label, tile, -1.0)
            best = leaving.argmax(-1)
            rows_of[head].take(inside, leaving[np.arange(len(tile)), best], best)
            best = leaving.argmax(0)
            columns_of[head].take(slice(0, length), leaving[best, np.arange(length)], begin + best)
    return {head: _merge(rows_of[head], columns_of[head]) for head in pending}


def _merge(rows: Candidates, columns: Candidates) -> Candidates:
    """Return the heavier of each token's two pairs, of equal ones the earlier in (row, column)."""
    earlier = columns.partners < rows.partners
    chosen = (columns.weights > rows.weights) | ((columns.weights == rows.weights) & earlier)
    return Candidates(
        np.where(chosen, columns.weights, rows.weights), np.where(chosen, columns.partners, rows.partners)
    )


def _join(label: Array, candidates: Candidates, edges: list[tuple[int, int, float]]) -> None:
    """Add each component's heaviest pair to the tree, and give joined components one label."""
    token = np.arange(len(label))
    high, low = np.maximum(token, candidates.partners), np.minimum(token, candidates.partners)
    order = np.lexsort((low, high, -candidates.weights, label))
    first = np.ones(len(order), bool)
    first[1:] = label[order][1:] != label[order][:-1]
    parents = np.arange(len(label))

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for vertex in order[first].tolist():
        pair = (int(high[vertex]), int(low[vertex]))
        a, b = root(int(label[pair[0]])), root(int(label[pair[1]]))
        if a != b:
            parents[max(a, b)] = min(a, b)
            edges.append((*pair, float(candidates.weights[vertex])))
    label[:] = [root(int(number)) for number in label]


def _sort(tree: list[tuple[int, int, float]]) -> tuple[Array, Array, Array]:
    ends = np.array([edge[:2] for edge in tree], dtype=np.int64).reshape(-1, 2)
    weights = np.array([edge[2] for edge in tree])
    order = np.lexsort((ends[:, 1], ends[:, 0], -weights))
    return ends[order, 0], ends[order, 1], weights[order]
