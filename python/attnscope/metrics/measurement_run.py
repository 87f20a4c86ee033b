# SPDX-License-Identifier: MIT
"""The calls of a plan on one batch of maps, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope.arguments.host_copies import shared_copies
from attnscope.arguments.row_sums import row_sum_cache
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.betti import EXACT_IN_BARS, betti_numbers_of
from attnscope.metrics.information.divergence import divergence_of
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.plan import Call, MeasurementPlan, SharedRead, call_of, is_derived, request_of
from attnscope.metrics.quantity import MAPS, OF_ROWS, Shared, Site
from attnscope.metrics.request import Request
from attnscope.metrics.signatures import (
    FIRST_BY_OPTION,
    first_parameter,
    options_of,
    parameters_of,
    reads_maps,
    takes_rectangles,
)


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
        if not is_derived(request):
            return result
        function = registry().derived[request.protocol, request.metric][1]
        derived_options = {
            name: value for name, value in request.options.items() if name in options_of(function)
        }
        return function(result, **self._arguments(function, derived_options, call))

    def _result(self, call: Call) -> Any:
        if call not in self._results:
            with _calls.named_as(call.source, self.plan.requested_metrics.get(call, call.source)):
                self._results[call] = self._make_call(call)
        return self._results[call]

    def _make_call(self, call: Call) -> Any:
        maps: Any = self.sites.get(call.of)
        bars = self.plan.held.get(call)
        if bars is not None and maps is not None and maps.dtype in EXACT_IN_BARS:
            held = self._result(bars)
            # Of a map without bars the function itself is to warn.
            if bool((np.diff(held.offsets.numpy()) > 0).all()):
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
        of_layers = first_parameter(function) in ("heads", *FIRST_BY_OPTION)
        call_arguments: dict[str, Any] = {}
        for name, value in call_options.items():
            if isinstance(value, Site):
                states = self.sites[value.name]
                # states of a whole layer belong to each of its maps
                shared = states.ndim == 3 and value.name not in OF_ROWS and not of_layers
                states = states.unsqueeze(1) if shared else states
                call_arguments[name] = torch.zeros_like(states) if value.origin else states
            elif isinstance(value, Shared):
                request = request_of(value, call)
                shared_result = self._answer(request, call_of(request, self.sites[value.of].shape[-1]))
                # a result of the head mean [b, 1, n] belongs to the layer
                call_arguments[name] = shared_result.squeeze(1) if of_layers else shared_result
            else:
                call_arguments[name] = value
        if "lengths" in parameters_of(function):
            call_arguments["lengths"] = self._lengths_of(call) if of_layers else self.lengths
        if not self.places.is_default:
            call_arguments |= self._places_of(function, call)
        if "real_queries" in parameters_of(function):
            call_arguments["real_queries"] = self._real_queries(call)
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

    def _real_queries(self, call: Call) -> Tensor:
        """Return which queries of each map are no padding, for what is read off a number per query."""
        maps = self.sites[call.of]
        return _checks.attention_argument(
            self.function, maps, self.lengths, rows=False, places=self.places
        ).queries_inside()

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
