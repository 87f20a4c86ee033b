# SPDX-License-Identifier: MIT
"""The topology notebook's row of numbers per map."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import identity, uniform_map
from attnscope.metrics.homology.barcodes import Barcodes, max_persistence, mean_persistence
from attnscope.metrics.quantity import ClosedForm, Quantity, Shared, attribute_reader
from attnscope.protocols.ruscio2025._maps import declared, head_mean
from attnscope.protocols.ruscio2025.entropy import bits
from attnscope.protocols.ruscio2025.persistence import RING, bars_of

DENSITY_THRESHOLDS = (0.2, 0.4)


@shown_by_shape
class Topology(NamedTuple):
    """The notebook's numbers of one map, leading axes kept.

    Attributes:
        mean_length: [..., 2] float64, of the finite bars of H0 and H1; NaN without one.
        max_length: [..., 2] float64, likewise.
        density: [..., 2] float64, share of all n² entries above 0.2 and above 0.4, compared in float32.
        mean: [...] float64, of all entries.
        max: [...] float64.
        std: [...] float64, population.
        entropy: [...] float64, −Σ a·log2(a + 1e-10) over all entries of the matrix.
        top_key: [...] int64, the key of largest column mean, the first on ties.
        strongest_edge: [..., 2] int64, query and key of the largest entry, the first on ties.
    """

    mean_length: torch.Tensor
    max_length: torch.Tensor
    density: torch.Tensor
    mean: torch.Tensor
    max: torch.Tensor
    std: torch.Tensor
    entropy: torch.Tensor
    top_key: torch.Tensor
    strongest_edge: torch.Tensor


@memory_errors("topology")
@without_derivative("it is the published code's number, made for comparing")
def topology(
    attention: torch.Tensor, *, barcodes: Barcodes | None = None, row_entropy: torch.Tensor | None = None
) -> Topology:
    """Lengths of bars, densities and moments of a map, as the topology notebook stores them.

    Bars come from at most 30 tokens (`ruscio2025.persistence`), everything else from the whole map. On a
    causal map the finite H0 lengths are the self-attentions A_ii themselves.

    Args:
        attention: head mean [..., n, n]; the notebook also takes the moments, the entropy, the top key and
            the strongest edge of every head.
        barcodes: the result of `ruscio2025.persistence` for the same maps, if it exists.
        row_entropy: the result of `ruscio2025.attention_entropy` with base 2, likewise.

    Returns:
        Topology; NaN, and −1 for indices, where a map holds a NaN or infinite entry.

    Raises:
        ValueError: as the exact `persistence`.

    Example:
        Finite H0 lengths of uniform causal attention are 1/2, 1/3 and 1/4.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
        >>> result = ruscio2025.topology(uniform)
        >>> round(result.mean_length[0].item(), 6), result.top_key.item(), result.strongest_edge.tolist()
        (0.361111, 0, [0, 0])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, topology notebook.
    """
    name = "ruscio2025.topology"
    maps, bad, checked = head_mean(name, attention)
    bars = bars_of(name, attention) if barcodes is None else barcodes
    if not isinstance(bars, Barcodes):
        raise TypeError(f"{name}: barcodes must be what persistence returns, got {type(bars).__name__}")
    if bars.shape != checked.leading:
        raise ValueError(
            f"{name}: barcodes must be of maps of leading shape {checked.leading}, got {bars.shape}"
        )
    mean_length = mean_persistence(bars)
    flat = maps.flatten(-2)
    # in float32, where an entry of 1/5 does not exceed 0.2
    single, levels = flat.float(), torch.tensor(DENSITY_THRESHOLDS, dtype=torch.float32, device="cpu")
    # counts below 2**24 are exact in float32, and quick
    density = torch.stack([(single > level).float().sum(-1).double() / checked.n**2 for level in levels], -1)
    if row_entropy is None:
        rows = bits(maps)
    else:
        rows = _checks.float_tensor(name, "row_entropy", row_entropy)
        rows = _checks.expanded(f"{name}: row_entropy", rows, maps.shape[:-1])
    edge = torch.stack(torch.unravel_index(flat.argmax(-1), maps.shape[-2:]), -1)
    return Topology(
        mean_length,
        torch.where(mean_length.isnan(), torch.nan, max_persistence(bars)),
        torch.where(bad[..., None], torch.nan, density),
        torch.where(bad, torch.nan, flat.mean(-1)),
        torch.where(bad, torch.nan, flat.amax(-1)),
        torch.where(bad, torch.nan, (flat - flat.mean(-1, keepdim=True)).square().mean(-1).sqrt()),
        torch.where(bad, torch.nan, rows.sum(-1)),
        torch.where(bad, -1, maps.mean(-2).argmax(-1)),
        torch.where(bad[..., None], -1, edge),
    )


_CORNER = torch.tensor(
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.25, 0.75, 0.0]], dtype=torch.float64, device="cpu"
)


def _of_topology(
    name: str,
    field: str,
    label: str,
    meaning: str,
    closed_form: ClosedForm,
    *,
    at: int | None = None,
    **fields: Any,
) -> Quantity:
    """Return a field, or one entry of it."""
    read_field = attribute_reader(field)
    return declared(
        name,
        "topology",
        label,
        meaning,
        closed_form,
        low=0,
        options={
            "barcodes": Shared("persistence"),
            "row_entropy": Shared("attention_entropy", (("base", 2),)),
        },
        read=read_field if at is None else lambda result: read_field(result)[..., at],
        **fields,
    )


QUANTITIES = (
    _of_topology(
        "sink_position",
        "top_key",
        "strongest column",
        "The key of largest column mean.",
        ClosedForm(1, _CORNER),
        kind="position",
        high=lambda n: n - 1,
    ),
    *(
        _of_topology(
            f"{word}_persistence_{dimension}",
            f"{word}_length",
            f"{length_word} H{dimension} bar",
            f"{length_word.capitalize()} finite bar of at most 30 tokens in dimension {dimension}; of a "
            "causal map "
            "in dimension 0, self-attentions.",
            ClosedForm(0.25, RING),
            at=dimension,
        )
        for dimension in (0, 1)
        for word, length_word in (("mean", "mean"), ("max", "longest"))
    ),
    _of_topology(
        "attention_mean",
        "mean",
        "mean entry",
        "Mean of all entries, 1/n whatever is attended to: rows sum to 1.",
        ClosedForm(0.25, uniform_map(4)),
        kind="constant",
    ),
    _of_topology(
        "attention_max", "max", "largest entry", "Largest entry.", ClosedForm(0.75, _CORNER), high=1
    ),
    _of_topology(
        "attention_std",
        "std",
        "deviation of entries",
        "Standard deviation of all entries.",
        ClosedForm(0.5, identity(2)),
    ),
    _of_topology(
        "matrix_entropy",
        "entropy",
        "entropy of the matrix (bits)",
        "−Σ a·log2(a + 1e-10) over the whole matrix.",
        ClosedForm(-4 * math.log2(0.25 + 1e-10), uniform_map(4)),
    ),
    *(
        _of_topology(
            f"entry_density_{round(100 * threshold)}",
            "density",
            f"entries above {threshold}",
            f"Share of all entries above {threshold}.",
            ClosedForm(0.25, identity(4)),
            at=at,
            high=1,
        )
        for at, threshold in enumerate(DENSITY_THRESHOLDS)
    ),
    *(
        _of_topology(
            f"strongest_{word}",
            "strongest_edge",
            f"{word} of the largest entry",
            f"The {word} of the largest entry of the map.",
            ClosedForm(place, _CORNER),
            at=at,
            kind="position",
            high=lambda n: n - 1,
        )
        for at, (word, place) in enumerate((("query", 2), ("key", 1)))
    ),
)
