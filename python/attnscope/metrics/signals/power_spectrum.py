# SPDX-License-Identifier: MIT
"""The frequencies at which attention varies along the keys, and the harmonics that a nonlinearity makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader
from attnscope.metrics.signals.locality import refuse_cross

SIGNALS = ("rows", "last", "mean", "offset")
#: Only "rows" gives a number per query.
BY_ROW = {"query": ("signal", "rows")}
_FIELDS = 7


@shown_by_shape
class PowerSpectrum(NamedTuple):
    """Summary of each signal's power spectrum.

    Attributes:
        low: share of power below a quarter of the Nyquist frequency (one cycle in two tokens).
        mid: from a quarter to three quarters.
        high: from three quarters up.
        selectivity: share of the strongest bin.
        peak: frequency of the strongest bin, in Nyquist frequencies; the first of bins that are alike, as all
            between 0 and the Nyquist frequency are of attention to a single key.
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


@memory_errors("power_spectrum")
@without_derivative("it is made for reading")
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
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> PowerSpectrum:
    """Power spectrum of attention along the keys: band shares, selectivity, flatness, spectral entropy.

    P_k = |Σ_t w_t a_t exp(−2πikt/N)|², one-sided: bins strictly between 0 and the Nyquist frequency count
    twice. w is the periodic Hann window, N the smallest multiple of 4 without a prime factor above 5 that
    is at least `padding` times the signal's length. Bins below 1e-28 of the total are rounding and count
    as 0.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        signal: "rows", each query's attention over the keys that it sees; "last", that of the last query;
            "mean", by key the mean over the queries that see it; "offset", the mean over visible pairs by
            distance from the query's own key, which cross attention has not. Keys that no query sees, and
            distances that no visible pair has, are left out.
        min_keys: shorter signals have no spectrum, and shorter rows do not enter the signal "mean".
        drop_first: leave out key 0 and divide each row by the rest: a sink column outweighs everything else.
        detrend: "mean" subtracts the mean of the signal before the window.
        window: "hann" or "none".
        padding: zeros make the bins finer, and the share of a single bin (`selectivity`) smaller.
        bands: number of equal bands; 0 for none.
        support: which keys a query sees: "auto" judges each map by itself (causal where everything behind
            each query's own key is exactly 0), "causal", "full", or a boolean tensor [q, k] or [..., q, k].
        precision: "fast" gives the exact value: the flatness is of bins down to 1e-28 of the
            power, which float32 does not tell from rounding.
        lengths: keys per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        Named float64 tensors [..., q] for "rows", else [...]; `bands` with one more axis. Shares are in
        [0, 1] and low + mid + high = 1; entropy in [0, log2(N/2 + 1)]. NaN past a map's own length, for
        signals that are too short, and for those without power (all 0, or constant and detrended).

    Raises:
        ValueError: as `incoming_attention`; an unknown signal, detrend, window or support; min_keys
            below 2, padding below 1 or above 64, bands below 0; offsets of cross attention.

    Example:
        Uniform attention is a constant signal. Through a Hann window it is bin 0 with two thirds of the
        power and bin 1 with one third, so an untrained model has a selectivity of 2/3.

        >>> import torch, attnscope as asc
        >>> uniform = torch.full((64, 64), 1 / 64, dtype=torch.float64)
        >>> result = asc.power_spectrum(uniform, signal="last")
        >>> [round(value.item(), 6) for value in (result.low, result.selectivity, result.entropy)]
        [1.0, 0.666667, 0.918296]

    References:
        Welch, The use of fast Fourier transform for the estimation of power spectra, 1967. Johnston,
        Transform coding of audio signals using perceptual noise criteria, 1988 (flatness). Ruscio et al.,
        Beyond position: the emergence of wavelet-like properties in transformers, arXiv 2410.18067, 2024.
    """
    name = "power_spectrum"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    kernel_arguments = signal_arguments(name, checked, support, signal, drop_first, detrend, min_keys)
    scalars.choice_argument(name, "window", window, ("hann", "none"))
    padding = scalars.between(name, "padding", padding, 1, 64)
    bands = scalars.at_least(name, "bands", bands, 0, "a whole number of at least")
    result = _calls.call_and_warn(
        _core.power_spectrum, name, checked, *kernel_arguments, window == "hann", padding, bands
    )
    return PowerSpectrum(*(*result[..., :_FIELDS].unbind(-1), result[..., _FIELDS:]))


