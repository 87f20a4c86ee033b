# SPDX-License-Identifier: MIT
"""Many metrics of the same maps at once, with the work they share done once.

Sinks, bars, entropies and singular values each feed several metrics. A plan names the calls that all requests
need, makes equal calls once, and reads every request's numbers from their results; which maps were finite
comes from the core as a mask.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope._warn import GroupedWarnings
from attnscope.arguments import scalars
from attnscope.arguments.caches import attention_of_cache, is_cache
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.discovery import columns_of
from attnscope.metrics.lazy.map_free import ESTIMATED_BY_NAME, ROW_AND_COLUMN_METRICS
from attnscope.metrics.measured import measure_quantities
from attnscope.metrics.measurement_run import MeasurementRun
from attnscope.metrics.plan import MeasurementPlan, plan_of
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.request import (
    Metrics,
    Request,
    in_precision,
    keyed_options,
    metric_names,
    requests_of,
)
from attnscope.metrics.signatures import defined_on, reads_layers


@memory_errors("measure")
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
            None takes all that need nothing but the maps, and that maps of their kind have: rectangles have
            no graph, a single map no divergence of heads, and `LazyAttention` what one pass over queries and
            keys measures.
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
    if metrics is None:
        metrics = _default_metrics(attention, cross=scalars.flag("measure", "cross", cross))
    # what has no tokens is refused once the metrics are known to be right
    shape = _shape_of(attention) or (0,)
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
    places = _checks.places_argument("measure", query_positions, query_lengths, cross)
    are_columns = scalars.flag("measure", "columns", columns)
    if are_columns and not places.is_default:
        raise ValueError("measure: columns=True takes square maps, without query_positions and cross")
    with GroupedWarnings("measure"):
        if are_columns:
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
    if not isinstance(tensor, Tensor):
        raise TypeError(f"measure: columns=True needs the map, and {tensor} has none")
    if tensor.shape[-1] != tensor.shape[-2]:
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


def _shape_of(attention: Any) -> tuple[int, ...]:
    """Return the shape of maps, () of what has none."""
    return () if getattr(attention, "is_nested", False) else tuple(getattr(attention, "shape", ()))


def _default_metrics(attention: Any, *, cross: bool) -> tuple[str, ...]:
    """Return the metrics that maps of this kind have."""
    if isinstance(attention, Unmaterialized):
        return tuple(name for name in _names_of_maps() if name in ROW_AND_COLUMN_METRICS)
    shape = _shape_of(attention)
    # what is no map is refused under the name of the first metric
    return _names_of_maps(len(shape) < 3, len(shape) > 1 and shape[-1] != shape[-2], cross)


@functools.cache
def _names_of_maps(
    is_single: bool = False, is_rectangle: bool = False, cross: bool = False
) -> tuple[str, ...]:
    """Return the metrics that need nothing but maps: of a kind, or of square maps of self-attention."""
    names = []
    shape = (1, 2) if is_rectangle else (1, 1)
    for name in metric_names():
        columns = [column for column in columns_of(name) if column.needs == ("attention",)]
        columns = [column for column in columns if column.scope == "map" and defined_on(column, shape, cross)]
        if not columns or (is_single and reads_layers(columns[0])):
            continue
        try:
            requests_of(name, {})
        except TypeError:  # it needs an option
            continue
        names.append(name)
    return tuple(names)


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
    options_by_key = keyed_options(metrics)
    try:
        words = json.dumps((options_by_key, options, n, precision))
    except (TypeError, ValueError):  # of arrays and tensors, among others
        return plan_of(in_precision(requests_of(options_by_key, options), precision), n)
    return _plan_in_words(words)


@functools.lru_cache(maxsize=1024)
def _plan_of_names(names: tuple[str, ...], n: int, precision: str | None) -> MeasurementPlan:
    return plan_of(in_precision(requests_of(names, {}), precision), n)


@functools.lru_cache(maxsize=1024)
def _plan_in_words(words: str) -> MeasurementPlan:
    # read from the words, so that nobody can change an option of a plan that is kept
    options_by_key, options, n, precision = json.loads(words)
    return plan_of(in_precision(requests_of(options_by_key, options), precision), n)
