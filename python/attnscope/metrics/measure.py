# SPDX-License-Identifier: MIT
"""Many metrics of the same maps at once, with the work they share done once."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnscope import _checks
from attnscope._nearest import nearest
from attnscope.metrics.homology.betti import EXACT_IN_BARS, bars_hold, betti_numbers_of
from attnscope.metrics.information import sinks
from attnscope.metrics.information.divergence import divergence_of

# Metrics that are functions of another public result: metric -> (that result, module, function of it).
# The function's first argument is the shared result; the rest are the metric's own options.
DERIVED: dict[str, tuple[str, str, str]] = {
    "laplacian_gap": ("laplacian_eigenvalues", "graphs.laplacian", "gap_of"),
    "stable_rank": ("singular_values", "spectra.singular_values", "stable_rank_of"),
    "effective_rank": ("singular_values", "spectra.singular_values", "effective_rank_of"),
    "spectral_gap": ("singular_values", "spectra.singular_values", "spectral_gap_of"),
    "spectral_ratio": ("singular_values", "spectra.singular_values", "spectral_ratio_of"),
    "marchenko_pastur_deviation": ("marchenko_pastur", "spectra.marchenko_pastur", "deviation_of"),
    "betti_curve": ("persistence", "homology.barcodes", "betti_curve"),
    "bar_count": ("persistence", "homology.barcodes", "bar_count"),
    "total_persistence": ("persistence", "homology.barcodes", "total_persistence"),
    "max_persistence": ("persistence", "homology.barcodes", "max_persistence"),
    "persistent_entropy": ("persistence", "homology.barcodes", "persistent_entropy"),
}

# Metric -> module in attnscope.metrics, for those that read attention themselves.
DIRECT: dict[str, str] = {
    "fiedler_value": "graphs.fiedler",
    "fiedler_vector": "graphs.fiedler",
    "laplacian_eigenvalues": "graphs.laplacian",
    "graph_statistics": "graphs.graph_statistics",
    "singular_values": "spectra.singular_values",
    "participation_ratio": "spectra.participation_ratio",
    "marchenko_pastur": "spectra.marchenko_pastur",
    "persistence": "homology.persistence",
    "betti_numbers": "homology.betti",
    "attention_entropy": "information.entropy",
    "incoming_attention": "information.sinks",
    "sink_rate": "information.sinks",
    "sink_tokens": "information.sinks",
    "sink_position": "information.sinks",
    "sink_share": "information.sinks",
    "top_mass": "information.sinks",
    "head_divergence": "information.divergence",
    "sink_removal": "information.divergence",
    "geometric_semantic_alignment": "states.alignment",
    "reference_influence": "states.reference_influence",
    "local_global_ratio": "signals.locality",
    "power_spectrum": "signals.power_spectrum",
    "spectral_uncertainty": "signals.uncertainty",
    "wavelet_transform": "signals.wavelet",
    "morlet_scalogram": "signals.wavelet",
}

# Functions of all heads of a layer: [..., h, n, n], with one length per layer.
OF_LAYERS = frozenset({"head_divergence", "sink_removal"})

# What a metric that needs thresholds gets when the caller names none (Ruscio et al. 2025).
THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Request:
    """One result that `measure` is asked for."""

    key: str
    metric: str
    options: dict[str, Any]


def measure(
    attention: torch.Tensor,
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]],
    *,
    lengths: _checks.Lengths = None,
    **options: Any,
) -> dict[str, Any]:
    """Several metrics of the same maps, with shared intermediates computed once.

    `stable_rank`, `effective_rank`, `spectral_gap` and `spectral_ratio` share one singular value
    decomposition, the statistics of bars one persistent homology, and so on; every value equals what the
    function of that name returns.

    Args:
        attention: attention maps [..., n, n]; a CUDA tensor is brought over once. For metrics of all heads
            of a layer (`head_divergence`, `sink_removal`) the axis before the last two is the head.
        metrics: a name, names, or a mapping from the key wanted in the result to that metric's own options;
            the option ``metric`` names the function where the key is not its name.
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
    plan = _plan_of(metrics, options, _size_of(attention))
    tensor = _checks.square_tensor("measure", "attention", attention)
    shared = _from_one_read(tensor, plan, lengths)
    shared.update(_from_bars(tensor, plan, lengths))
    results: dict[str, Any] = {}
    for request, (source, identity, given) in zip(plan.requests, plan.calls, strict=True):
        if (source, identity) not in shared:
            each = _layer_lengths(lengths, tensor) if source in OF_LAYERS else lengths
            if source == "head_divergence":
                entropy = shared.get(("attention_entropy", plan.entropies.get(identity, ())))
                result = divergence_of(tensor, entropy, lengths=each, **given)
            else:
                result = _function(source)(tensor, lengths=each, **given)
            shared[source, identity] = result
        result = shared[source, identity]
        if request.metric in DERIVED:
            derive = _derivation(request.metric)
            own = {name: value for name, value in request.options.items() if name in _options(derive)}
            result = derive(result, **own)
        results[request.key] = result
    return results


