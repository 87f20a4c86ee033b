# SPDX-License-Identifier: MIT
"""Pairs of operators that torch knows: a function of the core, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from attnscope import _core
from attnscope.arguments.maps import Extent
from attnscope.arguments.transforms import is_transformed
from attnscope.devices import placement
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import sizes_of
from attnscope.gradients.transforms import batching_rule, composable

NAMESPACE = "attnscope"
#: Where the queries of rectangles stand, in `sizes_argument`.
_AT_LAST_KEYS, _AT_NO_KEY, _AT_LISTED_KEYS = range(3)


def sizes_argument(extent: Tensor | Extent | None, maps: Tensor) -> Tensor | None:
    """Return lengths and places as the one tensor that an operator takes for them.

    Args:
        extent: as the core takes it.
        maps: [..., q, k].

    Returns:
        Of square maps their lengths [...], or None. Of rectangles int64 [..., 3], or [..., 3 + q] with the
        key of each query: keys and queries of each map, −1 for all, and where the queries stand.
    """
    if not isinstance(extent, Extent):
        return extent
    leading = maps.shape[:-2]
    places = _AT_LAST_KEYS if extent.positions is None else _AT_LISTED_KEYS
    columns = [
        torch.full(leading, -1, device="cpu") if size is None else size.expand(leading)
        for size in (extent.keys, extent.queries)
    ]
    columns.append(torch.full(leading, _AT_NO_KEY if extent.cross else places, device="cpu"))
    sizes = torch.stack(columns, -1)
    if extent.positions is None:
        return sizes
    return torch.cat([sizes, extent.positions.expand(maps.shape[:-1])], -1)


def extent_of(sizes: Tensor | None, maps: Tensor) -> Tensor | Extent | None:
    """Return what `sizes_argument` made one tensor of."""
    if sizes is None or sizes.ndim < maps.ndim - 1:
        return sizes
    keys, queries, places = sizes[..., :3].unbind(-1)
    positions = sizes[..., 3:].contiguous() if sizes.shape[-1] > 3 else None
    all_keys, all_queries = bool((keys < 0).all()), bool((queries < 0).all())
    return Extent(
        None if all_keys else keys.contiguous(),
        None if all_queries else queries.contiguous(),
        positions,
        bool((places == _AT_NO_KEY).any()),
    )


def evaluate(name: str, maps: Tensor, lengths: Tensor | None, *arguments: Any) -> tuple[Any, ...]:
    """Call a function of the core where its maps are; the count of maps that are not finite comes last."""
    if is_transformed(maps):
        raise NotImplementedError(
            f"{name} cannot be called with these options inside torch.vmap or torch.func; give it all maps"
        )
    kernel = getattr(_core, name)
    extent = extent_of(lengths, maps)
    *results, non_finite = placement.computed_on(kernel, maps)(maps, extent, *arguments)
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
    """Return maps [..., q, k] as a slab [m, q, k], with what is known of them."""
    *leading, q, k = maps.shape
    number = math.prod(leading)
    sizes = sizes_of(maps, extent_of(lengths, maps))
    seen: str | Tensor = support
    if visible is not None:
        seen = visible.to(maps.device).expand(maps.shape).reshape(number, q, k)
    return Slab(
        maps.detach().reshape(number, q, k),
        sizes.keys,
        seen,
        is_ragged=sizes.is_ragged,
        needs_entropy=False,
        queries=sizes.queries,
        shift=sizes.shift,
        query_positions=sizes.query_positions,
    )


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
    of_each_map: Sequence[int] = (0, 1),
) -> Callable[..., Any]:
    """Register a function and its derivative with torch.

    Args:
        name: of the operator; its derivative is called `{name}_backward`.
        forward: returns `outputs` tensors of numbers and one of counts; annotated, for torch's schema.
        fake: takes the same and returns uninitialised tensors of the same shapes.
        backward: takes the gradients of the numbers and then what `forward` takes, and returns the gradients
            of the arguments `gradients_of`, one tensor or a tuple, with an empty tensor for an argument that
            is None; annotated as well.
        fake_backward: the same without computing anything.
        outputs: how many results have a gradient.
        gradients_of: positions of the arguments with a gradient.
        of_each_map: positions of the arguments whose leading dimensions are those of the maps.

    Returns:
        The operator, which `torch.vmap` and `torch.func.grad` can be stacked on.
    """
    operator = custom_op(f"{NAMESPACE}::{name}", forward, mutates_args=())
    operator.register_fake(fake)
    derivative = custom_op(f"{NAMESPACE}::{name}_backward", backward, mutates_args=())
    derivative.register_fake(fake_backward)

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError(f"{name} has no second derivative here; detach its gradient")

    def keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    derivative.register_autograd(refuse)
    of_each_gradient = (*range(outputs), *(outputs + index for index in of_each_map))
    derivative.register_vmap(batching_rule(name, derivative, of_each_gradient))
    composable_derivative = composable(name, derivative, keep_nothing, refuse, of_each_gradient)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.options = [None if isinstance(value, Tensor) else (value,) for value in inputs]

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tensors = iter(ctx.saved_tensors)
        inputs = [next(tensors) if option is None else option[0] for option in ctx.options]
        result = composable_derivative(*gradients[:outputs], *inputs)
        answers = result if isinstance(result, (tuple, list)) else (result,)
        gradients_by_input = dict(zip(gradients_of, answers, strict=True))
        return tuple(
            gradients_by_input.get(index) if value is not None else None for index, value in enumerate(inputs)
        )

    operator.register_autograd(differentiate, setup_context=keep)
    operator.register_vmap(batching_rule(name, operator, of_each_map))
    return composable(name, operator, keep, differentiate, of_each_map)
