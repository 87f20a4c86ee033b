# SPDX-License-Identifier: MIT
"""One thread for the linear algebra of NumPy and SciPy, whose matrices are small here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Inside the block, BLAS and LAPACK of NumPy and SciPy work on one thread; blocks nest.

    On matrices of a hundred tokens a second thread costs more than it gives (OpenBLAS, eigenvalues of a map
    of 128 tokens on two busy cores: 34 ms of processor time instead of 4), and the last bits of results would
    follow the number of threads. Torch's own threads stay as they are.
    """
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - only libraries that are loaded are found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
