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

from attnscope import _calls, _checks, _core
from attnscope._nearest import nearest
from attnscope.arguments import scalars
from attnscope.arguments.caches import attention_of_cache, is_cache
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.discovery import columns_of, registry
from attnscope.metrics.lazy.map_free import ESTIMATED_BY_NAME
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.plan import (
    MAPS,
    MeasurementPlan,
    MeasurementRun,
    Request,
    accepted_options,
    defined_on,
    plan_of,
    precision_option,
    reads_layers,
    reads_maps,
)
from attnscope.metrics.quantity import Quantity

#: A name, names, or a mapping from the key wanted in the result to the options of its metric.
Metrics = str | Iterable[str] | Mapping[str, Mapping[str, Any]]


@without_derivative("it calls fused kernels; call the functions one by one")
def measure(
    attention: Tensor | Unmaterialized | Any,
    metrics: Metrics | None = None,
    *,
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    columns: bool = False,
    precision: _checks.Precision | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Several metrics of the same maps, with shared intermediates computed once.

    `stable_rank`, `effective_rank`, `spectral_gap` and `spectral_ratio` share one singular value
    decomposition, the statistics of bars one persistent homology, and so on; every value equals what the
    function of that name returns.

    Args:
        attention: attention maps [..., q, k], or `LazyAttention`, or a cache of TransformerLens or nnsight,
            whose layers are then the first axis; what its device does not measure is copied
            to the CPU once. Metrics of graphs and of homology are of square maps only. For metrics of all
            heads of a layer (`head_divergence`, `sink_removal`) the axis before the last two is the head.
        metrics: a name, names, or a mapping from the key wanted in the result to that metric's own options;
            None takes all that need nothing but the maps.
            Where the key is not the name of its function, the option ``function`` is, or ``metric`` where the
            function has no option of that name: ``{"bars": {"function": "persistence", "metric":
            "hellinger"}}``.
        lengths: keys per map, broadcast against the leading axes.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        columns: give tensors alone, under the names that `analyze` has for them in its tables.
        precision: "exact" or "fast", of every metric that does not name its own; each docstring states what
            "fast" holds. None is exact, and of `LazyAttention` the precision that it was made with, which
            nothing else may contradict.
        options: given to every metric that takes an option of that name.

    Returns:
        A dict in the order asked for: tensors, or the named results of the functions; with `columns` tensors.

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

        Cross attention of two queries, uniform over three keys:

        >>> cross = asc.measure(torch.full((2, 3), 1 / 3), ["sink_share", "top_mass"], cross=True)
        >>> {name: round(float(getattr(value, "share", value)), 6) for name, value in cross.items()}
        {'sink_share': 0.333333, 'top_mass': 0.333333}
    """
    if is_cache(attention):
        attention = attention_of_cache("measure", attention)
    metrics = _names_of_maps() if metrics is None else metrics
    # what has no tokens is refused once the metrics are known to be right
    shape = getattr(attention, "shape", None) or (0,)
    if precision is not None:
        scalars.choice_argument("measure", "precision", precision, _checks.PRECISIONS)
    plan = _plan_of(metrics, options, int(shape[-1]), precision)
    is_plain = lengths is query_positions is query_lengths is None and cross is columns is False
    if is_plain and (usual := plan.results_of_usual("measure", attention)) is not None:
        return usual
    if isinstance(attention, Unmaterialized):
        plan = _plan_without_maps(plan, int(shape[-1]))
    tensor = _checks.map_tensor("measure", "attention", attention, square=False)
    if precision is not None and isinstance(tensor, Unmaterialized):
        _checks.check_lazy_precision("measure", precision, tensor)
    places = (
        _checks.DEFAULT_PLACES
        if query_positions is None and query_lengths is None and cross is False
        else _checks.Places(query_positions, query_lengths, cross)
    )
    if scalars.flag("measure", "columns", columns):
        if places != _checks.Places():
            raise ValueError("measure: columns=True takes square maps, without query_positions and cross")
        return dict(_columns(plan.requests, tensor, lengths))
    results = MeasurementRun(plan, {"attention": tensor}, lengths, "measure", places=places).results()
    return {request.key: result for request, result in zip(plan.requests, results, strict=True)}


def _plan_without_maps(plan: MeasurementPlan, n: int) -> MeasurementPlan:
    """Return the plan in which what lazy attention estimates by name is not derived from other results."""
    if not any(request.metric in ESTIMATED_BY_NAME for request in plan.requests):
        return plan
    return plan_of(
        [replace(request, is_derived=request.metric not in ESTIMATED_BY_NAME) for request in plan.requests],
        n,
    )


def _columns(requests: Sequence[Request], tensor: Tensor, lengths: _checks.Lengths) -> dict[str, Tensor]:
    """Return the columns of requested metrics, [...] and their axes; whole numbers without a value are -1.

    Columns of a request under a key of its own begin with the key; a single one is called by it.
    """
    if lengths is not None:
        raise ValueError("measure: columns=True takes maps without padding, got lengths")
    if not isinstance(tensor, Tensor) or tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(f"measure: columns=True takes square maps, got {tuple(tensor.shape)}")
    quantities = [
        quantity.with_options(**request.options) if request.options else quantity
        for request in requests
        for quantity in _renamed(request)
    ]
    shape = tensor.shape[:-2]
    maps = tensor.reshape(-1, shape[-1] if len(shape) else 1, *tensor.shape[-2:])
    measured = measure_quantities({"attention": maps}, quantities)
    columns = {}
    for quantity, values in measured.values.items():
        if not values.dtype.is_floating_point:
            values = values.masked_fill(~measured.defined[quantity], -1)
        columns[quantity.name] = values.reshape((*shape, *values.shape[2:]))
    return columns


def _renamed(request: Request) -> list[Quantity]:
    """Return the columns of single maps that a request gives, under its key where that is not the metric."""
    columns = [
        quantity
        for quantity in columns_of(request.metric)
        if (quantity.scope, quantity.needs) == ("map", ("attention",))
        and all(
            request.options.get(name, value) == value
            for name, value in quantity.options.items()
            if isinstance(value, (str, int, float, bool))
        )
    ]
    if request.key == request.metric:
        return columns
    # under another name it is the metric's plain form
    fewest = min((len(quantity.options) for quantity in columns), default=0)
    plain = [quantity for quantity in columns if len(quantity.options) == fewest]
    names = [request.key if len(plain) == 1 else f"{request.key}_{quantity.name}" for quantity in plain]
    return [replace(quantity, name=name) for quantity, name in zip(plain, names, strict=True)]


@functools.cache
def _names_of_maps() -> tuple[str, ...]:
    """Return the metrics that need nothing but maps of the same tokens."""
    names = []
    for name in metric_names():
        if not any((column.scope, column.needs) == ("map", ("attention",)) for column in columns_of(name)):
            continue
        try:
            requests_of(name, {})
        except TypeError:  # it needs an option
            continue
        names.append(name)
    return tuple(names)


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
    map_lengths = None if lengths is None else lengths[:, None]
    plan = _plan_for(tuple(answerable), full_results, int(maps.shape[-1]), precision)
    with shared_pass():
        results = MeasurementRun(plan, sites, map_lengths, "measure_quantities", held, places).results()
        # of scores, -inf is a key that is not visible
        judged = (name for name in sites if name in MAPS and name != "scores")
        finite = {name: _finite(sites[name], map_lengths, places) for name in judged}
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
                quantity, numbers, finite.get(quantity.needs[0])
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
    return plan_of(_in_precision(requests, precision), n)


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
    if finite is not None:
        finite = finite.all(-1) if quantity.scope == "layer" else finite
        defined &= finite.reshape(*finite.shape, *[1] * (values.ndim - finite.ndim))
    if values.dtype.is_floating_point:
        values = torch.where(defined, values, torch.nan)
    return values, defined


def _plan_of(metrics: Metrics, options: Mapping[str, Any], n: int, precision: str | None) -> MeasurementPlan:
    """Return the plan of `measure`, cached where JSON can hold the request: making a plan costs a few small
    maps.
    """
    are_names = type(metrics) in (tuple, list)
    if type(metrics) is dict:
        are_names = all(type(key_options) is dict and not key_options for key_options in metrics.values())
    # a list, because a generator takes twice as long, on every call
    if are_names and not options and not [name for name in metrics if not isinstance(name, str)]:
        # names alone are their own words, and reading them as JSON costs as much as a small batch
        return _plan_of_names(tuple(metrics), n, precision)
    options_by_key = _options_by_key(metrics)
    try:
        words = json.dumps((options_by_key, options, n, precision))
    except (TypeError, ValueError):  # of arrays and tensors, among others
        return plan_of(_in_precision(requests_of(options_by_key, options), precision), n)
    return _plan_in_words(words)


@functools.lru_cache(maxsize=1024)
def _plan_of_names(names: tuple[str, ...], n: int, precision: str | None) -> MeasurementPlan:
    return plan_of(_in_precision(requests_of(names, {}), precision), n)


@functools.lru_cache(maxsize=1024)
def _plan_in_words(words: str) -> MeasurementPlan:
    # read from the words, so that nobody can change an option of a plan that is kept
    options_by_key, options, n, precision = json.loads(words)
    return plan_of(_in_precision(requests_of(options_by_key, options), precision), n)


def _in_precision(requests: Sequence[Request], precision: str | None) -> list[Request]:
    """Return requests under a precision, but for those that name their own or take none."""
    return [
        replace(
            request,
            options={
                **precision_option(request.protocol, request.metric, precision),
                **request.options,
            },
        )
        for request in requests
    ]


def metric_names() -> list[str]:
    """Return every name that `measure` takes, in alphabetical order."""
    declared = registry()
    return [name for name in declared.names() if reads_maps(declared.function("exact", name))]


def requests_of(metrics: Metrics, options: Mapping[str, Any], *, partial: bool = False) -> list[Request]:
    """Return the checked requests of `measure`: the key, the metric and its options of every result.

    With `partial`, what a metric needs beside attention comes from elsewhere.
    """
    requests, used_options, names = [], set(), metric_names()
    options_by_key = _options_by_key(metrics)
    for key, key_options in options_by_key.items():
        metric, key_options = named_metric(key, key_options)
        if metric not in names:
            columns = [
                quantity.metric
                for quantity in registry().quantities
                if quantity.name == metric and quantity.metric in names
            ]
            words = f"; {metric} is a column of {columns[0]}" if columns else nearest(metric, names)
            raise ValueError(f"measure: unknown metric {metric!r}{words}")
        possible = accepted_options(metric)
        if unknown := [name for name in key_options if name not in possible]:
            raise TypeError(
                f"measure: {metric} takes no option {unknown[0]!r}{nearest(unknown[0], sorted(possible))}"
            )
        common = {name: value for name, value in options.items() if name in possible}
        missing = [
            name
            for name in sorted(possible.keys() - {"thresholds", *key_options, *common})
            if possible[name] is inspect.Parameter.empty
        ]
        if missing and not partial:
            raise TypeError(f"measure: {metric} needs the option {missing[0]!r}")
        used_options |= set(common)
        requests.append(Request(key, metric, {**common, **key_options}))
    if unused := sorted(set(options) - used_options):
        option_names = sorted({name for request in requests for name in accepted_options(request.metric)})
        raise TypeError(
            f"measure: none of the metrics {', '.join(options_by_key)} takes the option {unused[0]!r}"
            f"{nearest(unused[0], option_names)}"
        )
    return requests


def options_taken(metrics: Metrics) -> set[str]:
    """Return the options that some of the metrics take and that they have not received yet."""
    names = metric_names()
    named = (named_metric(key, key_options) for key, key_options in _options_by_key(metrics).items())
    return {
        option
        for metric, metric_options in named
        if metric in names
        for option in accepted_options(metric).keys() - metric_options.keys()
    }


def named_metric(key: str, key_options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the function that a key of `measure` requests, and the options of that key."""
    options = dict(key_options)
    if "function" in options:
        return str(options.pop("function")), options
    if "metric" not in options:
        return key, options
    names = metric_names()
    takes_metric = key in names and "metric" in accepted_options(key)
    if takes_metric and options["metric"] not in names:
        return key, options
    return str(options.pop("metric")), options


def _options_by_key(metrics: Metrics) -> Mapping[str, Mapping[str, Any]]:
    """Return the keys of results, each with its options."""
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
    options_by_key = metrics if isinstance(metrics, Mapping) else {key: {} for key in keys}
    for key, key_options in options_by_key.items():
        if not isinstance(key_options, Mapping):
            raise TypeError(
                f"measure: the options of {key!r} must be a mapping, got {type(key_options).__name__}"
            )
    return options_by_key


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
