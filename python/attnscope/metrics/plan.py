# SPDX-License-Identifier: MIT
"""The calls that answer many requests about the same maps, and the results that they share.

Equal calls are made once. Ranks are read off one set of singular values and statistics of bars off one
persistent homology; one read of the maps gives sinks, shares and entropies; a divergence takes that
entropy, and Betti numbers the bars. Every value equals what the function of that name returns.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnscope import _checks
from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.betti import bars_hold
from attnscope.metrics.information import sinks
from attnscope.metrics.information.sink_test import ALPHA
from attnscope.metrics.quantity import Shared, Site
from attnscope.metrics.request import Request
from attnscope.metrics.signatures import options_of, precision_option
from attnscope.metrics.thresholds import THRESHOLDS


@dataclass(frozen=True)
class Call:
    """A call of a function of the maps at a site; equal calls have equal options in words."""

    protocol: str
    source: str
    of: str
    identity: tuple[tuple[str, str], ...]
    options: Mapping[str, Any] = field(compare=False, hash=False)

    def is_exact(self, source: str) -> bool:
        """Return True if the call is of that function of the exact protocol."""
        return (self.protocol, self.source) == ("exact", source)


@dataclass(frozen=True)
class SharedRead:
    """Calls that one read of the maps answers together.

    Attributes:
        calls: by the names of their functions.
        precision: of the read.
    """

    calls: Mapping[str, Call]
    precision: _checks.Precision

    @classmethod
    def of(cls, group: Mapping[str, Call]) -> SharedRead:
        """Return the read of a group of calls."""
        return cls(group, next(iter(group.values())).options["precision"])

    @functools.cached_property
    def options(self) -> sinks.ReadOptions:
        """Checked options of the calls."""
        return sinks.ReadOptions.of("measure", {source: call.options for source, call in self.calls.items()})

    @functools.cached_property
    def _is_bare(self) -> bool:
        """True where the calls give maps alone and no option that they are to be checked with."""
        first = next(iter(self.calls.values())).options
        without_places = (None, *_checks.DEFAULT_PLACES)
        return _checks.is_bare(first["support"], self.precision, *without_places, first["validate"])

    def results_of_usual(self, function: str, attention: Any) -> dict[str, Any] | None:
        """Return the results for maps as most calls hand them over, None for all others."""
        if not self._is_bare:
            return None
        return sinks.from_usual_maps(function, attention, self.options, self.precision)

    def results(
        self, sites: Mapping[str, Tensor], lengths: _checks.Lengths, places: _checks.Places
    ) -> dict[str, Any]:
        """Return the results of the calls by the names of their functions."""
        first = next(iter(self.calls.values()))
        support = first.options["support"]
        support = sites[support.name] if isinstance(support, Site) else support
        maps, validate = sites[first.of], first.options["validate"]
        return sinks.from_one_read(
            "measure", maps, self.options, support, lengths, validate, places, self.precision
        )[1]


@dataclass(frozen=True)
class MeasurementPlan:
    """The kernel calls needed for maps of one size; independent of their values.

    Attributes:
        requests: in the order requested.
        calls: one per request.
        reads: each of several calls.
        is_one_read: a single read answers every request.
        entropies: of a head_divergence the entropy that such a read gives, of which it is one half.
        held: calls of betti_numbers, and the call of persistence whose bars hold them.
    """

    requests: Sequence[Request]
    calls: Sequence[Call]
    reads: Sequence[SharedRead]
    is_one_read: bool
    entropies: Mapping[Call, Call]
    held: Mapping[Call, Call]

    def results_of_usual(self, function: str, attention: Any) -> dict[str, Any] | None:
        """Return the results by key for maps as most calls hand them over, None for all others.

        A single read has to answer every request. To make a run of the plan takes longer than the core takes
        for a few maps of few tokens.
        """
        results = self.reads[0].results_of_usual(function, attention) if self.is_one_read else None
        return None if results is None else {key: results[source] for key, source in self._sources}

    @functools.cached_property
    def _sources(self) -> list[tuple[str, str]]:
        """Each request's key and the function that answers it."""
        return [(request.key, call.source) for request, call in zip(self.requests, self.calls, strict=True)]

    @functools.cached_property
    def requested_metrics(self) -> dict[Call, str]:
        """The metric requested of each call, which may be of another function whose result it takes."""
        metrics: dict[Call, str] = {}
        for request, call in zip(self.requests, self.calls, strict=True):
            if call not in metrics or request.metric == call.source:
                metrics[call] = request.metric
        return metrics


