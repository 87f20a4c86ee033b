# SPDX-License-Identifier: MIT
"""All Laplacian eigenvalues from attention, against dense symmetric solvers of torch, NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark
from kernels.fiedler import laplacians
from maps import wanted_maps


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12, err_msg=peer)


def main() -> None:
    from scipy.linalg import eigh

    benchmark = Benchmark("laplacian", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256), (64,), regimes=("sink", "peaky")):
        dense = laplacians(attention)
        array = dense.numpy()
        benchmark.compare(
            name,
            len(attention),
            lambda attention=attention: asc.laplacian_eigenvalues(attention),
            {
                "torch": lambda dense=dense: torch.linalg.eigvalsh(dense),
                "numpy": lambda array=array: np.linalg.eigvalsh(array),
                "scipy": lambda array=array: np.array([eigh(matrix, eigvals_only=True) for matrix in array]),
            },
            agree=agree,
            reads=attention.nbytes,
            # tridiagonalisation: 2/3 n³
            multiply_adds=len(attention) * 2 * n**3 / 3,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
