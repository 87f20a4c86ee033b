# SPDX-License-Identifier: MIT
"""Divergence of heads from their mean and its change without sinks, as the KL notebook computes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _calls
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.arguments.number_lists import number_array
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uneven_heads
from attnscope.metrics.information import divergence as exact
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader, count_true
from attnscope.protocols.ruscio2025._maps import all_heads, as_exact, declared, plogp
from attnscope.protocols.ruscio2025.sinks import sink_tokens

# Speed mode looks at so many query rows and, for the concentration, heads.
SPEED_ROWS = 20
SPEED_HEADS = 4
#: Percentiles of the published tables.
PERCENTILES = (80, 90, 95)


@shown_by_shape
class SinkRemoval(NamedTuple):
    """kl_reduction [...] nats, sink_concentration [...], sinks [..., n] bool, p_value [...]."""

    kl_reduction: torch.Tensor
    sink_concentration: torch.Tensor
    sinks: torch.Tensor
    p_value: torch.Tensor


@memory_errors("head_divergence")
@without_derivative("it is the published code's number, made for comparing")
def head_divergence(heads: torch.Tensor) -> torch.Tensor:
    """KL of every head of a layer [..., h, n, n] from the head mean, averaged over queries.

    Quirk of the KL notebook: every row is first divided by its sum, which hides maps that do not sum to 1; a
    row without mass becomes uniform over all n keys.

    Returns:
        [..., h] float64, nats; a layer with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `head_divergence`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> heads = torch.zeros(2, 3, 3); heads[0, :, 0] = 1; heads[1, :, 1] = 5
        >>> ruscio2025.head_divergence(heads).exp()
        tensor([2., 2.], dtype=torch.float64)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, KL notebook.
    """
    name = "ruscio2025.head_divergence"
    maps, bad, checked = all_heads(name, heads)
    maps = _normalised(maps)
    result = _divergence(maps, plogp(maps)).mean(-1)
    result = torch.where(bad.unsqueeze(-1), torch.nan, result)
    return _calls.warn_non_finite(name, checked.layers, result, int(bad.sum()), "layers")


@memory_errors("sink_removal")
@without_derivative("it is the published code's number, made for comparing")
def sink_removal(heads: torch.Tensor, *, percentile: float = 90, speed: bool = False) -> SinkRemoval:
    """Return the decrease of the heads' divergence when the sink columns are zeroed and rows rescaled.

    Sinks are the keys whose incoming mass over heads and queries reaches its `percentile`. kl_reduction is
    the mean over heads of KL before − KL after; sink_concentration the mean over heads of the share of each
    one's mass on the sinks, 0 for a head without mass.

    Quirks of the KL notebook: sinks and concentration are of the maps as they are, while for the divergences
    rows are as `head_divergence` makes them; a row that removal empties becomes uniform over all non-sinks,
    keys it cannot see included, and stays in the average; in speed mode (the notebook's default) only 20
    query rows and, for the concentration, 4 heads are looked at, and p-values are 1. In full mode the paired
    t-test takes the heads of one sample as replicates.

    Args:
        heads: all heads of a layer [..., h, n, n].
        percentile: 80, 90 or 95 in the paper.
        speed: the notebook's speed mode.

    Returns:
        SinkRemoval; p_value is NaN for fewer than two heads, kl_reduction and p_value are where every key
        is a sink, so that nothing is left. A layer with a NaN or infinite entry is NaN and without sinks.

    Raises:
        ValueError: a percentile outside 0..100.

    Example:
        Two heads that differ only in how much they rest on key 0.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> strong = torch.tensor([0.8, 0.1, 0.1]).expand(3, 3)
        >>> weak = torch.tensor([0.2, 0.4, 0.4]).expand(3, 3)
        >>> result = ruscio2025.sink_removal(torch.stack([strong, weak]), percentile=80)
        >>> result.sinks, round(result.sink_concentration.item(), 6)
        (tensor([ True, False, False]), 0.5)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, KL notebook.
    """
    name = "ruscio2025.sink_removal"
    percentile = scalars.between(name, "percentile", percentile, 0, 100)
    speed = scalars.flag(name, "speed", speed)
    return _removals(heads, (percentile,), (speed,))[percentile, speed]


def _removals(
    heads: torch.Tensor, percentiles: Sequence[float] = PERCENTILES, modes: Sequence[bool] = (False, True)
) -> dict[tuple[float, bool], SinkRemoval]:
    """`sink_removal` by percentile and mode, full (False) and speed (True); shared work is done once."""
    name = "ruscio2025.sink_removal"
    maps, bad, checked = all_heads(name, heads)
    n, mean = checked.n, maps.mean(-3)
    mass = maps.sum(-2)
    maps = _normalised(maps)
    # speed mode reads a part of the rows, whose divergences do not depend on one another
    only_speed_rows = modes == (True,) and n > SPEED_ROWS
    rows = torch.linspace(0, n - 1, min(n, SPEED_ROWS), dtype=torch.float64, device="cpu").long()
    shown = maps[..., rows, :] if only_speed_rows else maps
    plogps = plogp(shown)
    before = _divergence(shown, plogps)
    results: dict[tuple[float, bool], SinkRemoval] = {}
    for percentile in percentiles:
        sinks = sink_tokens(mean, rule="kl", percentile=percentile) & ~bad.unsqueeze(-1)
        after = _divergence_without(shown, plogps, sinks)
        for speed in modes:
            looked_at = mass[..., :SPEED_HEADS, :] if speed else mass
            on_sinks, total = torch.where(sinks.unsqueeze(-2), looked_at, 0.0).sum(-1), looked_at.sum(-1)
            concentration = (on_sinks / torch.where(total > 0, total, 1.0)).mean(-1)
            part = speed and n > SPEED_ROWS and not only_speed_rows
            ends = [(values[..., rows] if part else values).mean(-1) for values in (before, after)]
            p_value = (
                torch.ones(bad.shape, dtype=torch.float64, device="cpu") if speed else _paired_t_test(*ends)
            )
            reduction, concentration, p_value = (
                torch.where(bad, torch.nan, values)
                for values in ((ends[0] - ends[1]).mean(-1), concentration, p_value)
            )
            results[percentile, speed] = SinkRemoval(reduction, concentration, sinks, p_value)
    return _calls.warn_non_finite(name, checked.layers, results, int(bad.sum()), "layers")


def _divergence_without(maps: torch.Tensor, plogps: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """`_divergence` once the sink columns are zeroed and rows rescaled, from the entries p and their p log p.

    A row that this empties is uniform over all other keys; without another key it is NaN, as the
    notebook's divergence of an empty distribution is.
    """
    is_left = (~sinks).double().unsqueeze(-2)
    left = is_left.sum(-1)
    over_left = is_left.unsqueeze(-3).mT
    mass = (maps @ over_left).squeeze(-1)
    empty = ~(mass > 0)
    divisor = torch.where(empty, torch.inf, mass)
    mean = (
        (maps / divisor.unsqueeze(-1)).mean(-3) + empty.double().mean(-2).unsqueeze(-1) / left.unsqueeze(-1)
    ) * is_left
    logs = _logs(mean)
    negative_entropy = (plogps @ over_left).squeeze(-1) / divisor - torch.where(empty, 1.0, mass).log()
    rescaled = negative_entropy - (maps * logs.unsqueeze(-3)).sum(-1) / divisor
    uniform = -left.log() - logs.sum(-1) / left
    return torch.where(empty, uniform.unsqueeze(-2), rescaled)


def combine_p_values(p_values: Sequence[float] | torch.Tensor) -> float:
    """Fisher's combination of p-values as in the KL notebook: χ² = −2 Σ ln(p + 1e-10), 2m degrees of freedom.

    Quirk: the 1e-10 caps the weight of a single sample, and p-values of 1 (speed mode) are combined like any.

    Args:
        p_values: one per sample; NaN is refused.

    Returns:
        The combined p-value in [0, 1].

    Raises:
        ValueError: no p-value, or one outside [0, 1].

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> round(ruscio2025.combine_p_values([0.05]), 6)
        0.05

    References:
        Fisher, Statistical methods for research workers, 1925, section 21.1.
    """
    from scipy import special

    values = number_array("ruscio2025.combine_p_values", "p_values", p_values).ravel().tolist()
    if not values or not all(0.0 <= p <= 1.0 for p in values):
        raise ValueError(f"ruscio2025.combine_p_values: p_values must lie between 0 and 1, got {values!r}")
    statistic = -2.0 * sum(math.log(p + 1e-10) for p in values)
    return float(special.chdtrc(2 * len(values), statistic))


def speed_layers(count: int) -> list[int]:
    """Return the layers of `count` that speed mode looks at: 0, 1, 3, 5, … and the last; all of six or fewer.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.speed_layers(9)
        [0, 1, 3, 5, 7, 8]
    """
    if count <= 6:
        return list(range(count))
    return sorted({0, *range(1, count, 2), count - 1})


def _normalised(maps: torch.Tensor) -> torch.Tensor:
    mass = maps.sum(-1, keepdim=True)
    has_mass = mass > 0
    if bool(has_mass.all()):
        return maps / mass
    return torch.where(has_mass, maps / torch.where(has_mass, mass, 1.0), 1.0 / maps.shape[-1])


def _divergence(maps: torch.Tensor, plogps: torch.Tensor) -> torch.Tensor:
    """KL of every row from the mean over heads, [..., h, rows], from the entries p and their p log p."""
    mean = maps.mean(-3, keepdim=True)
    return plogps.sum(-1) - (maps * _logs(mean)).sum(-1)


def _logs(mean: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of each entry, 0 of 0."""
    return torch.where(mean == 0, 0.0, mean.log())


def _paired_t_test(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Two-sided p-values over the last axis; NaN for fewer than two pairs."""
    from scipy import special

    if before.shape[-1] < 2:
        return torch.full(before.shape[:-1], torch.nan, dtype=torch.float64, device="cpu")
    difference = (before - after).numpy()
    error = difference.std(-1, ddof=1) / math.sqrt(difference.shape[-1])
    mean = difference.mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(mean) / error
    p = 2 * special.stdtr(difference.shape[-1] - 1, -t)
    return torch.as_tensor(p, dtype=torch.float64, device="cpu")


SOURCES = (_removals,)
DERIVED = {"sink_removal": ("_removals", lambda removals, percentile, speed: removals[percentile, speed])}

# Student's t with one degree of freedom is Cauchy's distribution.
_P_VALUE = 1 - 2 / math.pi * math.atan(
    sum(exact.REMOVED_DIVERGENCE) / abs(exact.REMOVED_DIVERGENCE[0] - exact.REMOVED_DIVERGENCE[1])
)


def _sinks_from(percentile: int) -> Iterator[Quantity]:
    """Declare the numbers of both modes of the notebook for the keys from one percentile of incoming mass
    on.
    """
    keys = f"the keys from the {percentile}th percentile of incoming mass on"

    def declare(name: str, label: str, meaning: str, expected: float, speed: bool, **fields: Any) -> Quantity:
        return declared(
            f"{name}_speed_{percentile}" if speed else f"{name}_{percentile}",
            "sink_removal",
            f"{label}, {percentile}th percentile" + (", speed mode" if speed else ""),
            meaning,
            ClosedForm(expected, uneven_heads()),
            options={"percentile": percentile, "speed": speed},
            scope="layer",
            **{"low": 0, "read": attribute_reader(name), **fields},
        )

    for speed in (False, True):
        removed_keys = f"{keys}, in the notebook's speed mode" if speed else keys
        reduction = f"How much the heads' mean divergence falls without {removed_keys}, nats."
        yield declare(
            "kl_reduction", "KL without sinks", reduction, sum(exact.REMOVED_DIVERGENCE) / 2, speed, low=None
        )
        yield declare(
            "sink_concentration", "mass on sinks", f"Share of mass on {removed_keys}.", 0.375, speed, high=1
        )
        if not speed:
            count = {"kind": "count", "high": float, "read": lambda removal: count_true(removal.sinks)}
            yield declare("sink_count", "sink tokens per layer", f"Number of {keys}.", 1, speed, **count)
            paired = f"Paired t-test over heads of the divergence with and without {keys}."
            yield declare("p_value", "p without sinks", paired, _P_VALUE, speed, high=1)


QUANTITIES = (
    as_exact(
        exact,
        "head_divergence",
        meaning="Mean over queries of KL(head ‖ mean of the heads), rows made to sum to 1 first.",
    ),
    as_exact(exact, "head_divergence", "layer", meaning="Mean over heads and queries of that divergence."),
    *(quantity for percentile in PERCENTILES for quantity in _sinks_from(percentile)),
)
