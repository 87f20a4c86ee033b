# SPDX-License-Identifier: MIT
"""λ2 from attention, against dense symmetric solvers of torch, NumPy, SciPy, and networkx."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed, sizes
from maps import all_maps, gpt2_maps

# wanted and possible ratios to torch.linalg.eigvalsh, by size
TARGET = {32: 10, 64: 10, 128: 10, 256: 10, 512: 10, 1024: 8, 2048: 8}
LIMIT = {32: 30, 64: 30, 128: 18, 256: 17, 512: 18}
FAST = 15


def laplacians(attention: torch.Tensor) -> torch.Tensor:
    """L = D − W of the mean-symmetrised maps, float64, made beforehand: peers pay for the solver alone."""
    weights = (attention.double() + attention.double().mT) / 2
    weights.diagonal(dim1=-2, dim2=-1).zero_()
    return torch.diag_embed(weights.sum(-1)) - weights


def agree(tolerance: float) -> Any:
    """Equal within `tolerance` of the value, or a rounding of the largest degree."""

    def check(peer: str, ours: torch.Tensor, theirs: Any) -> None:
        theirs = np.asarray(theirs)
        np.testing.assert_allclose(
            ours.numpy()[: len(theirs)], theirs, rtol=tolerance, atol=2e-14, err_msg=peer
        )

    return check


def main() -> None:
    benchmark = Benchmark("fiedler", __doc__ or "")
    networkx = installed("networkx")
    for n in sizes(benchmark, (6, 32, 64, 128, 256, 512, 1024, 2048), (32, 128)):
        for name, attention in inputs(n).items():
            if not benchmark.wants(name):
                continue
            dense = laplacians(attention)
            array = dense.numpy()
            peers: dict[str, Any] = {"torch": lambda dense=dense: torch.linalg.eigvalsh(dense)[:, 1]}
            few: dict[str, int] = {}
            if n <= 128:
                from scipy.linalg import eigh

                peers["numpy"] = lambda array=array: np.linalg.eigvalsh(array)[:, 1]
                peers["scipy"] = lambda array=array: np.array(
                    [eigh(matrix, eigvals_only=True, subset_by_index=[1, 1])[0] for matrix in array]
                )
            if networkx and n <= 64:
                import networkx as nx

                graphs = [nx.from_numpy_array(np.diag(np.diag(matrix)) - matrix) for matrix in array[:2]]
                few["networkx"] = len(graphs)
                peers["networkx"] = lambda graphs=graphs: [
                    np.sort(nx.laplacian_spectrum(graph))[1] for graph in graphs
                ]
            common: dict[str, Any] = {"against": "torch", "facts": {"n": n}, "reads": attention.nbytes}
            # a Cholesky factor
            common["multiply_adds"] = len(attention) * n**3 / 6
            benchmark.compare(
                name,
                len(attention),
                lambda attention=attention: asc.fiedler_value(attention),
                peers,
                agree=agree(1e-9),
                target=TARGET.get(n),
                limit=LIMIT.get(n),
                peer_maps=few,
                **common,
            )
            benchmark.compare(
                f"{name} fast",
                len(attention),
                lambda attention=attention: asc.fiedler_value(attention, precision="fast"),
                {"torch": peers["torch"]},
                agree=agree(1e-6),
                target=FAST if n >= 32 else None,
                limit=35,
                **common,
            )
    benchmark.finish()


def inputs(n: int) -> dict[str, torch.Tensor]:
    """GPT-2's published maps, every kind, or from n = 1024 the easiest and the hardest."""
    if n == 6:
        gpt2 = gpt2_maps()
        return {} if gpt2 is None else {"gpt2 n=6": gpt2}
    return all_maps(n) if n <= 512 else all_maps(n, regimes=("sink", "peaky"))


if __name__ == "__main__":
    main()
