# SPDX-License-Identifier: MIT
"""Brings accelerator tensors to the host once, for kernels that have no device version."""

from __future__ import annotations

import torch

from attnscope._warn import warn

_warned = False


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself when it lives on the CPU; otherwise a host copy made once.

    A CUDA tensor goes through a pinned buffer on a stream of its own, which waits for the caller's stream
    and not for the whole device, so kernels that the caller has queued elsewhere keep running.
    """
    if tensor.device.type == "cpu":
        return tensor
    _warn_once(tensor.device)
    if tensor.device.type != "cuda":
        return tensor.cpu()
    side = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(side):
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        tensor.record_stream(side)
    side.synchronize()
    return host


def _warn_once(device: torch.device) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(
            f"attnscope computes on the CPU: tensors on {device} are copied to pinned host memory once per "
            "call, and results come back on the CPU",
            UserWarning,
        )
