# SPDX-License-Identifier: MIT
"""Attention in the caches of other tools, by the names that they give it: TransformerLens and nnsight.

TransformerLens names a layer's maps `blocks.3.attn.hook_pattern`. nnsight names modules by their path, and a
module of attention returns its maps in a tuple, next to its output.

Example:
    >>> import torch
    >>> from attnscope.arguments.caches import attention_of_cache
    >>> maps = torch.full((1, 2, 3, 3), 1 / 3)
    >>> cache = {"blocks.1.attn.hook_pattern": maps, "blocks.0.attn.hook_pattern": maps, "hook_embed": maps}
    >>> attention_of_cache("f", cache).shape
    torch.Size([2, 1, 2, 3, 3])
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PATTERN = re.compile(r"(?:.*\.)?blocks\.(\d+)\.attn\.hook_pattern")
_MODULE = re.compile(r"(?:.*\.)?(\d+)\.(?:\w+\.)*(?:\w*attn|\w*attention|self)")


def is_cache(value: Any) -> bool:
    """Return True for what holds tensors by name, as opposed to a tensor, an array or tensors in a row.

    A table of numbers, whose columns have names, is an array.
    """
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        return False
    return callable(getattr(value, "keys", None)) and hasattr(value, "__getitem__")


def attention_of_cache(function: str, cache: Any) -> Tensor:
    """Return the maps of a cache, [layers, ..., heads, queries, keys], on the device of the first layer.

    Args:
        function: whose name errors begin with.
        cache: of TransformerLens or nnsight, or a mapping with their names.

    Raises:
        ValueError: no maps under such names, different maps of one layer (an encoder's and a decoder's), or
            layers of different shapes.
    """
    names = [str(name) for name in list(cache.keys())]
    by_layer = _by_layer(function, _of_patterns(cache, names)) or _by_layer(
        function, _of_modules(cache, names)
    )
    if not by_layer:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ValueError(
            f"{function}: the cache holds no attention under blocks.N.attn.hook_pattern (TransformerLens) or "
            f"in the output of an attention module (nnsight, eager), got {shown or 'an empty one'}"
        )
    layers = [by_layer[number][1] for number in sorted(by_layer)]
    shapes = {tuple(layer.shape) for layer in layers}
    if len(shapes) > 1:
        raise ValueError(f"{function}: layers of a cache must have one shape, got {sorted(shapes)}")
    # the layers of a model that is spread lie on several devices
    return torch.stack([layer.detach().to(layers[0].device) for layer in layers])


def _by_layer(function: str, named: Iterator[tuple[int, str, Any]]) -> dict[int, tuple[str, Tensor]]:
    """Return the name and the maps of each layer, which a module and the module inside it may both give."""
    by_layer: dict[int, tuple[str, Tensor]] = {}
    for number, name, value in named:
        if not isinstance(value, Tensor) and not hasattr(value, "__array__"):
            raise TypeError(f"{function}: {name} of a cache must hold a tensor, got {type(value).__name__}")
        maps = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value), device="cpu")
        if number not in by_layer:
            by_layer[number] = name, maps
            continue
        other, present = by_layer[number]
        is_same = maps.shape == present.shape and torch.equal(maps, present.to(maps.device))
        if maps is not present and not is_same:
            raise ValueError(
                f"{function}: {other} and {name} of a cache are different maps of layer {number}; give those "
                "of one stack of layers, and cross attention apart"
            )
    return by_layer


def _of_patterns(cache: Any, names: list[str]) -> Iterator[tuple[int, str, Any]]:
    """Yield the number, the name and the maps of each layer of TransformerLens."""
    for name in names:
        if match := _PATTERN.fullmatch(name):
            yield int(match[1]), name, cache[name]


def _of_modules(cache: Any, names: list[str]) -> Iterator[tuple[int, str, Any]]:
    """Yield the number, the name and the maps of each layer of nnsight, among the outputs of a module."""
    for name in names:
        match = _MODULE.fullmatch(name)
        output: Any = cache[name] if match else None
        output = getattr(output, "output", output)
        output = getattr(output, "value", output)  # a saved proxy
        parts = output if isinstance(output, (tuple, list)) else [output]
        for part in parts:
            if match and _holds_maps(part):
                yield int(match[1]), name, part
                break


def _holds_maps(value: Any) -> bool:
    """Return True for a tensor [batch, heads, queries, keys] whose last queries share 1 among the keys."""
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return False
    last = value[..., -1, :].detach().float()
    return bool((last >= 0).all()) and bool(((last.sum(-1) - 1).abs() < 0.02).all())
