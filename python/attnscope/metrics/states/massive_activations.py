# SPDX-License-Identifier: MIT
"""A few entries of the residual stream that are thousands of times larger than the rest."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.devices import placement
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.clouds.cloud_distances import points_argument
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader


@shown_by_shape
class MassiveActivations(NamedTuple):
    """The largest entries of a layer's states.

    Attributes:
        count: entries with |x| > absolute and |x| >= relative times the median of |x|, [...] int64; −1 where
            the states are not finite.
        largest: max |x|, [...] float64.
        ratio: largest over the median of |x| over tokens and dimensions, [...]; NaN at a median of 0.
        token: of the largest entry, [...] int64; the first on ties, −1 where the states are not finite.
        dimension: of the largest entry, likewise.
        norms: ‖x_i‖ over the median of the tokens' norms, [..., n] float64; NaN at a median of 0.
    """

    count: Tensor  # type: ignore[assignment]  # a method of tuples has the name too
    largest: Tensor
    ratio: Tensor
    token: Tensor
    dimension: Tensor
    norms: Tensor


@memory_errors("massive_activations")
@without_derivative("it is made for reading")
def massive_activations(
    states: Tensor, *, absolute: float = 100, relative: float = 1000, lengths: _checks.Lengths = None
) -> MassiveActivations:
    """Return how many entries of a layer's states are massive, and where the largest is.

    Norms that stand out mark the register tokens of vision transformers; DINOv2's limit of 150 is that of one
    model. The median of an even number of entries is the mean of the middle two, where `torch.median` takes
    the lower.

    Args:
        states: [..., n, d], residual streams such as `block_output`; four float types, any strides.
        absolute: size that a massive entry exceeds, at least 0.
        relative: multiple of the median that it reaches, at least 0.
        lengths: tokens per text, broadcast against the leading axes.

    Returns:
        MassiveActivations; NaN and −1 for states that are not finite, with one warning.

    Raises:
        ValueError: fewer than two dimensions, no token, a limit below 0, lengths outside 1..n.

    Example:
        >>> import torch, attnscope as asc
        >>> states = torch.ones(4, 8); states[0, 3] = -2000
        >>> found = asc.massive_activations(states)
        >>> found.count.item(), found.largest.item(), found.ratio.item(), found.token.item()
        (1, 2000.0, 2000.0, 0)

    References:
        Sun et al., Massive activations in large language models, 2024. Darcet et al., Vision transformers
        need registers, 2023.
    """
    name = "massive_activations"
    limits = {"absolute": scalars.real(name, "absolute", absolute)}
    limits["relative"] = scalars.real(name, "relative", relative)
    for limit, value in limits.items():
        if not value >= 0:
            raise ValueError(f"{name}: {limit} must be at least 0, got {value!r}")
    checked = points_argument(name, states, lengths, "states")
    n, d = checked.tensor.shape[-2:]
    result = MassiveActivations(
        *placement.per_cloud(
            name,
            lambda points, ends: _of_texts(points, ends, **limits),
            checked.tensor.detach(),
            checked.lengths,
            bytes_of_one=8 * 5 * n * d,
        )
    )
    bad = int((result.token < 0).sum())
    return _calls.warn_non_finite(name, checked, result, bad, "states")


def _of_texts(
    states: Tensor, lengths: Tensor | None, *, absolute: float, relative: float
) -> tuple[Tensor, ...]:
    """Return the fields of `MassiveActivations` of states [..., n, d]."""
    leading, (n, d) = states.shape[:-2], states.shape[-2:]
    texts = states.reshape(math.prod(leading), n, d)
    ends = [n] * len(texts) if lengths is None else lengths.flatten().tolist()
    places = torch.full((3, len(texts)), -1, device=states.device)
    numbers = torch.full((2, len(texts)), torch.nan, dtype=torch.float64, device=states.device)
    norms = torch.full((len(texts), n), torch.nan, dtype=torch.float64, device=states.device)
    for row, end in enumerate(ends):
        sizes = texts[row, :end].double().abs()
        if not bool(sizes.isfinite().all()):
            continue
        median, largest = _median(sizes), sizes.max()
        # of equal entries the first
        place = (sizes == largest).flatten().int().argmax()
        massive = (sizes > absolute) & (sizes >= relative * median)
        places[:, row] = torch.stack([massive.sum(), place // d, place % d])
        numbers[:, row] = torch.stack([largest, _over(largest, median)])
        of_tokens = torch.linalg.vector_norm(sizes, dim=-1)
        norms[row, :end] = _over(of_tokens, _median(of_tokens))
    counts, tokens, dimensions = places.reshape(3, *leading)
    largest_of, ratios = numbers.reshape(2, *leading)
    return counts, largest_of, ratios, tokens, dimensions, norms.reshape(*leading, n)


def _median(values: Tensor) -> Tensor:
    """Return the median of finite values; of an even number the mean of the middle two."""
    lower = values.flatten().median()
    if values.numel() % 2:
        return lower
    above = torch.where(values > lower, values, torch.inf).amin()
    upper = torch.where((values <= lower).sum() > values.numel() // 2, lower, above)
    return lower + (upper - lower) / 2


def _over(values: Tensor, divisor: Tensor) -> Tensor:
    """Return quotients, NaN where the divisor is 0."""
    return torch.where(divisor > 0, values / divisor, torch.nan)


_STATES = torch.ones(4, 8, dtype=torch.float64, device="cpu")
_STATES[0, 3] = -2000.0


def _field(name: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    return Quantity(
        f"massive_{name}",
        "massive_activations",
        label,
        meaning,
        ClosedForm(expected, uniform_heads(), {"block_output": _STATES}),
        options={"states": Site("block_output")},
        read=attribute_reader(name),
        scope="layer",
        needs=("block_output",),
        **fields,
    )


def uniform_heads() -> Tensor:
    """Return a layer of one head of uniform attention among four tokens."""
    return torch.full((1, 4, 4), 0.25, dtype=torch.float64, device="cpu")


QUANTITIES = (
    _field(
        "count",
        "massive activations",
        "Entries of the states behind the layer that exceed 100 and a thousand times the median.",
        1.0,
        kind="count",
        low=0,
    ),
    _field("largest", "largest activation", "Largest entry of the states behind the layer.", 2000.0, low=0),
    _field(
        "ratio",
        "largest activation / median",
        "Largest entry of the states behind the layer over the median.",
        2000.0,
        kind="ratio",
        low=1,
    ),
    _field(
        "token", "token of the largest activation", "Where the largest entry is.", 0.0, kind="position", low=0
    ),
    _field(
        "dimension",
        "dimension of the largest activation",
        "In which dimension the largest entry is.",
        3.0,
        kind="position",
        low=0,
    ),
)
