# SPDX-License-Identifier: MIT
"""What torch asks of an operator, what has no derivative, and values that stay the core's, bit by bit."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.gradients import dispatch

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ),
]
#: The core, and torch operations where the maps are.
IMPLEMENTATIONS = ("core", "torch")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def heads(n: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return two layers of three causal heads [2, 3, n, n]."""
    logits = torch.randn(2, 3, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf).softmax(-1).to(dtype)


#: States of eight tokens.
STATES = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


#: Every differentiable function, with its arguments, as a function of heads alone; each gives one tensor.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention_entropy": asc.attention_entropy,
    "causal_spectrum": lambda a: asc.causal_spectrum(a).laplacian,
    "effective_rank": asc.effective_rank,
    "fiedler_value": asc.fiedler_value,
    "geometric_semantic_alignment": lambda a: asc.geometric_semantic_alignment(a, STATES.to(a.device)),
    "head_divergence": asc.head_divergence,
    "incoming_attention": asc.incoming_attention,
    "laplacian_eigenvalues": lambda a: asc.laplacian_eigenvalues(a, 3),
    "laplacian_gap": asc.laplacian_gap,
    "laplacian_shape": lambda a: asc.laplacian_shape(a).entropy,
    "lookback": lambda a: asc.lookback(a, (3, 7)).value,
    "marchenko_pastur": lambda a: asc.marchenko_pastur(a).wasserstein,
    "participation_ratio": asc.participation_ratio,
    "pattern_share": lambda a: asc.pattern_share(a, ["previous", "first"]).share,
    "prompt_divergence": lambda a: asc.prompt_divergence(a, (3, 7)).total,
    "persistence": lambda a: asc.total_persistence(asc.persistence(a)),
    "reference_influence": lambda a: asc.reference_influence(
        a, STATES.to(a.device), torch.arange(a.shape[-1]) == 0
    ).relative_magnitude[..., 1:],
    "singular_values": asc.singular_values,
    "sink_share": lambda a: asc.sink_share(a).share,
    "spectral_gap": asc.spectral_gap,
    "spectral_ratio": asc.spectral_ratio,
    "stable_rank": asc.stable_rank,
    "top_mass": lambda a: asc.top_mass(a, 2),
}
#: Bars are as many as there are, and answers and patterns are checked by their values, neither of which a
#: compiled graph knows.
NOT_COMPILED = {
    "causal_spectrum",
    "lookback",
    "marchenko_pastur",
    "pattern_share",
    "persistence",
    "prompt_divergence",
}
COMPILED = [name for name in FUNCTIONS if name not in NOT_COMPILED]