def softmax_harmonics(strength: float, orders: int) -> torch.Tensor:
    """Fourier coefficients of exp(r cos x), the unnormalised softmax of one rotating pair.

    exp(r cos x) = Σ_n I_n(r) e^{inx} with the modified Bessel functions I_n (Jacobi and Anger), so an
    attention logit of one frequency gives attention all its harmonics. Divided by I_0(r), which is the mean.

    Args:
        strength: r, the amplitude of the logit.
        orders: the highest harmonic.

    Returns:
        [orders + 1] float64: I_n(r)/I_0(r) for n = 0 .. orders, from 1 down, in (−1, 1].

    Raises:
        ValueError: a strength that is not finite, orders below 0.
        TypeError: no numbers.

    Example:
        A weak logit has harmonics (r/2)^n/n!; a strong one approaches an impulse, whose harmonics are equal.

        >>> import attnscope as asc
        >>> asc.softmax_harmonics(0.01, 2)
        tensor([1.0000e+00, 4.9999e-03, 1.2500e-05], dtype=torch.float64)
        >>> asc.softmax_harmonics(1e6, 2).round(decimals=4)
        tensor([1., 1., 1.], dtype=torch.float64)

    References:
        Watson, A treatise on the theory of Bessel functions, 1922, section 2.22. Ruscio and Silvestri, arXiv
        2410.18067v1, 2024.
    """
    from scipy.special import ive

    name = "softmax_harmonics"
    strength = scalars.real(name, "strength", strength)
    if not math.isfinite(strength):
        raise ValueError(f"{name}: strength must be a finite number, got {strength!r}")
    orders = scalars.at_least(name, "orders", orders, 0, "a whole number of at least")
    values = ive(np.arange(orders + 1), strength) / ive(0, strength)
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


@memory_errors("harmonic_distortion")
@without_derivative("it is made for reading")
def harmonic_distortion(signal: torch.Tensor, theta: torch.Tensor | float, orders: int = 4) -> torch.Tensor:
    """Power at m·θ over power at θ, for m = 2 .. orders.

    The mean is taken away and a Hann window put on; the power is that of the Fourier transform at exactly
    m·θ, modulo 2π, not in the nearest bin.

    Args:
        signal: over positions [..., n].
        theta: base frequency in radians per position, broadcast against the leading axes.
        orders: the highest harmonic.

    Returns:
        [..., orders − 1] float64, at least 0; NaN without power at θ, and of a signal that is not finite,
        with one warning.

    Raises:
        ValueError: fewer than two cycles of a θ in the signal, an empty signal or one of another dtype,
            θ that does not broadcast, or orders below 2.
        TypeError: no numbers.

    Example:
        Half of a cosine (ReLU) has harmonics 1/2, 2/3π, 0, 2/15π: power ratios (4/3π)², 0, (4/15π)².

        >>> import math, torch, attnscope as asc
        >>> tone = torch.cos(0.1 * torch.arange(2000, dtype=torch.float64))
        >>> [round(ratio, 4) for ratio in asc.harmonic_distortion(tone.relu(), 0.1).tolist()]
        [0.1801, 0.0, 0.0072]
        >>> round((4 / (3 * math.pi)) ** 2, 4)
        0.1801

    References:
        Ruscio and Silvestri, arXiv 2410.18067v1, 2024.
    """
    name = "harmonic_distortion"
    orders = scalars.at_least(name, "orders", orders, 2, "a whole number of at least")
    values = _checks.float_tensor(name, "signal", signal)
    if values.ndim == 0:
        raise ValueError(f"{name}: signal must have at least one dimension [..., n], got a single number")
    n = int(values.shape[-1])
    dtype = None if isinstance(theta, torch.Tensor) else torch.float64
    base = _checks.to_host(_checks.as_tensor(name, "theta", theta, dtype).detach())
    if base.dtype.is_complex or base.dtype == torch.bool:
        raise ValueError(f"{name}: theta must be real, got {base.dtype}")
    words = "does not broadcast to the leading shape"
    base = _checks.expanded(f"{name}: theta", base.double(), values.shape[:-1], words)
    if not bool(base.isfinite().all()):
        raise ValueError(f"{name}: theta must be finite, got {float(base[~base.isfinite()][0])}")
    if not bool((base.abs() * n >= 4 * math.pi).all()):
        slowest = float(base.abs().min())
        raise ValueError(
            f"{name}: signal must hold two cycles of every theta, got {n} positions of {slowest} radians"
        )
    # each signal is a cloud of one point
    _calls.warn_non_finite_parts(name, ~values.detach().isfinite().all(-1), "signals")
    (ratios,) = placement.per_cloud(
        name,
        lambda signals, thetas: (_power_ratios(signals.squeeze(-2), thetas, orders),),
        values.unsqueeze(-2),
        base,
        bytes_of_one=8 * n * (4 + 4 * orders),
    )
    return ratios