# A call's name and its options in words, by which equal calls are known.
_Identity = tuple[tuple[str, str], ...]
_Call = tuple[str, _Identity, dict[str, Any]]


@dataclass(frozen=True)
class _Plan:
    """What is to be called for maps of one size, whatever is in them."""

    requests: list[Request]
    calls: list[_Call]
    # Calls that one read of the maps answers together, by their support and validate.
    groups: list[dict[str, tuple[_Identity, dict[str, Any]]]]
    # Of a head_divergence: the entropy that such a read gives, of which it is one half.
    entropies: dict[_Identity, _Identity]
    # Calls of betti_numbers and the call of persistence whose bars hold them.
    held: list[tuple[_Call, _Call]]


# Making a plan costs as much as a few small maps. Those of plain options are kept, a bounded number.
_PLANS: dict[str, _Plan] = {}
_MOST_PLANS = 1024
_PLAIN = (str, int, float, bool, type(None))


def _plan_of(
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], n: int
) -> _Plan:
    if not _is_plain(metrics, options):
        return _plan(metrics, options, n)
    # What a value looks like tells True from 1, which compare equal.
    key = repr((n, metrics, options))
    if key not in _PLANS:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = _plan(metrics, options, n)
    return _PLANS[key]


def _is_plain(metrics: Any, options: Mapping[str, Any]) -> bool:
    """Whether all of it shows in its repr, and nothing of it can change afterwards."""
    own = []
    if type(metrics) is dict:
        own = list(metrics.values())
        if not all(type(given) is dict for given in own):
            return False
    elif type(metrics) not in (str, list, tuple) or not all(type(name) is str for name in metrics):
        return False
    for given in (options, *own):
        for value in given.values():
            entries = value if type(value) is tuple else (value,)
            if not all(type(entry) in _PLAIN for entry in entries):
                return False
    return True


def _size_of(attention: Any) -> int:
    """Its tokens; 0 for what has none, and is refused once the metrics are known to be right."""
    shape = getattr(attention, "shape", None)
    return int(shape[-1]) if shape else 0


def _plan(
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], n: int
) -> _Plan:
    requests = requests_of(metrics, options)
    calls = [_call(request, n) for request in requests]
    groups: dict[tuple[str, bool], dict[str, tuple[_Identity, dict[str, Any]]]] = {}
    for source, identity, given in calls:
        plain = given.get("base", math.e) == math.e and not given.get("normalized")
        if source in sinks.FROM_ONE_READ and plain:
            group = groups.setdefault((_identity(given["support"]), given["validate"]), {})
            group.setdefault(source, (identity, given))  # a second setting is a call of its own
    entropies = {}
    for source, identity, given in calls:
        if source != "head_divergence":
            continue
        group = groups.setdefault((_identity(given["support"]), given["validate"]), {})
        if "attention_entropy" not in group:
            continue
        entropies[identity] = group["attention_entropy"][0]
    # One call alone is that function's own; an entropy that something else needs is not alone.
    wanted = [group for group in groups.values() if len(group) >= 2 or _needed(group, entropies)]
    bars = [call for call in calls if call[0] == "persistence"]
    held = [
        (call, next(own for own in bars if bars_hold(call[2], own[2])))
        for call in calls
        if call[0] == "betti_numbers" and any(bars_hold(call[2], own[2]) for own in bars)
    ]
    return _Plan(requests, calls, wanted, entropies, held)


def _needed(group: Mapping[str, tuple[_Identity, Any]], entropies: Mapping[_Identity, _Identity]) -> bool:
    return "attention_entropy" in group and group["attention_entropy"][0] in entropies.values()


def _call(request: Request, n: int) -> _Call:
    source = DERIVED[request.metric][0] if request.metric in DERIVED else request.metric
    given = _given(source, request, n)
    # An option's repr tells two different settings apart; arrays, which print in part, their identity.
    return source, tuple(sorted((name, _identity(value)) for name, value in given.items())), given


def _from_one_read(
    tensor: torch.Tensor, plan: _Plan, lengths: _checks.Lengths
) -> dict[tuple[str, _Identity], Any]:
    """The results of calls that one read of the maps answers together."""
    shared = {}
    for group in plan.groups:
        given = next(iter(group.values()))[1]
        found = sinks.from_one_read(
            tensor,
            {source: own for source, (_, own) in group.items()},
            support=given["support"],
            lengths=lengths,
            validate=given["validate"],
        )
        for source, (identity, _) in group.items():
            shared[source, identity] = found[source]
    return shared


