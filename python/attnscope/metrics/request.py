# SPDX-License-Identifier: MIT
"""Requests for metrics of the same maps: names and options as a caller writes them, checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscope._nearest import nearest
from attnscope.metrics.discovery import registry
from attnscope.metrics.signatures import accepted_options, precision_option, reads_maps

#: A name, names, or a mapping from the key wanted in the result to the options of its metric.
Metrics = str | Iterable[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Request:
    """A requested result: its name, and a metric of the maps at the site `of`.

    `is_derived` says whether a metric that follows from another one's result is taken from it; its own
    function is called else.
    """

    key: str
    metric: str
    options: Mapping[str, Any]
    protocol: str = "exact"
    of: str = "attention"
    is_derived: bool = True


def metric_names() -> list[str]:
    """Return every name that `measure` takes, in alphabetical order."""
    declared = registry()
    return [name for name in declared.names() if reads_maps(declared.function("exact", name))]


def requests_of(metrics: Metrics, options: Mapping[str, Any], *, partial: bool = False) -> list[Request]:
    """Return the checked requests of `measure`: the key, the metric and its options of every result.

    With `partial`, what a metric needs beside attention comes from elsewhere.
    """
    requests, used_options, names = [], set(), metric_names()
    options_by_key = keyed_options(metrics)
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
    named = (named_metric(key, key_options) for key, key_options in keyed_options(metrics).items())
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


def keyed_options(metrics: Metrics) -> Mapping[str, Mapping[str, Any]]:
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


def in_precision(requests: Sequence[Request], precision: str | None) -> list[Request]:
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
