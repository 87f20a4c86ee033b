# SPDX-License-Identifier: MIT
"""A checked argument: a model that can be run."""

from __future__ import annotations

from typing import Any

from torch import nn


def module_argument(function: str, model: Any) -> nn.Module:
    """Return a model without the wrapper of `torch.compile`.

    Raises:
        TypeError: for anything but a torch module, with what to give in its place.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{function}: model must be a torch module, got {type(model).__name__}{model_hint(model)}"
        )
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner


def model_hint(argument: object) -> str:
    """Return what to give in the place of an object that is not a model: a name is loaded, a wrapper holds
    one.
    """
    if isinstance(argument, str):
        return f"; attnscope.models.load_model loads one: load_model(find_checkpoints({argument!r})[0]).model"
    held = (name for name in ("original_model", "_model", "model") if hasattr(argument, name))
    name = next(held, "")
    return f"; the model that it holds may be its .{name}" if name else ""
