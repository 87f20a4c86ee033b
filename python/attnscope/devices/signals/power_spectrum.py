# SPDX-License-Identifier: MIT
"""Power spectra of attention in torch operations; the definition is `attnscope.power_spectrum`'s.

Signals of different lengths have transforms of few sizes, each with small prime factors alone. Signals of
equal size are transformed together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.signals.signal_reader import (
    SignalOptions,
    Signals,
    per_signal,
    rescale,
)
from attnscope.devices.slab import Slab

#: Numbers of a spectrum before its bands.
FIELDS = 7
#: Power below it, as a share of the total, is rounding.
ROUNDING = 1e-28
#: The first bin whose power is this part of the largest is the strongest: bins that are alike in exact
#: arithmetic differ by rounding.
TIE = 1 - 1e-9


def fast_length(count: int) -> int:
    """Return the smallest multiple of 4 that is at least `count` and has no prime factor above 5."""
    quarters = max(1, (count + 3) // 4)
    while True:
        rest = quarters
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return 4 * quarters
        quarters += 1


def power_spectrum(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    hann: bool,
    padding: float,
    bands: int,
) -> tuple[Tensor, int]:
    """Return the seven numbers of every signal's spectrum, and its bands behind them.

    Raises:
        NotOnDevice: a device without float64.
    """

    def measure(slab: Slab, signals: Signals) -> tuple[Tensor]:
        if hann:
            signals = _windowed(signals)
        result = torch.full(
            (*signals.counts.shape, FIELDS + bands), math.nan, dtype=slab.dtype, device=slab.maps.device
        )
        sizes = [fast_length(max(count, math.ceil(padding * count))) for count in range(slab.n + 1)]
        size_of = torch.tensor(sizes, device=slab.maps.device)[signals.counts]
        size_of = torch.where(signals.defined, size_of, 0)
        for size in sorted(set(size_of.flatten().tolist())):
            if size:
                chosen = size_of == size
                power = torch.fft.rfft(signals.values[chosen], n=size).abs().square()
                result[chosen] = _described(power, bands)
        return (result,)

    options = SignalOptions(signal, drop_first, detrend, min_keys)
    result, non_finite = per_signal(
        measure, attention, lengths, support, options, beside=math.ceil(6 * padding)
    )
    return result, non_finite


def _windowed(signals: Signals) -> Signals:
    """Return the signals times a periodic Hann window of their length."""
    places = torch.arange(signals.values.shape[-1], device=signals.values.device)
    turns = places / signals.counts[..., None].to(signals.values.dtype)
    values = signals.values * (0.5 - 0.5 * torch.cos(2 * math.pi * turns))
    # the window is 0 where it begins, and what is there may have been all
    return signals._replace(values=rescale(values)[0])


def _described(power: Tensor, bands: int) -> Tensor:
    """Return the numbers of two-sided spectra [s, bins] of 0 to the Nyquist frequency; NaN without power."""
    bins = power.shape[-1]
    power = torch.cat([power[:, :1], 2 * power[:, 1:-1], power[:, -1:]], -1)
    total = power.sum(-1, keepdim=True)
    largest = power.amax(-1)
    peak = (power >= TIE * largest[:, None]).int().argmax(-1)
    power = torch.where(power <= ROUNDING * total, 0.0, power)
    shares = power / total
    place = 4 * torch.arange(bins, device=power.device)
    low, high = place < bins - 1, place >= 3 * (bins - 1)
    # of a bin without power the geometric mean is 0
    geometric = torch.where((power == 0).any(-1), 0.0, shares.log().mean(-1).exp() * bins)
    fields = [
        *(torch.where(band, shares, 0.0).sum(-1) for band in (low, ~low & ~high, high)),
        largest / total.squeeze(-1),
        peak.to(power.dtype) / (bins - 1),
        geometric.clamp(max=1.0),
        (-torch.xlogy(shares, shares).sum(-1) / math.log(2)).clamp(min=0.0),
    ]
    described = torch.stack(fields, -1)
    if bands:
        described = torch.cat([described, shares @ _band_parts(bins, bands, power)], -1)
    return torch.where(total > 0, described, math.nan)


def _band_parts(bins: int, bands: int, like: Tensor) -> Tensor:
    """Return the part of each bin that lies in each of equal bands [bins, bands].

    The power of a bin is spread evenly over the frequencies that are nearest to it.
    """
    width = bands / (bins - 1)
    place = torch.arange(bins, dtype=like.dtype, device=like.device)
    low, high = ((place - 0.5) * width).clamp(min=0), ((place + 0.5) * width).clamp(max=bands)
    edge = torch.arange(bands, dtype=like.dtype, device=like.device)
    overlap = torch.minimum(high[:, None], edge + 1) - torch.maximum(low[:, None], edge)
    return overlap.clamp(min=0) / (high - low)[:, None]
