# SPDX-License-Identifier: MIT
"""One loop over the maps of a batch, in slabs whose temporaries fit on the device.

A measure in torch operations is written for a slab: maps [m, n, n] with what is known of them. This module
cuts a batch into slabs, and puts the slabs' results together in the order of the batch, on the CPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.slab import Slab, arithmetic_type

#: Copies of a slab in float64 that a measure may hold at a time.
TEMPORARIES = 8
#: Bytes for the temporaries of a slab where the device does not say how much memory is free.
DEFAULT_BYTES = 1 << 28
#: Numbers of results that travel to the CPU in one transfer.
MOST_TOGETHER = 1 << 20


def per_map(
    compute: Callable[..., Sequence[Tensor]],
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: Any = "full",
    beside: Sequence[Tensor | None] = (),
    *,
    maps_together: int = 1,
    temporaries: int = TEMPORARIES,
    needs_entropy: bool = False,
) -> tuple[Any, ...]:
    """Compute a measure of every map of a batch, slab by slab.

    Args:
        compute: takes a `Slab` and the slab's part of each tensor `beside`, and returns tensors [m, ...]. Its
            last one is bool, False for what counts as not finite.
        attention: maps [..., q, k] on any device.
        lengths: tokens of each square map, or None; of rectangles their keys, queries and places.
        support: as the core takes it.
        beside: tensors [..., *shape] with the leading axes of `attention`, or None.
        maps_together: consecutive maps that belong together, such as the heads of a layer.
        temporaries: float64 copies of a slab that `compute` holds at a time.
        needs_entropy: whether `compute` asks for entropies of rows.

    Returns:
        The tensors of `compute` without the last, with the leading axes of the batch (of layers, where it
        returns one entry for `maps_together` maps), on the CPU; and how many entries of the last are False.

    Raises:
        MemoryError: the device has no memory for the fewest maps that can be measured at a time.
    """
    leading, device = attention.shape[:-2], attention.device
    count = math.prod(leading)
    maps = attention.reshape(count, *attention.shape[-2:])
    sizes = sizes_of(attention, lengths)
    masks = support.expand(attention.shape).reshape(maps.shape) if isinstance(support, Tensor) else None
    parts = [None if part is None else part.reshape(count, *part.shape[len(leading) :]) for part in beside]
    slab_type = Slab if sizes.shift is not None else _slab_type(device, masks)

    def compute_part(first: int, last: int) -> Sequence[Tensor]:
        def part_of(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else _moved(tensor[first:last], device)

        slab = slab_type(
            maps[first:last],
            sizes.keys[first:last],
            support if masks is None else masks[first:last].to(device),
            is_ragged=sizes.is_ragged,
            needs_entropy=needs_entropy,
            queries=part_of(sizes.queries),
            shift=part_of(sizes.shift),
            query_positions=part_of(sizes.query_positions),
        )
        return compute(slab, *map(part_of, parts))

    step = _slab_size(count, device, temporaries * 8 * maps.shape[-2] * maps.shape[-1])
    words = f"{device} has no memory for {maps_together} map(s) of {maps.shape[-1]} tokens"
    *tensors, defined = _in_slabs(count, step, maps_together, words, compute_part)
    shaped = (
        tensor.reshape((*(leading if len(tensor) == count else leading[:-1]), *tensor.shape[1:]))
        for tensor in tensors
    )
    return *shaped, int((~defined).sum())


def per_cloud(
    compute: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor | None], bytes_of_one: int
) -> tuple[Tensor, ...]:
    """Compute a measure of every cloud of points of a batch, slab by slab.

    Args:
        compute: takes a slab's part of each tensor, [m, ...], and returns tensors [m, ...].
        tensors: [..., n, d] on one device, and what lies beside them with the same leading axes on any
            device, or None.
        bytes_of_one: that `compute` holds at a time for one cloud.

    Returns:
        The tensors of `compute` with the leading axes of the batch, on the CPU.

    Raises:
        MemoryError: the device has no memory for one cloud.
    """
    points = tensors[0]
    assert points is not None
    leading, device = points.shape[:-2], points.device
    count = math.prod(leading)
    parts = [None if part is None else part.reshape((count, *part.shape[len(leading) :])) for part in tensors]

    def compute_part(first: int, last: int) -> Sequence[Tensor]:
        return compute(*(None if part is None else part[first:last].to(device) for part in parts))

    words = f"{device} has no memory for a cloud of {points.shape[-2]} points"
    columns = _in_slabs(count, _slab_size(count, device, bytes_of_one), 1, words, compute_part)
    return tuple(column.reshape((*leading, *column.shape[1:])) for column in columns)


def _in_slabs(
    count: int, step: int, together: int, words: str, compute_part: Callable[[int, int], Sequence[Tensor]]
) -> list[Tensor]:
    """Return the results of all parts of a batch one behind the other, on the CPU.

    A part that does not fit is halved, until it holds as many entries as belong `together`; then the error
    begins with `words`.
    """
    results: list[list[Tensor]] = []
    first = 0
    while first < count or not results:
        last = min(count, first + max(1, step // together) * together)
        try:
            results.append(_to_host(compute_part(first, last)))
        except torch.OutOfMemoryError as error:
            if step <= together:
                raise MemoryError(f"{words} next to what it holds: {error}") from None
            step //= 2
            continue
        first = last
    return results[0] if len(results) == 1 else [torch.cat(column) for column in zip(*results, strict=True)]


class Sizes(NamedTuple):
    """The size of every map of a batch on its device, int64 [count] each; see `Slab`."""

    keys: Tensor
    queries: Tensor | None
    shift: Tensor | None
    query_positions: Tensor | None
    is_ragged: bool


def sizes_of(attention: Tensor, lengths: Tensor | Extent | None) -> Sizes:
    """Return the sizes of the maps of a batch [..., q, k], and where their queries stand."""
    leading, device = attention.shape[:-2], attention.device
    count = math.prod(leading)

    def of_maps(sizes: Tensor | None, largest: int) -> Tensor:
        if sizes is None:
            return torch.full((count,), largest, device=device)
        return sizes.expand(leading).reshape(count).to(device)

    if not isinstance(lengths, tuple):
        return Sizes(of_maps(lengths, attention.shape[-1]), None, None, None, lengths is not None)
    keys = of_maps(lengths.keys, attention.shape[-1])
    queries = of_maps(lengths.queries, attention.shape[-2])
    positions, shift = None, keys - queries
    if lengths.cross:
        positions = torch.full((count, attention.shape[-2]), -1, device=device)
    elif lengths.positions is not None:
        positions = lengths.positions.expand(attention.shape[:-1]).reshape(count, attention.shape[-2])
        positions = positions.to(device)
        shift = positions[:, 0]
    is_ragged = lengths.keys is not None or lengths.queries is not None
    return Sizes(keys, queries, shift, positions, is_ragged)


def _to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU, numbers in float64; small ones travel together, because each transfer waits
    for the device.
    """
    if tensors[0].is_cpu:
        return [_wide(tensor) for tensor in tensors]
    if tensors[0].device.type == "mps" or sum(tensor.numel() for tensor in tensors) > MOST_TOGETHER:
        return [_wide(tensor.cpu()) for tensor in tensors]
    # counts and flags are exact in float64
    packed = torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors]).cpu()
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.to(tensor.dtype).reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, float64 in the type of the device's arithmetic."""
    if tensor.dtype == torch.float64:
        return tensor.to(device, arithmetic_type(device))
    return tensor.to(device)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def runs_triton(device: torch.device) -> bool:
    """Return True for devices whose programs Triton writes, and where its interpreter runs them."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def _slab_type(device: torch.device, masks: Tensor | None) -> type[Slab]:
    """Return the class that reads maps fastest on a device: one fused read where there is Triton."""
    if masks is None and runs_triton(device):
        try:
            from attnscope.devices.fused_read import FusedSlab
        except ImportError:
            return Slab
        return FusedSlab
    return Slab


def _slab_size(count: int, device: torch.device, bytes_of_one: int) -> int:
    """Return how many maps fit at a time: their temporaries take at most an eighth of the free memory."""
    if count * bytes_of_one <= DEFAULT_BYTES:
        # asking a device for its free memory takes longer than a small slab
        return max(1, count)
    free = DEFAULT_BYTES * 8
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if count * bytes_of_one > free // 8:
            # what the caching allocator holds without using it can be had too; asking for it takes longer
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    elif device.type == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return max(1, free // 8 // bytes_of_one)
