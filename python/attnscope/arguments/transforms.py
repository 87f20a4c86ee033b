# SPDX-License-Identifier: MIT
"""Tensors of `torch.vmap` and `torch.func`, which stand for others, and tensors with a tangent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_transformed(value: Any) -> bool:
    """Return True for a tensor of `torch.vmap` or `torch.func.grad`, whose entries cannot be looked at."""
    if not isinstance(value, Tensor) or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_batchedtensor(value) or torch._C._functorch.is_gradtrackingtensor(value)


def without_transforms(tensor: Tensor) -> Tensor:
    """Return a tensor that is a constant inside `torch.func.grad` as the tensor in memory that it stands for.

    Every tensor that is made inside is such a stand-in. One that has a gradient or a batch remains.
    """
    while torch._C._functorch.is_gradtrackingtensor(tensor) and not tensor.requires_grad:
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_forward_mode() -> bool:
    """Return True inside `torch.autograd.forward_ad.dual_level`, which `jvp` and `jacfwd` enter."""
    return forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    """Return True for a tensor that carries its derivative forwards, inside transforms or not."""
    unpack: Any = forward_ad.unpack_dual  # torch gives it no types
    while True:
        if unpack(tensor).tangent is not None:
            return True
        if not is_transformed(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)


def refuse_tangent(function: str, name: str, tensor: Tensor) -> None:
    """Raise for a tensor that carries its derivative forwards."""
    if has_tangent(tensor):
        raise NotImplementedError(
            f"{function}: {name} carries its derivative forwards (torch.func.jvp, jacfwd, forward_ad), which "
            "is not known here; take it backwards (torch.func.grad, vjp, jacrev)"
        )
