# SPDX-License-Identifier: MIT
"""Trees over prompt and answer, against vectorised torch, ripser and networkx on the contracted maps."""

from __future__ import annotations

import networkx
import numpy as np
import torch
from ripser import ripser

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

TARGET = 10.0


def contract(attention: torch.Tensor, start: int) -> torch.Tensor:
    """Distances of the prompt, as one vertex, and the answer's tokens, in the maps' own type."""
    distance = 1 - torch.maximum(attention, attention.mT).clamp_max(1)
    answer = distance[:, start:, start:]
    prompt = distance[:, start:, :start].amin(-1)
    rows = torch.cat([prompt[:, None], answer], 1)
    column = torch.cat([prompt.new_zeros(len(prompt), 1), prompt], 1)
    return torch.cat([column[..., None], rows], 2)


def torch_prim(attention: torch.Tensor, start: int) -> torch.Tensor:
    """Prim's algorithm on all maps at once."""
    distances = contract(attention, start)
    rows = torch.arange(len(distances))
    best = distances[:, 0].clone()
    best[:, 0] = torch.inf
    inside = torch.zeros_like(best, dtype=torch.bool)
    inside[:, 0] = True
    total = torch.zeros(len(distances), dtype=torch.float64)
    for _ in range(distances.shape[1] - 1):
        shortest, nearest = best.min(1)
        total += shortest
        inside[rows, nearest] = True
        best = torch.minimum(best, distances[rows, nearest]).masked_fill(inside, torch.inf)
    return total


def ripser_bars(attention: torch.Tensor, start: int) -> torch.Tensor:
    """Finite H0 bars of each contracted map."""
    totals = []
    for distances in contract(attention, start).double().numpy():
        np.fill_diagonal(distances, 0)
        deaths = ripser(distances, distance_matrix=True, maxdim=0)["dgms"][0][:, 1]
        totals.append(deaths[np.isfinite(deaths)].sum())
    return torch.tensor(totals)


def networkx_tree(attention: torch.Tensor, start: int) -> torch.Tensor:
    """Kruskal's algorithm on each contracted map."""
    totals = []
    for distances in contract(attention, start).double().numpy():
        graph = networkx.Graph()
        size = len(distances)
        graph.add_weighted_edges_from((i, j, distances[i, j]) for i in range(size) for j in range(i))
        edges = networkx.minimum_spanning_edges(graph)
        totals.append(sum(data["weight"] for _, _, data in edges))
    return torch.tensor(totals)


def agree(peer: str, ours: asc.PromptDivergence, theirs: torch.Tensor) -> None:
    size = ours.total[: len(theirs)].abs().clamp_min(1)
    torch.testing.assert_close(
        ours.total[: len(theirs)] / size, theirs.double() / size, rtol=0, atol=1e-5, msg=peer
    )


def main() -> None:
    benchmark = Benchmark("prompt_divergence", __doc__ or "")
    for n in sizes(benchmark, (64, 128, 512), (64,)):
        for name, attention in all_maps(n, regimes=("local", "diffuse", "peaky")).items():
            benchmark.compare(
                name,
                len(attention),
                lambda a=attention, n=n: asc.prompt_divergence(a, (n // 2, n)),
                {
                    "torch prim": lambda a=attention, n=n: torch_prim(a, n // 2),
                    "ripser": lambda a=attention, n=n: ripser_bars(a[:2], n // 2),
                    "networkx": lambda a=attention, n=n: networkx_tree(a[:1], n // 2),
                },
                agree=agree,
                reads=attention.nbytes,
                peer_maps={"ripser": 2, "networkx": 1},
                target=TARGET,
                facts={"n": n},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
