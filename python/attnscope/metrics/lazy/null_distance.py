# SPDX-License-Identifier: MIT
"""Distance of the spectrum of lazy attention from that of random rows, by stochastic Lanczos quadrature.

X = (A − m)/s over each row's visible keys follows from products with A and from the sums of rows and of their
squares. Quadratures from random vectors give the distribution of the eigenvalues of XXᵀ/n on average. The
part that the steps of Lanczos leave open is bounded (Chebyshev, Markov and Stieltjes: the measure below a
node lies between the sums of weights with and without it); that of the random vectors follows from their
spread where the distance is, and their noise, which lifts a supremum, is taken off the lower end.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from attnscope import _core
from attnscope.metrics.estimates import IntervalEstimate
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.products import non_finite_maps
from attnscope.metrics.lazy.quadrature import Quadrature, gauss_quadrature, run_lanczos
from attnscope.metrics.lazy.threshold_graphs import require_square
from attnscope.metrics.lazy.visibility import visible_keys

#: Tokens up to which the map itself is measured.
_DENSE_TOKENS = 256
#: Random vectors, which one pass multiplies together, and steps of Lanczos from each.
_PROBES, _STEPS = 32, 96
#: Fewer tokens give too few eigenvalues to compare with a law.
_FEWEST_TOKENS = 8
#: Share of the law's edge below which eigenvalues count as below every x.
_RESOLVED_SHARE = 1e-12
#: Squared deviation of a row, relative to its squared mean, up to which its entries count as equal.
_EQUAL_ENTRIES = 1e-11
#: Draws of the noise of a supremum.
_DRAWS = 200
#: Lift of a supremum by noise over its lift where the same noise is added once more, in simulations.
_LIFT_AGAIN = 1.5
_CONFIDENCE = 0.95


class Differences(NamedTuple):
    """Differences of the distributions of probes [r, 2p] from a law, left and right of each of p places.

    Attributes:
        value: the estimate.
        low, high: bounds that the steps of Lanczos leave.
    """

    value: Tensor
    low: Tensor
    high: Tensor


class StandardRows:
    """Rows (A − m)/s of one exact map without padding, by their products; rows of equal entries are zeros.

    Args:
        attention: one square map [1, n, n] without padding, exact.
        is_causal: True where a query sees the keys up to its own, False where it sees all.
    """

    def __init__(self, attention: LazyAttention, is_causal: bool) -> None:
        self._attention, self._is_causal = attention, is_causal
        n = attention.shape[-1]
        mass, collision = (values[0] for values in attention.take([("mass", None), ("collision", None)]))
        count = torch.full_like(mass, n)
        if is_causal:
            count = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
        mean = mass / count
        variance = collision / count - mean.square()
        self.is_kept = (count > 1) & (variance > _EQUAL_ENTRIES * mean.square())
        self._scale = torch.where(self.is_kept, variance, 1.0).rsqrt() * self.is_kept
        self._mean = mean

    def multiply_gram(self, x: Tensor) -> Tensor:
        """Return XXᵀ/n times x [n, c]."""
        scaled = self._scale[:, None] * x
        shift = self._mean[:, None] * scaled
        total = shift.sum(0, keepdim=True)
        # the sum over the queries that see each key
        seen = total - shift.cumsum(0) + shift if self._is_causal else total
        of_keys = self._attention.multiply(scaled[None], transposed=True)[0] - seen
        sums = of_keys.cumsum(0) if self._is_causal else of_keys.sum(0, keepdim=True)
        image = self._attention.multiply(of_keys[None], transposed=False)[0] - self._mean[:, None] * sums
        return self._scale[:, None] * image / len(x)


def marchenko_pastur(
    attention: LazyAttention,
    lengths: Tensor | None,
    support: Any,
    null: str,
    draws: int,
    seed: int,
    all_fields: bool,
) -> tuple[IntervalEstimate, int, int]:
    """Return ks with an interval of 95 %, [..., h], and how many maps have none and how many hold NaN."""
    name = "marchenko_pastur_deviation"
    if all_fields:
        raise TypeError(
            "marchenko_pastur: of lazy attention the distance ks alone is known, by "
            f"{name}; LazyAttention.dense() makes the map"
        )
    require_square(name, attention)
    attention = attention if lengths is None else attention.with_lengths(lengths)
    leading = attention.shape[:-2]
    sizes = attention.sizes.reshape(leading)
    non_finite = non_finite_maps(attention)
    ends = np.full((leading.numel(), 3), math.nan)
    for place, index in enumerate(np.ndindex(*leading)):
        n = int(sizes[index])
        if n < _FEWEST_TOKENS or bool(non_finite[index]):
            continue
        selected = attention.select_map(index, n)
        support_of_map = _require_law(selected, null, support)
        ends[place] = _interval(selected, support_of_map, null, draws, seed)
    undefined = int((np.isnan(ends[:, 0]) & ~non_finite.flatten().numpy()).sum())
    value, low, high = torch.from_numpy(ends).reshape(*leading, 3).unbind(-1)
    return IntervalEstimate(value, low, high), undefined, int(non_finite.sum())


def _require_law(attention: LazyAttention, null: str, support: Any) -> str:
    """Return "causal" or "full", what a map's queries see, or raise where its null has no law."""
    name = "marchenko_pastur_deviation"
    seen = visible_keys(attention.visibility, attention.shape[-1])
    if seen not in ("causal", "full") or null == "permutation":
        raise ValueError(
            f"{name}: a permutation null shuffles the entries of a map, which lazy attention has not; it "
            f"takes queries that see all keys or those up to their own, got {seen!r} with null={null!r}"
        )
    if isinstance(support, Tensor) or support not in ("auto", seen):
        raise ValueError(f"{name}: lazy attention here is {seen}, expected support='auto', got {support!r}")
    return seen


