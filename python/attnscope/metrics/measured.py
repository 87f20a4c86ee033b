# SPDX-License-Identifier: MIT
"""Quantities of the maps of one layer as numbers, and which of them are defined."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope.metrics.discovery import registry
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.measurement_run import MeasurementRun
from attnscope.metrics.plan import MeasurementPlan, plan_of
from attnscope.metrics.quantity import MAPS, Quantity
from attnscope.metrics.request import Request, in_precision
from attnscope.metrics.signatures import defined_on, reads_layers


@dataclass(frozen=True)
class Measured:
    """Numbers of the maps of one layer.

    Attributes:
        values: by quantity, [batch, maps] and its axes; of scope "layer" [batch] and its axes. Without
            a value, a float is NaN and a whole number has no meaning.
        defined: by quantity, True where the value exists.
        finite: which maps hold finite entries only, [batch, maps].
        size: tokens of the padded maps.
        results: full results of the metrics that were requested so, by name.
    """

    values: Mapping[Quantity, Tensor]
    defined: Mapping[Quantity, Tensor]
    finite: Tensor
    size: int
    results: Mapping[str, Any] = field(default_factory=dict)

    def part(self, maps: slice) -> Measured:
        """Return the numbers of some of the maps, where all quantities are of single maps."""
        values, defined = (
            {quantity: numbers[:, maps] for quantity, numbers in by_quantity.items()}
            for by_quantity in (self.values, self.defined)
        )
        return Measured(values, defined, self.finite[:, maps], self.size)

    def select(self, other: Measured, quantities: Sequence[Quantity]) -> Measured:
        """Return these quantities of both; the other's where both hold them."""
        values, defined = {**self.values, **other.values}, {**self.defined, **other.defined}
        return Measured(
            {quantity: values[quantity] for quantity in quantities}, defined, self.finite, self.size
        )

    def joined(self, other: Measured, quantities: Sequence[Quantity]) -> Measured:
        """Return the quantities of both, in a given order, and the full results of this one."""
        values, defined = {**self.values, **other.values}, {**self.defined, **other.defined}
        order = [quantity for quantity in quantities if quantity in values]
        return replace(
            self,
            values={quantity: values[quantity] for quantity in order},
            defined={quantity: defined[quantity] for quantity in order},
        )

    def as_sites(self, *names: str) -> dict[str, Tensor]:
        """Return numbers and full results of these names, as sites for functions that take `measured`."""
        sites = {
            quantity.name: values.unsqueeze(-2)
            for quantity, values in self.values.items()
            if quantity.name in names
        }
        return sites | {name: result.unsqueeze(-1) for name, result in self.results.items() if name in names}

    def columns(self, scope: str = "map") -> dict[str, np.ma.MaskedArray[Any, Any]]:
        """Return the quantities of one scope by name, flat in the order of the leading axes, masked where
        undefined.
        """
        return {
            quantity.name: np.ma.MaskedArray(
                values.flatten().numpy(), ~self.defined[quantity].flatten().numpy()
            )
            for quantity, values in self.values.items()
            if quantity.scope == scope
        }


