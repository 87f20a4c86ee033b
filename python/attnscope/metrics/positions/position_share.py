# SPDX-License-Identifier: MIT
"""The share of the variance of token states that lies between positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope._warn import warn
from attnscope.arguments import scalars
from attnscope.arguments.host_copies import row_major
from attnscope.errors import NonFiniteWarning
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics import _powers


class PositionMoments:
    """Streaming sums of states over texts, from which `position_share` is computed.

    Text by text, so that the same texts in other batches give the same bits. A text with a number that is not
    finite at one of the positions is left out and counted.

    Attributes:
        count: texts.
        left_out: texts that are not counted.
        sum: of states, [P, D].
        squares: of Σ_i ‖x_i‖² over texts, the positions i.
        centre: of P·‖mean over i of x_i‖².

    Example:
        >>> import torch
        >>> from attnscope.metrics.positions.position_share import PositionMoments
        >>> moments = PositionMoments()
        >>> moments.add(torch.ones(3, 4, 2), positions=[1, 2])
        >>> moments.count, tuple(moments.sum.shape)
        (3, (2, 2))
    """

    def __init__(self) -> None:
        self.count = 0
        self.left_out = 0
        self.sum = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        self.squares = torch.zeros((), dtype=torch.float64, device="cpu")
        self.centre = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, states: Tensor, *, positions: Sequence[int] | None = None) -> None:
        """Add texts.

        Args:
            states: [texts, n, D].
            positions: that are looked at; None: 1 … n // 2 − 1.

        Raises:
            ValueError: another shape than before, fewer than two positions, one outside 0 … n − 1.
        """
        name = "PositionMoments.add"
        tensor = _checks.float_tensor(name, "states", states)
        if tensor.ndim != 3:
            raise ValueError(f"{name}: states must have shape [texts, n, D], got {tuple(tensor.shape)}")
        n = tensor.shape[1]
        chosen = (
            list(range(1, n // 2)) if positions is None else places_argument(name, "positions", positions)
        )
        if len(chosen) < 2:
            raise ValueError(f"{name}: at least 2 positions are needed, got {chosen} of n = {n}")
        for place in chosen:
            if not 0 <= place < n:
                raise ValueError(f"{name}: positions must lie between 0 and n - 1 = {n - 1}, got {place}")
        chosen_states = row_major(tensor[:, chosen].double().cpu())
        if self.count and chosen_states.shape[1:] != self.sum.shape:
            raise ValueError(
                f"{name}: states were {tuple(self.sum.shape)} at the positions, got "
                f"{tuple(chosen_states.shape[1:])}"
            )
        if not self.count:
            self.sum = torch.zeros(chosen_states.shape[1:], dtype=torch.float64, device="cpu")
        for text in chosen_states:
            if not bool(text.isfinite().all()):
                self.left_out += 1
                continue
            self.count += 1
            self.sum = self.sum + text
            self.squares = self.squares + (text * text).sum()
            self.centre = self.centre + (text.mean(0) ** 2).sum() * len(chosen)

    def merge(self, other: PositionMoments) -> None:
        """Add the sums of other texts.

        Args:
            other: of the same positions.

        Raises:
            ValueError: states of another shape.
        """
        if self.count and other.count and self.sum.shape != other.sum.shape:
            raise ValueError(
                f"PositionMoments.merge: states are {tuple(self.sum.shape)}, got {tuple(other.sum.shape)}"
            )
        self.sum = (
            self.sum + other.sum if self.count and other.count else (other if other.count else self).sum
        )
        self.squares, self.centre = self.squares + other.squares, self.centre + other.centre
        self.count, self.left_out = self.count + other.count, self.left_out + other.left_out

    def state(self) -> dict[str, Tensor]:
        """Return the sums as tensors, of which `from_state` makes moments again."""
        numbers = {
            "count": torch.tensor(self.count, device="cpu"),
            "left_out": torch.tensor(self.left_out, device="cpu"),
        }
        return numbers | {"sum": self.sum, "squares": self.squares, "centre": self.centre}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PositionMoments:
        """Moments with the sums that `state` gave.

        Args:
            state: of moments; arrays serve as well as tensors.
        """
        moments = cls()
        moments.count, moments.left_out = int(state["count"]), int(state["left_out"])
        moments.sum, moments.squares, moments.centre = (
            torch.as_tensor(state[name], device="cpu").double() for name in ("sum", "squares", "centre")
        )
        return moments


@memory_errors("position_share")
@without_derivative("it is made for reading")
def position_share(states: Tensor | PositionMoments, *, positions: Sequence[int] | None = None) -> Tensor:
    """Share of the variance of states that lies between positions, unbiased over texts.

    With x_ti the state of text t at position i and y_ti = x_ti − mean over i: between = the mean over
    positions of <y_ti, y_ui> over pairs of different texts, which share nothing but the position; total = the
    mean over positions and texts of ‖x_ti‖² less <x̄_t, x̄_u> of different texts. Position 0 is left out by
    default, because its norm exceeds all others in many models.

    Args:
        states: [texts, n, D], or [..., texts, n, D] (layers, say), or streamed sums.
        positions: that are looked at; None: 1 … n // 2 − 1. Streamed sums know theirs.

    Returns:
        [...] float64, at most 1; may be negative without an effect, because it is not clipped. Texts that
        are not finite at the positions are left out, with one warning. NaN for
        fewer than two texts, and where states do not vary.

    Raises:
        ValueError: another shape, fewer than two positions, one outside 0 … n − 1.

    Example:
        States that are their position: all variance lies between positions.

        >>> import torch, attnscope as asc
        >>> states = torch.arange(8.0).expand(3, 8)[..., None]
        >>> round(asc.position_share(states).item(), 12)
        1.0

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026, for the question; the estimator is attnscope's.
    """
    if isinstance(states, PositionMoments):
        return _share(states)
    tensor = _checks.float_tensor("position_share", "states", states)
    if tensor.ndim < 3:
        raise ValueError(
            f"position_share: states must have shape [..., texts, n, D], got {tuple(tensor.shape)}"
        )
    shares = []
    left_out = 0
    for states_of_texts in tensor.reshape(math.prod(tensor.shape[:-3]), *tensor.shape[-3:]):
        moments = PositionMoments()
        scales = _powers.scales_of(_checks.to_host(states_of_texts.flatten(0, 1)))
        moments.add(
            states_of_texts if scales is None else states_of_texts * scales.to(states_of_texts.device),
            positions=positions,
        )
        shares.append(_share(moments))
        left_out += moments.left_out
    if left_out:
        total = math.prod(tensor.shape[:-2])
        message = f"position_share: {left_out} of {total} texts hold NaN or infinite entries and are left out"
        warn(NonFiniteWarning(message, "position_share", left_out))
    stacked = torch.stack(shares) if shares else torch.zeros(0, dtype=torch.float64, device="cpu")
    return stacked.reshape(tensor.shape[:-3])


def _share(moments: PositionMoments) -> Tensor:
    texts = moments.count
    if texts < 2:
        return torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
    places, pairs = len(moments.sum), texts * (texts - 1)
    mean = moments.sum.mean(0)
    centred = ((moments.sum - mean) ** 2).sum()
    between = (centred - (moments.squares - moments.centre)) / (pairs * places)
    common = ((mean**2).sum() - moments.centre / places) / pairs
    total = moments.squares / (texts * places) - common
    scale = moments.squares / (texts * places)
    undefined = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
    return torch.where(total > 1e-13 * scale, between / total, undefined)


def places_argument(function: str, name: str, value: Any) -> list[int]:
    """`value` as a list of whole numbers."""
    try:
        entries = list(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a list of whole numbers, got {value!r}") from None
    return [scalars.whole_number(function, name, entry) for entry in entries]


SOURCES = (position_share,)