def plan_of(requests: Sequence[Request], n: int) -> MeasurementPlan:
    """Return the plan that answers requests of known metrics about padded maps of n tokens."""
    calls = [call_of(request, n) for request in requests]
    shared = (
        call_of(request_of(value, call), n)
        for call in calls
        for value in call.options.values()
        if isinstance(value, Shared)
    )
    all_calls = list(dict.fromkeys([*shared, *calls]))
    groups: dict[tuple[str, str, str, bool], dict[str, Call]] = {}
    for call in all_calls:
        if call.protocol == "exact" and call.source in sinks.FROM_ONE_READ and _is_plain_read(call.options):
            # a second setting of the same function is a call of its own
            groups.setdefault(_reading(call), {}).setdefault(call.source, call)
    # A divergence is the small difference of an entropy and another sum: a fast entropy is of no use to it.
    entropies = {
        call: groups[_reading(call)]["attention_entropy"]
        for call in all_calls
        if call.is_exact("head_divergence")
        and call.options["precision"] == "exact"
        and "attention_entropy" in groups.get(_reading(call), {})
    }
    # A single call runs its own function, unless another metric needs the entropy of the shared read.
    together = [
        group
        for group in groups.values()
        if len(group) >= 2 or any(call in entropies.values() for call in group.values())
    ]
    bars = [call for call in all_calls if call.is_exact("persistence")]
    held: dict[Call, Call] = {}
    for call, bars_call in itertools.product(all_calls, bars):
        if (
            call.is_exact("betti_numbers")
            and bars_call.of == call.of
            and bars_hold(call.options, bars_call.options)
        ):
            held.setdefault(call, bars_call)
    reads = [SharedRead.of(group) for group in together]
    is_one_read = len(reads) == 1 and not any(is_derived(request) for request in requests)
    is_one_read = is_one_read and set(reads[0].calls.values()).issuperset(all_calls)
    return MeasurementPlan(requests, calls, reads, is_one_read, entropies, held)


def is_derived(request: Request) -> bool:
    """Return True if a request is answered from the result of another metric."""
    return request.is_derived and (request.protocol, request.metric) in registry().derived


def call_of(request: Request, n: int) -> Call:
    """Return the call that a request resolves to, with defaults filled in, so that equal calls are equal."""
    source = registry().source(request.protocol, request.metric) if request.is_derived else request.metric
    option_defaults = options_of(registry().functions[request.protocol, source])
    defaults = {**option_defaults, "thresholds": THRESHOLDS, **request.options}
    call_options = {
        name: defaults[name] for name in option_defaults if defaults[name] is not inspect.Parameter.empty
    }
    if source == "laplacian_eigenvalues" and call_options.get("k") is None:
        call_options["k"] = min(n, 3) if request.metric == "laplacian_gap" else n
    identity = tuple(sorted((name, _in_words(value)) for name, value in call_options.items()))
    return Call(request.protocol, source, request.of, identity, call_options)


def request_of(shared: Shared, call: Call) -> Request:
    """Return the request for a result that a call shares with others."""
    precision = precision_option(call.protocol, shared.metric, call.options.get("precision"))
    options = {**precision, **dict(shared.options)}
    return Request("", shared.metric, options, call.protocol, shared.of)


def _reading(call: Call) -> tuple[str, str, str, bool]:
    support = _in_words(call.options["support"])
    return call.of, support, call.options["precision"], call.options["validate"]


def _is_plain_read(call_options: Mapping[str, Any]) -> bool:
    base = call_options.get("base", math.e)
    # values that are no numbers and flags are left to the function, which names them
    plain = isinstance(base, (int, float)) and base == math.e
    plain = plain and call_options.get("normalized", False) is False
    # a sink by the test is read off far attention
    plain = plain and call_options.get("rule", "largest") == "largest"
    # of a level of the test under another rule the function says that it is not read
    level = call_options.get("alpha", ALPHA)
    plain = plain and isinstance(level, float) and level == ALPHA
    return plain and call_options.get("sink_mass") is None


def _in_words(value: Any) -> str:
    # An option's repr tells two different settings apart; arrays, which print in part, their identity.
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_in_words, value))})"
    return f"array {id(value)}" if hasattr(value, "__array__") else repr(value)
