# SPDX-License-Identifier: MIT
"""Spread of attention in position and frequency, in torch operations; the definition is
`attnscope.spectral_uncertainty`'s.

A transform has exactly the length of its signal, and nearly each signal has a length of its own. So all are
transformed together as convolutions with a chirp (Bluestein, A linear filtering approach to the computation
of discrete Fourier transform, 1970).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.signals.power_spectrum import fast_length
from attnscope.devices.signals.signal_reader import (
    SignalOptions,
    Signals,
    per_signal,
)
from attnscope.devices.slab import Slab

#: Numbers of each signal.
FIELDS = 6


def spectral_uncertainty(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    signal: str,
    drop_first: bool,
    min_keys: int,
    root: bool,
) -> tuple[Tensor, int]:
    """Return entropies, variances and bounds of every signal, six numbers each.

    Raises:
        NotOnDevice: a device without float64.
    """

    def measure(slab: Slab, signals: Signals) -> tuple[Tensor]:
        # libraries of transforms refuse a batch of nothing
        empty = signals.values.new_zeros((*signals.counts.shape, FIELDS))
        return (_spread(signals, root) if len(signals.values) else empty,)

    options = SignalOptions(signal, drop_first, False, min_keys)
    # complex transforms of twice the length
    result, non_finite = per_signal(measure, attention, lengths, support, options, beside=5 * 2 * 2)
    return result, non_finite


def _spread(signals: Signals, root: bool) -> Tensor:
    """Return the six numbers of signals, [m, slots, 6]."""
    values, counts = signals.values, signals.counts
    places = torch.arange(values.shape[-1], device=values.device)
    mass = values.sum(-1, keepdim=True)
    defined = signals.defined & (mass.squeeze(-1) > 0) & (values >= 0).all(-1)
    shares = torch.where(defined[..., None], values / torch.where(mass > 0, mass, 1.0), 0.0)
    psi = shares.sqrt() if root else shares
    norm = torch.linalg.vector_norm(psi, dim=-1, keepdim=True)
    psi = psi / torch.where(norm > 0, norm, 1.0)
    alternating = (psi * torch.where(places % 2 == 0, 1.0, -1.0)).sum(-1)
    mean = (places * psi * psi).sum(-1, keepdim=True)
    position = (((places - mean) * psi) ** 2).sum(-1)
    fields = [
        _entropy(shares),
        _entropy(_powers(psi, counts)),
        counts.to(values.dtype).log(),
        position,
        _frequency_variance(psi, counts),
        (1.0 - alternating * alternating) ** 2 / 4.0,
    ]
    return torch.where(defined[..., None], torch.stack(fields, -1), math.nan)


def _entropy(powers: Tensor) -> Tensor:
    """Return −Σ p log p of powers made to sum to 1."""
    total = powers.sum(-1, keepdim=True)
    shares = powers / torch.where(total > 0, total, 1.0)
    return (-torch.xlogy(shares, shares).sum(-1)).clamp(min=0.0)


def _powers(psi: Tensor, counts: Tensor) -> Tensor:
    """Return |Σ_t ψ_t exp(−2πikt/count)|² for k below each signal's count, 0 behind, as `psi` is shaped."""
    n = psi.shape[-1]
    size = fast_length(2 * n - 1)
    distinct, which = torch.unique(counts, return_inverse=True)
    places = torch.arange(n, device=psi.device)
    # t² modulo 2·count in whole numbers, so that the phase of a long signal loses no digit
    turns = (places * places) % (2 * distinct[:, None]) / distinct[:, None].to(psi.dtype)
    chirps = torch.polar(torch.ones_like(turns), math.pi * turns)
    inside = places < distinct[:, None]
    chirps = torch.where(inside, chirps, 0.0)
    around = torch.zeros((len(distinct), size), dtype=chirps.dtype, device=psi.device)
    around[:, :n] = chirps
    if n > 1:
        around[:, 1 - n :] = chirps[:, 1:].flip(-1)
    spectrum = torch.fft.fft(psi * chirps.conj()[which], n=size) * torch.fft.fft(around)[which]
    powers = torch.fft.ifft(spectrum)[..., :n].abs().square()
    return torch.where(places < counts[..., None], powers, 0.0)


def _frequency_variance(psi: Tensor, counts: Tensor) -> Tensor:
    """Return ∫ω²|Ψ|²/2π = Σ_k r_k c_k: autocorrelations r and Fourier coefficients c of ω² on (−π, π]."""
    n = psi.shape[-1]
    size = fast_length(2 * n - 1)
    correlations = torch.fft.irfft(torch.fft.rfft(psi, n=size).abs().square(), n=size)[..., :n]
    places = torch.arange(n, device=psi.device)
    squares = (places * places).clamp(min=1).to(psi.dtype)
    coefficients = torch.where(places % 2 == 0, 4.0, -4.0) / squares
    coefficients = torch.where(places == 0, math.pi**2 / 3, coefficients)
    inside = places < counts[..., None]
    return torch.where(inside, correlations * coefficients, 0.0).sum(-1).clamp(min=0.0)
