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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._placement import Unmaterialized, shared_copies
from attnscope.arguments.row_sums import row_sum_cache
from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.betti import EXACT_IN_BARS, bars_hold, betti_numbers_of
from attnscope.metrics.information import sinks
from attnscope.metrics.information.divergence import divergence_of
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.quantity import Quantity, Shared, Site

# What a metric that needs thresholds gets when the caller names none (Ruscio et al. 2025).
THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

#: Sites that hold maps.
MAPS = ("attention", "head_mean", "scores")
#: Sites that belong to maps already: who sees whom, and what a learned sink takes of each row.
OF_ROWS = ("support", "sink_mass", "word_span", "special_keys", "answer", "tokens")

#: Arguments that belong to the maps of a run and not to a metric: they are the same for all calls.
OF_RUN = ("lengths", "query_positions", "query_lengths", "cross", "held", "measured", "row_lengths")

#: First arguments that are not maps: they are passed as options, which stand for sites.
_BY_OPTION = ("before", "matrix", "points", "states")


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


def plan_of(requests: Sequence[Request], n: int) -> MeasurementPlan:
    """Return the plan that answers requests of known metrics about padded maps of n tokens."""
    calls = [call_of(request, n) for request in requests]
    shared = (
        call_of(_request_of(value, call), n)
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
    entropies = {
        call: groups[_reading(call)]["attention_entropy"]
        for call in all_calls
        if call.is_exact("head_divergence") and "attention_entropy" in groups.get(_reading(call), {})
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
    is_one_read = len(reads) == 1 and not any(_is_derived(request) for request in requests)
    is_one_read = is_one_read and set(reads[0].calls.values()).issuperset(all_calls)
    return MeasurementPlan(requests, calls, reads, is_one_read, entropies, held)


def _is_derived(request: Request) -> bool:
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


def _request_of(shared: Shared, call: Call) -> Request:
    precision = precision_option(call.protocol, shared.metric, call.options.get("precision"))
    options = {**precision, **dict(shared.options)}
    return Request("", shared.metric, options, call.protocol, shared.of)


def precision_option(protocol: str, metric: str, precision: str | None) -> dict[str, Any]:
    """Return the precision as an option of a metric that takes it; empty where nobody asked for one.

    The published protocol takes none: its numbers are those of the authors' code.
    """
    if precision is None or "precision" not in options_of(registry().function(protocol, metric)):
        return {}
    return {"precision": precision}


def _reading(call: Call) -> tuple[str, str, str, bool]:
    support = _in_words(call.options["support"])
    return call.of, support, call.options["precision"], call.options["validate"]


def _is_plain_read(call_options: Mapping[str, Any]) -> bool:
    plain = call_options.get("base", math.e) == math.e and not call_options.get("normalized")
    # a sink by the test is read off far attention
    plain = plain and call_options.get("rule", "largest") == "largest"
    return plain and call_options.get("sink_mass") is None


def _in_words(value: Any) -> str:
    # An option's repr tells two different settings apart; arrays, which print in part, their identity.
    return f"array {id(value)}" if hasattr(value, "__array__") else repr(value)


@dataclass
class MeasurementRun:
    """The calls of a plan on one batch of maps [..., n, n] and other tensors by site, each made once.

    Errors carry the name of `function`; `held` is the type in which the model holds its maps, `places` says
    where the queries of maps [..., q, k] stand.
    """

    plan: MeasurementPlan
    sites: Mapping[str, Tensor]
    lengths: _checks.Lengths
    function: str
    held: torch.dtype | None = None
    places: _checks.Places = _checks.DEFAULT_PLACES
    _results: dict[Call, Any] = field(default_factory=dict)

    def results(self) -> list[Any]:
        """Return the result of every request, in their order."""
        is_lazy = any(isinstance(maps, Unmaterialized) for maps in self.sites.values())
        if self.plan.is_one_read and not is_lazy:
            read = self.plan.reads[0].results(self.sites, self.lengths, self.places)
            return [read[call.source] for call in self.plan.calls]
        with row_sum_cache(), shared_copies(), shared_pass() as note:
            if is_lazy:
                self._note_passes(note)
            for read_of_calls in self.plan.reads:
                self._read_once(read_of_calls)
            return [self._answer(*pair) for pair in zip(self.plan.requests, self.plan.calls, strict=True)]

    def _note_passes(self, note: Callable[[Callable[[], Any]], None]) -> None:
        """Note what the calls need of lazy attention, so that one pass measures all of it."""
        together = {call for read in self.plan.reads for call in read.calls.values()}
        for read in self.plan.reads:
            note(functools.partial(self._read_once, read))
        for call in self.plan.calls:
            if call not in together:
                note(functools.partial(self._result, call))

    def _answer(self, request: Request, call: Call) -> Any:
        result = self._result(call)
        if not _is_derived(request):
            return result
        function = registry().derived[request.protocol, request.metric][1]
        derived_options = {
            name: value for name, value in request.options.items() if name in options_of(function)
        }
        return function(result, **self._arguments(function, derived_options, call))

    def _result(self, call: Call) -> Any:
        if call not in self._results:
            self._results[call] = self._make_call(call)
        return self._results[call]

    def _make_call(self, call: Call) -> Any:
        maps: Any = self.sites.get(call.of)
        bars = self.plan.held.get(call)
        if bars is not None and maps is not None and maps.dtype in EXACT_IN_BARS:
            held = self._result(bars)
            # Of a map without bars the function itself is to warn.
            if bool((held.offsets.diff() > 0).all()):
                return betti_numbers_of(held, call.options["thresholds"])
        function = registry().functions[call.protocol, call.source]
        if option := registry().joint.get((call.protocol, call.source)):
            self._call_jointly(call, option)
            if call in self._results:
                return self._results[call]
        call_arguments = self._arguments(function, call.options, call)
        # lazy attention measures divergences from queries and keys, in the same pass as entropies
        entropy = None if isinstance(maps, Unmaterialized) else self.plan.entropies.get(call)
        if entropy is not None:
            return divergence_of(maps, self._result(entropy), **call_arguments)
        return function(maps, **call_arguments) if reads_maps(function) else function(**call_arguments)

    def _call_jointly(self, call: Call, option: str) -> None:
        """Make the calls that differ from this one in a word of one option as a single call of all words."""
        alike = [other for other in self.plan.calls if _differ_only_in(option, call, other)]
        alike = list(dict.fromkeys(alike))
        if len(alike) < 2:
            return
        function = registry().functions[call.protocol, call.source]
        words = tuple(other.options[option] for other in alike)
        call_arguments = self._arguments(function, {**call.options, option: words}, call)
        result = function(self.sites.get(call.of), **call_arguments)
        for place, other in enumerate(alike):
            self._results[other] = type(result)(*(values[..., place] for values in result))

    def _arguments(
        self, function: Callable[..., Any], call_options: Mapping[str, Any], call: Call
    ) -> dict[str, Any]:
        """Return options with sites and shared results replaced by their tensors, and the lengths."""
        of_layers = first_parameter(function) in ("heads", *_BY_OPTION)
        call_arguments: dict[str, Any] = {}
        for name, value in call_options.items():
            if isinstance(value, Site):
                states = self.sites[value.name]
                # states of a whole layer belong to each of its maps
                shared = states.ndim == 3 and value.name not in OF_ROWS and not of_layers
                states = states.unsqueeze(1) if shared else states
                call_arguments[name] = torch.zeros_like(states) if value.origin else states
            elif isinstance(value, Shared):
                request = _request_of(value, call)
                shared_result = self._answer(request, call_of(request, self.sites[value.of].shape[-1]))
                # a result of the head mean [b, 1, n] belongs to the layer
                call_arguments[name] = shared_result.squeeze(1) if of_layers else shared_result
            else:
                call_arguments[name] = value
        if "lengths" in parameters_of(function):
            call_arguments["lengths"] = self._lengths_of(call) if of_layers else self.lengths
        if not self.places.is_default:
            call_arguments |= self._places_of(function, call)
        if "row_lengths" in parameters_of(function):
            call_arguments["row_lengths"] = self._row_lengths(call)
        context = {"held": self.held, "measured": self.sites}
        return call_arguments | {name: context[name] for name in context if name in parameters_of(function)}

    def _places_of(self, function: Callable[..., Any], call: Call) -> dict[str, Any]:
        """Return where queries stand, for a function of maps; one of square maps only refuses."""
        if not reads_maps(function):
            return {}
        if not takes_rectangles(function):
            if self.sites[call.of].shape[-1] == self.sites[call.of].shape[-2]:
                _checks.refuse_places(call.source, self.places)
            return {}  # its own error gives the sizes
        positions, lengths, cross = self.places
        if lengths is not None and first_parameter(function) == "heads":
            shape, words = self.sites[call.of].shape[:-2], "do not broadcast to the leading shape"
            lengths = _checks.as_tensor(self.function, "query_lengths", lengths)
            lengths = _checks.expanded(f"{self.function}: query_lengths", lengths, shape, words)
        return {"query_positions": positions, "query_lengths": lengths, "cross": cross}

    def _row_lengths(self, call: Call) -> _checks.Lengths:
        """Return the real queries of each map, for what is read off a number per query."""
        maps = self.sites[call.of]
        if self.places.is_default and maps.shape[-1] == maps.shape[-2]:
            return self.lengths
        return _checks.attention_argument(
            self.function, maps, self.lengths, rows=False, places=self.places
        ).query_lengths

    def _lengths_of(self, call: Call) -> Tensor | None:
        """Return a length per head of a layer, from lengths that broadcast against them, or per text."""
        if self.lengths is None:
            return None
        lengths = _checks.as_tensor(self.function, "lengths", self.lengths)
        if call.of not in MAPS:
            return lengths.flatten()
        shape, words = self.sites[call.of].shape[:-2], "do not broadcast to the leading shape"
        return _checks.expanded(f"{self.function}: lengths", lengths, shape, words)

    def _read_once(self, read: SharedRead) -> None:
        results = read.results(self.sites, self.lengths, self.places)
        self._results |= {call: results[source] for source, call in read.calls.items()}


def _differ_only_in(option: str, call: Call, other: Call) -> bool:
    """Return True if two calls are of one function of the same maps, with a word each for that option."""
    if (call.protocol, call.source, call.of) != (other.protocol, other.source, other.of):
        return False
    if not all(isinstance(candidate.options.get(option), str) for candidate in (call, other)):
        return False
    return [pair for pair in call.identity if pair[0] != option] == [
        pair for pair in other.identity if pair[0] != option
    ]


@functools.cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; reading a signature costs as much as a small map."""
    return inspect.signature(function).parameters


@functools.cache
def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function and their defaults."""
    parameters = list(parameters_of(function).items())
    first = 0 if parameters and parameters[0][0] in _BY_OPTION else 1
    return {
        name: parameter.default
        for name, parameter in parameters[first:]
        if name not in OF_RUN and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


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


def reads_layers(quantity: Quantity) -> bool:
    """Return True if the function of a quantity reads all heads of a layer together, [..., h, n, n]."""
    return first_parameter(registry().function(quantity.protocol, quantity.metric)) == "heads"


def resolve_thresholds(thresholds: Sequence[float | str], n: int) -> list[float]:
    """Return thresholds as numbers for a map of n tokens.

    >>> resolve_thresholds((0.5, "2/n"), 8)
    [0.5, 0.25]
    """
    return [
        float(threshold.partition("/")[0]) / n if isinstance(threshold, str) else float(threshold)
        for threshold in thresholds
    ]
