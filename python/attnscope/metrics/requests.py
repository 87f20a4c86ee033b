# SPDX-License-Identifier: MIT
"""What `measure` is asked for: names of metrics and their options, checked before any work starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnscope._nearest import nearest
from attnscope.metrics.discovery import found
from attnscope.metrics.plan import Request, options_of, reads_maps


def metric_names() -> list[str]:
    """Every name that `measure` knows, in alphabetical order."""
    return [name for name in found().names() if not name.startswith("_") and reads_maps(_function(name))]


def requests_of(
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    partial: bool = False,
) -> list[Request]:
    """What `measure` is asked for, checked: the key, the metric and its options of every result.

    With `partial`, what a metric needs beside attention comes from elsewhere.
    """
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, Iterable) or hasattr(metrics, "__array__"):
        raise TypeError(f"measure: metrics must be names, got {type(metrics).__name__}")
    metrics = metrics if isinstance(metrics, Mapping) else list(metrics)
    if unnamed := [name for name in metrics if not isinstance(name, str)]:
        raise TypeError(
            "measure: metrics must be names, or a mapping from names to options, "
            f"got {type(unnamed[0]).__name__}"
        )
    asked: Mapping[str, Mapping[str, Any]]
    asked = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    requests, taken, names = [], set(), metric_names()
    for key, own in asked.items():
        if not isinstance(own, Mapping):
            raise TypeError(f"measure: the options of {key!r} must be a mapping, got {type(own).__name__}")
        metric = str(own.get("metric", key))
        if metric not in names:
            raise ValueError(
                f"measure: unknown metric {metric!r}{_of_column(metric) or nearest(metric, names)}"
            )
        accepted = _accepted(metric)
        unknown = [name for name in own if name != "metric" and name not in accepted]
        if unknown:
            raise TypeError(
                f"measure: {metric} takes no option {unknown[0]!r}{nearest(unknown[0], sorted(accepted))}"
            )
        common = {name: value for name, value in options.items() if name in accepted}
        needed = accepted.keys() - {"thresholds"} - set(own) - set(common)
        missing = [name for name in sorted(needed) if accepted[name] is inspect.Parameter.empty]
        if missing and not partial:
            raise TypeError(f"measure: {metric} needs the option {missing[0]!r}")
        taken |= set(common)
        requests.append(Request(key, metric, {**common, **{k: v for k, v in own.items() if k != "metric"}}))
    if unused := sorted(set(options) - taken):
        known = sorted({name for request in requests for name in _accepted(request.metric)})
        raise TypeError(
            f"measure: none of the metrics {', '.join(asked)} takes the option {unused[0]!r}"
            f"{nearest(unused[0], known)}"
        )
    return requests


def options_taken(metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The options that some of the metrics take and that are not given to them already."""
    names = metric_names()
    asked = [metrics] if isinstance(metrics, str) else metrics
    own = asked if isinstance(asked, Mapping) else {name: {} for name in asked}
    return {
        option
        for key, given in own.items()
        if (metric := str(given.get("metric", key))) in names
        for option in _accepted(metric).keys() - given.keys()
    }


def _of_column(name: str) -> str:
    """That a name is the column of a metric, if it is."""
    metrics = [one.metric for one in found().quantities if one.name == name and one.metric in metric_names()]
    return f"; {name} is a column of {metrics[0]}" if metrics else ""


def _accepted(metric: str) -> dict[str, Any]:
    """A metric's options with their defaults."""
    derived = found().derived.get(("exact", metric))
    return {**options_of(_function(metric)), **(options_of(derived[1]) if derived else {})}


def _function(metric: str) -> Callable[..., Any]:
    """The function that reads the maps for a metric."""
    derived = found().derived.get(("exact", metric))
    return found().functions["exact", derived[0] if derived else metric]
