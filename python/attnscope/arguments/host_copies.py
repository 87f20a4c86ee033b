# SPDX-License-Identifier: MIT
"""Copies of tensors: of a device's that the CPU can read, and of strided ones in the order of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from attnscope.arguments.transforms import is_transformed

#: Bytes at whose multiples torch allocates.
ALIGNMENT = 64
# Inside `shared_copies`, the host copies that were made, with the tensors they were made of.
_COPIES: ContextVar[list[tuple[Tensor, Tensor]] | None] = ContextVar("host copies", default=None)


@contextmanager
def shared_copies() -> Iterator[None]:
    """Copy a device tensor to the CPU once for all calls inside the block; nobody may change it meanwhile."""
    if _COPIES.get() is not None:
        yield
        return
    token = _COPIES.set([])
    try:
        yield
    finally:
        _COPIES.reset(token)


def host_copy(value: Any) -> Any:
    """Return a tensor that the CPU can read: the tensor itself, or a copy in pinned memory.

    The copy is made on a stream of its own, which waits for the caller's stream and not for the whole
    device, so kernels that the caller has queued elsewhere go on running. Anything but a tensor is returned
    as it is.
    """
    if not isinstance(value, Tensor) or value.is_cpu:
        return value
    copies = _COPIES.get()
    for original, copy in copies or ():
        if original is value:
            return copy
    host = _copied(value)
    if copies is not None:
        copies.append((value, host))
    return host


def row_major(tensor: Tensor) -> Tensor:
    """Return a tensor in the order of its rows, at an address like those that torch allocates; itself if it
    is so.

    Sums and products of torch add in an order that follows strides and address, so that the last bits of one
    and the same values depend on how they lie in memory.
    """
    ordered = tensor.contiguous()
    if torch.compiler.is_compiling() or is_transformed(ordered) or ordered.data_ptr() % ALIGNMENT == 0:
        return ordered
    return ordered.clone(memory_format=torch.contiguous_format)


def _copied(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.cpu()
    side = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(side):
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        tensor.record_stream(side)
    side.synchronize()
    return host