def measure_quantities(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    *,
    lengths: Tensor | Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    full_results: Sequence[str] = (),
    held: torch.dtype | None = None,
    places: _checks.Places | None = None,
    precision: _checks.Precision = "exact",
) -> Measured:
    """Measure quantities of one protocol on the maps of a layer; every equal call is made once.

    Args:
        sites: captured tensors: attention [batch, maps, q, k], states of heads [batch, heads, k, d], of the
            layer [batch, k, d], head_mean [batch, 1, q, k]; numbers `measured` of the same maps before.
        quantities: of one protocol. Those that need an absent site are undefined everywhere, and
            left out if they have axes.
        lengths: tokens per sentence, [batch].
        heads: numbers of the heads whose maps these are; None where they are not the heads of one layer (a
            head mean, uniform attention), for which no number of several heads is defined.
        full_results: metrics whose unreduced result is returned next to the quantities, such as the bars of
            `persistence`; of padded maps.
        held: the type in which the model holds its maps, for a protocol that compares in it; None is theirs.
        places: where the queries of maps that are not square stand. Quantities that such maps have not are
            undefined.
        precision: of the exact protocol; a published one computes what its authors' code does under both.

    Raises:
        ValueError: quantities of several protocols, and as the metrics.

    Example:
        >>> import torch
        >>> from attnscope.metrics.discovery import quantity
        >>> maps = torch.full((1, 2, 4, 4), 0.25)
        >>> columns = [quantity("stable_rank"), quantity("sink_share")]
        >>> {name: values.tolist() for name, values in measure_quantities({"attention": maps}, columns)
        ...  .columns().items()}
        {'stable_rank': [1.0, 1.0], 'sink_share': [0.25, 0.25]}
    """
    protocols = {quantity.protocol for quantity in quantities}
    if len(protocols) > 1:
        raise ValueError(f"measure_quantities: one protocol at a time, got {', '.join(sorted(protocols))}")
    text_lengths = None if lengths is None else torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if protocols and registry().protocol_inputs.get(protocols.pop()) == "whole":
        if full_results:
            raise ValueError(
                f"measure_quantities: maps are read by length, so {full_results[0]} has no full result"
            )
        return _by_length(sites, quantities, text_lengths, heads, held)
    places = places or _checks.DEFAULT_PLACES
    return _measured(
        sites, quantities, text_lengths, heads, tuple(full_results), places=places, precision=precision
    )


def _by_length(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    lengths: Tensor | None,
    heads: Sequence[int] | None,
    held: torch.dtype | None,
) -> Measured:
    """Measure the texts of one length at a time, cut to that length, in double precision."""
    maps_of_layer = next(maps for name, maps in sites.items() if name in MAPS)
    batch, longest = len(maps_of_layer), int(maps_of_layer.shape[-1])
    text_lengths = torch.full((batch,), longest, device="cpu") if lengths is None else lengths
    places, parts = [], []
    for n in sorted(set(text_lengths.tolist())):
        place = (text_lengths == n).nonzero().flatten()
        cut = {
            name: values[place][..., :n, : n if name in MAPS else None].double()
            for name, values in sites.items()
        }
        places.append(place)
        parts.append(_measured(cut, quantities, None, heads, held=held or maps_of_layer.dtype))

    def join(by_length: Sequence[Tensor], missing: float) -> Tensor:
        sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in by_length), strict=True)]
        joined_values = torch.full((batch, *sizes), missing, dtype=by_length[0].dtype, device="cpu")
        for place, part in zip(places, by_length, strict=True):
            inside = (place, *map(slice, part.shape[1:]))
            joined_values[inside] = part
        return joined_values

    values, defined = {}, {}
    for quantity, first in parts[0].values.items():
        missing = torch.nan if first.dtype.is_floating_point else 0
        values[quantity] = join([part.values[quantity] for part in parts], missing)
        defined[quantity] = join([part.defined[quantity] for part in parts], False)
    return Measured(values, defined, join([part.finite for part in parts], False), longest)


