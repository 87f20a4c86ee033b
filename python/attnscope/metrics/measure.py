# SPDX-License-Identifier: MIT
"""Many metrics of the same maps at once, with the work they share done once.

Sinks, bars, entropies and singular values each feed several metrics. A plan names the calls that all requests
need, makes equal calls once, and reads every request's numbers from their results; which maps were finite
comes from the core as a mask.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope._nearest import nearest
from attnscope.metrics.discovery import found
from attnscope.metrics.plan import MAPS, Execution, Plan, Request, accepted, plan_of, reads_layers, reads_maps
from attnscope.metrics.quantity import Quantity

#: A name, names, or a mapping from the key wanted in the result to the options of its metric.
Metrics = str | Iterable[str] | Mapping[str, Mapping[str, Any]]


def measure(
    attention: Tensor, metrics: Metrics, *, lengths: _checks.Lengths = None, **options: Any
) -> dict[str, Any]:
    """Several metrics of the same maps, with shared intermediates computed once.

    `stable_rank`, `effective_rank`, `spectral_gap` and `spectral_ratio` share one singular value
    decomposition, the statistics of bars one persistent homology, and so on; every value equals what the
    function of that name returns.

    Args:
        attention: attention maps [..., n, n]; what its device does not measure is copied to the CPU once. For
            metrics of all heads of a layer (`head_divergence`, `sink_removal`) the axis before the last two
            is the head.
        metrics: a name, names, or a mapping from the key wanted in the result to that metric's own options.
            Where the key is not the name of its function, the option ``function`` is, or ``metric`` where the
            function has no option of that name: ``{"bars": {"function": "persistence", "metric":
            "hellinger"}}``.
        lengths: tokens per map, broadcast against the leading axes.
        options: given to every metric that takes an option of that name.

    Returns:
        A dict in the order asked for: tensors, or the named results of the functions.

    Raises:
        ValueError: an unknown metric (the nearest name is suggested), or a bad argument of one of them.
        TypeError: an option that none of the metrics takes, or a missing one.

    Example:
        Uniform attention among four tokens: connectivity 1, and one direction carries everything.

        >>> import torch, attnscope as asc
        >>> asc.measure(torch.full((4, 4), 0.25), ["fiedler_value", "stable_rank"])["stable_rank"].item()
        1.0
        >>> found = asc.measure(torch.full((4, 4), 0.25), {
        ...     "mean": {"metric": "fiedler_value"},
        ...     "normalized": {"metric": "fiedler_value", "normalized": True},
        ... })
        >>> {key: round(value.item(), 6) for key, value in found.items()}
        {'mean': 1.0, 'normalized': 1.333333}
    """
    # what has no tokens is refused once the metrics are known to be right
    shape = getattr(attention, "shape", None) or (0,)
    plan = _plan_of(metrics, options, int(shape[-1]))
    tensor = _checks.square_tensor("measure", "attention", attention)
    results = Execution(plan, {"attention": tensor}, lengths, "measure").results()
    return {request.key: result for request, result in zip(plan.requests, results, strict=True)}


@dataclass(frozen=True)
class Measured:
    """Numbers of the maps of one layer.

    Attributes:
        values: by quantity, [batch, maps] and its axes; of scope "layer" [batch] and its axes. Where there is
            none, a float is NaN and a whole number means nothing.
        defined: by quantity, where there is a value.
        finite: which maps hold finite entries only, [batch, maps].
        size: tokens of the padded maps.
        results: of the metrics whose whole result was asked for, by name.
    """

    values: Mapping[Quantity, Tensor]
    defined: Mapping[Quantity, Tensor]
    finite: Tensor
    size: int
    results: Mapping[str, Any] = field(default_factory=dict)

    def part(self, maps: slice) -> Measured:
        """The numbers of some of the maps, where all quantities are of single maps."""
        values, defined = (
            {one: own[:, maps] for one, own in some.items()} for some in (self.values, self.defined)
        )
        return Measured(values, defined, self.finite[:, maps], self.size)

    def beside(self, other: Measured, quantities: Sequence[Quantity]) -> Measured:
        """These quantities out of both, of the other where both hold them."""
        values, defined = {**self.values, **other.values}, {**self.defined, **other.defined}
        return Measured({one: values[one] for one in quantities}, defined, self.finite, self.size)

    def known(self, *names: str) -> dict[str, Tensor]:
        """Numbers and whole results of these names, as sites for functions with a parameter `known`."""
        some = {one.name: values.unsqueeze(-2) for one, values in self.values.items() if one.name in names}
        return some | {name: own.unsqueeze(-1) for name, own in self.results.items() if name in names}

    def columns(self, scope: str = "map") -> dict[str, np.ma.MaskedArray[Any, Any]]:
        """Quantities of one scope by name, flat in the order of the leading axes, masked where undefined."""
        return {
            one.name: np.ma.MaskedArray(values.flatten().numpy(), ~self.defined[one].flatten().numpy())
            for one, values in self.values.items()
            if one.scope == scope
        }


def measure_quantities(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    *,
    lengths: Tensor | Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    whole: Sequence[str] = (),
    held: torch.dtype | None = None,
) -> Measured:
    """Quantities of one protocol of the maps of a layer, every equal call made once.

    Args:
        sites: captured tensors: attention [batch, maps, n, n], states of heads [batch, heads, n, d], of the
            layer [batch, n, d], head_mean [batch, 1, n, n]; what is `known` of the same maps already.
        quantities: of one protocol. Those that need a site which is not there are undefined everywhere, and
            left out where they have axes of their own.
        lengths: tokens per sentence, [batch].
        heads: numbers of the heads whose maps these are; None where they are not the heads of one layer (a
            head mean, uniform attention), for which nothing is said of several heads.
        whole: metrics whose result is wanted as it is beside the quantities, such as the bars of
            `persistence`; of padded maps.
        held: the type in which the model holds its maps, for a protocol that compares in it; None is theirs.

    Raises:
        ValueError: quantities of several protocols, and as the metrics.

    Example:
        >>> import torch
        >>> from attnscope.metrics.discovery import quantity
        >>> maps = torch.full((1, 2, 4, 4), 0.25)
        >>> wanted = [quantity("stable_rank"), quantity("sink_share")]
        >>> {name: values.tolist() for name, values in measure_quantities({"attention": maps}, wanted)
        ...  .columns().items()}
        {'stable_rank': [1.0, 1.0], 'sink_share': [0.25, 0.25]}
    """
    protocols = {one.protocol for one in quantities}
    if len(protocols) > 1:
        raise ValueError(f"measure_quantities: one protocol at a time, got {', '.join(sorted(protocols))}")
    each = None if lengths is None else torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if protocols and found().forms.get(protocols.pop()) == "whole":
        if whole:
            raise ValueError(f"measure_quantities: maps are taken by length, so no whole {whole[0]}")
        return _by_length(sites, quantities, each, heads, held)
    return _measured(sites, quantities, each, heads, tuple(whole))


def _by_length(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    lengths: Tensor | None,
    heads: Sequence[int] | None,
    held: torch.dtype | None,
) -> Measured:
    """Sentences of one length at a time, cut to it, in double precision."""
    given = next(maps for name, maps in sites.items() if name in MAPS)
    batch, longest = len(given), int(given.shape[-1])
    each = torch.full((batch,), longest, device="cpu") if lengths is None else lengths
    places, parts = [], []
    for n in sorted(set(each.tolist())):
        place = (each == n).nonzero().flatten()
        cut = {
            name: values[place][..., :n, : n if name in MAPS else None].double()
            for name, values in sites.items()
        }
        places.append(place)
        parts.append(_measured(cut, quantities, None, heads, held=held or given.dtype))

    def joined(own: Sequence[Tensor], nothing: float) -> Tensor:
        sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in own), strict=True)]
        whole = torch.full((batch, *sizes), nothing, dtype=own[0].dtype, device="cpu")
        for place, part in zip(places, own, strict=True):
            inside = (place, *map(slice, part.shape[1:]))
            whole[inside] = part
        return whole

    values, defined = {}, {}
    for one, first in parts[0].values.items():
        nothing = torch.nan if first.dtype.is_floating_point else 0
        values[one] = joined([part.values[one] for part in parts], nothing)
        defined[one] = joined([part.defined[one] for part in parts], False)
    return Measured(values, defined, joined([part.finite for part in parts], False), longest)


def _measured(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    lengths: Tensor | None,
    heads: Sequence[int] | None,
    whole: tuple[str, ...] = (),
    held: torch.dtype | None = None,
) -> Measured:
    maps = next(sites[name] for name in (*MAPS, *sites) if name in sites)
    known = [
        one
        for one in quantities
        if set(one.needs) <= set(sites) and (heads is not None or not reads_layers(one))
    ]
    each = None if lengths is None else lengths[:, None]
    plan = _plan_for(tuple(known), whole, int(maps.shape[-1]))
    results = Execution(plan, sites, each, "measure_quantities", held).results()
    # of scores, -inf is a key that is not visible
    judged = (name for name in sites if name in MAPS and name != "scores")
    finite = {name: _finite(sites[name], each) for name in judged}
    values: dict[Quantity, Tensor] = {}
    defined: dict[Quantity, Tensor] = {}
    answers = dict(zip(known, results[: len(known)], strict=True))
    for one in quantities:
        if one in answers:
            own = one.read(answers[one])
            own = own.squeeze(1) if one.scope == "layer" and one.needs[0] == "head_mean" else own
            values[one], defined[one] = _where_defined(one, own, finite.get(one.needs[0]))
        elif not one.axes:
            shape = maps.shape[:1] if one.scope == "layer" else maps.shape[:2]
            values[one] = torch.full(shape, torch.nan, dtype=torch.float64, device="cpu")
            defined[one] = torch.zeros(shape, dtype=torch.bool, device="cpu")
    entire = dict(zip(whole, results[len(known) :], strict=True))
    everywhere = finite.get("attention", torch.ones(maps.shape[:2], dtype=torch.bool, device="cpu"))
    return Measured(values, defined, everywhere, maps.shape[-1], entire)


@functools.lru_cache(maxsize=256)
def _plan_for(quantities: tuple[Quantity, ...], whole: tuple[str, ...], n: int) -> Plan:
    requests = [Request(one.name, one.metric, one.options, one.protocol, one.needs[0]) for one in quantities]
    return plan_of([*requests, *(Request(name, name, {}) for name in whole)], n)


def _finite(maps: Tensor, lengths: Tensor | None) -> Tensor:
    """Which of [batch, maps, n, n] hold finite entries only, inside their lengths."""
    each = None if lengths is None else lengths.expand(maps.shape[:2]).contiguous()
    finite: Tensor = _checks.call_kernel(_core.finite_matrices, _checks.Attention(maps, each))
    return finite


def _where_defined(one: Quantity, values: Tensor, finite: Tensor | None) -> tuple[Tensor, Tensor]:
    if values.dtype.is_floating_point:
        defined = ~values.isnan()
    elif one.kind in ("count", "position"):
        defined = values >= 0
    else:
        defined = torch.ones(values.shape, dtype=torch.bool, device="cpu")
    if finite is not None:
        finite = finite.all(-1) if one.scope == "layer" else finite
        defined &= finite.reshape(*finite.shape, *[1] * (values.ndim - finite.ndim))
    if values.dtype.is_floating_point:
        values = torch.where(defined, values, torch.nan)
    return values, defined


def _plan_of(metrics: Metrics, options: Mapping[str, Any], n: int) -> Plan:
    """The plan of `measure`, kept where JSON holds all that is asked: making one costs a few small maps."""
    asked = _asked(metrics)
    try:
        words = json.dumps((asked, options, n))
    except (TypeError, ValueError):  # of arrays and tensors, among others
        return plan_of(requests_of(asked, options), n)
    return _plan_in_words(words)


@functools.lru_cache(maxsize=1024)
def _plan_in_words(words: str) -> Plan:
    # read from the words, so that nobody can change an option of a plan that is kept
    asked, options, n = json.loads(words)
    return plan_of(requests_of(asked, options), n)


def metric_names() -> list[str]:
    """Every name that `measure` knows, in alphabetical order."""
    everything = found()
    return [name for name in everything.names() if reads_maps(everything.function("exact", name))]


def requests_of(metrics: Metrics, options: Mapping[str, Any], *, partial: bool = False) -> list[Request]:
    """What `measure` is asked for, checked: the key, the metric and its options of every result.

    With `partial`, what a metric needs beside attention comes from elsewhere.
    """
    requests, taken, names = [], set(), metric_names()
    asked = _asked(metrics)
    for key, own in asked.items():
        metric, own = named_metric(key, own)
        if metric not in names:
            columns = [one.metric for one in found().quantities if one.name == metric and one.metric in names]
            words = f"; {metric} is a column of {columns[0]}" if columns else nearest(metric, names)
            raise ValueError(f"measure: unknown metric {metric!r}{words}")
        possible = accepted(metric)
        if unknown := [name for name in own if name not in possible]:
            raise TypeError(
                f"measure: {metric} takes no option {unknown[0]!r}{nearest(unknown[0], sorted(possible))}"
            )
        common = {name: value for name, value in options.items() if name in possible}
        missing = [
            name
            for name in sorted(possible.keys() - {"thresholds", *own, *common})
            if possible[name] is inspect.Parameter.empty
        ]
        if missing and not partial:
            raise TypeError(f"measure: {metric} needs the option {missing[0]!r}")
        taken |= set(common)
        requests.append(Request(key, metric, {**common, **own}))
    if unused := sorted(set(options) - taken):
        known = sorted({name for request in requests for name in accepted(request.metric)})
        raise TypeError(
            f"measure: none of the metrics {', '.join(asked)} takes the option {unused[0]!r}"
            f"{nearest(unused[0], known)}"
        )
    return requests


def options_taken(metrics: Metrics) -> set[str]:
    """The options that some of the metrics take and that are not given to them already."""
    names = metric_names()
    named = (named_metric(key, given) for key, given in _asked(metrics).items())
    return {
        option
        for metric, given in named
        if metric in names
        for option in accepted(metric).keys() - given.keys()
    }


def named_metric(key: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the function that a key of `measure` asks for, and its own options."""
    options, names = dict(given), metric_names()
    if "function" in options:
        return str(options.pop("function")), options
    takes_metric = key in names and "metric" in accepted(key)
    if "metric" in options and not (takes_metric and options["metric"] not in names):
        return str(options.pop("metric")), options
    return key, options


def _asked(metrics: Metrics) -> Mapping[str, Mapping[str, Any]]:
    """The keys of results, each with its own options."""
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, Iterable) or hasattr(metrics, "__array__"):
        raise TypeError(f"measure: metrics must be names, got {type(metrics).__name__}")
    keys = list(metrics)
    if unnamed := [key for key in keys if not isinstance(key, str)]:
        raise TypeError(
            "measure: metrics must be names, or a mapping from names to options, "
            f"got {type(unnamed[0]).__name__}"
        )
    asked = metrics if isinstance(metrics, Mapping) else {key: {} for key in keys}
    for key, own in asked.items():
        if not isinstance(own, Mapping):
            raise TypeError(f"measure: the options of {key!r} must be a mapping, got {type(own).__name__}")
    return asked


def check_closed_form(quantity: Quantity) -> tuple[float, float]:
    """Return the computed and the expected value of a quantity's closed form.

    >>> from attnscope.metrics.discovery import quantity
    >>> check_closed_form(quantity("stable_rank"))
    (4.0, 4.0)
    """
    closed_form = quantity.known
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
