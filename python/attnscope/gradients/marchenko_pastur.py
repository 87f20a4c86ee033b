# SPDX-License-Identifier: MIT
"""Derivative of the distance ∫ |F_emp − F| dx between a map's spectrum and the law of random rows.

An eigenvalue x_k that moves up takes 1/m of the spectrum with it: the integral changes by
|F(x_k) − (r − 1)/m| − |F(x_k) − r/m| with r the rank of x_k among m. The eigenvalues are σ²/n of the
standardised rows X = (A − mean)/s, so that ∂x_k/∂X = 2 σ_k u_k v_kᵀ/n, and a row loses from its gradient G
what a constant and X have in common with it, (G − mean(G) − X mean(G X))/s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope import _core
from attnscope.devices.slab import Slab
from attnscope.gradients import operators
from attnscope.gradients.refusal import refuse_backward

#: Fewer tokens than this give no distance.
_FEWEST = 8


class StandardRows(NamedTuple):
    """The standardised rows of the maps of a slab.

    Attributes:
        rows: [m, n, n]; 0 where a key is hidden, and in rows whose visible entries are equal.
        deviation: of each row's visible entries, 1 for rows of 0, [m, n, 1].
        visible: True for visible entries of rows that vary, [m, n, n].
    """

    rows: Tensor
    deviation: Tensor
    visible: Tensor


def _standardised(slab: Slab) -> StandardRows:
    entries, seen = slab.attention, slab.seen & slab.inside[:, :, None] & slab.inside[:, None, :]
    high = torch.where(seen, entries, -math.inf).amax(-1, keepdim=True)
    low = torch.where(seen, entries, math.inf).amin(-1, keepdim=True)
    visible = seen & (high > low)
    centred = torch.where(visible, entries - _row_mean(entries, visible), 0.0)
    deviation = _row_mean(centred.square(), visible).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return StandardRows(centred / deviation, deviation, visible)


def _row_mean(values: Tensor, visible: Tensor) -> Tensor:
    count = visible.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(visible, values, 0.0).sum(-1, keepdim=True) / count


def _slopes(eigenvalues: Tensor, sizes: Tensor, tokens: Tensor, causal: Tensor) -> Tensor:
    """Return the derivative of the distance by each eigenvalue [m, n], descending; 0 behind the sizes."""
    result = torch.zeros(eigenvalues.shape, dtype=torch.float64, device="cpu")
    for row, (size, n, is_causal) in enumerate(
        zip(sizes.tolist(), tokens.tolist(), causal.tolist(), strict=True)
    ):
        if not size:
            continue
        aspect = None if is_causal else size / n
        values = _core.null_law_cdf(eigenvalues[row, :size].tolist(), aspect, False)
        law = torch.tensor(values, dtype=torch.float64, device="cpu")
        rank = torch.arange(size, 0, -1, dtype=torch.float64, device="cpu")
        result[row, :size] = (law - (rank - 1) / size).abs() - (law - rank / size).abs()
    return result.to(eigenvalues)


def _evaluate(
    maps: Tensor, lengths: Tensor | None, support: str, null: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    answers = operators.evaluate("marchenko_pastur", maps, lengths, support, null, 1, 0, True)
    ks, wasserstein, outliers, energy, largest, edge, p_value, undefined, non_finite = answers
    count = torch.tensor(undefined, device="cpu")
    return wasserstein, ks, outliers, energy, largest, edge, p_value, count, non_finite


def _fake(maps: Tensor, *_: object) -> tuple[Tensor, ...]:
    leading = maps.shape[:-2]
    outliers = torch.empty(leading, dtype=torch.int64, device="cpu")
    numbers = [operators.empty(*leading) for _ in range(6)]
    return *numbers[:2], outliers, *numbers[2:], operators.count(), operators.count()


def _differentiate(gradient: Tensor, maps: Tensor, lengths: Tensor | None, support: str, null: str) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support)
    standard = _standardised(slab)
    sizes = standard.visible.any(-1).sum(-1)
    tokens = slab.lengths
    left, sigma, right = torch.linalg.svd(standard.rows, full_matrices=False)
    causal = slab.is_causal if null == "auto" else torch.full_like(slab.finite, null == "causal")
    defined = slab.finite & (tokens >= _FEWEST)
    slopes = _slopes(sigma.square() / tokens[:, None], torch.where(defined, sizes, 0), tokens, causal)
    by_value = slopes * operators.incoming_gradient(gradient, slab)[:, None]
    by_row = (left * (by_value * 2 * sigma / tokens[:, None])[:, None, :]) @ right
    along = standard.rows * _row_mean(by_row * standard.rows, standard.visible)
    by_entry = (by_row - _row_mean(by_row, standard.visible) - along) / standard.deviation
    result = torch.where(standard.visible & defined[:, None, None], by_entry, 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_OPERATOR = operators.operator_pair(
    "marchenko_pastur",
    _evaluate,
    _fake,
    _differentiate,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def marchenko_pastur(
    maps: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    null: str,
    draws: int,
    seed: int,
    all_fields: bool,
) -> tuple[Tensor, ...]:
    """Return the fields of the core's function, of which the distance of square maps from a law has a
    derivative; the others, and all of a permutation null, refuse to go backwards.
    """
    name = "marchenko_pastur"
    is_rectangle = lengths is not None and lengths.ndim > maps.ndim - 2
    if isinstance(support, Tensor) or null == "permutation" or is_rectangle:
        options = (support, null, draws, seed, all_fields)
        fields = operators.evaluate(name, maps.detach(), lengths, *options)
        reason = "a permutation null moves with the map, and only laws of square maps have one"
        refused: tuple[Tensor, ...] = refuse_backward(fields, maps, f"{name} has no derivative: {reason}")
        return refused
    distance, *fields_of_steps = _OPERATOR(maps, lengths, support, null)
    reason = f"{name} has no derivative but of wasserstein: a distance that is a supremum of a step function"
    ks, *others = refuse_backward(tuple(part.detach() for part in fields_of_steps), maps, reason)
    return ks, distance, *others
