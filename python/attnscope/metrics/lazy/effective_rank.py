# SPDX-License-Identifier: MIT
"""Effective rank of lazy attention by stochastic Lanczos quadrature.

The sums of σ and of σ·log σ are traces of functions of AᵀA: inside a space of leading directions they are
taken from each of its vectors, outside from random vectors. The rules of Gauss and of Gauss and Radau enclose
the first; their difference is how far the steps leave the result open.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
import torch
from torch import Tensor

from attnscope import _core
from attnscope.metrics.estimates import IntervalEstimate
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.products import energy_of, multiply_gram, non_finite_maps
from attnscope.metrics.lazy.quadrature import Quadrature, gauss_quadrature, radau_quadrature, run_lanczos
from attnscope.metrics.lazy.spectral_functions import leading_basis
from attnscope.metrics.lazy.threshold_graphs import require_square
from attnscope.metrics.spectra.singular_values import effective_rank_of

#: Tokens up to which the map itself is measured.
_DENSE_TOKENS = 256
#: Blocks of the space of leading directions, random vectors outside it, and steps of Lanczos from each.
_BLOCKS, _PROBES, _STEPS = 2, 32, 64
_CONFIDENCE = 0.95


def effective_rank(
    attention: LazyAttention, lengths: Tensor | None, seed: int
) -> tuple[IntervalEstimate, int]:
    """Return exp(−Σ p log p), p = σ/Σσ, with an interval of 95 %, [..., h]."""
    require_square("effective_rank", attention)
    attention = attention if lengths is None else attention.with_lengths(lengths)
    leading = attention.shape[:-2]
    sizes = attention.sizes.reshape(leading)
    non_finite = non_finite_maps(attention)
    ends = np.full((leading.numel(), 3), math.nan)
    for place, index in enumerate(np.ndindex(*leading)):
        if not bool(non_finite[index]):
            ends[place] = _interval(attention.select_map(index, int(sizes[index])), seed)
    value, low, high = torch.from_numpy(ends).reshape(*leading, 3).unbind(-1)
    return IntervalEstimate(value, low, high), int(non_finite.sum())


def _interval(attention: LazyAttention, seed: int) -> tuple[float, float, float]:
    """Return value, low and high of one exact map [1, n, n] without padding; NaN of a map of zeros."""
    n = attention.shape[-1]
    if n <= _DENSE_TOKENS:
        rank = float(effective_rank_of(_core.singular_values(attention.dense(), None)[0]))
        return rank, max(1.0, rank * (1 - 1e-9)), min(n, rank * (1 + 1e-9))
    if not bool(energy_of(attention) > 0):
        return (math.nan,) * 3
    basis = leading_basis(attention, _BLOCKS, seed)[0]
    basis = basis[:, basis.square().sum(0) > 0.5]
    generator = torch.Generator("cpu").manual_seed(seed + 1)
    probes = torch.randn(n, _PROBES, generator=generator, dtype=torch.float64, device="cpu")
    probes = probes - basis @ (basis.mT @ probes)
    start = torch.cat([basis, probes], -1)
    runs = run_lanczos(lambda x: multiply_gram(attention, x[None])[0], start, min(n, _STEPS))
    inside, outside = basis.shape[-1], n - basis.shape[-1]
    estimates = [_log_rank(rule(runs), inside, outside) for rule in (gauss_quadrature, radau_quadrature)]
    value = (estimates[0][0] + estimates[1][0]) / 2
    half_width = max(error for _, error in estimates) + abs(estimates[0][0] - estimates[1][0]) / 2
    ends = (math.exp(value + side) for side in (-half_width, half_width))
    return math.exp(value), max(1.0, next(ends)), min(n, next(ends))


def _log_rank(measures: Quadrature, inside: int, outside: int) -> tuple[float, float]:
    """Return the logarithm of the rank, log Σσ − Σσ log σ/Σσ, and the half width of its interval."""
    sigma = measures.nodes.clamp(min=0.0).sqrt()
    sums, entropies = ((measures.weights * values).sum(-1) for values in (sigma, torch.xlogy(sigma, sigma)))
    total, moment = (
        float(values[:inside].sum() + outside * values[inside:].mean()) for values in (sums, entropies)
    )
    # how the result moves with each probe, to first order
    slope = (1 + moment / total) / total
    moves = outside * (slope * sums[inside:] - entropies[inside:] / total)
    error = float(moves.std() / math.sqrt(len(moves)))
    quantile = float(scipy.special.stdtrit(len(moves) - 1, 0.5 + _CONFIDENCE / 2))
    return math.log(total) - moment / total, quantile * error
