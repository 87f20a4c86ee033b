# SPDX-License-Identifier: MIT
"""Prompts in the notebooks' batches, and states of a block that are moved or kept at the last column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating


def batches(function: str, inputs: Mapping[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """Rows in batches, each as wide as its longest prompt."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not torch.is_tensor(ids) or ids.ndim != 2 or not torch.is_tensor(mask) or mask.shape != ids.shape:
        shapes = [tuple(tensor.shape) if torch.is_tensor(tensor) else tensor for tensor in (ids, mask)]
        raise ValueError(
            f"{function}: inputs must hold input_ids [B, n] and an attention_mask of its shape, got {shapes}"
        )
    if size < 1:
        raise ValueError(f"{function}: batch must be at least 1, got {size}")
    for start in range(0, len(ids), size):
        batch_mask = mask[start : start + size]
        filled_columns = batch_mask.bool().any(0)
        yield {
            "input_ids": ids[start : start + size][:, filled_columns],
            "attention_mask": batch_mask[:, filled_columns],
        }


def direction_argument(function: str, direction: Any) -> Tensor:
    """Return a direction [D]."""
    along = direction if isinstance(direction, Tensor) else torch.as_tensor(direction, device="cpu")
    if along.ndim != 1 or not along.is_floating_point() or not bool(along.isfinite().all()):
        raise ValueError(
            f"{function}: direction must be [D] of finite numbers, got shape {tuple(along.shape)} of "
            f"{along.dtype}"
        )
    return along


@contextmanager
def hooked(
    block: nn.Module, change: Callable[[Tensor], Tensor | None], *, entering: bool = False
) -> Iterator[None]:
    """Pass the states that leave a block, or enter it, through a function; None leaves them as they
    are.
    """

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        named = not args
        new = change(kwargs["hidden_states"] if named else args[0])
        if new is None:
            return None
        return (args, {**kwargs, "hidden_states": new}) if named else ((new, *args[1:]), kwargs)

    def after(_: nn.Module, args: Any, output: Any) -> Any:
        new = change(output[0] if isinstance(output, tuple) else output)
        if new is None:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    handle = (
        block.register_forward_pre_hook(before, with_kwargs=True)
        if entering
        else block.register_forward_hook(after)
    )
    try:
        yield
    finally:
        handle.remove()


def moved(move: Tensor) -> Callable[[Tensor], Tensor]:
    """Add a vector to the last column in the states' own dtype, whatever token is there."""

    def change(states: Tensor) -> Tensor:
        new = states.clone()
        new[:, -1] += move.to(states)
        return new

    return change


def logits_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits [B, n, V] in the model's dtype; a model in training mode is evaluated, without dropout."""
    with evaluating(model):
        logits: Tensor = model(**batch).logits
    return logits


def last_logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits [B, V] of the last column, as `logits_of` gives them."""
    return logits_of(model, batch)[:, -1]
