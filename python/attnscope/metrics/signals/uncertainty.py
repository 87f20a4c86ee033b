# SPDX-License-Identifier: MIT
"""The sharpness of attention in position and in frequency at once, with the bounds of every signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import identity, uniform_map
from attnscope.metrics.quantity import ClosedForm, Quantity
from attnscope.metrics.signals.power_spectrum import BY_ROW, signal_arguments


@shown_by_shape
class SpectralUncertainty(NamedTuple):
    """Spread of each signal in position and in frequency; entropies in nats.

    Attributes:
        position_entropy: H_p = −Σ a log a of the signal made to sum to 1.
        spectral_entropy: H_s of |ψ̂|², the unitary discrete Fourier transform of the amplitude, unwindowed.
        entropy_bound: log m; H_p + H_s is never below it (Maassen and Uffink).
        position_variance: σ_t² of position under |ψ|², in tokens².
        frequency_variance: σ_ω² of ω in (−π, π] under |Σ_t ψ_t e^{−iωt}|²/2π, in (radians per token)².
        variance_bound: (1 − |Σ_t (−1)^t ψ_t|²)²/4; σ_t²·σ_ω² is never below it.
    """

    position_entropy: torch.Tensor
    spectral_entropy: torch.Tensor
    entropy_bound: torch.Tensor
    position_variance: torch.Tensor
    frequency_variance: torch.Tensor
    variance_bound: torch.Tensor


@memory_errors("spectral_uncertainty")
@without_derivative("it is made for reading")
def spectral_uncertainty(
    attention: torch.Tensor,
    *,
    amplitude: str = "root",
    signal: str = "rows",
    min_keys: int = 32,
    drop_first: bool = False,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> SpectralUncertainty:
    """Entropy and variance of attention in position and in frequency, with the bounds of both pairs.

    A signal a of m keys, made to sum to 1, has the unit amplitude ψ = √a, whose squared modulus is attention
    itself, or ψ = a/‖a‖ with `amplitude="signal"`. Both bounds hold for both: the entropy of a is at least
    that of a²/Σa². The textbook bound σ_t²·σ_ω² >= 1/4 belongs to functions of a continuous position. A
    sequence has frequencies up to π only, and its bound is (1 − |ψ̂(π)|²)²/4, which is 0 for attention to
    one key.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        amplitude: "root" or "signal".
        signal: "rows", "last", "mean" or "offset"; this and all that follow are as in `power_spectrum`.
        precision: "fast" gives the exact value: the variance of frequency is a sum with changing
            signs, which float32 does not hold to 1e-5.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        Named float64 tensors [..., q] for "rows", else [...]. Entropies in [0, log m], variances in
        [0, (m−1)²/4] and [0, π²]. NaN past a map's own length, for signals that are too short, that hold a
        negative entry or nothing.

    Raises:
        ValueError: an unknown amplitude, and as `power_spectrum`.

    Example:
        Attention to one key has no spread in position and all of it in frequency; uniform attention the
        reverse. Both reach the bound log 64.

        >>> import torch, attnscope as asc
        >>> both = torch.stack([torch.eye(64), torch.full((64, 64), 1 / 64)]).double()
        >>> result = asc.spectral_uncertainty(both, signal="last", support="full")
        >>> entropy = result.position_entropy + result.spectral_entropy
        >>> (entropy - result.entropy_bound).abs().max().item() < 1e-12
        True
        >>> round(result.frequency_variance[0].item(), 6), result.position_variance[0].item()
        (3.289868, 0.0)

    References:
        Maassen and Uffink, Generalized entropic uncertainty relations, 1988. Vaidyanathan, Multirate
        systems and filter banks, 1993 (variances of sequences). Ruscio et al., arXiv 2410.18067, 2024.
    """
    name = "spectral_uncertainty"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    signal_options = signal_arguments(name, checked, support, signal, drop_first, "none", min_keys)
    scalars.choice_argument(name, "amplitude", amplitude, ("root", "signal"))
    seen, signal, dropped, _, shortest = signal_options  # amplitudes have no trend
    options = (seen, signal, dropped, shortest, amplitude == "root")
    return SpectralUncertainty(
        *_calls.call_and_warn(_core.spectral_uncertainty, name, checked, *options).unbind(-1)
    )


def _of_signal(
    name: str,
    read: Callable[[Any], torch.Tensor],
    label: str,
    meaning: str,
    closed_form: ClosedForm,
    **fields: Any,
) -> Quantity:
    fields |= {"low": 0, "read": read, "axes": ("query",), "axis_when": BY_ROW}
    return Quantity(name, "spectral_uncertainty", label, meaning, closed_form, **fields)


_ONE_KEY = ClosedForm(0.0, identity(32), entry=(0,), options={"support": "full"})

QUANTITIES = (
    _of_signal(
        "position_entropy",
        lambda result: result.position_entropy,
        "position entropy (nats)",
        "−Σ a log a in nats.",
        ClosedForm(math.log(32), uniform_map(32), entry=(0,)),
        symbol="$H_p$",
        high=math.log,
    ),
    _of_signal(
        "fourier_entropy",
        lambda result: result.spectral_entropy,
        "Fourier entropy",
        "Entropy in nats of |DFT √a|², the unitary transform.",
        replace(_ONE_KEY, expected=math.log(32)),
        high=math.log,
    ),
    _of_signal(
        "entropy_bound",
        lambda result: result.entropy_bound,
        "entropy bound",
        "What no sum of position and Fourier entropy is below.",
        ClosedForm(math.log(32), uniform_map(32), entry=(0,)),
        high=math.log,
    ),
    _of_signal(
        "uncertainty_product",
        lambda result: result.position_variance * result.frequency_variance,
        "variance product",
        "Variance of position times that of frequency.",
        _ONE_KEY,
        symbol=r"$\sigma_t^2\sigma_\omega^2$",
    ),
    _of_signal(
        "uncertainty_bound",
        lambda result: result.variance_bound,
        "its bound",
        "What no variance product of these signals is below.",
        ClosedForm(0.25, uniform_map(32), entry=(0,)),
        high=0.25,
    ),
)
