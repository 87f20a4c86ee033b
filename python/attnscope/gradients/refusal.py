# SPDX-License-Identifier: MIT
"""Results that are numbers but have no derivative: going backwards through them is an error with a name."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


class _Refusal(torch.autograd.Function):
    """The identity, whose derivative is an error."""

    @staticmethod
    def forward(context: Any, source: Tensor, result: Tensor, reason: str) -> Tensor:
        context.reason = reason
        return result.view_as(result)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> None:
        raise NotImplementedError(f"{context.reason}; measure a detached tensor, or leave it out of the loss")


def refuse_backward(result: Any, source: Tensor, reason: str) -> Any:
    """Return a result whose floating-point tensors raise `reason` when a gradient reaches them.

    Args:
        result: a tensor, or a named tuple, tuple, dict or dataclass that holds some; anything else is
            returned as it is.
        source: the tensor that requires a gradient.
        reason: what the error says.
    """
    if isinstance(result, Tensor):
        return _Refusal.apply(source, result, reason) if result.is_floating_point() else result  # type: ignore[no-untyped-call]
    if isinstance(result, tuple):
        parts = [refuse_backward(part, source, reason) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, dict):
        return {key: refuse_backward(part, source, reason) for key, part in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {
            field.name: refuse_backward(getattr(result, field.name), source, reason)
            for field in dataclasses.fields(result)
        }
        return dataclasses.replace(result, **fields)
    return result
