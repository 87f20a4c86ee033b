# SPDX-License-Identifier: MIT
"""Wavelets of attention in torch operations; the definitions are those of `attnscope.wavelet_transform` and
`attnscope.morlet_scalogram`.

Signals of all lengths are transformed side by side: each knows its length at every level.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.signals.signal_reader import (
    SignalOptions,
    Signals,
    per_signal,
    scaled,
)
from attnscope.devices.slab import Slab

_ROOT3, _NORM = math.sqrt(3.0), 4.0 * math.sqrt(2.0)
#: Analysis filters; the high-pass one is the low-pass one backwards with alternating signs.
LOW = ((1 - _ROOT3) / _NORM, (3 - _ROOT3) / _NORM, (3 + _ROOT3) / _NORM, (1 + _ROOT3) / _NORM)
HIGH = (-LOW[3], LOW[2], -LOW[1], LOW[0])
#: Energy below it, as a share of the total, is rounding.
ROUNDING = 1e-28
#: exp(−z²/2) is below 1e-17 beyond it.
MORLET_REACH = 9.0


class Scale(NamedTuple):
    """Coefficients of a scale, 0 behind the last, [m, slots, most], and their numbers, [m, slots]."""

    coefficients: Tensor
    counts: Tensor


def wavelet_transform(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    levels: int,
    resample: int,
) -> tuple[Tensor, Tensor, int]:
    """Return energies, their entropy, entropies within scales and the error of the way back of every signal,
    one behind the other, and the mean profile of every map.

    Raises:
        NotOnDevice: a device without float64.
    """

    def measure(slab: Slab, signals: Signals) -> tuple[Tensor, Tensor]:
        energy = signals.values.square().sum(-1)
        defined = signals.defined & (signals.counts >= 3 << levels) & (energy > 0)
        finest = Scale(signals.values, signals.counts)
        scales = _decomposed(finest, levels)
        fields = torch.where(defined[..., None], _described(finest, scales, energy), math.nan)
        profile = [_resampled(scale, resample) for scale in scales]
        coefficients = scaled(torch.stack(profile, -2), signals.exponents[..., None, None])
        coefficients = torch.where(defined[..., None, None], coefficients, 0.0).sum(1)
        profiles = coefficients / defined.sum(1)[:, None, None]
        return fields, profiles

    # the profile has `resample` numbers of each scale beside the n of a signal
    wide = math.ceil(4 * (levels + 1) * resample / attention.shape[-1])
    options = SignalOptions(signal, drop_first, detrend, min_keys)
    fields, profiles, non_finite = per_signal(measure, attention, lengths, support, options, beside=wide)
    return fields, profiles, non_finite


def _decomposed(signal: Scale, levels: int) -> list[Scale]:
    """Return the scales from coarse to fine: the approximation, then the details."""
    details, low = [], signal
    for _ in range(levels):
        low, high = _analysed(low)
        details.append(high)
    return [low, *reversed(details)]


def _analysed(signal: Scale) -> tuple[Scale, Scale]:
    """Return approximation and detail of a level: low_k = Σ_j LOW_j x_{2k+2−j}, an odd end repeated."""
    values, counts = signal
    half = (counts + 1) // 2
    k = torch.arange((values.shape[-1] + 1) // 2, device=values.device)
    inside = k < half[..., None]
    around = 2 * half[..., None]
    low = high = torch.zeros((), dtype=values.dtype, device=values.device)
    for tap in range(4):
        place = torch.minimum((2 * k + 2 - tap) % around, counts[..., None] - 1)
        entries = values.gather(-1, place)
        low, high = low + LOW[tap] * entries, high + HIGH[tap] * entries
    return Scale(torch.where(inside, low, 0.0), half), Scale(torch.where(inside, high, 0.0), half)


def _synthesised(low: Scale, high: Tensor, longer: int, counts: Tensor) -> Scale:
    """Return the signal of a level from approximation and detail: the transpose of `_analysed`."""
    half = low.counts[..., None]
    k = torch.arange(low.coefficients.shape[-1], device=high.device).expand(high.shape)
    before, after = (k - 1) % half, (k + 1) % half
    smooth = low.coefficients
    even = LOW[2] * smooth + HIGH[2] * high
    even = even + LOW[0] * smooth.gather(-1, before) + HIGH[0] * high.gather(-1, before)
    odd = LOW[1] * smooth + HIGH[1] * high
    odd = odd + LOW[3] * smooth.gather(-1, after) + HIGH[3] * high.gather(-1, after)
    values = torch.stack([even, odd], -1).flatten(-2)[..., :longer]
    places = torch.arange(longer, device=high.device)
    return Scale(torch.where(places < counts[..., None], values, 0.0), counts)


def _reconstructed(signal: Scale, scales: list[Scale]) -> Tensor:
    """Return the signals again from their scales, as they are shaped."""
    again, *details = scales
    for detail, finer in zip(details, [*details[1:], signal], strict=True):
        longer = finer.coefficients.shape[-1]
        again = _synthesised(again, detail.coefficients, longer, finer.counts)
    return again.coefficients


def _described(signal: Scale, scales: list[Scale], energy: Tensor) -> Tensor:
    """Return energies, entropy of the scales, entropies within them and error, [m, slots, fields]."""
    energies = torch.stack([scale.coefficients.square().sum(-1) for scale in scales], -1)
    total = energies.sum(-1, keepdim=True)
    within = [
        _entropy(scale.coefficients.square() / energies[..., place, None])
        for place, scale in enumerate(scales)
    ]
    within_defined = torch.where(energies > ROUNDING * total, torch.stack(within, -1), math.nan)
    shares = energies / total
    difference = signal.coefficients - _reconstructed(signal, scales)
    error = (difference.square().sum(-1) / energy).sqrt()
    return torch.cat([shares, _entropy(shares)[..., None], within_defined, error[..., None]], -1)


def _entropy(shares: Tensor) -> Tensor:
    """Return −Σ p log2 p."""
    return (-torch.xlogy(shares, shares).sum(-1) / math.log(2)).clamp(min=0.0)


def _resampled(scale: Scale, points: int) -> Tensor:
    """Return coefficients read at equal steps from the first to the last, [m, slots, points]."""
    values, last = scale.coefficients, scale.counts[..., None] - 1
    step = torch.arange(points, device=values.device).to(values.dtype)
    place = step * last / max(points - 1, 1)
    below = torch.minimum(place.long(), last)
    above = torch.minimum(below + 1, last)
    part = place - below
    return (1.0 - part) * values.gather(-1, below) + part * values.gather(-1, above)


def morlet_scalogram(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    scales: Tensor,
    omega: float,
) -> tuple[Tensor, int]:
    """Return the power of every map's signal at each scale and place; NaN behind the signal.

    Raises:
        NotOnDevice: a device without float64.
    """

    def measure(slab: Slab, signals: Signals) -> tuple[Tensor]:
        values, real = signals.values[:, 0], signals.real[:, 0]
        powers = []
        for scale in scales.tolist():
            cosine, sine = _morlet_matrices(slab, scale, omega)
            powers.append((values @ cosine).square() + (values @ sine).square())
        power = scaled(torch.stack(powers, 1), 2 * signals.exponents[:, :, None])
        defined = real & signals.defined
        # of its one slot
        return (torch.where(defined[:, None], power, math.nan)[:, None],)

    options = SignalOptions(signal, drop_first, detrend, min_keys)
    result, non_finite = per_signal(measure, attention, lengths, support, options)
    return result, non_finite


def _morlet_matrices(slab: Slab, scale: float, omega: float) -> tuple[Tensor, Tensor]:
    """Return the wavelet's real and imaginary part for each entry and place of a signal, [n, n]."""
    n = slab.n
    distance = torch.arange(1 - n, n, dtype=slab.dtype, device=slab.maps.device)
    z = distance / scale
    norm = math.pi**-0.25 / math.sqrt(scale)
    envelope = torch.where(
        distance.abs() <= math.ceil(MORLET_REACH * scale), norm * (-0.5 * z * z).exp(), 0.0
    )
    index = slab.positions[:, None] - slab.positions + n - 1
    return (envelope * (omega * z).cos())[index], (envelope * (omega * z).sin())[index]
