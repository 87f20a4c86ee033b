# SPDX-License-Identifier: MIT
"""A valid call of every public function of tensors: of attention maps, points, states, scores and weights."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import attnscope as asc
from attnscope import protocols
from attnscope.cli.doctor import _public

N = 40


def _draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MAPS = torch.softmax(_draw(3, N, N, seed=1), -1)
STATES = _draw(N, 3, seed=2)
#: As many heads as sums over them have an order of adding.
HEADS = torch.softmax(_draw(12, 20, 20, seed=4), -1)
WEIGHTS = _draw(6, 5, seed=3)
DISTANCES = asc.cloud_distances(STATES)
#: What functions of maps need besides the maps.
BESIDE: dict[str, Any] = {
    "thresholds": [0.02, 0.05],
    "states": STATES,
    "before": STATES,
    "after": 2 * STATES,
    "keys": [0],
    "spans": [0, 1],
    "answer": [2, 9],
    "pattern": "first",
    "norms": torch.ones(3, N, dtype=torch.float64),
    "reference": torch.arange(N) < 1,
    "scales": [1.5, 4.0],
    "prefix": MAPS[:, :34, :34],
    "hidden": STATES,
}
#: Other functions and their arguments.
OTHER: dict[str, dict[str, Any]] = {
    "measure": {"attention": MAPS, "metrics": ["fiedler_value", "head_divergence"]},
    "transformation_magnitude": {"before": STATES, "after": 2 * STATES},
    "harmonic_distortion": {"signal": torch.sin(torch.arange(60.0)), "theta": 1.0},
    "toeplitz_split": {"scores": MAPS},
    "mask_only": {"scores": MAPS},
    "offset_variance": {"values": MAPS},
    "offset_fit": {"scores": MAPS},
    "position_share": {"states": STATES.reshape(5, 8, 3)},
    "rope_bands": {"query": MAPS, "key": MAPS, "layout": "half", "scaling": 0.5},
    "boundary": {"reference": STATES, "other": 2 * STATES},
    "cloud_components": {"points": STATES, "scales": [0.1, 0.5]},
    "cloud_distances": {"points": STATES},
    "cloud_persistence": {"points": STATES},
    "cloud_spectrum": {"points": STATES},
    "fragmentation": {"points": STATES},
    "local_dimension": {"points": STATES, "k": 5},
    "two_nn": {"points": STATES},
    "gride": {"points": STATES, "n1": 2},
    "log_volume": {"points": STATES},
    "matrix_entropy": {"points": STATES},
    "massive_activations": {"states": STATES},
    "cka": {"x": STATES, "y": STATES},
    "neighbourhood_overlap": {"x": STATES, "y": STATES, "k": 3},
    "value_norms": {"value": STATES[None], "projection": torch.ones(2, 1, 3, dtype=torch.float64)},
    "attention_rollout": {"layers": [HEADS, HEADS]},
    "recurrent_uncertainty": {"previous": MAPS[:, :4, :6], "log_p": -torch.ones(6, dtype=torch.float64)},
    "weight_spectrum": {"matrix": WEIGHTS},
    "null_clouds": {"points": STATES, "kind": "gaussian", "draws": 2},
    "null_directions": {"states": STATES, "kind": "covariance", "draws": 2},
    "haar_basis": {"d": 4, "k": 2},
    "haar_deviation": {"pr": torch.tensor([2.0]), "other_pr": 2.0, "d": 4},
    "classify_frames": {"positions": torch.zeros(4, 3, 2, dtype=torch.int64), "lengths": 7, "causal": True},
    "delta_statistics": {"before": WEIGHTS, "after": 2 * WEIGHTS},
    "subspace_fraction": {"matrix": WEIGHTS, "basis": torch.eye(5)[:, :2]},
    "concentration": {"matrix": WEIGHTS, "basis": torch.eye(5)},
    "relative_subspace_fraction": {"matrix": WEIGHTS, "right": torch.eye(5)[:, :2]},
    "alignment_gain": {"matrix": WEIGHTS, "moment": torch.eye(5), "side": "in"},
}
#: Functions of what another function returns.
OF_RESULTS: dict[str, Callable[[], Any]] = {
    "bar_count": lambda: asc.bar_count(asc.persistence(MAPS)),
    "bar_statistics": lambda: asc.bar_statistics(asc.persistence(MAPS)),
    "diagram_distance": lambda: asc.diagram_distance(asc.persistence(MAPS), asc.persistence(MAPS[:, :9, :9])),
    "betti_curve": lambda: asc.betti_curve(asc.persistence(MAPS), [0.5, 0.7]),
    "max_persistence": lambda: asc.max_persistence(asc.persistence(MAPS)),
    "persistent_entropy": lambda: asc.persistent_entropy(asc.persistence(MAPS)),
    "total_persistence": lambda: asc.total_persistence(asc.persistence(MAPS)),
    "Barcodes.padded": lambda: asc.persistence(MAPS).padded(1),
    "Barcodes[index]": lambda: asc.persistence(MAPS)[0],
    "sink_sums": lambda: asc.sink_sums(asc.sink_test(MAPS)),
    "pooled_sinks": lambda: asc.pooled_sinks(asc.sink_sums(asc.sink_test(MAPS)), texts=3),
}


def _of_maps(function: Callable[..., Any], first: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {first: MAPS}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            arguments[name] = BESIDE[name]
    return arguments


def every_call() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield the name, the function and the arguments of a call of every function of tensors."""
    # what is no metric, such as a comparison of two clouds, is no less public
    public = {**{name: getattr(asc, name) for name in OTHER}, **_public()}
    for name, function in sorted(public.items()):
        first = next(iter(inspect.signature(function).parameters), "")
        if name in OTHER:
            yield name, function, dict(OTHER[name])
        elif first in ("attention", "heads"):
            yield name, function, _of_maps(function, first)
    for name in protocols.ruscio2025.__all__:
        function = getattr(protocols.ruscio2025, name)
        if inspect.isclass(function):
            continue
        first = next(iter(inspect.signature(function).parameters), "")
        if first in ("attention", "heads"):
            arguments = _of_maps(function, first)
            arguments[first] = MAPS[0] if first == "attention" else MAPS
            if name == "sink_tokens":
                arguments["rule"] = "kl"
            yield f"ruscio2025.{name}", function, arguments


def answer(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the result of a call without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(**arguments)


def arrays_of(result: Any) -> list[np.ndarray[Any, Any]]:
    """Return the numbers of a result as arrays, in order."""
    if isinstance(result, torch.Tensor):
        return [result.numpy()]
    if isinstance(result, np.ndarray):
        return [result]
    if isinstance(result, dict):
        return [array for value in result.values() for array in arrays_of(value)]
    if isinstance(result, (tuple, list)):
        return [array for value in result for array in arrays_of(value)]
    if hasattr(result, "to_numpy"):
        return [result.to_numpy()]
    if hasattr(result, "__dict__"):
        return [array for value in vars(result).values() for array in arrays_of(value)]
    return [np.asarray(result)]


def equal_results(result: Any, other: Any) -> bool:
    """Return True where two results hold the same numbers, NaN equal to NaN."""
    first, second = arrays_of(result), arrays_of(other)
    return len(first) == len(second) and all(
        a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(first, second, strict=True)
    )
