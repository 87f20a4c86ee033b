# SPDX-License-Identifier: MIT
"""Measures inside `torch.vmap` and `torch.func.grad` equal the batched call and its gradient."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.errors import NonFiniteWarning
from attnscope.gradients import dispatch


def samples(n: int = 6) -> Tensor:
    """Return four samples of two layers of three causal heads [4, 2, 3, n, n]."""
    logits = torch.randn(4, 2, 3, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


#: Every function that takes tensors of the transforms, with its arguments; each gives one tensor.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention_entropy": asc.attention_entropy,
    "effective_rank": asc.effective_rank,
    "fiedler_value": asc.fiedler_value,
    "head_divergence": asc.head_divergence,
    "incoming_attention": asc.incoming_attention,
    "laplacian_eigenvalues": lambda a: asc.laplacian_eigenvalues(a, 3),
    "laplacian_gap": asc.laplacian_gap,
    "laplacian_shape": lambda a: asc.laplacian_shape(a).entropy,
    "participation_ratio": asc.participation_ratio,
    "pattern_share": lambda a: asc.pattern_share(a, ["previous", "first"]).share,
    "prompt_divergence": lambda a: asc.prompt_divergence(a, (2, 5)).total,
    "singular_values": asc.singular_values,
    "sink_share": lambda a: asc.sink_share(a).share,
    "spectral_gap": asc.spectral_gap,
    "spectral_ratio": asc.spectral_ratio,
    "stable_rank": asc.stable_rank,
    "top_mass": lambda a: asc.top_mass(a, 2),
}
#: The same with options: lengths of the heads, a mask, rectangles.
WITH_OPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "lengths": lambda a: asc.attention_entropy(a, lengths=[[3, 4, 5], [6, 2, 1]]),
    "lengths of λ2": lambda a: asc.fiedler_value(a, lengths=[[3, 4, 5], [6, 2, 2]]),
    "mask": lambda a: asc.incoming_attention(a, support=torch.ones(6, 6, dtype=torch.bool).tril()),
    "rectangle": lambda a: asc.attention_entropy(a[..., 3:, :], normalized=True, lengths=5),
    "bits": lambda a: asc.attention_entropy(a, base=2),
}
EVERY_CALL = {**FUNCTIONS, **WITH_OPTIONS}


def loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda attention: function(attention).nan_to_num().square().sum()


def assert_close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_every_function_with_an_operator_is_here_or_refused() -> None:
    assert set(FUNCTIONS) == set(dispatch.KERNELS) - dispatch.NOT_TRANSFORMED


@pytest.mark.parametrize("implementation", ["core", "torch"])
@pytest.mark.parametrize("name", EVERY_CALL)
def test_vmap_is_the_batched_call(name: str, implementation: str) -> None:
    function, batch = EVERY_CALL[name], samples()
    with asc.devices.use(implementation):
        expected = torch.stack([function(sample) for sample in batch])
        for axis in (0, 1, -1):
            assert_close(torch.vmap(function, in_dims=axis)(batch.movedim(0, axis)), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_of_vmap_is_the_batched_call(name: str) -> None:
    function, batch = FUNCTIONS[name], samples()
    expected = torch.stack([function(sample) for sample in batch])
    assert_close(torch.vmap(torch.vmap(function), in_dims=1)(batch.movedim(0, 1)), expected)


def test_the_operator_is_called_once_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = importlib.import_module("attnscope.gradients.operators")
    shapes = []
    evaluate = operators.evaluate

    def watched(name: str, maps: Tensor, *arguments: object) -> object:
        shapes.append(tuple(maps.shape))
        return evaluate(name, maps, *arguments)

    monkeypatch.setattr(operators, "evaluate", watched)
    torch.vmap(torch.vmap(asc.attention_entropy))(samples())
    assert shapes == [(4, 2, 3, 6, 6)]


@pytest.mark.parametrize("name", EVERY_CALL)
def test_gradients_per_sample_are_those_of_a_loop(name: str) -> None:
    of_sample, batch = loss(EVERY_CALL[name]), samples()
    expected = []
    for sample in batch:
        leaf = sample.clone().requires_grad_()
        expected += torch.autograd.grad(of_sample(leaf), leaf)
    gradients = torch.stack(expected)
    assert_close(torch.vmap(torch.func.grad(of_sample))(batch), gradients)
    assert_close(torch.vmap(torch.func.grad(of_sample), in_dims=-1)(batch.movedim(0, -1)), gradients)
    assert_close(torch.func.grad(lambda all_of: torch.vmap(of_sample)(all_of).sum())(batch), gradients)
    assert_close(torch.stack([torch.func.grad(of_sample)(sample) for sample in batch]), gradients)
    leaf = batch.clone().requires_grad_()
    torch.vmap(of_sample)(leaf).sum().backward()
    assert_close(leaf.grad, gradients)


def test_the_derivative_of_an_entropy_in_closed_form() -> None:
    """−(log A + 1) of the samples' rows, uniform over k keys: log k − 1."""
    batch = torch.stack([torch.full((1, 4), 1 / 4), torch.tensor([[0.5, 0.5, 0, 0]])]).double()
    gradients = torch.vmap(torch.func.grad(lambda a: asc.attention_entropy(a, cross=True).sum()))(batch)
    first, second = torch.tensor([4.0, 2.0], dtype=torch.float64).log() - 1
    assert_close(gradients, torch.stack([first.expand(1, 4), second * torch.tensor([[1, 1, 0, 0]])]))


