# SPDX-License-Identifier: MIT
"""No public function detaches in silence: its results keep the gradient of a tensor, or refuse by name."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.metrics.lazy.head_mean import HeadMeanAttention
from attnscope.protocols import ruscio2023, ruscio2025, ruscio2025once, ruscio2026
from every_call import answer, every_call

#: Fields that do not depend on the entries of a map: what uniform attention would have.
CONSTANT = {"pattern_share": {"uniform"}}
#: Statistics of weights, which are parameters and always require a gradient: detached, as the page says.
OF_WEIGHTS = {
    *("alignment_gain", "concentration", "delta_statistics"),
    *("relative_subspace_fraction", "subspace_fraction"),
}
STATES = torch.rand(3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
#: Numbers of published code that are read off other tensors than maps.
PUBLISHED: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (
        ruscio2023.span_attention,
        {"attention": STATES[None, ..., :6].softmax(-1), "spans": torch.tensor([[1, 3]])},
    ),
    (ruscio2025.transformation_magnitude, {"before": STATES[0], "after": STATES[1]}),
    (ruscio2025once.band_shares, {"query": STATES[0], "key": STATES[1]}),
    (ruscio2025once.band_ablation, {"query": STATES[0], "key": STATES[1]}),
    (ruscio2025once.leakage, {"scores": STATES[..., :6]}),
    (ruscio2025once.softmax_statistics, {"scores": STATES[..., :6]}),
    (ruscio2025once.position_probe, {"states": STATES[0]}),
    (ruscio2026.boundary, {"reference": STATES[0], "other": STATES[1]}),
    (ruscio2026.topology, {"points": STATES[0], "direction": STATES[1, 0]}),
    (ruscio2026.lid, {"points": STATES.flatten(0, 1), "k": 5}),
    (ruscio2026.isotropy, {"points": STATES[0]}),
    (ruscio2026.entropy, {"points": STATES[0]}),
]
CASES = [
    pytest.param(name, function, arguments, key, id=f"{name}-{key}")
    for name, function, arguments in (
        *every_call(),
        *((f"{f.__module__.split('.')[2]}.{f.__name__}", f, arguments) for f, arguments in PUBLISHED),
    )
    for key, value in arguments.items()
    if name not in OF_WEIGHTS and isinstance(value, Tensor) and value.is_floating_point()
]


def numbers(result: Any, field: str = "") -> list[tuple[str, Tensor]]:
    """Return the floating-point tensors of a result, each with the name of its field."""
    if isinstance(result, Tensor):
        return [(field, result)] if result.is_floating_point() else []
    if isinstance(result, dict):
        return [pair for name, value in result.items() for pair in numbers(value, name)]
    if hasattr(result, "_fields"):
        return [pair for name in result._fields for pair in numbers(getattr(result, name), name)]
    if isinstance(result, (tuple, list)):
        return [pair for value in result for pair in numbers(value, field)]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        names = [entry.name for entry in dataclasses.fields(result)]
        return [pair for name in names for pair in numbers(getattr(result, name), name)]
    return []


@pytest.mark.parametrize(("name", "function", "arguments", "key"), CASES)
def test_a_gradient_is_kept_or_refused(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], key: str
) -> None:
    leaf = arguments[key].clone().requires_grad_()
    results = numbers(answer(function, {**arguments, key: leaf}))
    silent = {field for field, tensor in results if not tensor.requires_grad}
    assert silent <= CONSTANT.get(name, set())


@pytest.mark.parametrize(("name", "function", "arguments", "key"), CASES)
def test_a_derivative_forwards_is_refused_by_name(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], key: str
) -> None:
    value = arguments[key]

    def of_value(tensor: Tensor) -> Any:
        return numbers(answer(function, {**arguments, key: tensor}))[0][1]

    with pytest.raises(NotImplementedError, match=f"{key}.* carries its derivative forwards"):
        torch.func.jvp(of_value, (value,), (torch.ones_like(value),))
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=f"{key}.* carries its derivative forwards"),
    ):
        of_value(torch.autograd.forward_ad.make_dual(value, torch.ones_like(value)))


def test_a_constant_inside_a_derivative_forwards_is_measured() -> None:
    value, tangent = torch.func.jvp(
        lambda factor: factor * asc.attention_entropy(MAPS).sum(), (torch.ones(()),), (torch.ones(()),)
    )
    assert value == tangent == asc.attention_entropy(MAPS).sum()


#: Functions of what another function returns, which take no tensor themselves.
OF_BARS: dict[str, Callable[[asc.types.Barcodes], Any]] = {
    "bar_statistics": asc.bar_statistics,
    "diagram_distance": lambda bars: asc.diagram_distance(bars, bars),
    "total_persistence": asc.total_persistence,
}
MAPS = torch.rand(2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)


@pytest.mark.parametrize("name", OF_BARS)
def test_a_gradient_in_bars_is_kept_or_refused(name: str) -> None:
    results = numbers(OF_BARS[name](asc.persistence(MAPS.clone().requires_grad_())))
    assert results
    assert all(tensor.requires_grad for _, tensor in results)


def test_sums_of_a_test_are_those_without_a_gradient() -> None:
    sums = asc.sink_sums(asc.sink_test(MAPS.clone().requires_grad_()))
    assert sums.equals(asc.sink_sums(asc.sink_test(MAPS)))


#: What is read off queries and keys.
OF_LAZY: dict[str, Callable[[asc.LazyAttention], Any]] = {
    "attention_entropy": asc.attention_entropy,
    "sink_share": asc.sink_share,
    "sink_test": asc.sink_test,
    "head_divergence": asc.head_divergence,
    "causal_spectrum": asc.causal_spectrum,
    "participation_ratio": lambda lazy: asc.participation_ratio(lazy, spectrum="laplacian"),
    "persistence": lambda lazy: asc.total_persistence(asc.persistence(lazy, max_dimension=0))[..., 0],
    "measure": lambda lazy: asc.measure(lazy, ["attention_entropy", "sink_share"]),
    "other lengths": lambda lazy: asc.attention_entropy(lazy, lengths=5),
    "some heads": lambda lazy: asc.incoming_attention(lazy.select_heads([1])),
    "head mean": lambda lazy: asc.attention_entropy(HeadMeanAttention(lazy)),
    "log Z": lambda lazy: lazy.log_z,
    "row measures": lambda lazy: lazy.row_measures(),
    "top": lambda lazy: lazy.top(2),
    "map": lambda lazy: lazy.dense(),
    "product": lambda lazy: lazy @ torch.ones(6, 1),
}


@pytest.mark.parametrize("source", ["query", "key", "bias", "sink_logits"])
@pytest.mark.parametrize("name", OF_LAZY)
def test_a_gradient_of_queries_and_keys_is_refused(name: str, source: str) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = {part: torch.randn(2, 6, 4, generator=generator) for part in ("query", "key")}
    parts |= {"bias": torch.randn(2, 6, 6, generator=generator), "sink_logits": torch.zeros(2)}
    with torch.no_grad():
        expected = numbers(OF_LAZY[name](asc.LazyAttention(**parts)))
    parts[source].requires_grad_()
    results = numbers(OF_LAZY[name](asc.LazyAttention(**parts)))
    assert len(results) == len(expected) > 0
    for (_, tensor), (_, plain) in zip(results, expected, strict=True):
        assert torch.equal(tensor.nan_to_num(-1), plain.nan_to_num(-1))
        with pytest.raises(NotImplementedError, match="has no derivative"):
            tensor.sum().backward(retain_graph=True)


@pytest.mark.parametrize("name", OF_LAZY)
def test_a_gradient_of_a_function_of_the_bias_is_refused(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, 6, 4, generator=generator) for _ in range(2))
    slope = torch.nn.Parameter(torch.tensor(0.3))

    def lean(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return -slope * (queries[:, None] - keys).abs()

    expected = numbers(OF_LAZY[name](asc.LazyAttention(query, key, bias=torch.tensor([0.3, 0.3]))))
    results = numbers(OF_LAZY[name](asc.LazyAttention(query, key, bias=lean)))
    assert len(results) == len(expected) > 0
    for (_, tensor), (_, plain) in zip(results, expected, strict=True):
        torch.testing.assert_close(tensor.detach(), plain, equal_nan=True)
        with pytest.raises(NotImplementedError, match="has no derivative"):
            tensor.sum().backward(retain_graph=True)


def test_decisions_of_queries_and_keys_that_require_a_gradient() -> None:
    query = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(2))
    plain, followed = (asc.LazyAttention(states, query) for states in (query, query.clone().requires_grad_()))
    for function in (asc.sink_tokens, asc.sink_position, asc.sink_rate):
        assert torch.equal(function(followed), function(plain))


@pytest.mark.parametrize("source", ["scaling", "softcap"])
@pytest.mark.parametrize("name", OF_LAZY)
def test_a_gradient_of_a_number_of_all_scores_is_refused(name: str, source: str) -> None:
    """A temperature may be a parameter."""
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, 6, 4, generator=generator) for _ in range(2))
    parameter = torch.nn.Parameter(torch.tensor(0.5))
    expected = numbers(OF_LAZY[name](asc.LazyAttention(query, key, **{source: 0.5})))
    results = numbers(OF_LAZY[name](asc.LazyAttention(query, key, **{source: parameter})))
    assert len(results) == len(expected) > 0
    for (_, tensor), (_, plain) in zip(results, expected, strict=True):
        assert torch.equal(tensor.nan_to_num(-1), plain.nan_to_num(-1))
        with pytest.raises(NotImplementedError, match="has no derivative"):
            tensor.sum().backward(retain_graph=True)