def _measured(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    lengths: Tensor | None,
    heads: Sequence[int] | None,
    full_results: tuple[str, ...] = (),
    held: torch.dtype | None = None,
    places: _checks.Places = _checks.DEFAULT_PLACES,
    precision: _checks.Precision = "exact",
) -> Measured:
    maps = next(sites[name] for name in (*MAPS, *sites) if name in sites)
    answerable = [
        quantity
        for quantity in quantities
        if set(quantity.needs) <= set(sites)
        and (heads is not None or not reads_layers(quantity))
        and defined_on(quantity, maps.shape, bool(places.cross))
    ]
    map_lengths = None
    if lengths is not None and bool((lengths != maps.shape[-1]).any()):
        map_lengths = lengths[:, None]
    plan = _plan_for(tuple(answerable), full_results, int(maps.shape[-1]), precision)
    with shared_pass():
        results = MeasurementRun(plan, sites, map_lengths, "measure_quantities", held, places).results()
        # of scores, -inf is a key that is not visible
        judged = (name for name in sites if name in MAPS and name != "scores")
        finite = {name: _finite(sites[name], map_lengths, places) for name in judged}
    # values of maps that are all finite are NaN already where there are none
    not_all_finite = {name: of_maps for name, of_maps in finite.items() if not bool(of_maps.all())}
    values: dict[Quantity, Tensor] = {}
    defined: dict[Quantity, Tensor] = {}
    answers = dict(zip(answerable, results[: len(answerable)], strict=True))
    for quantity in quantities:
        if quantity in answers:
            numbers = quantity.read(answers[quantity])
            numbers = (
                numbers.squeeze(1)
                if quantity.scope == "layer" and quantity.needs[0] == "head_mean"
                else numbers
            )
            values[quantity], defined[quantity] = _where_defined(
                quantity, numbers, not_all_finite.get(quantity.needs[0])
            )
        elif not quantity.axes:
            shape = maps.shape[:1] if quantity.scope == "layer" else maps.shape[:2]
            values[quantity] = torch.full(shape, torch.nan, dtype=torch.float64, device="cpu")
            defined[quantity] = torch.zeros(shape, dtype=torch.bool, device="cpu")
    entire = dict(zip(full_results, results[len(answerable) :], strict=True))
    everywhere = finite.get("attention", torch.ones(maps.shape[:2], dtype=torch.bool, device="cpu"))
    return Measured(values, defined, everywhere, maps.shape[-1], entire)


@functools.lru_cache(maxsize=256)
def _plan_for(
    quantities: tuple[Quantity, ...], full_results: tuple[str, ...], n: int, precision: str
) -> MeasurementPlan:
    requests = [
        Request(quantity.name, quantity.metric, quantity.options, quantity.protocol, quantity.needs[0])
        for quantity in quantities
    ]
    requests += [Request(name, name, {}) for name in full_results]
    return plan_of(in_precision(requests, precision), n)


def _finite(maps: Tensor, lengths: Tensor | None, places: _checks.Places) -> Tensor:
    """Return which of [batch, maps, q, k] hold finite entries only, inside their lengths."""
    if places.is_default and maps.shape[-1] == maps.shape[-2]:
        map_lengths = None if lengths is None else lengths.expand(maps.shape[:2]).contiguous()
        checked = _checks.Attention(maps, map_lengths)
    else:
        checked = _checks.attention_argument("measure_quantities", maps, lengths, rows=False, places=places)
    finite: Tensor = _calls.call_kernel(_core.finite_matrices, checked)
    return finite


def _where_defined(quantity: Quantity, values: Tensor, finite: Tensor | None) -> tuple[Tensor, Tensor]:
    if values.dtype.is_floating_point:
        defined = ~values.isnan()
    elif quantity.kind in ("count", "position"):
        defined = values >= 0
    else:
        defined = torch.ones(values.shape, dtype=torch.bool, device="cpu")
    if finite is None:
        return values, defined
    finite = finite.all(-1) if quantity.scope == "layer" else finite
    defined &= finite.reshape(*finite.shape, *[1] * (values.ndim - finite.ndim))
    if values.dtype.is_floating_point:
        values = torch.where(defined, values, torch.nan)
    return values, defined


def check_closed_form(quantity: Quantity) -> tuple[float, float]:
    """Return the computed and the expected value of a quantity's closed form.

    >>> from attnscope.metrics.discovery import quantity
    >>> check_closed_form(quantity("stable_rank"))
    (4.0, 4.0)
    """
    closed_form = quantity.closed_form
    maps = closed_form.attention if closed_form.attention.ndim > 2 else closed_form.attention[None]
    sites = {"attention": maps[None], "head_mean": maps.double().mean(0)[None, None]}
    sites |= {name: states[None] for name, states in closed_form.sites.items()}
    with_options = replace(quantity, options={**closed_form.options, **quantity.options})
    values = measure_quantities(sites, [with_options], heads=range(len(maps))).values[with_options][0]
    entry = closed_form.entry
    if quantity.scope == "map" and len(entry) < values.ndim:
        entry = (0, *entry)
    assert not isinstance(closed_form.expected, Sequence)
    return float(values[entry]), float(closed_form.expected)
