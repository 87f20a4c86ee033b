# SPDX-License-Identifier: MIT
"""The smallest change of a matrix that gives one input another output and disturbs other inputs least."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.metrics.weights.low_rank import LowRank


def minimal_edit(shift: Tensor, a: Tensor, moment: Tensor, *, ridge: float = 1e-3) -> LowRank:
    """ΔW = D(S⁻¹a)ᵀ/(aᵀS⁻¹a), the change of least mean ‖ΔW x‖² over inputs x with moment S that maps a to D.

    S is taken as S + ridge·(tr S/d)·I.

    Args:
        shift: D, what the output of input a is to change by, [out].
        a: the input, [in].
        moment: S, second moment of the matrix's inputs, [in, in]; of `second_moments` for one.
        ridge: at least 0, relative to the mean eigenvalue.

    Returns:
        A `LowRank` of rank one, [out, in] float64.

    Raises:
        ValueError: an input of zeros, shapes that do not fit, a negative ridge, a moment without inverse.

    Example:
        Inputs that all lie in one direction leave the other free to carry the change.

        >>> import torch
        >>> from attnscope.metrics.weights.minimal_edit import minimal_edit
        >>> moment = torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64))
        >>> found = minimal_edit(torch.tensor([1.0]), torch.tensor([1.0, 1.0]), moment, ridge=0)
        >>> [round(one, 4) for one in found.dense().flatten().tolist()]
        [0.0099, 0.9901]

    References:
        Meng et al., Locating and editing factual associations in GPT, 2022, equation 2.
    """
    name = "minimal_edit"
    out, inside, second = (
        _checks.as_tensor(name, what, value, torch.float64)
        for what, value in (("shift", shift), ("a", a), ("moment", moment))
    )
    d = inside.numel()
    if out.ndim != 1 or inside.ndim != 1 or tuple(second.shape) != (d, d):
        raise ValueError(
            f"{name}: shift [out], a [in] and moment [in, in] are needed, got shapes {tuple(out.shape)}, "
            f"{tuple(inside.shape)} and {tuple(second.shape)}"
        )
    if not ridge >= 0:
        raise ValueError(f"{name}: ridge must be at least 0, got {ridge}")
    if not float(inside.norm()) > 0:
        raise ValueError(f"{name}: a must not be 0")
    mean = second.diagonal().mean()
    factor, failed = torch.linalg.cholesky_ex(second + ridge * mean * torch.eye(d, dtype=torch.float64))
    if int(failed):
        raise ValueError(f"{name}: the moment has no inverse; give a ridge above 0, got {ridge}")
    weighted = torch.cholesky_solve(inside[:, None], factor)[:, 0]
    return LowRank(out[:, None], (weighted / (inside @ weighted))[None])
