# SPDX-License-Identifier: MIT
"""Functions of the core about graphs and bars for lazy attention, under their names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.estimates import IntervalEstimate
from attnscope.metrics.lazy.connectivity import fiedler_intervals
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.spanning_tree import spanning_trees
from attnscope.metrics.lazy.threshold_graphs import (
    Edges,
    bars_down_to,
    betti_of_graph,
    edges_of_maps,
    eigenvalues_of_graph,
    require_square,
    second_eigenvalue,
    statistics_of_graph,
)

Bar = tuple[Any, ...]
_NOWHERE = (-1, -1)


def betti_numbers(
    attention: LazyAttention, lengths: Tensor | None, thresholds: Tensor, symmetrize: str
) -> tuple[Tensor, int]:
    """Return β0 and β1 at each threshold, int64 [..., h, T, 2]; −1 of a map with NaN."""
    attention = _prepare("betti_numbers", attention, lengths, symmetrize)
    levels = _levels(attention, thresholds)
    result = np.full((*levels.shape, 2), -1, dtype=np.int64)
    for head, edges in enumerate(_edges(attention, levels)):
        for place, level in enumerate(levels[head] if edges.n else ()):
            result[head, place] = betti_of_graph(edges.at_least(level), "betti_numbers")
    shape = (*attention.shape[:-2], levels.shape[1], 2)
    return torch.from_numpy(result).reshape(shape), int((result[:, 0, 0] < 0).sum())


def graph_statistics(
    attention: LazyAttention, lengths: Tensor | None, thresholds: Tensor
) -> tuple[tuple[Tensor, ...], int]:
    """Return the fields of `GraphStatistics`, each [..., h, T]."""
    attention = _prepare("graph_statistics", attention, lengths, "max")
    levels = _levels(attention, thresholds)
    undefined = (math.nan,) * 2 + (-1,) + (math.nan,) * 8 + (False, -1)
    rows = [
        statistics_of_graph(edges.at_least(level)) if edges.n else undefined
        for head, edges in enumerate(_edges(attention, levels))
        for level in levels[head]
    ]
    shape = (*attention.shape[:-2], levels.shape[1])
    real, count, flag = (float, torch.float64), (int, torch.int64), (bool, torch.bool)
    types = [real] * 2 + [count] + [real] * 8 + [flag, count]
    fields = zip(zip(*rows, strict=True), types, strict=True)
    tensors = tuple(
        torch.tensor([*map(kind, column)], dtype=dtype, device="cpu").reshape(shape)
        for column, (kind, dtype) in fields
    )
    return tensors, int((tensors[2].reshape(len(levels), -1)[:, 0] < 0).sum())


def fiedler_value(
    attention: LazyAttention,
    lengths: Tensor | None,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str = "exact",
) -> tuple[Tensor | IntervalEstimate, int]:
    """Return λ2 of the graph at a threshold, [..., h], or of that of all weights with its interval."""
    attention = _prepare("fiedler_value", attention, lengths, "max")
    if threshold is None:
        if symmetrize != "mean":
            raise ValueError(
                "fiedler_value: the graph of all weights of lazy attention is (A + Aᵀ)/2, expected "
                f"symmetrize='mean', got {symmetrize!r}"
            )
        return fiedler_intervals(attention, normalized)
    values = [
        second_eigenvalue(edges, normalized) if edges.n else math.nan
        for edges in edges_of_maps(attention, threshold)
    ]
    result = torch.tensor(values, dtype=torch.float64, device="cpu").reshape(attention.shape[:-2])
    return result, int(result.isnan().sum())


def laplacian_eigenvalues(
    attention: LazyAttention,
    lengths: Tensor | None,
    k: int,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
) -> tuple[Tensor, int]:
    """Return the k smallest eigenvalues of the Laplacian of the graph at a threshold, [..., h, k]."""
    if threshold is None:
        raise ValueError(
            "laplacian_eigenvalues: the Laplacian of all weights is not sparse, and lazy attention has no "
            "map to decompose; give threshold=, or take fiedler_value, whose interval is certified"
        )
    attention = _prepare("laplacian_eigenvalues", attention, lengths, "max")
    result = np.full((attention.shape[:-2].numel(), k), math.nan)
    non_finite = 0
    for head, edges in enumerate(edges_of_maps(attention, threshold)):
        non_finite += not edges.n
        values = eigenvalues_of_graph(edges, min(k, edges.n), normalized)
        result[head, : len(values)] = values
    return torch.from_numpy(result).reshape(*attention.shape[:-2], k), non_finite


def persistence(
    attention: LazyAttention,
    lengths: Tensor | None,
    max_dimension: int,
    symmetrize: str,
    metric: str,
    at_least: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Return the fields of `Barcodes`: bars down to a weight, or all of H0."""
    attention = _prepare("persistence", attention, lengths, symmetrize)
    if metric != "attention":
        raise ValueError(f"persistence: lazy attention has the metric 'attention' alone, got {metric!r}")
    if at_least is None:
        if max_dimension > 0:
            raise ValueError(
                "persistence: loops of lazy attention are found down to a weight; give at_least=, or "
                "max_dimension=0"
            )
        bars = [_bars_of_tree(*tree) for tree in spanning_trees(attention)]
        non_finite = (attention.log_z.isnan() & attention.visibility.real).any(-1).flatten().tolist()
        bars = [
            [] if is_non_finite else of_map for of_map, is_non_finite in zip(bars, non_finite, strict=True)
        ]
    else:
        bars = [
            bars_down_to(edges, at_least, max_dimension, "persistence") if edges.n else []
            for edges in edges_of_maps(attention, at_least)
        ]
    return _pack(bars)


