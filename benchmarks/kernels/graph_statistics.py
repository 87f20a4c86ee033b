# SPDX-License-Identifier: MIT
"""Thresholded graphs at seven thresholds, against vectorised torch and networkx."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed
from maps import wanted_maps

THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def vectorised(attention: torch.Tensor) -> torch.Tensor:
    """λ2, gap, density, hub share, Gini and centralization, [maps, T, 6], in batched torch."""
    n = attention.shape[-1]
    larger = torch.maximum(attention, attention.mT).double()
    levels = torch.tensor(THRESHOLDS, dtype=torch.float64)[:, None, None]
    graph = (larger[:, None] >= levels).double()
    graph.diagonal(dim1=-2, dim2=-1).zero_()
    degree = graph.sum(-1)
    values = torch.linalg.eigvalsh(torch.diag_embed(degree) - graph)
    total, hub = degree.sum(-1), degree.amax(-1)
    ranks = 2 * torch.arange(1, n + 1, dtype=torch.float64) - n - 1
    gini = (ranks * degree.sort(-1).values).sum(-1) / (n * total).clamp(min=1)
    columns = (
        values[..., 1],
        values[..., 2] - values[..., 1],
        total / (n * (n - 1)),
        hub / (n - 1),
        gini,
        (n * hub - total) / ((n - 1) * (n - 2)),
    )
    return torch.stack(columns, -1)


def by_networkx(attention: torch.Tensor) -> np.ndarray:
    """Density, components and λ2 [maps, T, 3]."""
    import networkx as nx

    rows = []
    for weights in torch.maximum(attention, attention.mT).double().numpy():
        for level in THRESHOLDS:
            graph = nx.from_numpy_array((weights >= level) & ~np.eye(len(weights), dtype=bool))
            rows.append(
                (
                    nx.density(graph),
                    nx.number_connected_components(graph),
                    np.sort(nx.laplacian_spectrum(graph))[1],
                )
            )
    return np.array(rows).reshape(len(attention), len(THRESHOLDS), 3)


def agree(peer: str, ours: asc.GraphStatistics, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    fields = (
        (ours.density, ours.components, ours.fiedler_value)
        if peer == "networkx"
        else (
            ours.fiedler_value,
            ours.laplacian_gap,
            ours.density,
            ours.hub_share,
            ours.gini,
            ours.centralization,
        )
    )
    result = torch.stack([field.double() for field in fields], -1).numpy()[: len(theirs)]
    np.testing.assert_allclose(result, theirs, rtol=1e-9, atol=1e-10, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("graph_statistics", __doc__ or "")
    networkx = installed("networkx")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256), (64,)):
        peers: dict[str, Any] = {"torch": lambda attention=attention: vectorised(attention)}
        few: dict[str, int] = {}
        if networkx and n <= 128:
            few["networkx"] = 1
            peers["networkx"] = lambda attention=attention: by_networkx(attention[:1])
        benchmark.compare(
            name,
            len(attention),
            lambda attention=attention: asc.graph_statistics(attention, THRESHOLDS),
            peers,
            agree=agree,
            peer_maps=few,
            reads=attention.nbytes,
            facts={"n": n, "thresholds": len(THRESHOLDS)},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
