# SPDX-License-Identifier: MIT
"""Attention at several scales: the orthogonal wavelet transform and the continuous one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import detail, first_key_map, uniform_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader
from attnscope.metrics.signals.power_spectrum import BY_ROW, SIGNALS, signal_arguments


@shown_by_shape
class WaveletTransform(NamedTuple):
    """Summary of each signal's wavelet coefficients.

    Scales are ordered coarse to fine; entropies are in bits.

    Attributes:
        energy: p_j = E_j/ΣE: of the approximation, then of the details from the coarsest to the finest.
        scale_entropy: −Σ p_j log2 p_j.
        position_entropy: −Σ q_k log2 q_k with q_k = d_k²/E_j, within each scale.
        reconstruction_error: ‖a − IDWT(DWT a)‖/‖a‖. Any orthogonal wavelet gives rounding on any signal,
            random ones too (1e-16 here, 1e-7 in float32): a check of the transform, no evidence about
            attention.
        profile: coefficients of each scale resampled to one length, mean over the map's signals.
    """

    energy: torch.Tensor
    scale_entropy: torch.Tensor
    position_entropy: torch.Tensor
    reconstruction_error: torch.Tensor
    profile: torch.Tensor


@memory_errors("wavelet_transform")
@without_derivative("it is made for reading")
def wavelet_transform(
    attention: torch.Tensor,
    *,
    levels: int | None = None,
    resample: int = 0,
    signal: str = "rows",
    min_keys: int = 32,
    drop_first: bool = False,
    detrend: str = "none",
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> WaveletTransform:
    """Energies and entropies of the periodised Daubechies transform of attention along the keys.

    The wavelet is Daubechies's with two vanishing moments and four taps (`db2`; books that count taps call it
    D4). Periodised, it is orthogonal on signals whose length is a multiple of 2^levels; an odd length repeats
    the last entry at that level (PyWavelets' mode "periodization").

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        levels: of the transform; None takes floor(log2(min_keys/3)), which the shortest signal allows, so
            that all signals have the same scales. Shorter signals than 3·2^levels are NaN.
        resample: length of the scales' mean profile; 0 for none.
        signal: "rows", "last", "mean" or "offset", as in `power_spectrum`; so are min_keys, drop_first,
            support, lengths and validate.
        detrend: "mean" subtracts the mean of the signal: the details do not see it, the approximation does.
        precision: "fast" gives the exact value: details are differences of neighbours, which
            float32 does not hold to 1e-5.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        Named float64 tensors: scale_entropy and reconstruction_error [..., q] for "rows", else [...]; energy
        and position_entropy with one more axis of levels + 1 scales; profile [..., levels + 1, resample].
        Energies are in [0, 1] and sum to 1; scale_entropy in [0, log2(levels + 1)]. NaN past a map's own
        length, for signals that are too short or all 0, and for the entropy within a scale that holds
        nothing but rounding (1e-28 of the energy).

    Raises:
        ValueError: levels below 1 or more than `min_keys` allows, resample below 0, and as `power_spectrum`.

    Example:
        Uniform attention has no detail: all energy is in the approximation.

        >>> import torch, attnscope as asc
        >>> uniform = torch.full((64, 64), 1 / 64, dtype=torch.float64)
        >>> result = asc.wavelet_transform(uniform, signal="last")
        >>> result.energy.round(decimals=9).tolist(), round(result.position_entropy[0].item(), 9)
        ([1.0, 0.0, 0.0, 0.0], 3.0)

    References:
        Daubechies, Orthonormal bases of compactly supported wavelets, 1988. Blanco et al., Time-frequency
        analysis of electroencephalogram series III, 1998 (entropies). Ruscio et al., arXiv 2410.18067, 2024.
    """
    name = "wavelet_transform"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    signal_options = signal_arguments(name, checked, support, signal, drop_first, detrend, min_keys)
    shortest = signal_options[-1]
    most = int(_core.wavelet_levels(shortest))
    if levels is None and most < 1:
        raise ValueError(f"{name}: signals of min_keys = {shortest} carry no level; 6 is the least")
    depth = most if levels is None else scalars.whole_number(name, "levels", levels)
    if not 1 <= depth <= most:
        raise ValueError(
            f"{name}: levels must lie between 1 and {most}, which min_keys = {shortest} allows, got {depth}"
        )
    resample = scalars.at_least(name, "resample", resample, 0, "a whole number of at least")
    result, profile = _calls.call_and_warn(
        _core.wavelet_transform, name, checked, *signal_options, depth, resample
    )
    energy, entropy, within, error = result.split([depth + 1, 1, depth + 1, 1], -1)
    return WaveletTransform(energy, entropy.squeeze(-1), within, error.squeeze(-1), profile)


@memory_errors("scale_sensitivity")
@without_derivative("it is made for reading")
def scale_sensitivity(
    attention: torch.Tensor,
    prefix: torch.Tensor,
    *,
    compare: str = "energy",
    resample: int = 32,
    lengths: _checks.Lengths = None,
    prefix_lengths: _checks.Lengths = None,
    **options: Any,
) -> torch.Tensor:
    """Return the change of attention's wavelet description when only the beginning of the text is read.

    S = 1 − cos(W(x), W(x_α)), where W is the vector of mean energies of the scales ("energy") or the mean
    coefficients of all scales resampled to one length ("coefficients").

    Under a causal mask the map of the prefix is the leading block of the whole map, so that S compares the
    queries of a map with its own first queries.

    Args:
        attention: maps of the whole texts [..., n, n].
        prefix: maps of their first tokens [..., m, m], with the same leading axes.
        compare: "energy" or "coefficients".
        resample: length that coefficients are brought to.
        lengths: tokens per whole map.
        prefix_lengths: tokens per prefix.
        options: of `wavelet_transform`: signal, levels, min_keys, drop_first, detrend, support, validate.

    Returns:
        [...] float64 in [0, 2], in [0, 1] for energies; NaN where either map has no signal of enough keys.

    Raises:
        ValueError: as `wavelet_transform`; an unknown comparison; leading axes that differ; coefficients
            resampled to no point.

    Example:
        Uniform attention is the same at every length.

        >>> import torch, attnscope as asc
        >>> long, short = (torch.full((n, n), 1 / n, dtype=torch.float64) for n in (64, 32))
        >>> abs(round(asc.scale_sensitivity(long, short).item(), 9))
        0.0

    References:
        Ruscio et al., arXiv 2410.18067, 2024 (section on scale invariance).
    """
    name = "scale_sensitivity"
    scalars.choice_argument(name, "compare", compare, ("energy", "coefficients"))
    attention = _checks.float_tensor(name, "attention", attention)
    prefix = _checks.float_tensor(name, "prefix", prefix)
    if tuple(attention.shape[:-2]) != tuple(prefix.shape[:-2]):
        raise ValueError(
            f"{name}: attention and prefix must have the same leading axes, got shapes "
            f"{tuple(attention.shape)} and {tuple(prefix.shape)}"
        )
    resample = scalars.at_least(name, "resample", resample, 1)
    points = resample if compare == "coefficients" else 0
    with _calls.named_as("wavelet_transform", name):
        transforms = [
            wavelet_transform(maps, lengths=map_lengths, resample=points, **options)
            for maps, map_lengths in ((attention, lengths), (prefix, prefix_lengths))
        ]
    by_rows = options.get("signal", "rows") == "rows"
    vectors = [
        transform.profile.flatten(-2)
        if points
        else (transform.energy.nanmean(-2) if by_rows else transform.energy)
        for transform in transforms
    ]
    # torch takes norms below 1e-8 for 1e-8, which details of nearly uniform attention are
    of_text, of_prefix = (vector / vector.abs().amax(-1, keepdim=True) for vector in vectors)
    return 1.0 - torch.nn.functional.cosine_similarity(of_text, of_prefix, dim=-1)


@memory_errors("morlet_scalogram")
@without_derivative("it is made for reading")
def morlet_scalogram(
    attention: torch.Tensor,
    scales: Sequence[float] | torch.Tensor | None = None,
    *,
    omega: float = 6.0,
    signal: str = "last",
    min_keys: int = 32,
    drop_first: bool = False,
    detrend: str = "none",
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Power of attention along the keys at every scale and place, by the Morlet wavelet.

    |Σ_t a_t s^{−1/2} ψ*((t − b)/s)|² with ψ(z) = π^{−1/4} e^{iωz} e^{−z²/2}; outside the signal a is 0. A
    tone of f cycles per token is strongest near s = ω/(2πf).

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        scales: s in tokens, positive; None takes 24 from 2 to k/4, at least 4, in equal ratios.
        omega: cycles within the envelope, in radians; at least 5, below which the wavelet has a mean.
        signal: "last", "mean" or "offset", as in `power_spectrum`; so are min_keys, drop_first, detrend,
            support, lengths and validate.
        precision: "fast" gives the exact value: coefficients are sums with changing signs, which
            float32 does not hold to 1e-5.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [..., scales, k] float64, at least 0; NaN past the signal.

    Raises:
        ValueError: no scale or one that is not positive, omega outside 5..100, and as `power_spectrum`.

    Example:
        All attention on key 40 is an impulse: at every scale its power peaks there, at 1/(s√π).

        >>> import math, torch, attnscope as asc
        >>> impulse = torch.zeros(64, 64, dtype=torch.float64)
        >>> impulse[:, 40] = 1
        >>> power = asc.morlet_scalogram(impulse, [2.0, 8.0])
        >>> power.argmax(-1).tolist(), round((power[1, 40] * 8 * math.sqrt(math.pi)).item(), 9)
        ([40, 40], 1.0)

    References:
        Torrence and Compo, A practical guide to wavelet analysis, 1998. Ruscio et al., arXiv 2410.18067.
    """
    name = "morlet_scalogram"
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    signal_options = signal_arguments(
        name, checked, support, signal, drop_first, detrend, min_keys, SIGNALS[1:]
    )
    if scales is None:
        scales = 2.0 * (max(checked.n, 16) / 8.0) ** (
            torch.arange(24, dtype=torch.float64, device="cpu") / 23
        )
    scale_values = _checks.as_tensor(name, "scales", scales, torch.float64).detach().flatten().contiguous()
    if not len(scale_values) or not bool(((scale_values > 0) & scale_values.isfinite()).all()):
        raise ValueError(f"{name}: scales must be positive numbers of tokens, got {scale_values.tolist()}")
    omega = scalars.between(name, "omega", omega, 5, 100)
    return _calls.call_and_warn(_core.morlet_scalogram, name, checked, *signal_options, scale_values, omega)


#: What the scales are called, and what their shares are. The finest scale depends on `levels`.
_SCALES = {
    "smooth part": "the approximation's energy",
    "coarsest detail": "the coarsest detail",
    "second detail": "the detail next to the coarsest",
    "third detail": "the third detail from the coarsest",
}


def _of_transform(
    name: str, field: str, label: str, meaning: str, expected: float | tuple[float, ...], **fields: Any
) -> Quantity:
    """Declare a field, with its value for a constant signal, all of whose energy is in the approximation."""
    axes = ("query", "scale") if isinstance(expected, tuple) else ("query",)
    fields |= {"low": 0, "read": attribute_reader(field), "axes": axes, "axis_when": BY_ROW}
    return Quantity(
        name, "wavelet_transform", label, meaning, ClosedForm(expected, uniform_map(32), entry=(0,)), **fields
    )


def _at(quantity: Quantity, scale: int, expected: float, **texts: Any) -> Quantity:
    """Declare a scale, with its value for a constant and one wavelet, a detail of 1/16 of its energy per
    entry.
    """
    at_scale = quantity.at(scale=scale)
    return replace(
        at_scale,
        closed_form=ClosedForm(expected, detail(32, scale), entry=(0,)) if scale else at_scale.closed_form,
        **texts,
    )


ENERGY = _of_transform(
    "wavelet_energy",
    "energy",
    "energy, scale {scale}",
    "Share of the energy at scale {scale}.",
    (1.0, 0.0, 0.0, 0.0),
    high=1,
)
# four equal coefficients of the approximation: 2 bits
POSITION_ENTROPY = _of_transform(
    "wavelet_position_entropy",
    "position_entropy",
    "entropy within scale {scale}",
    "Entropy in bits of the coefficients' energies at scale {scale}.",
    (2.0, 0.0, 0.0, 0.0),
)

QUANTITIES = (
    *(
        _at(ENERGY, at, 1 / 513, label=f"energy, {name}", meaning=f"Share of {phrase}.")
        for at, (name, phrase) in enumerate(_SCALES.items())
    ),
    _of_transform(
        "wavelet_entropy",
        "scale_entropy",
        "wavelet entropy (bits)",
        "Entropy in bits of the energies of the scales: 0 where one holds all.",
        0.0,
    ),
    *(_at(POSITION_ENTROPY, at, 0.0) for at in range(len(_SCALES))),
    _of_transform(
        "reconstruction_error",
        "reconstruction_error",
        "reconstruction error",
        "‖a − IDWT(DWT a)‖/‖a‖: rounding for every signal, random ones too. A check of the transform, no "
        "evidence.",
        0.0,
    ),
    Quantity.of(
        "scale_sensitivity",
        "scale sensitivity",
        "1 − cosine between the wavelet energies of a text and of its beginning.",
        ClosedForm(0.0, uniform_map(64), {"prefix": uniform_map(32)[None]}),
        low=0,
        high=1,
        options={"prefix": Site("prefix")},
        needs=("attention", "prefix"),
    ),
    Quantity.of(
        "morlet_scalogram",
        "Morlet power",
        "Power of attention along the keys at a scale and place.",
        ClosedForm(1 / (4 * math.sqrt(math.pi)), first_key_map(32), entry=(0, 0), options={"scales": (4.0,)}),
        low=0,
        axes=("scale", "key"),
    ),
)
