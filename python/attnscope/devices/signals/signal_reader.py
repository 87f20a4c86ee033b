# SPDX-License-Identifier: MIT
"""The signals that are read off a slab of maps, side by side, in torch operations.

The definitions of the signals are those of `attnscope.power_spectrum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.slab import Slab, refuse_float32
from attnscope.devices.slabs import per_map

#: Float64 copies of a slab that reading its signals and working on them holds at a time.
TEMPORARIES = 20
#: Squares of entries below 2^-537 vanish and those above 2^512 overflow; nearer to 1 than this nothing is
#: scaled.
MODERATE = 2.0**400


class SignalOptions(NamedTuple):
    """Options of the signals that are read off a map, as the core takes them."""

    kind: str
    drop_first: bool
    detrend: bool
    min_keys: int


class Signals(NamedTuple):
    """Signals of the maps of a slab: `slots` of each map, a query each for "rows", else 1.

    Attributes:
        values: entries in the order of their keys, 0 behind the last, [m, slots, n]; so scaled that squares
            neither vanish nor overflow.
        counts: number of entries, at least 1, [m, slots].
        exponents: the signal is 2^exponent times its values, [m, slots].
        defined: False for signals that are too short and of maps that are not finite, [m, slots].
    """

    values: Tensor
    counts: Tensor
    exponents: Tensor
    defined: Tensor

    @property
    def real(self) -> Tensor:
        """True for entries of the signals, [m, slots, n]."""
        places = torch.arange(self.values.shape[-1], device=self.values.device)
        return places < self.counts[..., None]


def per_signal(
    measure: Callable[[Slab, Signals], Sequence[Tensor]],
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    options: SignalOptions,
    *,
    beside: int = 0,
) -> Any:
    """Compute a measure of the signals of every map of a batch.

    Args:
        measure: takes a slab and its signals; returns tensors [m, ...], the first with an axis of slots that
            only "rows" keeps.
        attention: maps [..., q, k].
        lengths: as the core takes it.
        support: likewise.
        options: which signals.
        beside: float64 copies of a slab that `measure` holds beside the signals.

    Returns:
        The tensors of `measure` for the batch, on the CPU; and how many maps are not finite.

    Raises:
        NotOnDevice: a device without float64.
    """
    refuse_float32(attention)

    def compute(slab: Slab) -> tuple[Tensor, ...]:
        first, *others = measure(slab, read_signals(slab, options))
        return (first if options.kind == "rows" else first.squeeze(1)), *others, slab.finite

    return per_map(compute, attention, lengths, support, temporaries=TEMPORARIES + beside)


def read_signals(slab: Slab, options: SignalOptions) -> Signals:
    """Return the signals of a slab."""
    if options.kind in ("rows", "last"):
        values, counts, present = _rows(slab, options)
        pairs = None
    else:
        values, pairs = _by_offset(slab, options) if options.kind == "offset" else _by_key(slab, options)
        values, pairs = values[:, None], pairs[:, None]
        counts, present = (pairs > 0).sum(-1), torch.ones_like(pairs[..., 0], dtype=torch.bool)
        # a key that no query sees, or a distance that no pair has, is left out
        values, pairs = _without_gaps(values, pairs > 0), _without_gaps(pairs, pairs > 0)
    defined = present & (counts >= max(options.min_keys, 1)) & slab.finite[:, None]
    values = torch.where(defined[..., None], values, 0.0)
    values, exponents = rescale(values)
    if pairs is not None:
        values = values / pairs.clamp(min=1)
    signals = Signals(values, torch.where(defined, counts, 1), exponents, defined)
    if not options.detrend:
        return signals
    # What equal entries differ by when each is the mean of entries that were divided by a sum: 2^-53 for each
    # term, in both directions.
    rounding = 0.0 * slab.lengths if pairs is None else 2.0**-52 * (slab.queries + slab.lengths)
    return signals._replace(values=_detrended(signals, rounding[:, None, None]))


def rescale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values of which the largest of a signal is moderate, and the exponents of two taken out."""
    largest = values.abs().amax(-1)
    moderate = ((largest > 1 / MODERATE) & (largest < MODERATE)) | (largest == 0)
    exponents = torch.where(moderate, 0, torch.frexp(largest).exponent)
    return scaled(values, -exponents[..., None]), exponents


def scaled(values: Tensor, exponents: Tensor) -> Tensor:
    """Return values times powers of two, in two steps, because a power of two may itself overflow."""
    half = exponents // 2
    return values * torch.exp2(half.to(values.dtype)) * torch.exp2((exponents - half).to(values.dtype))