def test_every_differentiable_function_is_tested_here() -> None:
    assert set(FUNCTIONS) == set(dispatch.KERNELS)


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure small maps on the device too, where the CPU would be faster."""
    monkeypatch.setattr("attnscope.devices.placement.FEWEST_BYTES", 0)
    monkeypatch.setattr("attnscope.devices.placement.CUDA_IS_SLOWER", {})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_without_a_gradient(
    name: str, dtype: torch.dtype, device: str, implementation: str
) -> None:
    if device != "cpu" and implementation == "core":
        pytest.skip("a device's maps are measured by torch operations")
    with asc.devices.use(implementation):
        check_values(name, dtype, device)


def check_values(name: str, dtype: torch.dtype, device: str) -> None:
    maps = heads(dtype=dtype).to(device)
    leaf = maps.clone().requires_grad_()
    result = FUNCTIONS[name](leaf)
    assert torch.equal(result.detach(), FUNCTIONS[name](maps))
    result.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == dtype
    assert leaf.grad.device == maps.device
    assert leaf.grad.isfinite().all()
    assert leaf.grad.any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_do_not_change_the_gradient(name: str) -> None:
    def gradient_of(maps: Tensor) -> Tensor:
        leaf = maps.detach().requires_grad_()
        FUNCTIONS[name](leaf).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    maps = heads()
    apart = torch.zeros(2, 3, 8, 16, dtype=torch.float64)[..., ::2].copy_(maps)
    assert not apart.is_contiguous()
    assert torch.equal(gradient_of(maps), gradient_of(apart))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::attnscope.errors.NonFiniteWarning")
def test_a_map_that_is_not_finite_spoils_no_other_gradient(name: str) -> None:
    """A layer shares its mean, so the other layer is looked at."""
    maps = heads()
    broken = maps.clone()
    broken[1, 1, 3, 2] = torch.nan
    leaf, unspoiled = broken.requires_grad_(), maps.clone().requires_grad_()
    FUNCTIONS[name](leaf)[0].sum().backward()
    FUNCTIONS[name](unspoiled)[0].sum().backward()
    assert leaf.grad is not None
    assert unspoiled.grad is not None
    assert torch.equal(leaf.grad[0], unspoiled.grad[0])
    assert not leaf.grad[1].any()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_without_a_break(name: str) -> None:
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager")
    leaf, other = heads().requires_grad_(), heads().requires_grad_()
    result = compiled(leaf)
    result.sum().backward()
    expected = FUNCTIONS[name](other)
    expected.sum().backward()
    assert torch.equal(result, expected)
    assert torch.equal(leaf.grad, other.grad)


OPERATORS = {
    "attention_entropy": ("causal", None, False),
    "incoming_attention": ("causal", None),
    "sink_share": ("full", None, 1, 8),
    "top_mass": ("auto", None, 2),
    "head_divergence": ("causal", None),
    "singular_values": (),
    "participation_ratio": ("singular",),
    "laplacian_eigenvalues": (3, "mean", False),
    "fiedler_value": ("mean", False, "exact"),
    "geometric_semantic_alignment": ("causal", None, STATES.expand(2, 3, 8, 4), None, None),
    "lookback": ("auto", None, torch.tensor([3, 7, 2]), True),
    "marchenko_pastur": ("causal", "auto"),
    "pattern_share": ("auto", None, "previous first", None, None, False),
    "prompt_divergence": ("auto", None, torch.tensor([3, 7])),
    "reference_influence": (
        "causal",
        None,
        STATES.expand(2, 3, 8, 4),
        torch.arange(8).expand(2, 3, 8) == 0,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_finds_the_operators_right(name: str) -> None:
    importlib.import_module("attnscope.gradients.catalogue")
    operator = getattr(torch.ops.attnscope, name).default
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if name in ("lookback", "marchenko_pastur", "reference_influence"):
        # NaN for queries outside the answer or in the reference, or of the p-value of a law, is right,
        # and the last check compares it as unequal
        checks.remove("test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, (heads().requires_grad_(), None, *OPERATORS[name]), test_utils=checks)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_refused_by_name(name: str) -> None:
    if name == "persistence":
        pytest.skip("the distance of an edge is linear in its entries, so the second derivative is 0")
    leaf = heads().requires_grad_()
    (first,) = torch.autograd.grad(FUNCTIONS[name](leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="has no second derivative here"):
        first.sum().backward()


#: Functions without a derivative, and a word of the reason that the error gives.
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "marchenko_pastur_deviation": (lambda a: asc.marchenko_pastur_deviation(a), "supremum"),
    "graph_statistics": (lambda a: asc.graph_statistics(a, [0.2]).density, "threshold"),
    "local_global_ratio": (lambda a: asc.local_global_ratio(a), "sink_share"),
    "fiedler_vector": (lambda a: asc.fiedler_vector(a), "sign"),
    "fiedler_value": (lambda a: asc.fiedler_value(a, threshold=0.2), "threshold"),
    "laplacian_eigenvalues": (lambda a: asc.laplacian_eigenvalues(a, 2, threshold=0.2), "threshold"),
    "participation_ratio": (lambda a: asc.participation_ratio(a, spectrum="eigen"), "not symmetric"),
    "measure": (lambda a: asc.measure(a, ["attention_entropy"])["attention_entropy"], "one by one"),
    "sink_removal": (lambda a: asc.sink_removal(a, [0]).kl_reduction, "excluded"),
    "power_spectrum": (lambda a: asc.power_spectrum(a)[0], "reading"),
    "graph_signal": (lambda a: asc.graph_signal(a, a.new_ones(a.shape[-1], 2)).entropy, "equal"),
    "massive_activations": (lambda a: asc.massive_activations(a).largest, "reading"),
    "weight_spectrum": (lambda a: asc.weight_spectrum(a).alpha, "tail"),
    "gride": (lambda a: asc.gride(a, 2), "bisection"),
    "neighbourhood_overlap": (lambda a: asc.neighbourhood_overlap(a, a.detach(), 2), "ranks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_derivative_says_so_and_only_then(name: str) -> None:
    function, reason = REFUSED[name]
    maps = heads(16)
    leaf = maps.clone().requires_grad_()
    result = function(leaf)
    assert torch.equal(result.detach().nan_to_num(), function(maps).nan_to_num())
    with pytest.raises(NotImplementedError, match=f"{name} has no derivative.*{reason}"):
        result.nan_to_num().sum().backward()


def test_counts_and_flags_never_require_a_gradient() -> None:
    leaf = heads(16).requires_grad_()
    for result in (
        asc.betti_numbers(leaf, 0.2),
        asc.graph_statistics(leaf, 0.2).strong_components,
        asc.massive_activations(leaf).count,
        asc.pattern_share(leaf, "previous").queries,
        asc.sink_tokens(leaf),
        asc.sink_rate(leaf),
    ):
        assert not result.requires_grad


def test_without_a_gradient_nothing_is_kept() -> None:
    leaf = heads().requires_grad_()
    with torch.no_grad():
        assert not asc.attention_entropy(leaf).requires_grad
    assert not asc.attention_entropy(leaf.detach()).requires_grad


def test_a_call_without_a_gradient_imports_no_derivative() -> None:
    program = (
        "import sys, torch, attnscope as asc; asc.fiedler_value(torch.eye(3)); "
        "sys.exit(any(name.startswith('attnscope.gradients.catalogue') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_results_that_share_memory_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device's results do, which come to the CPU in one transfer."""
    from attnscope import _core
    from attnscope.gradients import operators

    def packed(*_: object) -> tuple[Tensor | int, ...]:
        memory = torch.arange(4, dtype=torch.float64)
        return memory[:2], memory[2:], 0

    monkeypatch.setattr(operators.placement, "computed_on", lambda kernel, maps: packed)
    first, second, _ = operators.evaluate("fiedler_value", heads(), None)
    assert hasattr(_core, "fiedler_value")
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_lambda2_of_a_complete_graph_is_pulled_evenly() -> None:
    """All n − 1 eigenvalues are equal, and by symmetry every weight has the same derivative.

    Their sum is the trace Σ_i d_i, so the mean of its derivative over n − 1 equal ones is 2/(n − 1) for each
    weight, that is 1/(n − 1) for each entry of a map.
    """
    n = 6
    leaf = torch.full((n, n), 1 / n, dtype=torch.float64, requires_grad=True)
    with pytest.warns(UserWarning, match="equal to its neighbour"):
        asc.fiedler_value(leaf).backward()
    expected = torch.where(torch.eye(n, dtype=torch.bool), 0.0, 1 / (n - 1)).double()
    assert torch.allclose(leaf.grad, expected, atol=1e-12)


