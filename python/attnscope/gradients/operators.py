# SPDX-License-Identifier: MIT
"""Pairs of operators that torch knows: a function of the core, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from attnscope import _core, _placement
from attnscope.devices.slab import Slab

NAMESPACE = "attnscope"


def evaluate(name: str, maps: Tensor, lengths: Tensor | None, *arguments: Any) -> tuple[Any, ...]:
    """Call a function of the core where its maps are; the count of maps that are not finite comes last."""
    kernel = getattr(_core, name)
    *results, non_finite = _placement.computed_on(kernel, maps)(maps, lengths, *arguments)
    # results that came from a device together share their memory, which an operator's results must not
    results = [
        tuple(map(_unshared, result)) if isinstance(result, tuple) else _unshared(result)
        for result in results
    ]
    return *results, torch.tensor(non_finite, device="cpu")


def _unshared(result: Any) -> Any:
    """Return a tensor with memory of its own."""
    return result.clone() if isinstance(result, Tensor) and _is_part(result) else result


def _is_part(tensor: Tensor) -> bool:
    """Return True if the memory of a tensor holds more than the tensor."""
    return tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()


def empty(*shape: int) -> Tensor:
    """Return an uninitialised float64 result [*shape] on the CPU, as the core gives it."""
    return torch.empty(shape, dtype=torch.float64, device="cpu")


def count() -> Tensor:
    """Return the stand-in of a count of maps that are not finite."""
    return torch.empty((), dtype=torch.int64, device="cpu")


def flat_slab(
    maps: Tensor, lengths: Tensor | None, support: str = "full", visible: Tensor | None = None
) -> Slab:
    """Return maps [..., n, n] as a slab [m, n, n], with what is known of them."""
    *leading, n, _ = maps.shape
    number = math.prod(leading)
    if lengths is None:
        sizes = torch.full((number,), n, device=maps.device)
    else:
        sizes = lengths.expand(leading).reshape(number).to(maps.device)
    seen: str | Tensor = support
    if visible is not None:
        seen = visible.to(maps.device).expand(maps.shape).reshape(number, n, n)
    flat = maps.detach().reshape(number, n, n)
    return Slab(flat, sizes, seen, is_ragged=lengths is not None, needs_entropy=False)


def incoming_gradient(gradient: Tensor, slab: Slab, *shape: int) -> Tensor:
    """Return the gradient of a result as [m, *shape] where the maps are; 0 for maps that are not finite."""
    flat = gradient.reshape(len(slab.maps), *shape).to(slab.maps.device, slab.dtype)
    return torch.where(slab.finite.reshape(-1, *[1] * len(shape)), flat, 0.0)


def split_support(support: str | Tensor) -> tuple[str, Tensor | None]:
    """Return `support` as the two arguments that an operator takes for it."""
    return ("full", support) if isinstance(support, Tensor) else (support, None)


def joined_support(support: str, visible: Tensor | None) -> str | Tensor:
    return support if visible is None else visible


def operator_pair(
    name: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    fake_backward: Callable[..., Any],
    *,
    outputs: int = 1,
    gradients_of: Sequence[int] = (0,),
) -> Callable[..., Any]:
    """Register a function and its derivative with torch.

    Args:
        name: of the operator; its derivative is called `{name}_backward`.
        forward: returns `outputs` tensors of numbers and one of counts; annotated, for torch's schema.
        fake: takes the same and returns uninitialised tensors of the same shapes.
        backward: takes the gradients of the numbers and then what `forward` takes, and returns the gradients
            of the arguments `gradients_of`, one tensor or a tuple; annotated as well.
        fake_backward: the same without computing anything.
        outputs: how many results have a gradient.
        gradients_of: positions of the arguments with a gradient.

    Returns:
        The operator.
    """
    operator = custom_op(f"{NAMESPACE}::{name}", forward, mutates_args=())
    operator.register_fake(fake)
    derivative = custom_op(f"{NAMESPACE}::{name}_backward", backward, mutates_args=())
    derivative.register_fake(fake_backward)

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError(f"{name} has no second derivative here; detach its gradient")

    derivative.register_autograd(refuse)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.options = [None if isinstance(value, Tensor) else (value,) for value in inputs]

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tensors = iter(ctx.saved_tensors)
        inputs = [next(tensors) if option is None else option[0] for option in ctx.options]
        result = derivative(*gradients[:outputs], *inputs)
        answers = iter(result if isinstance(result, (tuple, list)) else (result,))
        return tuple(next(answers) if index in gradients_of else None for index in range(len(inputs)))

    operator.register_autograd(differentiate, setup_context=keep)
    return operator
