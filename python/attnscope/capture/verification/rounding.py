# SPDX-License-Identifier: MIT
"""Rounding alone moves what a model computes by so much: its inputs are rounded otherwise, nothing else is.

Deep models whose feed-forward parts switch tokens on and off (Gemma 3n) carry the last bit of an embedding to
the third digit of their output. Two right computations of such a model differ by as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

#: Gaps up to so many times that of the nudged inputs are rounding, which happens in every layer.
ROUNDINGS = 10


@contextmanager
def nudged(model: Any, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Move embeddings, pictures and sounds by the last bit of their type or of float32 inside the block.

    Models compute norms and softmaxes in float32, whatever type they have.

    Args:
        model: of transformers.
        inputs: of its forward pass.

    Returns:
        A context manager that gives the inputs for the pass.
    """

    def moved(tensor: Tensor) -> Tensor:
        last_bit = max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(2, tensor.shape, generator=generator, device="cpu").to(tensor.device) * 2 - 1
        return (tensor * (1 + last_bit * signs.to(tensor.dtype))).to(tensor.dtype)

    def after(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        return moved(output) if torch.is_tensor(output) and output.is_floating_point() else output

    lookup = getattr(model, "get_input_embeddings", lambda: None)
    try:
        embeddings = lookup()
    except NotImplementedError:  # of models that read no tokens
        embeddings = None
    hooks = [embeddings.register_forward_hook(after)] if isinstance(embeddings, nn.Module) else []
    floating = {
        name: moved(value)
        for name, value in inputs.items()
        if torch.is_tensor(value) and value.is_floating_point() and "mask" not in name
    }
    try:
        yield {**inputs, **floating}
    finally:
        for hook in hooks:
            hook.remove()
