# SPDX-License-Identifier: MIT
"""What a nonlinearity makes of a rotation: harmonics of the frequencies that RoPE writes into a model."""

from __future__ import annotations

import math

import numpy as np
import torch

from attnscope import _checks


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
    strength = _checks.real(name, "strength", strength)
    if not math.isfinite(strength):
        raise ValueError(f"{name}: strength must be a finite number, got {strength!r}")
    orders = _checks.at_least(name, "orders", orders, 0, "a whole number of at least")
    values = ive(np.arange(orders + 1), strength) / ive(0, strength)
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


def harmonic_distortion(signal: torch.Tensor, theta: torch.Tensor | float, orders: int = 4) -> torch.Tensor:
    """Power at m·θ over power at θ, for m = 2 .. orders.

    The mean is taken away and a Hann window put on; the power is that of the Fourier transform at exactly
    m·θ, modulo 2π, not in the nearest bin.

    Args:
        signal: over positions [..., n].
        theta: base frequency in radians per position, broadcast against the leading axes.
        orders: the highest harmonic.

    Returns:
        [..., orders − 1] float64, at least 0; NaN where there is no power at θ.

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
    orders = _checks.at_least(name, "orders", orders, 2, "a whole number of at least")
    values = _checks.to_host(_checks.float_tensor(name, "signal", signal)).double()
    if values.ndim == 0:
        raise ValueError(f"{name}: signal must have at least one dimension [..., n], got a single number")
    n = int(values.shape[-1])
    given = None if isinstance(theta, torch.Tensor) else torch.float64
    base = _checks.to_host(_checks.as_tensor(name, "theta", theta, given).detach())
    if base.dtype.is_complex or base.dtype == torch.bool:
        raise ValueError(f"{name}: theta must be real, got {base.dtype}")
    words = "does not broadcast to the leading shape"
    base = _checks.expanded(f"{name}: theta", base.double(), values.shape[:-1], words)
    if not bool((base.abs() * n >= 4 * math.pi).all()):
        slowest = float(base.abs().min())
        raise ValueError(
            f"{name}: signal must hold two cycles of every theta, got {n} positions of {slowest} radians"
        )
    position = torch.arange(n, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * position / n)
    mean = (values * window).sum(-1, keepdim=True) / window.sum()
    weighted = (values - mean) * window
    powers = []
    for order in range(1, orders + 1):
        angle = order * base[..., None] * position
        powers.append((weighted * angle.cos()).sum(-1) ** 2 + (weighted * angle.sin()).sum(-1) ** 2)
    first = powers[0]
    # rounding of a signal without power at θ is no base to divide by
    floor = 1e-24 * (weighted.abs().sum(-1) ** 2)
    first = first.masked_fill(first <= floor, math.nan)
    return torch.stack([power / first for power in powers[1:]], -1)
