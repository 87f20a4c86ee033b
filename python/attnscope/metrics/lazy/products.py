# SPDX-License-Identifier: MIT
"""Products with maps of lazy attention in which padding and maps with NaN count as zeros."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.metrics.lazy.lazy_attention import LazyAttention

#: Relative error of a weight of "fast" attention: a constant, and a share of the largest score.
_FAST_ERROR = (1e-6, 3e-7)
#: The same of "exact" attention.
_EXACT_ERROR = 1e-13


def multiply(attention: LazyAttention, x: Tensor) -> Tensor:
    """Return A·x, float64 [..., h, q, c], of x [..., h, k, c]; 0 for padding."""
    return attention.multiply(x, transposed=False).nan_to_num(0.0, 0.0, 0.0)


def multiply_transposed(attention: LazyAttention, x: Tensor) -> Tensor:
    """Return Aᵀ·x, float64 [..., h, k, c], of x [..., h, q, c]; 0 for padding."""
    return attention.multiply(x, transposed=True).nan_to_num(0.0, 0.0, 0.0)


def multiply_gram(attention: LazyAttention, x: Tensor) -> Tensor:
    """Return AᵀA·x, float64 [..., h, k, c]."""
    return multiply_transposed(attention, multiply(attention, x))


def energy_of(attention: LazyAttention) -> Tensor:
    """Return Σ A² of each map, float64 [..., h]; 0 for a map with NaN."""
    (collision,) = attention.take([("collision", None)])
    return torch.where(attention.visibility.real, collision, 0.0).sum(-1).nan_to_num(0.0)


def non_finite_maps(attention: LazyAttention) -> Tensor:
    """Return which maps have a real query that is NaN, bool [..., h]."""
    (log_z,) = attention.take([("log_z", None)])
    return (log_z.isnan() & attention.visibility.real).any(-1)


def weight_error(attention: LazyAttention) -> Tensor:
    """Return a bound of the relative error of each map's weights, float64 [..., h]."""
    if attention.precision == "exact":
        return torch.full(attention.shape[:-2], _EXACT_ERROR, dtype=torch.float64, device="cpu")
    lengths = [
        states.detach().double().norm(dim=-1).amax(-1).cpu() for states in (attention.query, attention.key)
    ]
    group = attention.heads // attention.key.shape[-3]
    largest = abs(attention.scaling) * lengths[0] * lengths[1].repeat_interleave(group, -1)
    return _FAST_ERROR[0] + _FAST_ERROR[1] * largest.nan_to_num(0.0)


def random_directions(attention: LazyAttention, count: int, seed: int) -> Tensor:
    """Return normal vectors for the keys of each map, the same for all maps, [..., h, k, count].

    Vectors are 0 at padding, so that a map's results do not depend on it.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    keys = attention.shape[-1]
    normal = torch.randn(keys, count, generator=generator, dtype=torch.float64, device="cpu")
    inside = torch.arange(keys, device="cpu") < attention.sizes[..., None]
    return torch.where(inside[..., None], normal, 0.0)
