# SPDX-License-Identifier: MIT
"""The parameters of metrics' functions: what an option is, what belongs to the maps, which maps are taken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnscope.metrics.discovery import registry
from attnscope.metrics.quantity import Quantity

#: Arguments that belong to the maps of a run and not to a metric: they are the same for all calls.
OF_RUN = ("lengths", "query_positions", "query_lengths", "cross", "held", "measured", "real_queries")

#: First arguments that are not maps: they are passed as options, which stand for sites.
FIRST_BY_OPTION = ("before", "matrix", "points", "states")


@functools.cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; reading a signature costs as much as a small map."""
    return inspect.signature(function).parameters


@functools.cache
def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function and their defaults."""
    parameters = list(parameters_of(function).items())
    first = 0 if parameters and parameters[0][0] in FIRST_BY_OPTION else 1
    return {
        name: parameter.default
        for name, parameter in parameters[first:]
        if name not in OF_RUN and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


@functools.cache
def first_parameter(function: Callable[..., Any]) -> str:
    """Return the name of a function's first parameter."""
    return next(iter(parameters_of(function)))


def reads_maps(function: Callable[..., Any]) -> bool:
    """Return True if a function's first parameter is maps: attention, the heads of a layer, or scores."""
    return first_parameter(function) in ("attention", "heads", "scores")


def takes_rectangles(function: Callable[..., Any]) -> bool:
    """Return True if a function takes maps [..., q, k] that are not square."""
    return "query_positions" in parameters_of(function)


def accepted_options(metric: str) -> dict[str, Any]:
    """Return the options that a metric of the exact protocol takes, with their defaults.

    One that is derived from another's result takes those of both, but for what its own function of maps does
    not take: a number of eigenvalues or singular values would cut off what it reads.
    """
    derived = registry().derived.get(("exact", metric))
    source_options = options_of(registry().function("exact", metric))
    if derived is None:
        return source_options
    function_of_maps = registry().functions.get(("exact", metric))
    if function_of_maps is not None and reads_maps(function_of_maps):
        accepted = options_of(function_of_maps)
        source_options = {name: value for name, value in source_options.items() if name in accepted}
    return {**source_options, **options_of(derived[1])}


def precision_option(protocol: str, metric: str, precision: str | None) -> dict[str, Any]:
    """Return the precision as an option of a metric that takes it; empty where nobody asked for one.

    The published protocol takes none: its numbers are those of the authors' code. A metric that is derived
    from another's result takes what its own function of maps does: a correlation of entropies that differ
    little would not hold what fast entropies do.
    """
    if precision is None:
        return {}
    function = registry().functions.get((protocol, metric))
    if function is None or not reads_maps(function):
        function = registry().function(protocol, metric)
    return {"precision": precision} if "precision" in options_of(function) else {}


def reads_layers(quantity: Quantity) -> bool:
    """Return True if the function of a quantity reads all heads of a layer together, [..., h, n, n]."""
    return first_parameter(registry().function(quantity.protocol, quantity.metric)) == "heads"


def defined_on(quantity: Quantity, shape: Sequence[int], cross: bool) -> bool:
    """Return True if a quantity is defined on maps of a shape [..., q, k].

    One that reads no maps is; of rectangles and cross attention those are not that need a graph, or where
    queries of cross attention stand.
    """
    function = registry().function(quantity.protocol, quantity.metric)
    if (shape[-1] == shape[-2] and not cross) or not reads_maps(function):
        return True
    if not takes_rectangles(function) or quantity.options.get("spectrum", "singular") != "singular":
        return False
    if not cross:
        return True
    needs_distance = quantity.metric == "local_global_ratio" or quantity.options.get("signal") == "offset"
    needs_states = "query_states" in parameters_of(function) and "query_states" not in quantity.options
    return not (needs_distance or needs_states)
