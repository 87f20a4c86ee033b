# SPDX-License-Identifier: MIT
"""Which calls answer many requests about the same maps, and what they share.

Equal calls are made once. Ranks are read off one set of singular values and statistics of bars off one
persistent homology; one read of the maps gives sinks, shares and entropies; a divergence takes the entropy
that is there, and Betti numbers the bars. Every value equals what the function of that name returns.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._placement import shared_copies
from attnscope._row_sums import judged_once
from attnscope.metrics.discovery import found
from attnscope.metrics.homology.betti import EXACT_IN_BARS, bars_hold, betti_numbers_of
from attnscope.metrics.information import sinks
from attnscope.metrics.information.divergence import divergence_of
from attnscope.metrics.quantity import Quantity, Shared, Site

# What a metric that needs thresholds gets when the caller names none (Ruscio et al. 2025).
THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

#: Sites that hold maps.
MAPS = ("attention", "head_mean", "scores")
#: Sites that belong to maps already: who sees whom, and what a learned sink takes of each row.
OF_ROWS = ("support", "sink_mass", "word_span", "special_keys")

#: First arguments that are no maps: they are given as options, which stand for sites.
_BY_OPTION = ("before", "matrix", "points")


@dataclass(frozen=True)
class Request:
    """One result that is asked for: what it is called, and a metric of the maps at the site `of`."""

    key: str
    metric: str
    options: Mapping[str, Any]
    protocol: str = "exact"
    of: str = "attention"


@dataclass(frozen=True)
class Call:
    """A call of a function of the maps at a site; equal ones are known by their options in words."""

    protocol: str
    source: str
    of: str
    identity: tuple[tuple[str, str], ...]
    given: Mapping[str, Any] = field(compare=False, hash=False)

    def is_exact(self, source: str) -> bool:
        """Whether it is that function of the exact protocol."""
        return (self.protocol, self.source) == ("exact", source)


@dataclass(frozen=True)
class Plan:
    """What is to be called for maps of one size, whatever is in them.

    Attributes:
        requests: in the order asked for.
        calls: one for each of them.
        groups: calls that one read of the maps answers together, by source.
        entropies: of a head_divergence the entropy that such a read gives, of which it is one half.
        held: calls of betti_numbers, and the call of persistence whose bars hold them.
    """

    requests: Sequence[Request]
    calls: Sequence[Call]
    groups: Sequence[Mapping[str, Call]]
    entropies: Mapping[Call, Call]
    held: Mapping[Call, Call]


def plan_of(requests: Sequence[Request], n: int) -> Plan:
    """The calls that answer requests of known metrics about padded maps of n tokens."""
    calls = [call_of(request, n) for request in requests]
    shared = (
        call_of(_request_of(value, call), n)
        for call in calls
        for value in call.given.values()
        if isinstance(value, Shared)
    )
    every = list(dict.fromkeys([*shared, *calls]))
    groups: dict[tuple[str, str, bool], dict[str, Call]] = {}
    for call in every:
        if call.protocol == "exact" and call.source in sinks.FROM_ONE_READ and _is_plain_read(call.given):
            # a second setting of the same function is a call of its own
            groups.setdefault(_reading(call), {}).setdefault(call.source, call)
    entropies = {
        call: groups[_reading(call)]["attention_entropy"]
        for call in every
        if call.is_exact("head_divergence") and "attention_entropy" in groups.get(_reading(call), {})
    }
    # One call alone is that function's own; an entropy that something else needs is not alone.
    together = [
        group
        for group in groups.values()
        if len(group) >= 2 or any(call in entropies.values() for call in group.values())
    ]
    bars = [call for call in every if call.is_exact("persistence")]
    held: dict[Call, Call] = {}
    for call, one in itertools.product(every, bars):
        if call.is_exact("betti_numbers") and one.of == call.of and bars_hold(call.given, one.given):
            held.setdefault(call, one)
    return Plan(requests, calls, together, entropies, held)


def call_of(request: Request, n: int) -> Call:
    """The call that a request comes down to, with the defaults filled in, so that equal calls are equal."""
    source = found().source(request.protocol, request.metric)
    every = options_of(found().functions[request.protocol, source])
    defaults = {**every, "thresholds": THRESHOLDS, **request.options}
    given = {name: defaults[name] for name in every if defaults[name] is not inspect.Parameter.empty}
    if source == "laplacian_eigenvalues" and given.get("k") is None:
        given["k"] = min(n, 3) if request.metric == "laplacian_gap" else n
    identity = tuple(sorted((name, _in_words(value)) for name, value in given.items()))
    return Call(request.protocol, source, request.of, identity, given)


def _request_of(shared: Shared, call: Call) -> Request:
    return Request("", shared.metric, dict(shared.options), call.protocol, shared.of)


def _reading(call: Call) -> tuple[str, str, bool]:
    return call.of, _in_words(call.given["support"]), call.given["validate"]


def _is_plain_read(given: Mapping[str, Any]) -> bool:
    plain = given.get("base", math.e) == math.e and not given.get("normalized")
    # a sink by the test is read off far attention
    plain = plain and given.get("rule", "largest") == "largest"
    return plain and given.get("sink_mass") is None


def _in_words(value: Any) -> str:
    # An option's repr tells two different settings apart; arrays, which print in part, their identity.
    return f"array {id(value)}" if hasattr(value, "__array__") else repr(value)


@dataclass
class Execution:
    """The calls of a plan on one batch of maps [..., n, n] and other tensors by site, each made once.

    Errors carry the name of `function`; `held` is the type in which the model holds its maps.
    """

    plan: Plan
    sites: Mapping[str, Tensor]
    lengths: _checks.Lengths
    function: str
    held: torch.dtype | None = None
    _results: dict[Call, Any] = field(default_factory=dict)

    def results(self) -> list[Any]:
        """What every request gets, in their order."""
        with judged_once(), shared_copies():
            for group in self.plan.groups:
                self._read_once(group)
            return [self._answer(*one) for one in zip(self.plan.requests, self.plan.calls, strict=True)]

    def _answer(self, request: Request, call: Call) -> Any:
        result = self._result(call)
        derived = found().derived.get((request.protocol, request.metric))
        if derived is None:
            return result
        function = derived[1]
        given = {name: value for name, value in request.options.items() if name in options_of(function)}
        return function(result, **self._arguments(function, given, call))

    def _result(self, call: Call) -> Any:
        if call not in self._results:
            self._results[call] = self._made(call)
        return self._results[call]

    def _made(self, call: Call) -> Any:
        maps: Any = self.sites.get(call.of)
        bars = self.plan.held.get(call)
        if bars is not None and maps is not None and maps.dtype in EXACT_IN_BARS:
            held = self._result(bars)
            # Of a map without bars the function itself is to warn.
            if bool((held.offsets.diff() > 0).all()):
                return betti_numbers_of(held, call.given["thresholds"])
        function = found().functions[call.protocol, call.source]
        given = self._arguments(function, call.given, call)
        if entropy := self.plan.entropies.get(call):
            return divergence_of(maps, self._result(entropy), **given)
        return function(maps, **given) if reads_maps(function) else function(**given)

    def _arguments(
        self, function: Callable[..., Any], given: Mapping[str, Any], call: Call
    ) -> dict[str, Any]:
        """Options with the tensors and results that some of them stand for, and the lengths."""
        of_layers = first_of(function) in ("heads", *_BY_OPTION)
        own: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, Site):
                states = self.sites[value.name]
                # states of a whole layer belong to each of its maps
                shared = states.ndim == 3 and value.name not in OF_ROWS and not of_layers
                states = states.unsqueeze(1) if shared else states
                own[name] = torch.zeros_like(states) if value.origin else states
            elif isinstance(value, Shared):
                request = _request_of(value, call)
                found_there = self._answer(request, call_of(request, self.sites[value.of].shape[-1]))
                # what is known of the head mean [b, 1, n] belongs to the layer
                own[name] = found_there.squeeze(1) if of_layers else found_there
            else:
                own[name] = value
        if "lengths" in parameters_of(function):
            own["lengths"] = self._lengths_of(call) if of_layers else self.lengths
        about = {"held": self.held, "known": self.sites}
        return own | {name: about[name] for name in about if name in parameters_of(function)}

    def _lengths_of(self, call: Call) -> Tensor | None:
        """One length per head of a layer, out of lengths that broadcast against them, or per text."""
        if self.lengths is None:
            return None
        each = _checks.as_tensor(self.function, "lengths", self.lengths)
        if call.of not in MAPS:
            return each.flatten()
        shape, words = self.sites[call.of].shape[:-2], "do not broadcast to the leading shape"
        return _checks.expanded(f"{self.function}: lengths", each, shape, words)

    def _read_once(self, group: Mapping[str, Call]) -> None:
        first = next(iter(group.values()))
        support = first.given["support"]
        support = self.sites[support.name] if isinstance(support, Site) else support
        asked = {source: call.given for source, call in group.items()}
        given = (asked, support, self.lengths, first.given["validate"])
        _, read = sinks.from_one_read("measure", self.sites[first.of], *given)
        self._results |= {call: read[source] for source, call in group.items()}


@functools.cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """A function's parameters by name; asking for a signature costs as much as a small map."""
    return inspect.signature(function).parameters


