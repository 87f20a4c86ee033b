# SPDX-License-Identifier: MIT
"""Spans of tokens as arguments: [start, stop) of each map, (−1, −1) for none."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks


def integers_argument(function: str, name: str, values: Any, shape: tuple[int, ...]) -> Tensor:
    """Return whole numbers as int64 on the CPU, after a check that they broadcast to a shape."""
    tensor = _checks.as_tensor(function, name, values).detach()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{function}: {name} must be integers, got {tensor.dtype}")
    tensor = tensor.to(device="cpu", dtype=torch.int64)
    _checks.expanded(f"{function}: {name}", tensor, shape, "do not broadcast to")
    return tensor


def spans_argument(function: str, name: str, spans: Any, attention: _checks.Attention) -> Tensor:
    """Return the span of each map, contiguous int64 [count, 2], or of all maps, [1, 2]."""
    sizes = attention.sizes
    if sizes is None and _is_pair(spans):
        # two numbers for all maps, without a tensor of them before they are checked
        start, stop = spans
        if not (0 <= start < stop <= attention.n or (start, stop) == (-1, -1)):
            raise _span_error(function, name, attention.n, start, stop)
        return torch.from_numpy(np.array([[start, stop]], np.int64))
    span_tensor = integers_argument(function, name, spans, (*attention.leading, 2))
    values = span_tensor.numpy()
    if values.ndim > 1 or values.size != 2 or sizes is not None:
        values = span_tensor.expand(*attention.leading, 2).numpy()
    start, stop = values[..., 0], values[..., 1]
    longest = np.asarray(attention.n if sizes is None else sizes)
    wrong = ~(((start >= 0) & (start < stop) & (stop <= longest)) | ((start == -1) & (stop == -1)))
    if wrong.any():
        first = values[wrong][0].tolist()
        bound = int(np.broadcast_to(longest, start.shape)[wrong].flat[0])
        raise _span_error(function, name, bound, *first)
    return torch.from_numpy(np.ascontiguousarray(values)).reshape(-1, 2)


def _is_pair(spans: Any) -> bool:
    """Return True for two Python integers in a tuple or list."""
    return isinstance(spans, (tuple, list)) and len(spans) == 2 and all(type(end) is int for end in spans)


def _span_error(function: str, name: str, bound: int, start: int, stop: int) -> ValueError:
    """Return the error of a span that is empty, reversed or outside its map."""
    return ValueError(
        f"{function}: {name} must hold 0 <= start < stop <= {bound}, the tokens of their map, or "
        f"(-1, -1), got ({start}, {stop})"
    )
