# SPDX-License-Identifier: MIT
"""Maps of fewer queries than keys give the same numbers in torch operations as in the core."""

from collections import Counter
from typing import Any

import pytest
import torch

import attnscope as asc
from attnscope.devices.call_counts import count_calls
from every_call import answer

QUERIES, KEYS = 3, 7
#: Metrics that take rectangles, and what they need besides one.
METRICS: dict[str, dict[str, Any]] = {
    "attention_entropy": {},
    "incoming_attention": {},
    "sink_share": {},
    "sink_rate": {},
    "top_mass": {},
    "head_divergence": {},
    "sink_removal": {"keys": [0]},
    "span_attention": {"spans": [0, 2]},
    "local_global_ratio": {},
    "power_spectrum": {},
    "singular_values": {},
    "effective_rank": {},
    "stable_rank": {},
    "spectral_ratio": {},
    "participation_ratio": {},
    "marchenko_pastur_deviation": {},
    "lookback": {"answer": [5, 7]},
}


@pytest.fixture(scope="module")
def maps() -> torch.Tensor:
    scores = torch.randn(2, KEYS, KEYS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hidden = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)[:, -QUERIES:]


@pytest.mark.parametrize("name", METRICS)
def test_a_rectangle_in_torch_equals_the_core(name: str, maps: torch.Tensor) -> None:
    arguments = {"heads" if name in ("head_divergence", "sink_removal") else "attention": maps}
    core = answer(getattr(asc, name), {**arguments, **METRICS[name]})
    with asc.devices.use("torch"):
        other = answer(getattr(asc, name), {**arguments, **METRICS[name]})
    pairs = list(zip(_tensors(core), _tensors(other), strict=True))
    assert pairs
    for expected, result in pairs:
        torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9, equal_nan=True)


def test_a_graph_metric_refuses_with_both_sizes(maps: torch.Tensor) -> None:
    with asc.devices.use("torch"), pytest.raises(ValueError, match=rf"{QUERIES}, {KEYS}"):
        asc.fiedler_value(maps)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    fields = vars(result).values() if hasattr(result, "__dict__") and vars(result) else result
    return [part for field in fields for part in _tensors(field)]


