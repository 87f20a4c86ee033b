# SPDX-License-Identifier: MIT
"""The gain of a weight matrix on some inputs over inputs of the same size in all directions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope._memory import memory_errors
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader
from attnscope.metrics.weights.delta_statistics import weights_argument
from attnscope.metrics.weights.haar import haar_deviation
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.metrics.weights.matrix_spectrum import EXACT, spectrum_of
from attnscope.metrics.weights.subspace_fraction import Side, _side, matrix_argument

#: |S − Sᵀ| of a moment over its largest entry, and −λ of it over its trace, from which on it is refused.
SYMMETRY = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@shown_by_shape
class AlignmentGain(NamedTuple):
    """The gain of every matrix, [...] float64.

    Attributes:
        gain: 1 if the matrix and the moment are unrelated.
        deviation: standard deviation of the gain when one of the two is turned at random.
        z: (gain − 1)/deviation; NaN where the gain does not vary.
    """

    gain: Tensor
    deviation: Tensor
    z: Tensor


@memory_errors("alignment_gain")
def alignment_gain(matrix: Tensor | LowRank, moment: Tensor, *, side: Side) -> AlignmentGain:
    """d·tr(M S)/(tr M·tr S) of M = WᵀW ("in") or WWᵀ ("out") and a second moment S of dimension d.

    On the input side that is d·mean‖W a‖²/(‖W‖_F²·mean‖a‖²) over the inputs a that S is the moment of.

    Args:
        matrix: W, [..., out, in], or a `LowRank`.
        moment: S, [..., d, d], symmetric and positive semi-definite; d is `in` or `out`.
        side: which side of the matrix S belongs to.

    Returns:
        `AlignmentGain`; gains are in [0, d]. NaN for matrices of zeros or with entries that are not finite.

    Raises:
        ValueError: an unknown side, a moment of another dimension, not symmetric, with a negative eigenvalue
            (up to 2048 dimensions) or a trace of 0.

    Example:
        A matrix that reads direction 0 only, on inputs in that direction.

        >>> import torch, attnscope as asc
        >>> axis = torch.zeros(4, 4)
        >>> axis[0, 0] = 1
        >>> asc.alignment_gain(axis, axis, side="in").gain.item()
        4.0
        >>> asc.alignment_gain(axis, torch.eye(4), side="in").gain.item()
        1.0

    References:
        Moments under random rotations as in `haar_deviation`.
    """
    name = "alignment_gain"
    side = _side(name, side)
    dense = matrix_argument(name, matrix)
    d = dense.shape[-1] if side == "in" else dense.shape[-2]
    moment_tensor = weights_argument(name, "moment", moment)
    second = _powers.in_range(moment_tensor.double().contiguous())[0]
    if tuple(second.shape[-2:]) != (d, d):
        raise ValueError(
            f"{name}: moment must be [..., {d}, {d}] for side {side!r} of a matrix of shape "
            f"{tuple(dense.shape)}, got shape {tuple(second.shape)}"
        )
    trace = _checked_trace(name, second, SYMMETRY[moment_tensor.dtype])
    turned = dense if side == "in" else (dense.T if isinstance(dense, LowRank) else dense.mT)
    if isinstance(turned, LowRank):
        right = turned.scale * turned.right.double()
        products = (turned.left.double().T @ turned.left.double() @ right @ second * right).sum((-2, -1))
    else:
        products = (turned.double() @ second * turned.double()).sum((-2, -1))
    spectrum = spectrum_of(dense, 1)
    gain = d * products / (spectrum.energy * trace)
    ratio = trace.square() / second.square().sum((-2, -1))
    deviation = haar_deviation(spectrum.participation_ratio.clamp(1, d), ratio.clamp(1, d), d)
    return AlignmentGain(gain, deviation, torch.where(deviation > 0, (gain - 1) / deviation, torch.nan))


def _checked_trace(function: str, moment: Tensor, tolerance: float) -> Tensor:
    skew = (moment - moment.mT).abs().amax((-2, -1))
    wrong = ~(skew <= tolerance * moment.abs().amax((-2, -1)))
    if bool(wrong.any()):
        raise ValueError(f"{function}: moment must be symmetric, got |S − Sᵀ| = {float(skew[wrong][0]):.2g}")
    trace = moment.diagonal(dim1=-2, dim2=-1).sum(-1)
    if not bool((trace > 0).all()):
        raise ValueError(f"{function}: moment must have a positive trace, got {float(trace.min()):.2g}")
    if moment.shape[-1] <= EXACT:
        lowest = torch.linalg.eigvalsh(moment)[..., 0]
        if bool((lowest < -tolerance * trace).any()):
            raise ValueError(
                f"{function}: moment must be positive semi-definite, got the eigenvalue "
                f"{float(lowest.min()):.2g}"
            )
    return trace


_AXIS = torch.zeros(4, 4, dtype=torch.float64, device="cpu")
_AXIS[0, 0] = 1.0

QUANTITIES = (
    Quantity(
        "alignment_gain",
        "alignment_gain",
        "alignment gain",
        "Mean size of what a matrix makes of given inputs over that of inputs in all directions.",
        ClosedForm(4.0, torch.eye(2, device="cpu"), {"weights": _AXIS, "moment": _AXIS}),
        options={"matrix": Site("weights"), "moment": Site("moment"), "side": "in"},
        read=attribute_reader("gain"),
        scope="weights",
        needs=("weights", "moment"),
        low=0,
        high=float,
    ),
)
