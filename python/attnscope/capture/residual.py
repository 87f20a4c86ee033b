# SPDX-License-Identifier: MIT
"""The residual stream among a module's arguments and in its output, and how to put another in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def _place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str:
    """The first argument if it is a tensor, else ``hidden_states``, else the first tensor given by name."""
    if args and torch.is_tensor(args[0]):
        return 0
    for name in ("hidden_states", *kwargs):
        if torch.is_tensor(kwargs.get(name)):
            return name
    raise RuntimeError(
        f"capture: no tensor among the arguments {[type(a).__name__ for a in args]}, {sorted(kwargs)}"
    )


def entering(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The residual stream, or what a sub-layer made of it, among a module's arguments."""
    place = _place(args, kwargs)
    tensor = args[place] if isinstance(place, int) else kwargs[place]
    assert torch.is_tensor(tensor)
    return tensor


def with_entering(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with another tensor in that place."""
    place = _place(args, kwargs)
    if isinstance(place, int):
        return (tensor, *args[1:]), dict(kwargs)
    return args, {**kwargs, place: tensor}


def leaving(output: Any) -> Tensor:
    """The tensor that a module hands on: its output or the first part of it."""
    tensor = output if torch.is_tensor(output) else output[0]
    assert torch.is_tensor(tensor)
    return tensor


def with_leaving(output: Any, tensor: Tensor) -> Any:
    """The output with another tensor in that place."""
    if torch.is_tensor(output):
        return tensor
    if isinstance(output, tuple):
        rest = (tensor, *output[1:])
        return type(output)(*rest) if hasattr(output, "_fields") else rest
    output[next(iter(output)) if hasattr(output, "keys") else 0] = tensor
    return output
