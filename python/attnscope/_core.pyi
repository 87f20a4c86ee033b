# SPDX-License-Identifier: MIT
# Tensors are checked by attnscope._checks before they come here. A tuple's last entry counts the matrices
# that were not finite.
from torch import Tensor

def first_invalid(
    attention: Tensor, lengths: Tensor | None, upper: float
) -> tuple[int, int, int, float] | None: ...
def laplacian_eigenvalues(
    attention: Tensor,
    lengths: Tensor | None,
    k: int,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
) -> tuple[Tensor, int]: ...
def fiedler_value(
    attention: Tensor, lengths: Tensor | None, symmetrize: str, threshold: float | None, normalized: bool
) -> tuple[Tensor, int]: ...
def fiedler_vector(
    attention: Tensor, lengths: Tensor | None, symmetrize: str, threshold: float | None, normalized: bool
) -> tuple[Tensor, int]: ...
def graph_statistics(
    attention: Tensor, lengths: Tensor | None, thresholds: Tensor
) -> tuple[tuple[Tensor, ...], int]: ...
