# SPDX-License-Identifier: MIT
"""What the wavelet study reads off the maps of one layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.signals.locality import local_global_ratio
from attnscope.metrics.signals.power_spectrum import power_spectrum
from attnscope.metrics.signals.uncertainty import spectral_uncertainty
from attnscope.metrics.signals.wavelet import wavelet_transform
from attnscope.studies.wavelet_heads.options import WaveletOptions

#: Functions that the study can be restricted to.
METRICS = (
    "power_spectrum",
    "wavelet_transform",
    "spectral_uncertainty",
    "local_global_ratio",
    "scale_sensitivity",
)
#: Bands of the table `spectra`.
BANDS = 32
#: Points that each scale's coefficients are resampled to.
RESAMPLED = 32


def spectrum_columns(maps: Tensor, lengths: Any, options: WaveletOptions) -> tuple[dict[str, Tensor], Tensor]:
    """Columns of `heads` from the power spectra, and the shares of their bands [..., BANDS].

    Args:
        maps: [..., n, n].
        lengths: tokens per map.
        options: of the study.
    """
    found = power_spectrum(maps, bands=BANDS, padding=options.padding, lengths=lengths, **options.reading())
    columns = {
        "low_band": found.low,
        "mid_band": found.mid,
        "high_band": found.high,
        "spectral_selectivity": found.selectivity,
        "spectral_peak": found.peak,
        "spectral_flatness": found.flatness,
        "spectral_entropy": found.entropy,
    }
    over = options.signal == "rows"
    bands = found.bands.nanmean(-2) if over else found.bands
    return {name: _averaged(values, over) for name, values in columns.items()}, bands


def wavelet_columns(
    maps: Tensor, lengths: Any, options: WaveletOptions
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Columns of `heads` from the wavelet transforms, mean energies [..., scales], and profiles [..., k].

    Args:
        maps: [..., n, n].
        lengths: tokens per map.
        options: of the study.
    """
    found = wavelet_transform(maps, resample=RESAMPLED, lengths=lengths, **options.reading())
    over = options.signal == "rows"
    energy = found.energy.nanmean(-2) if over else found.energy
    within = found.position_entropy.nanmean(-2) if over else found.position_entropy
    columns = {f"wavelet_energy_{scale}": values for scale, values in enumerate(energy.unbind(-1))}
    columns["wavelet_entropy"] = _averaged(found.scale_entropy, over)
    columns |= {f"wavelet_position_entropy_{at}": values for at, values in enumerate(within.unbind(-1))}
    columns["reconstruction_error"] = _averaged(found.reconstruction_error, over)
    return columns, energy, found.profile.flatten(-2)


def uncertainty_columns(maps: Tensor, lengths: Any, options: WaveletOptions) -> dict[str, Tensor]:
    """Columns of `heads`: entropies (nats) and variances in position and frequency, with their bounds.

    Args:
        maps: [..., n, n].
        lengths: tokens per map.
        options: of the study.
    """
    found = spectral_uncertainty(maps, lengths=lengths, **options.reading(detrend=False))
    columns = {
        "position_entropy": found.position_entropy,
        "fourier_entropy": found.spectral_entropy,
        "entropy_bound": found.entropy_bound,
        "uncertainty_product": found.position_variance * found.frequency_variance,
        "uncertainty_bound": found.variance_bound,
    }
    return {name: _averaged(values, options.signal == "rows") for name, values in columns.items()}


def head_columns(
    maps: Tensor, lengths: Any, options: WaveletOptions, metrics: tuple[str, ...] = METRICS
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Columns of `heads`, one entry per map in the order of the leading axes, and what other tables need.

    Args:
        maps: [..., n, n].
        lengths: tokens per map.
        options: of the study.
        metrics: of `METRICS`.

    Returns:
        The columns, and by name "bands", "energy" and "profile" where they were asked for.
    """
    columns: dict[str, Tensor] = {}
    more: dict[str, Tensor] = {}
    if "power_spectrum" in metrics:
        found, more["bands"] = spectrum_columns(maps, lengths, options)
        columns |= found
    if "wavelet_transform" in metrics or "scale_sensitivity" in metrics:
        found, more["energy"], more["profile"] = wavelet_columns(maps, lengths, options)
        columns |= found if "wavelet_transform" in metrics else {}
    if "spectral_uncertainty" in metrics:
        columns |= uncertainty_columns(maps, lengths, options)
    if "local_global_ratio" in metrics:
        ratio = local_global_ratio(
            maps, window=options.window, drop_first=options.drop_first, lengths=lengths
        )
        # a map that holds nothing beyond the window has no ratio that could enter a mean, and one that holds
        # next to nothing would rule it; the share has a mean
        columns["local_global_ratio"] = ratio.masked_fill(ratio.isinf(), math.nan)
        columns["local_share"] = torch.where(ratio.isinf(), 1.0, ratio / (1.0 + ratio))
    return {name: values.flatten().numpy() for name, values in columns.items()}, more


def one_minus_cosine(whole: Tensor, part: Tensor) -> Tensor:
    """Scale sensitivity of two descriptions along the last axis.

    Args:
        whole: of the whole texts.
        part: of their beginnings.

    >>> one_minus_cosine(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])).item()
    1.0
    """
    return 1.0 - torch.nn.functional.cosine_similarity(whole, part, dim=-1)


def _averaged(values: Tensor, over_queries: bool) -> Tensor:
    return values.nanmean(-1) if over_queries else values
