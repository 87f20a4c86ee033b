# SPDX-License-Identifier: MIT
"""A model's modes and flags for the time of a block, put back after it one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module has the mode that it had, also mixed ones."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def differentiable(model: nn.Module, wanted: Iterable[nn.Parameter]) -> Iterator[None]:
    """Of the model's parameters these alone take part in gradients."""
    ids = {id(parameter) for parameter in wanted}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in ids)
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)
