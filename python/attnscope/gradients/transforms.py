# SPDX-License-Identifier: MIT
"""Operators inside `torch.vmap` and `torch.func.grad`.

Every operator takes leading dimensions, so a batch of calls is one call with the dimension of the batch in
front. torch's own custom operators have no rule for `torch.func.grad`; there a `torch.autograd.Function` of
the same two operators stands for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def _in_front(value: Any, dimension: int | None, size: int) -> Any:
    """Return a tensor with the dimension of the batch first, repeated where all calls share the tensor."""
    if not isinstance(value, Tensor):
        return value
    if dimension is None:
        return value.expand(size, *value.shape).contiguous()
    return value.movedim(dimension, 0)


def batching_rule(
    name: str, operator: Callable[..., Any], of_each_map: Sequence[int]
) -> Callable[..., tuple[Any, Any]]:
    """Return the rule by which `torch.vmap` calls an operator once for the whole batch.

    Args:
        name: of the operator, with which errors begin.
        operator: takes maps and what belongs to them, and returns a tensor or a tuple of tensors.
        of_each_map: positions of the arguments whose leading dimensions are those of the maps. The others
            are the same for all maps.

    Returns:
        A function of torch's description of the batch, the dimension of the batch in each argument, and the
        arguments. It returns results and where their batch is: a count of all maps has none.
    """

    def rule(info: Any, dimensions: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        inputs = list(arguments)
        for index, (value, dimension) in enumerate(zip(arguments, dimensions, strict=True)):
            if index in of_each_map:
                inputs[index] = _in_front(value, dimension, info.batch_size)
            elif dimension is not None:
                raise NotImplementedError(
                    f"{name}: torch.vmap can batch maps only, and argument {index} of the operator is a batch"
                )
        results = operator(*inputs)
        if isinstance(results, Tensor):
            return results, _place_of_batch(results)
        return tuple(results), tuple(map(_place_of_batch, results))

    return rule


def _place_of_batch(result: Tensor) -> int | None:
    """Return 0, or None for a count of all maps and for the gradient of an argument that is None."""
    return 0 if result.ndim and result.numel() else None


def composable(
    name: str,
    operator: Callable[..., Any],
    keep: Callable[..., None],
    differentiate: Callable[..., Any],
    of_each_map: Sequence[int],
) -> Callable[..., Any]:
    """Return an operator that the transforms of `torch.func` can be stacked on.

    Args:
        name: with which errors begin.
        operator: as `torch.library` knows it.
        keep, differentiate: its context and derivative, as `register_autograd` takes them.
        of_each_map: as `batching_rule` takes it.
    """

    class Composable(Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return differentiate(ctx, *gradients)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
            return rule(info, in_dims, *inputs)

    def call(*inputs: Any) -> Any:
        # the same question decides in `torch.autograd.Function` whether a rule is needed
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            return Composable.apply(*inputs)  # type: ignore[no-untyped-call]
        return operator(*inputs)

    rule = batching_rule(name, call, of_each_map)
    return call
