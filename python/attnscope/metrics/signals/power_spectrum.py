# SPDX-License-Identifier: MIT
"""At which frequencies attention varies along the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attnscope import _checks, _core
from attnscope.metrics._closed_forms import full
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import Known, Quantity, field_of

SIGNALS = ("rows", "last", "mean", "offset")
#: Only "rows" gives a number per query.
BY_ROW = {"query": ("signal", "rows")}
_FIELDS = 7


@shown_by_shape
class PowerSpectrum(NamedTuple):
    """What is said of each signal's spectrum.

    Attributes:
        low: share of power below a quarter of the Nyquist frequency (one cycle in two tokens).
        mid: from a quarter to three quarters.
        high: from three quarters up.
        selectivity: share of the strongest bin.
        peak: frequency of the strongest bin, in Nyquist frequencies.
        flatness: geometric over arithmetic mean of the bins: 0 for a tone, 1 for white.
        entropy: of the shares of the bins, in bits.
        bands: shares of equal bands of [0, Nyquist]; the power of a bin is spread over the frequencies that
            are nearest to it, so that signals of different lengths can be averaged.
    """

    low: torch.Tensor
    mid: torch.Tensor
    high: torch.Tensor
    selectivity: torch.Tensor
    peak: torch.Tensor
    flatness: torch.Tensor
    entropy: torch.Tensor
    bands: torch.Tensor


def power_spectrum(
    attention: torch.Tensor,
    *,
    signal: str = "rows",
    min_keys: int = 32,
    drop_first: bool = False,
    detrend: str = "none",
    window: str = "hann",
    padding: float = 1.0,
    bands: int = 32,
    support: Any = "auto",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> PowerSpectrum:
    """Power spectrum of attention along the keys: band shares, selectivity, flatness, spectral entropy.

    P_k = |Σ_t w_t a_t exp(−2πikt/N)|², one-sided: bins strictly between 0 and the Nyquist frequency count
    twice. w is the periodic Hann window, N the smallest multiple of 4 without a prime factor above 5 that
    is at least `padding` times the signal's length. Bins below 1e-28 of the total are rounding and count
    as 0.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        signal: "rows", each query's attention over the keys that it sees; "last", that of the last query;
            "mean", by key the mean over the queries that see it; "offset", the mean over visible pairs by
            distance |i − j|.
        min_keys: shorter signals have no spectrum, and shorter rows do not enter a mean.
        drop_first: leave out key 0 and divide each row by the rest: a sink column outweighs everything else.
        detrend: "mean" subtracts the mean of the signal before the window.
        window: "hann" or "none".
        padding: zeros make the bins finer, and the share of a single bin (`selectivity`) smaller.
        bands: number of equal bands; 0 for none.
        support: which keys a query sees: "auto" judges each map by itself (causal where everything above
            the diagonal is exactly 0), "causal", "full", or a boolean tensor [n, n] or [..., n, n].
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        Named float64 tensors [..., n] for "rows", else [...]; `bands` with one more axis. Shares lie in
        [0, 1] and low + mid + high = 1; entropy in [0, log2(N/2 + 1)]. NaN past a map's own length, for
        signals that are too short, and for those without power (all 0, or constant and detrended).

    Raises:
        ValueError: not square, empty, wrong dtype; an unknown signal, detrend, window or support; min_keys
            below 2, padding below 1 or above 64, bands below 0; lengths outside 1..n.

    Example:
        Uniform attention is a constant signal. Through a Hann window it is bin 0 with two thirds of the
        power and bin 1 with one third, so an untrained model has a selectivity of 2/3.

        >>> import torch, attnscope as asc
        >>> uniform = torch.full((64, 64), 1 / 64, dtype=torch.float64)
        >>> found = asc.power_spectrum(uniform, signal="last")
        >>> [round(value.item(), 6) for value in (found.low, found.selectivity, found.entropy)]
        [1.0, 0.666667, 0.918296]

    References:
        Welch, The use of fast Fourier transform for the estimation of power spectra, 1967. Johnston,
        Transform coding of audio signals using perceptual noise criteria, 1988 (flatness). Ruscio et al.,
        Beyond position: the emergence of wavelet-like properties in transformers, arXiv 2410.18067, 2024.
    """
    name = "power_spectrum"
    checked, given = signal_arguments(
        name, attention, lengths, support, validate, signal, drop_first, detrend, min_keys
    )
    _checks.choice_argument(name, "window", window, ("hann", "none"))
    padding = _checks.real(name, "padding", padding)
    if not 1.0 <= padding <= 64.0:
        raise ValueError(f"{name}: padding must lie between 1 and 64, got {padding!r}")
    bands = _checks.at_least(name, "bands", bands, 0, "a whole number of at least")
    result, non_finite = _core.power_spectrum(**given, hann=window == "hann", padding=padding, bands=bands)
    result = _checks.finished(name, checked, result, non_finite)
    low, mid, high, selectivity, peak, flatness, entropy = result[..., :_FIELDS].unbind(-1)
    return PowerSpectrum(low, mid, high, selectivity, peak, flatness, entropy, result[..., _FIELDS:])


def signal_arguments(
    function: str,
    attention: Any,
    lengths: _checks.Lengths,
    support: Any,
    validate: bool,
    signal: str,
    drop_first: bool,
    detrend: str,
    min_keys: int,
    *,
    choices: Sequence[str] = SIGNALS,
) -> tuple[_checks.Attention, dict[str, Any]]:
    """The arguments that all functions of signals share, checked, by the core's names."""
    checked = _checks.attention_argument(function, attention, lengths, validate=validate)
    _checks.choice_argument(function, "signal", signal, choices)
    _checks.choice_argument(function, "detrend", detrend, ("none", "mean"))
    keys = _checks.whole(function, "min_keys", min_keys)
    if isinstance(min_keys, bool) or keys < 2:
        raise ValueError(f"{function}: min_keys must be a whole number of at least 2, got {min_keys!r}")
    return checked, {
        "attention": checked.tensor,
        "lengths": checked.lengths,
        "support": _checks.support_argument(function, support, checked),
        "signal": signal,
        "drop_first": _checks.flag(function, "drop_first", drop_first),
        "detrend": detrend == "mean",
        "min_keys": keys,
    }