@functools.cache
def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's own options and their defaults."""
    parameters = list(parameters_of(function).items())
    first = 0 if parameters and parameters[0][0] in _BY_OPTION else 1
    return {
        name: parameter.default
        for name, parameter in parameters[first:]
        if name not in ("lengths", "held", "known") and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def accepted(metric: str) -> dict[str, Any]:
    """The options that a metric of the exact protocol takes, with their defaults."""
    derived = found().derived.get(("exact", metric))
    own = options_of(found().function("exact", metric))
    return {**own, **(options_of(derived[1]) if derived else {})}


@functools.cache
def first_of(function: Callable[..., Any]) -> str:
    """The name of a function's first argument."""
    return next(iter(parameters_of(function)))


def reads_maps(function: Callable[..., Any]) -> bool:
    """Whether a function's first argument is maps: attention, the heads of a layer, or scores."""
    return first_of(function) in ("attention", "heads", "scores")


def reads_layers(one: Quantity) -> bool:
    """Whether the function of a quantity reads all heads of a layer together, [..., h, n, n]."""
    return first_of(found().function(one.protocol, one.metric)) == "heads"


def levels(thresholds: Sequence[float | str], n: int) -> list[float]:
    """Thresholds as numbers for a map of n tokens.

    >>> levels((0.5, "2/n"), 8)
    [0.5, 0.25]
    """
    return [float(one.partition("/")[0]) / n if isinstance(one, str) else float(one) for one in thresholds]
