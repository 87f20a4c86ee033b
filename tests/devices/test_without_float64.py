# SPDX-License-Identifier: MIT
"""Measures on a device without float64: sums in float32 that keep what rounding takes away."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import attnscope as asc
from attnscope.devices import compensated_sums, placement, slab, slabs
from on_device import CPU, attention, on_device

pytestmark = pytest.mark.filterwarnings(
    "ignore::attnscope.errors.NonFiniteWarning", "ignore::attnscope.errors.NotAttentionWarning"
)
#: What the page *Devices* promises, relative to 1 + the size of a number.
BOUND = 2**-21


@pytest.fixture
def no_float64(monkeypatch):
    """Let torch operations calculate in float32, as on MPS."""
    for module in (slab, slabs):
        monkeypatch.setattr(module, "arithmetic_type", lambda device: torch.float32)


@pytest.fixture
def no_plain_sums(monkeypatch):
    """Refuse sums of more than two float32 numbers, and products of more than are multiplied together."""
    plain_sum, product = torch.Tensor.sum, torch.Tensor.__matmul__

    def is_long(tensor: torch.Tensor, *axes: Any, **options: Any) -> bool:
        axis = options.get("dim", axes[0] if axes else None)
        size = tensor.numel() if not isinstance(axis, int) else tensor.shape[axis]
        return tensor.dtype == torch.float32 and size > 2

    def refuse_sum(tensor: torch.Tensor, *axes: Any, **options: Any) -> torch.Tensor:
        assert not is_long(tensor, *axes, **options), f"a plain sum of {tuple(tensor.shape)}"
        return plain_sum(tensor, *axes, **options)

    def refuse_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        most = compensated_sums.COLUMNS_TOGETHER
        assert left.dtype != torch.float32 or left.shape[-1] <= most, f"a plain product {tuple(left.shape)}"
        return product(left, right)

    for name in ("mean", "nanmean", "nansum", "cumsum", "norm"):
        original = getattr(torch.Tensor, name)

        def refuse(
            tensor: torch.Tensor, *axes: Any, original: Any = original, **options: Any
        ) -> torch.Tensor:
            assert not is_long(tensor, *axes, **options), f"{original} of {tuple(tensor.shape)}"
            return original(tensor, *axes, **options)

        monkeypatch.setattr(torch.Tensor, name, refuse)
    norm = torch.linalg.vector_norm

    def refuse_norm(vectors: torch.Tensor, **options: Any) -> torch.Tensor:
        assert not is_long(vectors, -1), f"a plain norm of {tuple(vectors.shape)}"
        return norm(vectors, **options)

    monkeypatch.setattr(torch.linalg, "vector_norm", refuse_norm)
    monkeypatch.setattr(torch.Tensor, "sum", refuse_sum)
    monkeypatch.setattr(torch.Tensor, "__matmul__", refuse_product)


def exact_sum(values: torch.Tensor) -> float:
    return math.fsum(values.tolist())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 65537])
@pytest.mark.parametrize("kind", ["positive", "alternating", "one large and many small", "geometric"])
def test_a_sum_has_one_rounding(kind: str, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    values = torch.rand(count, generator=generator)
    if kind == "alternating":
        values = torch.where(torch.arange(count) % 2 == 0, values, -values)
    elif kind == "one large and many small":
        values = torch.full((count,), 2.0**-25)
        values[0] = 1.0
    elif kind == "geometric":
        values = values * 2.0 ** -(torch.arange(count) % 100).float()
    total = compensated_sums.sum_along(values)
    exact = exact_sum(values)
    magnitudes = exact_sum(values.abs())
    assert total.dtype == torch.float32
    assert abs(total.item() - exact) <= 2**-24 * abs(exact) + count.bit_length() * 2**-46 * magnitudes


def test_a_plain_sum_of_such_numbers_is_further_off() -> None:
    """A float32 loop over one large and many small numbers keeps the large one alone."""
    values = torch.full((4097,), 2.0**-25)
    values[0] = 1.0
    plain = torch.tensor(0.0)
    for value in values:
        plain = plain + value
    exact = exact_sum(values)
    assert abs(plain.item() - exact) / exact > 2**-14
    assert abs(compensated_sums.sum_along(values).item() - exact) / exact <= 2**-24


def test_axes_shapes_and_what_is_not_finite_are_torch_s() -> None:
    values = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    for dim in (0, 1, -1, -2):
        for keepdim in (False, True):
            for part in (values, values.double(), values.bool(), values[:, :0], values[:0]):
                expected = part.sum(dim, keepdim=keepdim)
                computed = compensated_sums.sum_along(part, dim, keepdim=keepdim)
                torch.testing.assert_close(computed, expected)
                assert computed.shape == expected.shape
    for entry in (math.inf, -math.inf, math.nan):
        broken = values.clone()
        broken[0, 2, 1] = entry
        expected = broken.sum(-1)
        torch.testing.assert_close(compensated_sums.sum_along(broken), expected, equal_nan=True)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 300])
def test_products_are_within_the_roundings_of_a_block(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    left, right = torch.rand(2, 3, width, generator=generator), torch.rand(2, width, 4, generator=generator)
    computed = compensated_sums.multiply(left, right)
    for m in range(2):
        for i in range(3):
            for j in range(4):
                terms = [
                    Fraction(a) * Fraction(b)
                    for a, b in zip(left[m, i].tolist(), right[m, :, j].tolist(), strict=True)
                ]
                exact = float(sum(terms))
                assert abs(computed[m, i, j].item() - exact) <= 2**-20 * float(sum(map(abs, terms)))
    wide = left.double() @ right.double()
    assert torch.equal(compensated_sums.multiply(left.double(), right.double()), wide)


def measures(n: int) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return every measure that runs in float32, as a function of maps [2, 3, n, n]."""
    states = torch.randn(2, 1, n, 16, generator=torch.Generator().manual_seed(2))
    marked = torch.arange(n) % 3 == 0
    learned = torch.full((2, 3, n), 0.25, dtype=torch.float64)
    answer_span = (n // 2, n - 1)
    return {
        "attention_entropy": lambda a: asc.attention_entropy(a, normalized=True),
        "incoming_attention": asc.incoming_attention,
        "sink_share": lambda a: asc.sink_share(a, first=2, queries=n // 2),
        "sink_test": asc.sink_test,
        "top_mass": lambda a: asc.top_mass(a, 2),
        "head_divergence": lambda a: asc.head_divergence(a, sink_mass=learned),
        "sink_removal": lambda a: asc.sink_removal(a, marked),
        "sink_removal with a learned sink": lambda a: asc.sink_removal(a, marked, sink_mass=learned),
        "local_global_ratio": lambda a: asc.local_global_ratio(a, window=0.2),
        "participation_ratio": asc.participation_ratio,
        "participation_ratio of the Laplacian": lambda a: asc.participation_ratio(a, spectrum="laplacian"),
        "span_attention": lambda a: asc.span_attention(a, (2, 5)),
        "geometric_semantic_alignment": lambda a: asc.geometric_semantic_alignment(a, states),
        "reference_influence": lambda a: asc.reference_influence(a, states, marked),
        "pattern_share": lambda a: asc.pattern_share(a, ["previous", "first"]),
        "lookback": lambda a: asc.lookback(a, answer_span),
        "prompt_divergence": lambda a: asc.prompt_divergence(a, answer_span),
    }


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [part for field in result for part in tensors(field)]


@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
@pytest.mark.parametrize("n", [9, 130, 400])
@pytest.mark.parametrize("name", measures(9))
def test_a_device_without_float64_is_within_its_bound(name, n, kind, no_float64):
    maps = attention(kind, n, torch.float32)
    function = measures(n)[name]
    expected, computed = tensors(function(maps)), tensors(on_device(function, CPU, maps))
    for want, have in zip(expected, computed, strict=True):
        assert have.dtype == want.dtype
        if want.dtype.is_floating_point:
            torch.testing.assert_close(have, want, rtol=BOUND, atol=BOUND, equal_nan=True)
        else:
            assert torch.equal(have, want)
    floats = [pair for pair in zip(expected, computed, strict=True) if pair[0].dtype.is_floating_point]
    assert any(not torch.equal(have.nan_to_num(), want.nan_to_num()) for want, have in floats)


@pytest.mark.parametrize("name", measures(9))
def test_no_measure_sums_plainly(name, no_float64, no_plain_sums):
    function = measures(40)[name]
    on_device(function, CPU, attention("causal", 40, torch.float32))


def test_what_lies_beside_the_maps_comes_in_float32(no_float64):
    """A device without float64 takes no tensor of that type."""
    wide = torch.ones(3, dtype=torch.float64)
    assert slabs._moved(wide, torch.device(CPU)).dtype == torch.float32
    assert slabs._moved(wide.bool(), torch.device(CPU)).dtype == torch.bool


@pytest.mark.parametrize(
    "name",
    [
        *("fiedler_value", "fiedler_vector", "laplacian_eigenvalues", "singular_values"),
        *("power_spectrum", "wavelet_transform", "spectral_uncertainty"),
    ],
)
def test_measures_of_a_tighter_bound_are_the_core_s_without_float64(name, no_float64):
    maps = attention("causal", 34, torch.float32)
    function = getattr(asc, name)
    computed, expected = tensors(on_device(function, CPU, maps)), tensors(function(maps))
    for have, want in zip(computed, expected, strict=True):
        assert torch.equal(have.nan_to_num(-7), want.nan_to_num(-7))
    assert name in placement.STAYS_ON_DEVICE
