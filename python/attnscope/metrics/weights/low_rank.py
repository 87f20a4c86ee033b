# SPDX-License-Identifier: MIT
"""A matrix of low rank by its factors, taken wherever a matrix is and never multiplied out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._evaluation import full_precision


class LowRank:
    """The matrix scale·left·right, [out, in], of rank at most r.

    ``matrix @ basis`` and ``matrix.T @ basis`` are dense [out, k] and [in, k]; both cost O((out + in)·r·k).

    Args:
        left: [out, r], B of an adapter.
        right: [r, in], A of an adapter.
        scale: alpha/r or alpha/√r of an adapter.

    Example:
        The norm of 2·u·vᵀ with unit u and v is 2.

        >>> import torch
        >>> from attnscope.metrics.weights.low_rank import LowRank
        >>> unit = torch.eye(3, dtype=torch.float64)
        >>> matrix = LowRank(unit[:, :1], unit[1:2], 2.0)
        >>> matrix.energy(), matrix @ unit[:, 1:2]
        (tensor(4., dtype=torch.float64), tensor([[2.],
                [0.],
                [0.]], dtype=torch.float64))
    """

    def __init__(self, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            raise ValueError(
                f"LowRank: factors [out, r] and [r, in] are needed, got {list(left.shape)} and "
                f"{list(right.shape)}"
            )
        self.left, self.right, self.scale = left, right, float(scale)

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank(self) -> int:
        """r, at least the rank of the matrix."""
        return self.left.shape[1]

    @property
    def T(self) -> LowRank:
        """The transpose [in, out]."""
        return LowRank(self.right.T, self.left.T, self.scale)

    @full_precision()
    def __matmul__(self, basis: Tensor) -> Tensor:
        """[out, in] times [in, k]."""
        kind = torch.promote_types(self.left.dtype, basis.dtype)
        reduced: Tensor = self.right.to(kind) @ basis.to(kind)
        return self.left.to(kind) @ (self.scale * reduced)

    def __getitem__(self, rows: Any) -> LowRank:
        """Return some rows."""
        return LowRank(self.left[rows], self.right, self.scale)

    def energy(self) -> Tensor:
        """‖matrix‖_F² in float64: scale²·tr(BᵀB·AAᵀ)."""
        left, right = self.left.double(), self.right.double()
        products: Tensor = (left.T @ left) * (right @ right.T)
        return self.scale**2 * products.sum()

    def singular_values(self) -> Tensor:
        """[r] float64, descending; the others of the matrix are 0."""
        upper_left = torch.linalg.qr(self.left.double(), mode="r").R
        upper_right = torch.linalg.qr(self.right.double().T, mode="r").R
        return torch.linalg.svdvals(self.scale * (upper_left @ upper_right.T))

    @full_precision()
    def dense(self) -> Tensor:
        """Return the matrix multiplied out."""
        return self.left @ (self.scale * self.right)

    def __repr__(self) -> str:
        return f"LowRank({list(self.shape)}, rank {self.rank}, scale {self.scale:g})"


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
        Inputs in a single direction leave the other free to carry the change.

        >>> import torch
        >>> from attnscope.metrics.weights.low_rank import minimal_edit
        >>> moment = torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64))
        >>> edit = minimal_edit(torch.tensor([1.0]), torch.tensor([1.0, 1.0]), moment, ridge=0)
        >>> [round(entry, 4) for entry in edit.dense().flatten().tolist()]
        [0.0099, 0.9901]

    References:
        Meng et al., Locating and editing factual associations in GPT, 2022, equation 2.
    """
    name = "minimal_edit"
    out, inside, second = (
        _checks.as_tensor(name, argument, value, torch.float64)
        for argument, value in (("shift", shift), ("a", a), ("moment", moment))
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
    factor, failed = torch.linalg.cholesky_ex(
        second + ridge * mean * torch.eye(d, dtype=torch.float64, device="cpu")
    )
    if int(failed):
        raise ValueError(f"{name}: the moment has no inverse; give a ridge above 0, got {ridge}")
    weighted = torch.cholesky_solve(inside[:, None], factor)[:, 0]
    return LowRank(out[:, None], (weighted / (inside @ weighted))[None])
