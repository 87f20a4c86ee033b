# SPDX-License-Identifier: MIT
"""Settings of torch and of a model for the time of a block, put back after it one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside the block. Afterwards every module has its former mode, also mixed ones."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def differentiable(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let these parameters of the model alone take part in gradients.

    Raises:
        NotImplementedError: a parameter without memory, whose gradient would be none.
    """
    ids = {id(parameter) for parameter in parameters}
    for name, parameter in model.named_parameters():
        if id(parameter) in ids and parameter.is_meta:
            raise NotImplementedError(
                f"{name} holds no weights here (meta), so there are no gradients for it: load the model "
                "without offloading"
            )
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in ids)
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)


@contextmanager
def full_precision(device: str = "cpu") -> Iterator[None]:
    """Multiply in the types of the tensors inside the block, whatever `torch.autocast` is set to outside.

    Example:
        >>> ones = torch.ones(2, 2)
        >>> with torch.autocast("cpu", torch.bfloat16), full_precision():
        ...     (ones @ ones).dtype
        torch.float32
    """
    with torch.autocast(device, enabled=False):
        yield


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Make the CPU the default device and float32 the default dtype inside the block.

    Models and tables are made by libraries that follow torch's defaults, so a run would depend on what the
    caller set. A default that is plain already costs nothing.

    Example:
        >>> torch.set_default_dtype(torch.float64)
        >>> with plain_defaults():
        ...     torch.ones(1).dtype
        torch.float32
        >>> torch.ones(1).dtype
        torch.float64
        >>> torch.set_default_dtype(torch.float32)
    """
    dtype = torch.get_default_dtype()
    # before 2.7, torch.get_default_device() does not see a device that a `with` block chose
    on_cpu = torch.empty(0).device.type == "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        with nullcontext() if on_cpu else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