def _interval(
    attention: LazyAttention, support: str, null: str, draws: int, seed: int
) -> tuple[float, float, float]:
    """Return value, low and high of one map; NaN where no row varies."""
    n = attention.shape[-1]
    if n <= _DENSE_TOKENS:
        ks = float(_core.marchenko_pastur(attention.dense(), None, support, null, draws, seed, False)[0])
        return ks, max(0.0, ks - 1e-9), min(1.0, ks + 1e-9)
    rows = StandardRows(attention, support == "causal")
    rows_counted = int(rows.is_kept.sum())
    if not rows_counted:
        return (math.nan,) * 3
    generator = torch.Generator("cpu").manual_seed(seed)
    probes = torch.randn(n, _PROBES, generator=generator, dtype=torch.float64, device="cpu")
    probes = probes * rows.is_kept[:, None]
    measures = gauss_quadrature(run_lanczos(rows.multiply_gram, probes, min(n, _STEPS)))
    is_triangle = (support if null == "auto" else null) == "causal"
    differences = _differences(measures, None if is_triangle else rows_counted / n)
    return _supremum(differences, generator)


def _differences(measures: Quadrature, aspect: float | None) -> Differences:
    """Return the probes' distributions less the triangular law, or that of an aspect."""
    edge = math.e if aspect is None else (1 + math.sqrt(aspect)) ** 2
    floor = _RESOLVED_SHARE * edge
    places = torch.cat([measures.nodes.flatten(), torch.tensor([floor], dtype=torch.float64, device="cpu")])
    places = places[places >= floor].sort().values
    law = torch.tensor(_core.null_law_cdf(places.tolist(), aspect, False), dtype=torch.float64, device="cpu")
    sides = [_distributions(measures, places, right) for right in (False, True)]
    # eigenvalues below the floor count as below it: nothing is left of it
    is_floor = places <= floor
    value, low, high = (
        torch.cat([torch.where(is_floor, right, left) - law, right - law], -1)
        for left, right in zip(*sides, strict=True)
    )
    return Differences(value, low, high)


def _distributions(measures: Quadrature, places: Tensor, right: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return each probe's distribution at places, or left of them, and its bounds, [r, p]."""
    nodes, weights = measures.nodes, measures.weights
    largest = nodes[:, -1:].clamp(min=torch.finfo(torch.float64).tiny)
    gaps = nodes.diff(dim=-1)
    infinite = torch.full_like(largest, math.inf)
    gap = torch.minimum(torch.cat([infinite, gaps], -1), torch.cat([gaps, infinite], -1))
    # An eigenvalue that a node has reached is a step; what a node stands for is else around it.
    spread = weights * (measures.residuals / torch.maximum(gap, 1e-10 * largest)).clamp(max=1.0)
    sums = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))
    spread = torch.nn.functional.pad(spread, (1, 1))
    index = torch.searchsorted(nodes, places.expand(len(nodes), -1).contiguous(), right=right)
    low = sums.gather(-1, index) - spread.gather(-1, index)
    high = sums.gather(-1, index) + spread.gather(-1, index + 1)
    # between two nodes it rises evenly in √x, from half of what is around the one to half of the other
    ends = torch.nn.functional.pad(nodes.clamp(min=0.0).sqrt(), (1, 1))
    ends[:, -1] = ends[:, -2]
    start, stop = ends.gather(-1, index), ends.gather(-1, index + 1)
    width = stop - start
    share = torch.where(width > 0, (places.sqrt() - start) / torch.where(width > 0, width, 1.0), 0.5)
    value = (
        low / 2
        + high / 2
        + (share.clamp(0.0, 1.0) - 0.5) * (spread.gather(-1, index) + spread.gather(-1, index + 1)) / 2
    )
    return value, low.clamp(min=0.0), high.clamp(max=1.0)


def _supremum(differences: Differences, generator: torch.Generator) -> tuple[float, float, float]:
    """Return the largest magnitude of the mean difference with an interval of 95 %."""
    count = len(differences.value)
    mean = differences.value.mean(0)
    deviations = (differences.value - mean) / math.sqrt(count * (count - 1))
    value, place = mean.abs().max(0)
    half_width = float(deviations[:, place].norm() * scipy.special.stdtrit(count - 1, 0.5 + _CONFIDENCE / 2))
    # noise lifts a supremum: by how much is seen where it is added once more
    factors = torch.randn(_DRAWS, count, generator=generator, dtype=torch.float64, device="cpu")
    lift = float((mean + factors @ deviations).abs().amax(-1).mean() - value)
    low, high = differences.low.mean(0), differences.high.mean(0)
    least = float(torch.maximum(low, -high).max())
    most = float(torch.maximum(high, -low).max())
    return (
        float(value),
        max(0.0, min(least, float(value)) - half_width - _LIFT_AGAIN * max(0.0, lift)),
        min(1.0, max(most, float(value)) + half_width),
    )