STATES = torch.randn(KEYS, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
#: Metrics whose rectangles torch operations measure, and what they need besides one.
IN_TORCH: dict[str, dict[str, Any]] = {
    "attention_entropy": {"normalized": True},
    "incoming_attention": {},
    "sink_share": {"first": 2, "queries": 3},
    "sink_position": {"rule": "largest", "min_visibility": 0.5},
    "top_mass": {"k": 2},
    "head_divergence": {},
    "sink_removal": {"keys": [0, 2]},
    "local_global_ratio": {"window": 2},
    "sink_test": {},
    "span_attention": {"spans": [2, 5], "special": torch.arange(KEYS) == 0},
    "singular_values": {},
    "participation_ratio": {},
    "geometric_semantic_alignment": {
        "states": STATES,
        "query_states": STATES[:QUERIES].flip(-1),
        "without": torch.arange(KEYS) == 2,
    },
    "reference_influence": {"states": STATES, "reference": torch.arange(KEYS) % 4 == 0},
}
#: The function of the core behind those that have not its name.
KERNELS = dict.fromkeys(("incoming_attention", "sink_share", "sink_position", "top_mass"), "sink_statistics")
KERNELS["sink_test"] = "far_attention"
#: Where the queries stand, and how many are real.
PLACES: dict[str, dict[str, Any]] = {
    "at the last keys": {},
    "ragged": {"lengths": [7, 5], "query_lengths": [3, 2]},
    "without a query": {"lengths": [7, 5], "query_lengths": [3, 0]},
    "at keys in the middle": {"query_positions": [2, 3, 4]},
    "at keys that do not follow each other": {"query_positions": [0, 3, 6]},
    "at none": {"cross": True},
}


#: Of cross attention nothing is near or far.
CASES = [(n, p) for n in IN_TORCH for p in PLACES if (n, p) != ("local_global_ratio", "at none")]


@pytest.mark.parametrize(("name", "places"), CASES)
def test_places_of_queries_are_those_of_the_core(name: str, places: str) -> None:
    scores = torch.randn(2, 2, QUERIES, KEYS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options = dict(PLACES[places])
    stand = torch.tensor(options.get("query_positions", [4, 5, 6]))
    if places == "ragged":
        stand = torch.tensor([[4, 5, 6], [3, 4, 5]])[:, None]
    if places != "at none":
        scores = scores.masked_fill(torch.arange(KEYS) > stand[..., None], -torch.inf)
    causal = torch.softmax(scores, -1)
    dense = torch.softmax(scores.nan_to_num(neginf=0.0), -1)
    by_layer = name in ("head_divergence", "sink_removal")
    for option in ("lengths", "query_lengths"):
        if option in options:
            sizes = torch.tensor(options[option])
            options[option] = sizes if by_layer else sizes[:, None]
    for maps in (causal, dense):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            arguments = {"heads" if by_layer else "attention": maps.to(dtype), **IN_TORCH[name], **options}
            core = answer(getattr(asc, name), arguments)
            calls: Counter[str] = Counter()
            with asc.devices.use("torch"), count_calls(calls):
                other = answer(getattr(asc, name), arguments)
            assert calls == {f"cpu: {KERNELS.get(name, name)}": 1}
            for expected, result in zip(_tensors(core), _tensors(other), strict=True):
                torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.filterwarnings("ignore::attnscope.errors.NonFiniteWarning")
def test_a_rectangle_that_is_not_finite_leaves_its_neighbours_alone(maps: torch.Tensor) -> None:
    maps = maps.clone()
    maps[0, 1, 2] = torch.nan
    for name in ("attention_entropy", "incoming_attention", "sink_share", "top_mass"):
        core = answer(getattr(asc, name), {"attention": maps})
        with asc.devices.use("torch"):
            other = answer(getattr(asc, name), {"attention": maps})
        for expected, result in zip(_tensors(core), _tensors(other), strict=True):
            assert bool(expected[0].isnan().all()), name
            torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12, equal_nan=True)


SIGNALS = ("rows", "last", "mean", "offset")
#: Measures of signals, with options that leave numbers of rows of few keys.
OF_SIGNALS: dict[str, dict[str, Any]] = {
    "power_spectrum": {"bands": 3, "min_keys": 3},
    "spectral_uncertainty": {"min_keys": 3},
    "wavelet_transform": {"levels": 1, "resample": 4, "min_keys": 6},
    "morlet_scalogram": {"scales": [1.5, 3.0], "min_keys": 3},
}
LONG_QUERIES, LONG_KEYS = 5, 20
LONG_PLACES: dict[str, dict[str, Any]] = {
    "at the last keys": {},
    "ragged": {"lengths": [20, 14], "query_lengths": [5, 3]},
    "without a query": {"lengths": [20, 14], "query_lengths": [5, 0]},
    "at keys that do not follow each other": {"query_positions": [3, 8, 9, 15, 18]},
    "at none": {"cross": True},
}


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("places", LONG_PLACES)
@pytest.mark.parametrize("name", OF_SIGNALS)
def test_signals_of_rectangles_are_those_of_the_core(
    name: str, places: str, signal: str, drop_first: bool
) -> None:
    is_of_rows = signal == "rows" and name == "morlet_scalogram"
    if is_of_rows or (signal == "offset" and places == "at none"):
        pytest.skip("there are no such signals")
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(2, 3, LONG_QUERIES, LONG_KEYS, generator=generator, dtype=torch.float64)
    options = dict(LONG_PLACES[places])
    stand = torch.tensor(options.get("query_positions", [15, 16, 17, 18, 19]))
    hidden = torch.arange(LONG_KEYS) > stand[:, None]
    causal = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    for option in ("lengths", "query_lengths"):
        if option in options:
            options[option] = torch.tensor(options[option])[:, None]
    for maps in (causal.masked_fill(hidden, 0.0), torch.softmax(scores, -1)):
        for support in ("auto", torch.rand(LONG_QUERIES, LONG_KEYS, generator=generator) < 0.8):
            arguments = {"attention": maps, "signal": signal, "drop_first": drop_first, "support": support}
            arguments |= {**OF_SIGNALS[name], **options}
            core = answer(getattr(asc, name), arguments)
            calls: Counter[str] = Counter()
            with asc.devices.use("torch"), count_calls(calls):
                other = answer(getattr(asc, name), arguments)
            assert calls == {f"cpu: {name}": 1}
            for expected, result in zip(_tensors(core), _tensors(other), strict=True):
                torch.testing.assert_close(result, expected, atol=1e-11, rtol=1e-11, equal_nan=True)