# A constant signal through a Hann window is bin 0 with two thirds of the power and bin 1 with one third.
_ENTROPY = math.log2(3) - 2 / 3


def _of_spectrum(name: str, field: str, label: str, meaning: str, expected: float, **more: Any) -> Quantity:
    more = {"low": 0, "high": 1, "read": field_of(field), "axes": ("query",), "axis_when": BY_ROW, **more}
    known = Known(expected, full(32), entry=(0,) * len(more["axes"]))
    return Quantity(name, "power_spectrum", label, meaning, known, **more)


QUANTITIES = (
    _of_spectrum(
        "low_band", "low", "low band", "Share of power below a quarter of the Nyquist frequency.", 1.0
    ),
    _of_spectrum(
        "mid_band", "mid", "mid band", "Share of power from a quarter to three quarters of it.", 0.0
    ),
    _of_spectrum("high_band", "high", "high band", "Share of power above three quarters of it.", 0.0),
    _of_spectrum(
        "spectral_selectivity",
        "selectivity",
        "selectivity",
        "Share of the strongest bin; uniform attention has up to 2/3 of a Hann window.",
        2 / 3,
    ),
    _of_spectrum(
        "spectral_peak", "peak", "peak frequency", "Frequency of the strongest bin over Nyquist's.", 0.0
    ),
    _of_spectrum(
        "spectral_flatness",
        "flatness",
        "flatness",
        "Geometric over arithmetic mean of the spectrum: 0 a tone, 1 white.",
        0.0,
    ),
    _of_spectrum(
        "spectral_entropy",
        "entropy",
        "spectral entropy (bits)",
        "Entropy of the spectrum in bits.",
        _ENTROPY,
        symbol="$H_s$",
        high=None,
    ),
    _of_spectrum(
        "power_share",
        "bands",
        "share of power",
        "Share of the power in a band of frequencies.",
        2 / 3,
        axes=("query", "frequency"),
    ),
)
