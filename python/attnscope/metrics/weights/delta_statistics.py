# SPDX-License-Identifier: MIT
"""The change of a weight matrix, and the part of the change that is rounding."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope._memory import memory_errors
from attnscope._warn import warn
from attnscope.arguments import scalars
from attnscope.errors import NonFiniteWarning
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader

Rounded = Literal["after", "both"]


@shown_by_shape
class DeltaStatistics(NamedTuple):
    """Statistics of every pair of matrices, float64.

    Attributes:
        energy: ‖ΔW‖_F².
        before_energy: ‖W(before)‖_F².
        unchanged: share of entries with ΔW = 0, in [0, 1].
        step_ratio: rms of ΔW over rms of step(W(after)), the distance of neighbouring stored numbers; below 1
            most changes are too small to be stored.
        noise_share: energy of rounding, Σ step²/12 over the rounded sides, over ‖ΔW‖_F². From
            0.5 on the pair is below the rounding floor. NaN where ΔW = 0.
        along: ⟨ΔW, W⟩/‖W‖² with W before; negative under weight decay.
        largest: max |ΔW|.
    """

    energy: Tensor
    before_energy: Tensor
    unchanged: Tensor
    step_ratio: Tensor
    noise_share: Tensor
    along: Tensor
    largest: Tensor


@memory_errors("delta_statistics")
def delta_statistics(
    before: Tensor, after: Tensor, *, rounded: Rounded = "after", delta: Tensor | None = None
) -> DeltaStatistics:
    """Size, rounding and direction of ΔW = W(after) − W(before), in one read of both matrices.

    Subtracted in float32, float64 where a side is. step(w) = 2^(⌊log2|w|⌋ − p) with the p of the coarser of
    the two stored types: 7 for bfloat16, 10 for float16, 23 for float32, 52 for float64.

    Args:
        before: [..., m, n], any of the four float types, any strides.
        after: of the same shape; its type may differ.
        rounded: which sides were rounded independently when they were stored: "after" where training started
            from the stored values of `before`, "both" for two checkpoints of one run.
        delta: gets ΔW; contiguous [..., m, n] on the CPU, float64 where a side is float64, else float32.

    Returns:
        `DeltaStatistics`, each field [...] float64. A pair with a NaN or an infinite entry is NaN, with one
        warning; squares beyond 1e308 are infinite.

    Raises:
        ValueError: shapes differ, fewer than two dimensions, an empty matrix, another dtype, an unknown
            choice, a `delta` of another shape or dtype.
        TypeError: no tensors.

    Example:
        A quarter of the entries of a matrix of ones become 1.5: in bfloat16, whose step at 1 is 1/128 as it
        is at 1.5.

        >>> import torch, attnscope as asc
        >>> before = torch.ones(2, 2, dtype=torch.bfloat16)
        >>> after = before.clone()
        >>> after[0, 0] = 1.5
        >>> result = asc.delta_statistics(before, after)
        >>> result.energy.item(), result.unchanged.item(), result.along.item(), result.largest.item()
        (0.25, 0.75, 0.125, 0.5)
        >>> result.step_ratio.item() == 0.25 * 128
        True

    References:
        Goldberg, What every computer scientist should know about floating-point arithmetic, 1991, for the
        distance of neighbours and the variance step²/12 of rounding.
    """
    name = "delta_statistics"
    before_matrix = weights_argument(name, "before", before)
    after_matrix = weights_argument(name, "after", after)
    if before_matrix.shape != after_matrix.shape:
        raise ValueError(
            f"{name}: before and after must have one shape, got {tuple(before_matrix.shape)} and "
            f"{tuple(after_matrix.shape)}"
        )
    rounded_sides = scalars.choice_argument(name, "rounded", rounded, ("after", "both"))
    if delta is not None:
        _check_delta(name, delta, before_matrix, after_matrix)
    scales = None
    if before_matrix.dtype == after_matrix.dtype == torch.float64:
        scales = _powers.smaller_scales(_powers.scales_of(before_matrix), _powers.scales_of(after_matrix))
        before_matrix, after_matrix = (
            _powers.scaled(before_matrix, scales),
            _powers.scaled(after_matrix, scales),
        )
    sums, bad = _core.delta_statistics(before_matrix, after_matrix, delta)
    if bad:
        total = math.prod(before_matrix.shape[:-2])
        message = f"{name}: {bad} of {total} pairs hold NaN or infinite entries; their results are NaN"
        warn(NonFiniteWarning(message, name, bad))
    result = statistics_of(sums, math.prod(before_matrix.shape[-2:]), rounded_sides)
    if scales is None:
        return result
    if delta is not None:
        delta.div_(scales[..., None, None])
    return result._replace(
        energy=_powers.unscaled(result.energy, scales, power=2),
        before_energy=_powers.unscaled(result.before_energy, scales, power=2),
        largest=_powers.unscaled(result.largest, scales),
    )


def statistics_of(sums: Tensor, entries: int, rounded: str) -> DeltaStatistics:
    """Convert the core's sums [..., 7] over so many entries to statistics; sums of parts of a matrix add up.

    Args:
        sums: Σ Δ², Σ before², Σ Δ·before, Σ step(before)², Σ step(after)², unchanged entries, max |Δ|.
        entries: of a matrix.
        rounded: as in `delta_statistics`.
    """
    energy, before_energy, product, before_steps, after_steps, unchanged, largest = sums.unbind(-1)
    noise = after_steps if rounded == "after" else after_steps + before_steps
    return DeltaStatistics(
        energy,
        before_energy,
        unchanged / entries,
        (energy / after_steps).sqrt(),
        torch.where(energy == 0, torch.nan, noise / 12 / energy),
        product / before_energy,
        largest,
    )


def weights_argument(function: str, name: str, value: Any) -> Tensor:
    """`value` as a float tensor [..., m, n] on the CPU."""
    tensor = _checks.to_host(_checks.float_tensor(function, name, value))
    if tensor.ndim < 2 or 0 in tensor.shape[-2:]:
        raise ValueError(
            f"{function}: {name} must be matrices [..., m, n] with m, n >= 1, got shape {tuple(tensor.shape)}"
        )
    return tensor


def _check_delta(function: str, delta: Any, before: Tensor, after: Tensor) -> None:
    wide = torch.float64 in (before.dtype, after.dtype)
    dtype = torch.float64 if wide else torch.float32
    if not isinstance(delta, Tensor):
        raise TypeError(f"{function}: delta must be a torch.Tensor, got {type(delta).__name__}")
    if delta.shape != before.shape or delta.dtype != dtype or not delta.is_contiguous():
        raise ValueError(
            f"{function}: delta must be a contiguous {dtype} tensor of shape {tuple(before.shape)}, got "
            f"{delta.dtype} of shape {tuple(delta.shape)}"
        )


_BEFORE = torch.ones(2, 2, dtype=torch.bfloat16, device="cpu")
_AFTER = torch.tensor([[1.5, 1.0], [1.0, 1.0]], dtype=torch.bfloat16, device="cpu")
_SITES = {"weights_before": _BEFORE, "weights_after": _AFTER}


def _of_a_pair(name: str, field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    return Quantity(
        name,
        "delta_statistics",
        label,
        meaning,
        ClosedForm(expected, torch.eye(2, device="cpu"), _SITES),
        options={"before": Site("weights_before"), "after": Site("weights_after")},
        read=attribute_reader(field),
        scope="weights",
        needs=("weights_before", "weights_after"),
        **fields,
    )


QUANTITIES = (
    _of_a_pair("delta_energy", "energy", "energy of ΔW", "‖ΔW‖_F².", 0.25, symbol="‖ΔW‖²", low=0),
    _of_a_pair(
        "unchanged_share",
        "unchanged",
        "unchanged entries",
        "Share of the entries of a matrix that training left as they were stored.",
        0.75,
        low=0,
        high=1,
    ),
    _of_a_pair(
        "step_ratio",
        "step_ratio",
        "change / rounding step",
        "Root mean square of ΔW over that of the distance between neighbouring stored numbers.",
        32.0,
        low=0,
    ),
    _of_a_pair(
        "noise_share",
        "noise_share",
        "rounding noise in ΔW",
        "Energy that rounding the tuned weights alone gives, as a share of ‖ΔW‖_F².",
        4 / 128**2 / 12 / 0.25,
        low=0,
    ),
    _of_a_pair(
        "decay_share",
        "along",
        "ΔW along W",
        "⟨ΔW, W⟩/‖W‖²: below 0 where weights decayed.",
        0.125,
        kind="ratio",
    ),
    _of_a_pair("largest_change", "largest", "largest change", "The largest |ΔW| of a matrix.", 0.5, low=0),
)