@pytest.mark.parametrize("function", [asc.spectral_gap, asc.spectral_ratio])
def test_the_gap_of_equal_singular_values_is_pulled_nowhere(function: Callable[[Tensor], Tensor]) -> None:
    """Whatever basis of the space of the two is taken: it can only grow, in all directions alike."""
    leaf = torch.eye(5, dtype=torch.float64).roll(1, 0).requires_grad_()
    with pytest.warns(UserWarning, match="singular value with a gradient is equal to its neighbour"):
        function(leaf).backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().max() < 1e-12


def test_the_largest_of_equal_singular_values_has_the_mean_gradient() -> None:
    """The mean of u vᵀ over all n is the permutation itself over n; the stable rank is ‖A‖²/σ1²."""
    permutation = torch.eye(5, dtype=torch.float64).roll(2, 0)
    leaf = permutation.clone().requires_grad_()
    with pytest.warns(UserWarning, match="equal to its neighbour"):
        asc.singular_values(leaf)[0].backward()
    assert torch.allclose(leaf.grad, permutation / 5, atol=1e-14)


def test_a_function_that_treats_equal_values_alike_is_not_warned_of() -> None:
    """The sum of squares of eigenvalues is ‖L‖², that of the singular values ‖A‖²."""
    uniform = torch.full((7, 7), 1 / 7, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf = uniform.clone().requires_grad_()
        asc.laplacian_eigenvalues(leaf).square().sum().backward()
        laplacian = leaf.detach().sum(0).diag() - leaf.detach()
        # ∂‖L‖²/∂W_ij = 2(L_ii + L_jj − 2 L_ij), half of it for each of A_ij and A_ji
        expected = laplacian.diagonal()[:, None] + laplacian.diagonal() - 2 * laplacian
        assert torch.allclose(leaf.grad, expected - expected.diag().diag(), atol=1e-12)
        leaf = torch.eye(7, dtype=torch.float64).requires_grad_()
        asc.singular_values(leaf).square().sum().backward()
        assert torch.allclose(leaf.grad, 2 * torch.eye(7, dtype=torch.float64), atol=1e-12)
        leaf = torch.eye(7, dtype=torch.float64).requires_grad_()
        asc.effective_rank(leaf).backward()
        assert leaf.grad.abs().max() < 1e-12


def test_lambda2_of_two_parts_grows_with_the_weight_between_them() -> None:
    """Two pairs: v is ±1/2 on them, so a weight between them has the derivative (1/2 + 1/2)² = 1."""
    leaf = torch.zeros(4, 4, dtype=torch.float64)
    leaf[0, 1] = leaf[1, 0] = leaf[2, 3] = leaf[3, 2] = 1
    leaf.requires_grad_()
    value = asc.fiedler_value(leaf)
    value.backward()
    assert value.item() == 0
    assert leaf.grad[0, 2].item() == pytest.approx(0.5)
    assert leaf.grad[0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_the_gradient_of_a_bar_goes_to_the_entries_that_it_records() -> None:
    """A ring of four: its loop opens with the last edge of the ring and is filled by a diagonal."""
    ring = torch.zeros(4, 4, dtype=torch.float64)
    for token, weight in enumerate((0.9, 0.8, 0.7, 0.6)):
        ring[token, (token + 1) % 4] = weight
    ring[0, 2], ring[1, 3] = 0.2, 0.1
    leaf = ring.requires_grad_()
    total = asc.total_persistence(asc.persistence(leaf))
    # the loop is open from 1 - .6 to 1 - .2
    assert total[1].item() == pytest.approx(0.4)
    total[1].backward()
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[3, 0], expected[0, 2] = 1.0, -1.0
    assert torch.equal(leaf.grad, expected)


def test_training_on_sink_share_moves_it() -> None:
    """Ten steps of gradient descent on logits, each of which must lower the share."""
    logits = torch.zeros(8, 8, dtype=torch.float64, requires_grad=True)
    shares = []
    for _ in range(10):
        share = asc.sink_share(logits.softmax(-1)).share
        shares.append(share.item())
        (gradient,) = torch.autograd.grad(share, logits)
        logits = (logits - 5 * gradient).detach().requires_grad_()
    assert all(later < earlier for earlier, later in itertools.pairwise(shares))


def test_no_warning_on_the_way() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, function in FUNCTIONS.items():
            leaf = heads().requires_grad_()
            function(leaf).sum().backward()
            assert leaf.grad is not None, name