def _prepare(
    function: str, attention: LazyAttention, lengths: Tensor | None, symmetrize: str
) -> LazyAttention:
    require_square(function, attention)
    if symmetrize != "max":
        raise ValueError(
            f"{function}: lazy attention is symmetrized by 'max', whose pairs its entries decide; "
            f"got {symmetrize!r}"
        )
    return attention if lengths is None else attention.with_lengths(lengths)


def _levels(attention: LazyAttention, thresholds: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    maps = attention.shape[:-2].numel()
    return np.broadcast_to(thresholds.numpy(), (maps, thresholds.shape[-1]))


def _edges(attention: LazyAttention, levels: np.ndarray[Any, np.dtype[np.float64]]) -> list[Edges]:
    smallest = float(levels.min())
    if not smallest < 1.0:  # of "k/n" alone, which is the empty graph
        smallest = 0.999
    return list(edges_of_maps(attention, smallest))


def _bars_of_tree(high: Any, low: Any, weights: Any) -> list[Bar]:
    deaths = 1.0 - np.minimum(weights, 1.0)
    ends = zip(high.tolist(), low.tolist(), strict=True)
    bars = [
        (0, 0.0, death, _NOWHERE, pair) for death, pair in zip(deaths.tolist(), ends, strict=True) if death
    ]
    return [*bars, (0, 0.0, math.inf, _NOWHERE, _NOWHERE)]


def _pack(bars: list[list[Bar]]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    flat_bars = [bar for of_map in bars for bar in of_map]
    columns: list[Any] = list(zip(*flat_bars, strict=True)) if flat_bars else [()] * 5
    counts = torch.tensor([0, *map(len, bars)], dtype=torch.int64, device="cpu")

    def tensor(values: Any, dtype: torch.dtype, *axes: int) -> Tensor:
        return torch.tensor(values, dtype=dtype, device="cpu").reshape(len(flat_bars), *axes)

    return (
        tensor(columns[1], torch.float64),
        tensor(columns[2], torch.float64),
        tensor(columns[0], torch.int8),
        tensor(columns[3], torch.int32, 2),
        tensor(columns[4], torch.int32, 2),
        counts.cumsum(0),
        sum(not of_map for of_map in bars),
    )
