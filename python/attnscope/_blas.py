# SPDX-License-Identifier: MIT
"""One thread: for NumPy and SciPy, whose matrices are small here, and for torch in a child of fork().

GNU's OpenMP keeps its threads for the next parallel loop. A child of fork() has none of them and waits for
them for ever, in any loop of torch that is long enough to be shared out.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

#: A variable that threadpoolctl sets in the environment, for libraries that somebody loads later, and for
#: every process that is started from this one.
_SET_BY_IMPORT = "KMP_DUPLICATE_LIB_OK"

_process = {"is_forked": False}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _process.update(is_forked=True))


def settle_forked_child() -> None:
    """Set torch to one thread where this process came from fork(), as in the workers of a DataLoader.

    Called before torch computes anything for a metric.
    """
    if _process["is_forked"] and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS and LAPACK of NumPy and SciPy on one thread inside the block; blocks nest.

    On matrices of a hundred tokens a second thread costs more than it gives (OpenBLAS, eigenvalues of a map
    of 128 tokens on two busy cores: 34 ms of processor time instead of 4), and the last bits of results would
    follow the number of threads. Torch's own threads stay as they are.
    """
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - only libraries that are loaded are found

    before = os.environ.get(_SET_BY_IMPORT)
    from threadpoolctl import ThreadpoolController

    if before is None:
        os.environ.pop(_SET_BY_IMPORT, None)
    return ThreadpoolController()