def _from_bars(
    tensor: torch.Tensor, plan: _Plan, lengths: _checks.Lengths
) -> dict[tuple[str, _Identity], Any]:
    """Bars that are asked for, and the Betti numbers that they hold."""
    shared: dict[tuple[str, _Identity], Any] = {}
    if tensor.dtype not in EXACT_IN_BARS:
        return shared
    for (source, identity, given), (_, bars_identity, bars_given) in plan.held:
        bars = shared.get(("persistence", bars_identity))
        if bars is None:
            bars = _function("persistence")(tensor, lengths=lengths, **bars_given)
            shared["persistence", bars_identity] = bars
        # Of a map without bars the function itself is to warn.
        if bool((bars.offsets.diff() > 0).all()):
            shared[source, identity] = betti_numbers_of(bars, given["thresholds"])
    return shared


def metric_names() -> list[str]:
    """Every name that `measure` knows, in alphabetical order."""
    return sorted({*DIRECT, *DERIVED})


def requests_of(
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> list[Request]:
    """What `measure` is asked for, checked: the key, the metric and its options of every result.

    Args:
        metrics: as `measure` takes them.
        options: likewise.

    Raises:
        ValueError: an unknown metric.
        TypeError: an option that none of the metrics takes, or something that is no name.
    """
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, Iterable) or _is_array(metrics):
        raise TypeError(f"measure: metrics must be names, got {type(metrics).__name__}")
    metrics = metrics if isinstance(metrics, Mapping) else list(metrics)
    if unnamed := [name for name in metrics if not isinstance(name, str)]:
        raise TypeError(
            "measure: metrics must be names, or a mapping from names to options, "
            f"got {type(unnamed[0]).__name__}"
        )
    asked: Mapping[str, Mapping[str, Any]]
    asked = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    requests, taken = [], set()
    for key, own in asked.items():
        if not isinstance(own, Mapping):
            raise TypeError(f"measure: the options of {key!r} must be a mapping, got {type(own).__name__}")
        metric = str(own.get("metric", key))
        if metric not in DIRECT and metric not in DERIVED:
            raise ValueError(f"measure: unknown metric {metric!r}{nearest(metric, metric_names())}")
        accepted = _accepted(metric)
        unknown = [name for name in own if name != "metric" and name not in accepted]
        if unknown:
            raise TypeError(
                f"measure: {metric} takes no option {unknown[0]!r}{nearest(unknown[0], sorted(accepted))}"
            )
        common = {name: value for name, value in options.items() if name in accepted}
        needed = accepted.keys() - {"thresholds"} - set(own) - set(common)
        if missing := [name for name in sorted(needed) if accepted[name] is inspect.Parameter.empty]:
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


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__")


def _accepted(metric: str) -> dict[str, Any]:
    """A metric's options with their defaults."""
    accepted = _defaults(_function(DERIVED[metric][0] if metric in DERIVED else metric))
    return {**accepted, **_defaults(_derivation(metric))} if metric in DERIVED else accepted


@functools.cache
def _function(metric: str) -> Callable[..., Any]:
    module = importlib.import_module(f"attnscope.metrics.{DIRECT[metric]}")
    function: Callable[..., Any] = getattr(module, metric)
    return function


@functools.cache
def _derivation(metric: str) -> Callable[..., Any]:
    _, module, name = DERIVED[metric]
    function: Callable[..., Any] = getattr(importlib.import_module(f"attnscope.metrics.{module}"), name)
    return function


@functools.cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's own options and their defaults; asking for a signature costs as much as a small map."""
    parameters = list(inspect.signature(function).parameters.items())[1:]
    return {name: parameter.default for name, parameter in parameters if name != "lengths"}


def _options(function: Callable[..., Any]) -> list[str]:
    return list(_defaults(function))


def _identity(value: Any) -> str:
    return f"array {id(value)}" if _is_array(value) else repr(value)


def _given(source: str, request: Request, n: int) -> dict[str, Any]:
    """The options of one call with its defaults filled in, so that equal calls are seen to be equal."""
    given = {}
    for name, default in _defaults(_function(source)).items():
        if name in request.options:
            given[name] = request.options[name]
        elif name == "thresholds":
            given[name] = THRESHOLDS
        elif default is not inspect.Parameter.empty:
            given[name] = default
    if source == "laplacian_eigenvalues" and given.get("k") is None:
        given["k"] = min(n, 3) if request.metric == "laplacian_gap" else n
    return given


def _layer_lengths(lengths: _checks.Lengths, heads: torch.Tensor) -> torch.Tensor | None:
    """One length per layer out of lengths that broadcast against [..., h]."""
    if lengths is None:
        return None
    each = _checks.as_tensor("measure", "lengths", lengths)
    try:
        each = each.expand(heads.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"measure: lengths of shape {tuple(each.shape)} do not broadcast to the leading shape "
            f"{tuple(heads.shape[:-2])}"
        ) from None
    if each.ndim == 0 or not bool((each == each[..., :1]).all()):
        raise ValueError("measure: metrics of a whole layer need one length for all its heads")
    return each[..., 0].contiguous()
