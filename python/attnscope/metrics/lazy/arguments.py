# SPDX-License-Identifier: MIT
"""Checks of what `LazyAttention` is made of, with the values in their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.arguments import scalars

#: A bias of scores: ALiBi slopes [h], a tensor that broadcasts to the map, or a function of query and key
#: numbers.
Bias = Tensor | Callable[[Tensor, Tensor], Tensor] | None

#: Keys that a query sees: so many up to itself, or as many before and after as a pair says.
Window = int | tuple[int | None, int | None] | None

_NAME = "LazyAttention"

#: A window of so many keys or more hides none: sums of it and of positions would not fit in 64 bits.
_WIDEST_WINDOW = 1 << 31


def vectors_argument(name: str, value: Any) -> Tensor:
    """Return queries or keys [..., heads, tokens, d] where they are."""
    tensor = _checks.float_tensor(_NAME, name, value)
    if tensor.ndim < 3:
        raise ValueError(f"{_NAME}: {name} must be [..., heads, tokens, d], got shape {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise ValueError(f"{_NAME}: {name} must hold at least one number, got shape {tuple(tensor.shape)}")
    return tensor


def check_shapes(query: Tensor, key: Tensor) -> None:
    shapes = f"query {tuple(query.shape)} and key {tuple(key.shape)}"
    if query.device != key.device:
        raise ValueError(f"{_NAME}: query and key must be on one device, got {query.device} and {key.device}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"{_NAME}: query and key must have one width d, got {query.shape[-1]} and {key.shape[-1]}"
        )
    if query.shape[:-3] != key.shape[:-3]:
        raise ValueError(f"{_NAME}: query and key must have the same leading axes, got {shapes}")
    if query.shape[-3] % key.shape[-3]:
        raise ValueError(
            f"{_NAME}: {key.shape[-3]} key heads do not divide {query.shape[-3]} query heads into groups"
        )


def window_argument(window: Any) -> tuple[int | None, int | None]:
    """Return how many keys up to itself a query sees, and how many behind; None is no bound."""
    if window is None:
        return None, None
    if not isinstance(window, (tuple, list)):
        return _bound(scalars.at_least(_NAME, "window", window, 1)), None
    if len(window) != 2:
        raise ValueError(f"{_NAME}: window must be a number or a pair (before, after), got {window!r}")
    before, after = (None if side is None else scalars.at_least(_NAME, "window", side, 0) for side in window)
    return _bound(None if before is None else before + 1), _bound(after)


def _bound(keys: int | None) -> int | None:
    """Return a number of keys; None where it hides none, whatever the text."""
    return None if keys is None or keys >= _WIDEST_WINDOW else keys


def per_head_argument(name: str, value: Any, heads: int) -> Tensor:
    tensor = _checks.float_tensor(_NAME, name, value).double().cpu()
    if tensor.shape != (heads,):
        raise ValueError(
            f"{_NAME}: {name} must hold a number for each of {heads} heads, got {tuple(tensor.shape)}"
        )
    return tensor.clone()


def bias_argument(bias: Any, shape: tuple[int, ...]) -> tuple[Tensor | None, Bias]:
    """Return ALiBi slopes, or the bias itself expanded to the shape of the map."""
    if bias is None or (callable(bias) and not isinstance(bias, Tensor)):
        return None, bias
    tensor = _checks.to_host(_checks.float_tensor(_NAME, "bias", bias))
    if tensor.ndim == 1:
        return per_head_argument("bias", tensor, shape[-3]), None
    return None, _checks.expanded(f"{_NAME}: bias", tensor, shape, "does not broadcast to attention of shape")


def first_tile(bias: Any) -> Any:
    """Return what a function of a bias gives the first query and key, and any other bias as it is.

    It shows whether the function has parameters that require a gradient.
    """
    if not callable(bias) or isinstance(bias, Tensor):
        return bias
    with torch.enable_grad():
        first = torch.zeros(1, dtype=torch.int64, device="cpu")
        return bias(first, first)


def lengths_of_maps(lengths: Any, shape: tuple[int, ...]) -> Tensor:
    tensor = _checks.as_tensor(_NAME, "lengths", lengths)
    per_text = tensor.ndim < len(shape) - 2
    leading = shape[:-3] if per_text else shape[:-2]
    checked = _checks.lengths_argument(_NAME, lengths, leading, shape[-1])
    assert checked is not None
    return checked[..., None] if per_text else checked


def positions_argument(positions: Any, shape: tuple[int, ...]) -> Tensor:
    tensor = _checks.as_tensor(_NAME, "query_positions", positions)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{_NAME}: query_positions must be integers, got {tensor.dtype}")
    tensor = tensor.to(device="cpu", dtype=torch.int64)
    keys = shape[-1]
    if len(outside := tensor[(tensor < 0) | (tensor > keys)]):
        raise ValueError(
            f"{_NAME}: query_positions must lie between 0 and {keys - 1}, the last key, or be {keys} for "
            f"padding, got {int(outside[0])}"
        )
    if 1 < tensor.ndim < len(shape) - 1:
        tensor = tensor.unsqueeze(-2)  # the same for all heads
    return _checks.expanded(f"{_NAME}: query_positions", tensor, shape[:-1]).contiguous()


def slice_argument(name: str, part: slice | int, size: int) -> slice:
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        if step != 1:
            raise ValueError(f"{_NAME}: {name} must be a slice of step 1, got step {step}")
        return slice(start, max(start, stop))
    index = scalars.whole_number(_NAME, name, part)
    if not -size <= index < size:
        raise ValueError(f"{_NAME}: {name} must lie between {-size} and {size - 1}, got {index}")
    return slice(index % size, index % size + 1)
