# SPDX-License-Identifier: MIT
"""Graphs of lazy attention down to a weight: statistics, Betti numbers and bars from its sparse entries.

The graph at a threshold holds the pairs with max(A_ij, A_ji) at or above it, of which there are n/threshold
at most. Loops are counted after vertices that another one dominates are taken out, which changes no homology
and leaves little of a graph with a sink.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch

from attnscope import _core
from attnscope.metrics.lazy.lazy_attention import LazyAttention, SparseAttention

Array = np.ndarray[Any, np.dtype[Any]]

#: Vertices of a graph that is handed to the kernels for dense maps, whose memory grows with their square.
MOST_VERTICES = 8192
#: Vertices up to which all eigenvalues of a Laplacian are taken.
_MOST_OF_DENSE_SPECTRUM = 1024


class Edges(NamedTuple):
    """Entries of one map off its diagonal: query, key and weight, and the number of tokens."""

    queries: Array
    keys: Array
    weights: Array
    n: int

    def at_least(self, threshold: float) -> Edges:
        """Return the entries that reach a threshold."""
        chosen = self.weights >= threshold
        return Edges(self.queries[chosen], self.keys[chosen], self.weights[chosen], self.n)

    def pairs(self) -> Edges:
        """Return each pair once, the larger number first, with the larger weight of its two entries."""
        high, low = np.maximum(self.queries, self.keys), np.minimum(self.queries, self.keys)
        order = np.lexsort((-self.weights, low, high))
        high, low, weights = high[order], low[order], self.weights[order]
        first = np.ones(len(high), bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return Edges(high[first], low[first], weights[first], self.n)

    def adjacency(self) -> scipy.sparse.csr_matrix:
        """Return the symmetric matrix of the pairs, 1 where two tokens are joined."""
        ends = (np.concatenate([self.queries, self.keys]), np.concatenate([self.keys, self.queries]))
        return scipy.sparse.csr_matrix((np.ones(len(ends[0])), ends), shape=(self.n, self.n))


def edges_of_maps(attention: LazyAttention, threshold: float) -> Iterator[Edges]:
    """Yield the entries of each map that reach a threshold; of a map with NaN no tokens."""
    entries, log_z = attention.at_least(threshold), attention.log_z
    non_finite = (log_z.isnan() & attention.visibility.real).any(-1).flatten().tolist()
    lengths = attention.sizes.flatten().tolist()
    for head, (length, is_non_finite) in enumerate(zip(lengths, non_finite, strict=True)):
        yield Edges(*_entries_of(entries, head), 0 if is_non_finite else int(length))


def require_square(function: str, attention: LazyAttention) -> None:
    """Raise if the map is no graph of one set of tokens."""
    queries, keys = attention.shape[-2:]
    if queries != keys or attention.query_positions is not None:
        raise ValueError(
            f"{function}: attention must be square in its last two dimensions, with queries at their own "
            f"keys, got {queries} queries and {keys} keys"
        )


def statistics_of_graph(edges: Edges) -> tuple[Any, ...]:
    """Return the fields of `GraphStatistics` of the simple graph of these entries."""
    n, pairs = edges.n, edges.pairs()
    degree = np.bincount(np.concatenate([pairs.queries, pairs.keys]), minlength=n)
    incoming = np.bincount(edges.keys, minlength=n)
    count, labels = components_of(pairs)
    second, gap = _spectrum_of(pairs, count, labels)
    links, hub = degree.sum() / 2, int(degree.max())
    density = links / (0.5 * n * (n - 1)) if n >= 2 else math.nan
    share = hub / (n - 1) if n >= 2 else math.nan
    central = (hub * n - degree.sum()) / ((n - 1) * (n - 2)) if n >= 3 else math.nan
    likeness = share * (1 - (links - hub) / (0.5 * (n - 1) * (n - 2))) if n >= 3 else math.nan
    central_in = (incoming.max() * n - incoming.sum()) / (n - 1) ** 2 if n >= 2 else math.nan
    return (
        second,
        gap,
        count,
        density,
        share,
        _gini(degree),
        central,
        float(np.mean((degree - degree.mean()) ** 2)),
        likeness,
        _gini(incoming),
        central_in,
        n >= 2 and 0.05 <= density <= 0.95,
        _count_strong_components(edges),
    )


def _count_strong_components(edges: Edges) -> int:
    """Return the number of strongly connected components of the directed graph of these entries."""
    ends = (edges.queries, edges.keys)
    directed = scipy.sparse.csr_matrix((np.ones(len(edges.keys)), ends), shape=(edges.n, edges.n))
    count, _ = scipy.sparse.csgraph.connected_components(directed, directed=True, connection="strong")
    return int(count)


def components_of(pairs: Edges) -> tuple[int, Array]:
    """Return the number of connected components, and the component of each token."""
    count, labels = scipy.sparse.csgraph.connected_components(pairs.adjacency(), directed=False)
    return int(count), labels


def second_eigenvalue(edges: Edges, normalized: bool) -> float:
    """Return λ2 of the Laplacian of the simple graph of these entries, 0 where it falls apart."""
    pairs = edges.pairs()
    count, _ = components_of(pairs)
    if pairs.n < 2 or count > 1:
        return 0.0
    return float(smallest_eigenvalues(pairs.adjacency(), 2, normalized)[1])


def smallest_eigenvalues(adjacency: scipy.sparse.csr_matrix, k: int, normalized: bool = False) -> Array:
    """Return the k smallest eigenvalues of the Laplacian of a connected graph, ascending."""
    laplacian = scipy.sparse.csgraph.laplacian(adjacency, normed=normalized).tocsc()
    n = laplacian.shape[0]
    if n <= _MOST_OF_DENSE_SPECTRUM or k > n // 4:
        return np.linalg.eigvalsh(laplacian.toarray())[:k]
    start = np.random.default_rng(0).standard_normal(n)
    # A shift below all eigenvalues makes the matrix definite, and those next to 0 converge first.
    values = scipy.sparse.linalg.eigsh(
        laplacian, k, sigma=-1e-2, v0=start, return_eigenvectors=False, tol=1e-12
    )
    return np.maximum(np.sort(values), 0.0)


def eigenvalues_of_graph(edges: Edges, k: int, normalized: bool) -> Array:
    """Return the k smallest eigenvalues of the Laplacian of the simple graph of these entries, ascending.

    Eigenvalues of a large component come from a shifted and inverted sparse factor, where few are asked for.
    """
    pairs = edges.pairs()
    adjacency = pairs.adjacency()
    count, labels = components_of(pairs)
    sizes = np.bincount(labels, minlength=count)
    values = [np.zeros(int((sizes == 1).sum()))]  # tokens that nothing joins
    for component in np.flatnonzero(sizes > 1):
        tokens = np.flatnonzero(labels == component)
        number = min(k, len(tokens))
        if number > len(tokens) // 4 and len(tokens) > MOST_VERTICES:
            raise ValueError(
                f"laplacian_eigenvalues: {len(tokens)} tokens of one map are joined at this threshold, and "
                f"{number} eigenvalues of at most {MOST_VERTICES} fit in memory; ask for fewer, or raise the "
                "threshold"
            )
        part = smallest_eigenvalues(adjacency[tokens][:, tokens], number, normalized)
        part[0] = 0.0  # of the constant vector
        values.append(np.maximum(part, 0.0))
    return np.sort(np.concatenate(values))[:k]


def betti_of_graph(edges: Edges, function: str) -> tuple[int, int]:
    """Return β0 and β1 of the clique complex of the simple graph of these entries."""
    pairs = edges.pairs()
    count, _ = components_of(pairs)
    core = collapse(pairs)
    if len(core) < 4:
        return count, 0
    _require_small(function, len(core))
    graph = pairs.adjacency()[core][:, core].toarray()
    betti = _core.betti_numbers(
        torch.from_numpy(graph), None, torch.tensor([0.5], dtype=torch.float64, device="cpu"), "max"
    )
    return count, int(betti[0][0, 1])


def collapse(pairs: Edges) -> Array:
    """Return the vertices that are left when dominated ones are taken out one after another.

    A vertex is dominated by a neighbour that is joined to all its neighbours. Without it the clique complex
    has the same homotopy type (Barmak and Minian, Strong homotopy types, nerves and collapses, 2012).
    """
    neighbours: list[set[int]] = [{vertex} for vertex in range(pairs.n)]
    for high, low in zip(pairs.queries.tolist(), pairs.keys.tolist(), strict=True):
        neighbours[high].add(low)
        neighbours[low].add(high)
    waiting = [vertex for vertex in range(pairs.n) if len(neighbours[vertex]) > 1]
    alive = set(waiting)
    while waiting:
        touched: set[int] = set()
        for vertex in sorted(waiting, key=lambda member: len(neighbours[member])):
            circle = set(neighbours[vertex])
            if vertex not in alive or not any(
                circle <= neighbours[other] for other in circle if other != vertex
            ):
                continue
            alive.discard(vertex)
            for other in circle:
                neighbours[other].discard(vertex)
            touched |= circle
        waiting = [vertex for vertex in touched if vertex in alive]
    return np.array(sorted(vertex for vertex in alive if len(neighbours[vertex]) > 1), dtype=np.int64)


def bars_down_to(edges: Edges, threshold: float, dimension: int, function: str) -> list[tuple[Any, ...]]:
    """Return the bars of one map cut at 1 − threshold: (dimension, birth, death, birth edge, death edge)."""
    pairs = edges.pairs()
    count, labels = components_of(pairs)
    cut, nowhere = 1.0 - threshold, (-1, -1)
    bars: list[tuple[Any, ...]] = [(0, 0.0, math.inf, nowhere, nowhere)]
    bars += [(0, 0.0, cut, nowhere, nowhere)] * (count - 1)
    sizes = np.bincount(labels)
    for component in np.flatnonzero(sizes > 1):
        tokens = np.flatnonzero(labels == component)
        inside = labels[pairs.queries] == component
        if dimension == 0 and len(tokens) > MOST_VERTICES:
            bars += _bars_of_forest(pairs, inside)
            continue
        _require_small(function, len(tokens))
        place = np.searchsorted(tokens, [pairs.queries[inside], pairs.keys[inside]])
        weights = np.zeros((len(tokens), len(tokens)))
        weights[place[0], place[1]] = pairs.weights[inside]
        fields = _core.persistence(torch.from_numpy(weights), None, dimension, "max", "attention")
        birth, death, kind, opens, closes = (values.numpy() for values in fields[:5])
        for bar in np.flatnonzero((birth <= cut) & ~((kind == 0) & np.isinf(death))):
            ends = [
                tuple(tokens[pair].tolist()) if pair[0] >= 0 else nowhere
                for pair in (opens[bar], closes[bar])
            ]
            if death[bar] > cut:
                bars.append((int(kind[bar]), float(birth[bar]), cut, ends[0], nowhere))
            else:
                bars.append((int(kind[bar]), float(birth[bar]), float(death[bar]), *ends))
    return sorted(
        (bar for bar in bars if bar[1] < bar[2]), key=lambda bar: (bar[0], bar[1], bar[2], bar[3], bar[4])
    )


def _bars_of_forest(pairs: Edges, inside: Array) -> list[tuple[Any, ...]]:
    """Return the finite H0 bars of the chosen pairs: the edges of their heaviest spanning forest."""
    high, low, weights = pairs.queries[inside], pairs.keys[inside], pairs.weights[inside]
    order = np.lexsort((low, high, -weights))
    # ranks instead of weights, so that the order of equal ones is that of the filtration
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    graph = scipy.sparse.csr_matrix((ranks, (high, low)), shape=(pairs.n, pairs.n))
    chosen = order[scipy.sparse.csgraph.minimum_spanning_tree(graph).data.astype(np.int64) - 1]
    deaths = 1.0 - np.minimum(weights[chosen], 1.0)
    return [
        (0, 0.0, float(death), (-1, -1), (int(high[edge]), int(low[edge])))
        for death, edge in zip(deaths, chosen, strict=True)
    ]


def _entries_of(entries: SparseAttention, head: int) -> tuple[Array, Array, Array]:
    offsets = entries.offsets.flatten(0, -2)[head].numpy()
    inside = slice(int(offsets[0]), int(offsets[-1]))
    keys, weights = entries.keys[inside].numpy().astype(np.int64), entries.weights[inside].numpy()
    queries = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    chosen = queries != keys
    return queries[chosen], keys[chosen], weights[chosen]


def _spectrum_of(pairs: Edges, count: int, labels: Array) -> tuple[float, float]:
    """Return λ2 and λ3 − λ2 of a simple graph with so many components."""
    if pairs.n < 2:
        return 0.0, math.nan
    if count > 2:
        return 0.0, 0.0
    adjacency = pairs.adjacency()
    if count == 1:
        values = smallest_eigenvalues(adjacency, min(3, pairs.n))
        return float(values[1]), float(values[2] - values[1]) if pairs.n >= 3 else math.nan
    seconds = []
    for component in range(count):
        tokens = np.flatnonzero(labels == component)
        if len(tokens) > 1:
            seconds.append(smallest_eigenvalues(adjacency[tokens][:, tokens], 2)[1])
    return 0.0, float(min(seconds)) if seconds and pairs.n >= 3 else math.nan


def _gini(degree: Array) -> float:
    total, n = int(degree.sum()), len(degree)
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return float((ranks * np.sort(degree)).sum() / (n * total)) if total else 0.0


def _require_small(function: str, vertices: int) -> None:
    if vertices > MOST_VERTICES:
        raise ValueError(
            f"{function}: {vertices} tokens of one map are joined at this threshold, and the homology of at "
            f"most {MOST_VERTICES} fits in memory; raise the threshold"
        )