def _power_ratios(signals: torch.Tensor, thetas: torch.Tensor, orders: int) -> torch.Tensor:
    """Return powers at multiples 2 … orders of θ [...] over that at θ, of signals [..., n]."""
    values, n, device = signals.double(), signals.shape[-1], signals.device
    position = torch.arange(n, dtype=torch.float64, device=device)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * position / n)
    mean = (values * window).sum(-1, keepdim=True) / window.sum()
    weighted = (values - mean) * window
    angle = torch.arange(1, orders + 1, device=device)[:, None] * thetas[..., None, None] * position
    weighted = weighted.unsqueeze(-2)
    powers = (weighted * angle.cos()).sum(-1) ** 2 + (weighted * angle.sin()).sum(-1) ** 2
    first = powers[..., :1]
    # rounding of a signal without power at θ is no base to divide by
    floor = 1e-24 * (weighted.abs().sum(-1) ** 2)
    return powers[..., 1:] / first.masked_fill(first <= floor, math.nan)


def signal_arguments(
    function: str,
    checked: _checks.Attention,
    support: Any,
    signal: str,
    drop_first: bool,
    detrend: str,
    min_keys: int,
    choices: Sequence[str] = SIGNALS,
) -> tuple[Any, str, bool, bool, int]:
    """Check the options that all functions of signals share; return them in the order of the core."""
    scalars.choice_argument(function, "signal", signal, choices)
    scalars.choice_argument(function, "detrend", detrend, ("none", "mean"))
    keys = scalars.at_least(function, "min_keys", min_keys, 2, "a whole number of at least")
    seen = _checks.support_argument(function, support, checked)
    if signal == "offset":
        refuse_cross(function, checked)
    return seen, signal, scalars.flag(function, "drop_first", drop_first), detrend == "mean", keys


# A constant signal through a Hann window is bin 0 with two thirds of the power and bin 1 with one third.
_ENTROPY = math.log2(3) - 2 / 3


def _of_spectrum(name: str, field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    fields = {
        "low": 0,
        "high": 1,
        "read": attribute_reader(field),
        "axes": ("query",),
        "axis_when": BY_ROW,
        **fields,
    }
    closed_form = ClosedForm(expected, uniform_map(32), entry=(0,) * len(fields["axes"]))
    return Quantity(name, "power_spectrum", label, meaning, closed_form, **fields)


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