def _rows(slab: Slab, options: SignalOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Return entries [m, slots, n], their number, and True where something is left without key 0."""
    values, counts = slab.attention, slab.visible_keys
    seen = slab.seen if isinstance(slab.support, Tensor) else None
    if options.kind == "last":
        last = (slab.queries - 1).clamp(min=0)[:, None]
        index = last[..., None].expand(-1, 1, slab.n)
        values, counts = values.gather(1, index), counts.gather(1, last)
        seen = None if seen is None else seen.gather(1, index)
    present = slab.rows_inside if options.kind == "rows" else (slab.queries > 0)[:, None]
    if options.drop_first:
        counts = counts - (1 if seen is None else seen[..., 0].long())
        values = torch.nn.functional.pad(values[..., 1:], (0, 1))
        seen = None if seen is None else torch.nn.functional.pad(seen[..., 1:], (0, 1))
        rest = values.sum(-1)
        present = present & (rest > 0)
        values = values / torch.where(rest > 0, rest, 1.0)[..., None]
    return values if seen is None else _without_gaps(values, seen), counts, present


def _without_gaps(values: Tensor, entered: Tensor) -> Tensor:
    """Return the entries that enter of each signal in their order, 0 behind them."""
    order = torch.sort(torch.where(entered, 0, 1), dim=-1, stable=True).indices
    return torch.where(entered, values, 0.0).gather(-1, order)


def _entries(slab: Slab, options: SignalOptions) -> tuple[Tensor, Tensor]:
    """Return the entries that enter a mean, 0 where none does, and where one does, [m, q, k]."""
    entries, seen = slab.attention, slab.seen & slab.rows_inside[:, :, None] & slab.inside[:, None, :]
    if not options.drop_first:
        return entries, seen
    seen = seen & (slab.positions > 0)
    entries = torch.where(seen, entries, 0.0)
    rest = entries.sum(-1, keepdim=True)
    seen = seen & (rest > 0)
    return torch.where(seen, entries / torch.where(rest > 0, rest, 1.0), 0.0), seen


def _by_key(slab: Slab, options: SignalOptions) -> tuple[Tensor, Tensor]:
    """Return sums over the queries that see enough keys, and the number of those that see each, [m, n]."""
    entries, seen = _entries(slab, options)
    enough = seen.sum(-1) >= options.min_keys
    seen = seen & enough[..., None]
    return torch.where(seen, entries, 0.0).sum(-2), seen.sum(-2).to(slab.dtype)


def _by_offset(slab: Slab, options: SignalOptions) -> tuple[Tensor, Tensor]:
    """Return sums over pairs, and the number of pairs, by distance from the query's own key, [m, n]."""
    entries, seen = _entries(slab, options)
    if slab.shift is None:
        return _diagonal_sums(entries), _diagonal_sums(seen.to(slab.dtype))
    return _sums_by_distance(slab, entries), _sums_by_distance(slab, seen.to(slab.dtype))


def _diagonal_sums(maps: Tensor) -> Tensor:
    """Return the sums of maps over i and j of each |i − j|, [m, n]; equal maps give equal bits.

    A row of n zeros behind each row of the mirrored map, read in rows of 2n − 1, brings diagonals into
    columns.
    """
    n = maps.shape[-1]
    padded = torch.nn.functional.pad(maps.flip(-1), (0, n)).flatten(1)
    sums = padded[:, :-n].reshape(len(maps), n, 2 * n - 1).sum(-2)
    after, before = sums[:, n - 1 :], sums[:, : n - 1].flip(-1)
    return after + torch.nn.functional.pad(before, (1, 0))


def _sums_by_distance(slab: Slab, maps: Tensor) -> Tensor:
    """Return the sums of rectangles over queries and keys of each distance from the query's own key, [m, k].

    Entries are gathered in the order of their distances, and not scattered, so that equal maps give equal
    bits.
    """
    places = slab.places.expand(maps.shape[:2])[..., None]
    result = torch.zeros_like(maps[:, 0])
    for step in (-1, 1):
        key = places + step * slab.positions
        is_key = (key >= 0) & (key < slab.n)
        # the query's own key is at distance 0 both ways
        is_key = is_key & (slab.positions >= (1 if step > 0 else 0))
        entries = maps.gather(-1, key.clamp(0, slab.n - 1))
        result = result + torch.where(is_key, entries, 0.0).sum(-2)
    return result


def _detrended(signals: Signals, rounding: Tensor) -> Tensor:
    """Return the signals minus their means; entries that differ by `rounding` of the largest become 0."""
    values, real = signals.values, signals.real
    low = torch.where(real, values, math.inf).amin(-1, keepdim=True)
    high = torch.where(real, values, -math.inf).amax(-1, keepdim=True)
    varies = high - low > rounding * torch.maximum(low.abs(), high.abs())
    mean = values.sum(-1, keepdim=True) / signals.counts[..., None]
    return torch.where(real & varies, values - mean, 0.0)
