# SPDX-License-Identifier: MIT
"""Which functions of the core have a derivative, and where a call goes that must keep the gradient.

A tensor that requires a gradient is handed to an operator of `attnscope.gradients`, which calls the same
function of the core and knows its derivative. The same operators stand for the core inside `torch.compile`,
which cannot look into compiled code. A call that needs neither does not import them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

#: Functions of the core with a derivative, and the module of `attnscope.gradients` that has it.
MODULES = {
    "attention_entropy": "entropy",
    "fiedler_value": "laplacian",
    "geometric_semantic_alignment": "alignment",
    "head_divergence": "divergence",
    "laplacian_eigenvalues": "laplacian",
    "participation_ratio": "participation_ratio",
    "persistence": "persistence",
    "reference_influence": "reference_influence",
    "singular_values": "singular_values",
    "sink_statistics": "sinks",
}
#: Public functions whose results carry the gradient of their tensors.
DIFFERENTIABLE = frozenset(
    {
        "attention_entropy",
        "effective_rank",
        "fiedler_value",
        "geometric_semantic_alignment",
        "head_divergence",
        "incoming_attention",
        "laplacian_eigenvalues",
        "laplacian_gap",
        "participation_ratio",
        "persistence",
        "reference_influence",
        "singular_values",
        "sink_share",
        "spectral_gap",
        "spectral_ratio",
        "stable_rank",
        "top_mass",
    }
)

P = ParamSpec("P")
R = TypeVar("R")


def keeps_gradient(function: str, tensor: Tensor) -> bool:
    """Return True if a public function hands the gradient of this tensor on to its result."""
    return tensor.requires_grad and function in DIFFERENTIABLE and torch.is_grad_enabled()


def needs_operator(tensor: Tensor, *arguments: Any) -> bool:
    """Return True if a call of the core must be an operator that torch knows: for a gradient or a compiler."""
    if tensor.requires_grad or torch.compiler.is_compiling():
        return True
    return any(isinstance(argument, Tensor) and argument.requires_grad for argument in arguments)


def operator_of(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator that stands for a function of the core; arguments and results are the same."""
    name = kernel.__name__
    if name not in MODULES:
        raise NotImplementedError(f"{name} has no derivative and cannot be compiled; measure a detached tensor")
    operator: Callable[..., Any] = getattr(derivatives_of(name), name)
    return operator


def derivatives_of(name: str) -> ModuleType:
    """Return the module with the derivative of a function of the core, imported when it is first used."""
    return importlib.import_module(f"attnscope.gradients.{MODULES[name]}")


def without_derivative(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of attention that has no derivative, with the reason as the end of a sentence.

    Its numbers are those of the detached tensor. Where the tensor requires a gradient, going backwards
    through floating-point results raises NotImplementedError with the function's name; counts and flags
    never require one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            result = function(*arguments, **options)
            first = arguments[0] if arguments else None
            if isinstance(first, Tensor) and first.requires_grad and torch.is_grad_enabled():
                refuse = importlib.import_module("attnscope.gradients.refusal").refuse_backward
                refused: R = refuse(result, first, f"{function.__name__} has no derivative: {reason}")
                return refused
            return result

        return call

    return decorate
