# SPDX-License-Identifier: MIT
"""Maps, and the comparison of measures in torch operations with the compiled core."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc

CPU, CUDA = "cpu", "cuda"
DEVICES = [
    pytest.param(CPU, id="torch on the CPU"),
    pytest.param(
        CUDA,
        id="cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ),
]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def attention(kind: str, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return two layers of three heads [2, 3, n, n]; one map of the second layer holds a NaN."""
    generator = torch.Generator().manual_seed(n)
    logits = 2 * torch.randn(2, 3, n, n, generator=generator, dtype=torch.float64)
    if kind == "causal":
        logits.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
    if kind == "sink":
        logits[..., 0] += 5
    maps = logits.softmax(-1)
    if kind == "two components":
        maps[..., : n // 2, n // 2 :] = 0
        maps[..., n // 2 :, : n // 2] = 0
        maps /= maps.sum(-1, keepdim=True)
    maps = maps.to(dtype)
    if n > 4:
        maps[1, 1, 2, 3] = math.nan
    return maps


def on_device(function, device: str, maps: torch.Tensor, *arguments, **options):
    """Return the function's result as torch operations on the device compute it."""
    if device == CPU:
        with asc.devices.use("torch"):
            return function(maps, *arguments, **options)
    moved = [part.to(device) if isinstance(part, torch.Tensor) else part for part in arguments]
    return function(maps.to(device), *moved, **options)


def assert_equal(
    function, device: str, maps: torch.Tensor, *arguments, bound: float = 1e-11, **options
) -> None:
    """Raise where a result differs from the core's by more than the bound, relative to 1 + its size."""
    expected = function(maps, *arguments, **options)
    computed = on_device(function, device, maps, *arguments, **options)
    if isinstance(expected, torch.Tensor):
        expected, computed = (expected,), (computed,)
    for want, have in zip(expected, computed, strict=True):
        if want is None:
            assert have is None
            continue
        assert have.device.type == CPU
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if want.dtype.is_floating_point:
            np.testing.assert_allclose(have, want, rtol=bound, atol=bound, equal_nan=True)
        else:
            assert torch.equal(have, want)