def test_jacobians_of_sink_share() -> None:
    """Each of the n − 1 visible queries behind the first has a derivative of one share at the first key."""
    attention = samples()[0, 0]
    leaf = attention.clone().requires_grad_()
    share = asc.sink_share(leaf).share
    rows = [torch.autograd.grad(part, leaf, retain_graph=True)[0] for part in share]
    assert_close(torch.func.jacrev(lambda a: asc.sink_share(a).share)(attention), torch.stack(rows))


def test_a_sample_that_is_not_finite_is_counted_and_spoils_no_other() -> None:
    batch = samples()
    expected = asc.attention_entropy(batch)
    batch[1, 0, 2, 3, 3] = torch.nan
    with pytest.warns(NonFiniteWarning, match=re.escape("attention_entropy: 1 of 24 matrices")):
        result = torch.vmap(asc.attention_entropy)(batch)
    assert result[1, 0, 2].isnan().all()
    result[1, 0, 2] = expected[1, 0, 2]
    assert_close(result, expected)


def test_operators_batch_the_states_of_maps_too() -> None:
    importlib.import_module("attnscope.gradients.catalogue")
    operator = torch.ops.attnscope.geometric_semantic_alignment
    batch = samples()
    states = torch.randn(3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    shared = states.expand(2, 3, 6, 5)

    def call(maps: Tensor) -> Tensor:
        result: Tensor = operator(maps, None, "causal", None, shared, None, None)[0]
        return result

    assert_close(torch.vmap(call)(batch), torch.stack([call(sample) for sample in batch]))


#: What is refused inside a transform, and how the error begins.
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "causal_spectrum": (lambda a: asc.causal_spectrum(a).laplacian, "causal_spectrum: attention cannot"),
    "lookback": (lambda a: asc.lookback(a, (2, 5)).value, "lookback: attention cannot"),
    "marchenko_pastur": (lambda a: asc.marchenko_pastur(a).wasserstein, "marchenko_pastur: attention cannot"),
    "persistence": (lambda a: asc.total_persistence(asc.persistence(a)), "persistence: attention cannot"),
    "fiedler_vector": (asc.fiedler_vector, "fiedler_vector: attention cannot"),
    "graph_statistics": (lambda a: asc.graph_statistics(a, 0.2).density, "graph_statistics: "),
    "alignment": (
        lambda a: asc.geometric_semantic_alignment(a, torch.ones(6, 2)),
        "geometric_semantic_alignment: attention cannot",
    ),
    "influence": (
        lambda a: asc.reference_influence(a, torch.ones(6, 2), torch.arange(6) == 0).change,
        "reference_influence: attention cannot",
    ),
    "threshold": (lambda a: asc.fiedler_value(a, threshold=0.2), "fiedler_value cannot be called with these"),
    "eigen": (lambda a: asc.participation_ratio(a, spectrum="eigen"), "participation_ratio cannot be called"),
    "validate": (lambda a: asc.attention_entropy(a, validate=True), "attention_entropy: validate cannot"),
    "places": (
        lambda a: asc.attention_entropy(a[..., :2, :], query_positions=[1, 4]),
        "attention_entropy: support='auto' cannot look",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_at_entries_is_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    for transformed in (torch.vmap(function), torch.vmap(torch.func.grad(loss(function)))):
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=f"^{re.escape(words)}"):
            transformed(samples())


def test_batches_of_other_arguments_are_refused_by_name() -> None:
    batch = samples()
    with pytest.raises(TypeError, match=r"^attention_entropy: lengths cannot be a tensor of torch\.vmap"):
        torch.vmap(lambda a, size: asc.attention_entropy(a, lengths=size))(batch, torch.tensor([3, 4, 5, 6]))
    maps = batch[0]
    with pytest.raises(TypeError, match=r"^attention_entropy: lengths cannot be a tensor of torch\.vmap"):
        torch.vmap(lambda size: asc.attention_entropy(maps, lengths=size))(torch.tensor([3, 4, 5, 6]))


def test_second_derivatives_are_refused_inside_transforms() -> None:
    def of_first(attention: Tensor) -> Tensor:
        return torch.func.grad(loss(asc.attention_entropy))(attention).sum()

    with pytest.raises(NotImplementedError, match="attention_entropy has no second derivative here"):
        torch.func.grad(of_first)(samples())


def test_tensors_outside_a_transform_are_measured_as_ever() -> None:
    maps = samples()[0]
    expected = asc.fiedler_vector(maps)
    results = torch.vmap(lambda factor: factor * asc.fiedler_vector(maps))(torch.ones(2, dtype=torch.float64))
    assert_close(results, expected.expand(2, *expected.shape))
