# SPDX-License-Identifier: MIT
"""Derivatives of maps of fewer or more queries than keys: finite differences, torch's checks, square maps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.gradients import operators

QUERIES, KEYS = 3, 6
STATES = torch.randn(KEYS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
STATES_OF_QUERIES = torch.randn(QUERIES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
REFERENCE = torch.tensor([True, False, False, True, False, False])
#: Where the queries stand, and how many of them and of the keys are real.
PLACES: dict[str, dict[str, Any]] = {
    "at the last keys": {},
    "ragged": {"lengths": torch.tensor([6, 4]), "query_lengths": torch.tensor([3, 2])},
    "without a query": {"lengths": torch.tensor([6, 4]), "query_lengths": torch.tensor([3, 0])},
    "at keys in the middle": {"query_positions": [2, 3, 4]},
    "at keys that do not follow each other": {"query_positions": [0, 3, 5]},
    "at none": {"cross": True},
}
IMPLEMENTATIONS = ("core", "torch")


def maps_of(places: str, *, causal: bool, leading: tuple[int, ...] = (2,)) -> Tensor:
    """Return softmax attention [*leading, QUERIES, KEYS] whose queries see the keys up to their own."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(*leading, QUERIES, KEYS, dtype=torch.float64, generator=generator)
    stand = torch.tensor(PLACES[places].get("query_positions", [3, 4, 5]))
    if places == "ragged":
        stand = torch.tensor([[3, 4, 5], [2, 3, 4]])
        stand = stand.reshape(2, *[1] * (len(leading) - 1), QUERIES)
    if causal:
        logits = logits.masked_fill(torch.arange(KEYS) > stand[..., None], -torch.inf)
    return logits.softmax(-1)


def defined(result: Tensor) -> Tensor:
    """Return the result with 0 for what is undefined, which finite differences cannot compare."""
    return result.nan_to_num(0.0)


#: Measures that have a derivative of rectangles; each takes the maps and where their queries stand.
MEASURES: dict[str, Callable[..., Tensor]] = {
    "entropy": lambda a, **o: defined(asc.attention_entropy(a, **o)),
    "normalized entropy": lambda a, **o: defined(asc.attention_entropy(a, normalized=True, **o)),
    "incoming attention": lambda a, **o: defined(asc.incoming_attention(a, **o)),
    "sink share": lambda a, **o: defined(asc.sink_share(a, first=2, queries=2, **o).share),
    "top mass": lambda a, **o: defined(asc.top_mass(a, 2, **o)),
}
SPECTRA: dict[str, Callable[..., Tensor]] = {
    "singular values": lambda a, **o: defined(asc.singular_values(a, **o)),
    "stable rank": lambda a, **o: defined(asc.stable_rank(a, **o)),
    "effective rank": lambda a, **o: defined(asc.effective_rank(a, **o)),
    "spectral gap": lambda a, **o: defined(asc.spectral_gap(a, **o)),
    "participation ratio": lambda a, **o: defined(asc.participation_ratio(a, **o)),
}


def check(function: Callable[..., Tensor], *tensors: Tensor) -> None:
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", MEASURES)
def test_rows_and_keys(name: str, places: str, causal: bool, implementation: str) -> None:
    if causal and places == "at none":
        pytest.skip("in cross attention nothing is causal")
    maps = maps_of(places, causal=causal)
    support = "causal" if causal else "full"
    with asc.devices.use(implementation):
        check(lambda a: MEASURES[name](a, support=support, **PLACES[places]), maps)


@pytest.mark.parametrize("places", ["at the last keys", "ragged", "at none"])
@pytest.mark.parametrize("name", SPECTRA)
def test_spectra(name: str, places: str) -> None:
    check(lambda a: SPECTRA[name](a, **PLACES[places]), maps_of(places, causal=False))


@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_of_more_queries_than_keys(name: str) -> None:
    """A map and its transpose have the same singular values."""
    maps = maps_of("at none", causal=False)
    check(lambda a: SPECTRA[name](a.mT, cross=True), maps)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("places", [name for name in PLACES if name != "without a query"])
def test_divergence_of_heads(places: str, implementation: str) -> None:
    maps = maps_of(places, causal=places != "at none", leading=(2, 3))
    options = {"support": "full" if places == "at none" else "causal", **PLACES[places]}
    with asc.devices.use(implementation):
        check(lambda a: asc.head_divergence(a, **options), maps)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("places", PLACES)
def test_alignment_and_influence_of_states(places: str, implementation: str) -> None:
    maps = maps_of(places, causal=places != "at none")
    options = {"support": "full" if places == "at none" else "causal", **PLACES[places]}
    without = torch.tensor([False, True, False, False, False, False])
    with asc.devices.use(implementation):
        check(
            lambda a, s, q: defined(
                asc.geometric_semantic_alignment(a, s, query_states=q, without=without, **options)
            ),
            maps,
            STATES,
            STATES_OF_QUERIES,
        )
        if places != "at none":
            check(lambda a, s: defined(asc.geometric_semantic_alignment(a, s, **options)), maps, STATES)
        for part in range(3):
            check(
                lambda a, s, part=part: defined(asc.reference_influence(a, s, REFERENCE, **options)[part]),
                maps,
                STATES,
            )


#: Every measure with a derivative, with all that it needs besides maps [2, 3, q, k].
OF_HEADS: dict[str, Callable[..., Tensor]] = {
    **MEASURES,
    **SPECTRA,
    "head divergence": asc.head_divergence,
    "alignment": lambda a, **o: asc.geometric_semantic_alignment(
        a, STATES, query_states=STATES_OF_QUERIES, **o
    ),
    "influence": lambda a, **o: defined(
        asc.reference_influence(a, STATES, REFERENCE, **o).relative_magnitude
    ),
}


@pytest.mark.parametrize("name", OF_HEADS)
def test_compiled_without_a_break(name: str) -> None:
    compiled = torch.compile(OF_HEADS[name], fullgraph=True, backend="aot_eager")
    maps = maps_of("at the last keys", causal=True, leading=(2, 3))
    leaf, other = maps.clone().requires_grad_(), maps.clone().requires_grad_()
    result, expected = compiled(leaf), OF_HEADS[name](other)
    result.sum().backward()
    expected.sum().backward()
    assert torch.equal(result, expected)
    assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OF_HEADS)
def test_values_are_those_without_a_gradient(name: str, dtype: torch.dtype, implementation: str) -> None:
    maps = maps_of("at the last keys", causal=True, leading=(2, 3)).to(dtype)
    leaf = maps.clone().requires_grad_()
    with asc.devices.use(implementation):
        result = OF_HEADS[name](leaf)
        assert torch.equal(result.detach(), OF_HEADS[name](maps))
        result.sum().backward()
    assert leaf.grad.dtype == dtype
    assert leaf.grad.isfinite().all()
    assert leaf.grad.any()


@pytest.mark.parametrize("name", OF_HEADS)
@pytest.mark.filterwarnings("ignore::attnscope.errors.NonFiniteWarning")
def test_a_map_that_is_not_finite_spoils_no_other_gradient(name: str) -> None:
    maps = maps_of("at the last keys", causal=True, leading=(2, 3))
    broken = maps.clone()
    broken[1, 1, 2, 0] = torch.nan
    leaf, unspoiled = broken.requires_grad_(), maps.clone().requires_grad_()
    OF_HEADS[name](leaf)[0].sum().backward()
    OF_HEADS[name](unspoiled)[0].sum().backward()
    assert torch.equal(leaf.grad[0], unspoiled.grad[0])
    assert not leaf.grad[1].any()


@pytest.mark.parametrize("name", [*MEASURES, *SPECTRA, "alignment", "influence"])
def test_last_rows_have_the_gradient_of_the_square_map_with_rows_of_zeros(name: str) -> None:
    """A row of zeros has no entropy and no mass; shares are over the last two queries."""
    if name in ("incoming attention", "alignment"):
        pytest.skip("queries of zeros count in its denominator, or as pairs")
    maps = maps_of("at the last keys", causal=True)
    leaf, padded = maps.clone().requires_grad_(), maps.clone().requires_grad_()
    options = {"support": "causal"} if name in MEASURES else {}
    calls = dict(OF_HEADS)
    calls["influence"] = lambda a, **o: defined(asc.reference_influence(a, STATES, REFERENCE)[0])
    calls[name](leaf, **options).sum().backward()
    square = torch.nn.functional.pad(padded, (0, 0, KEYS - QUERIES, 0))
    calls[name](square, **options).sum().backward()
    torch.testing.assert_close(leaf.grad, padded.grad, rtol=1e-9, atol=1e-12)


def test_sizes_and_places_survive_the_way_into_an_operator() -> None:
    from attnscope.arguments.maps import Extent

    maps = torch.zeros(2, QUERIES, KEYS)
    positions = torch.tensor([[0, 1, 5], [2, 3, 4]])
    keys, queries = torch.tensor([6, 4]), torch.tensor([3, 0])
    for extent in (
        Extent(None, None, None, False),
        Extent(keys, None, None, False),
        Extent(None, queries, None, True),
        Extent(keys, queries, positions, False),
    ):
        again = operators.extent_of(operators.sizes_argument(extent, maps), maps)
        assert again.cross is extent.cross
        for have, want in zip(again[:3], extent[:3], strict=True):
            assert (have is None) == (want is None)
            assert have is None or torch.equal(have, want)
    assert operators.extent_of(keys, torch.zeros(2, 6, 6)) is keys
    assert operators.extent_of(None, maps) is None


@pytest.mark.parametrize("cross", [True, False])
def test_torch_finds_the_operators_of_rectangles_right(cross: bool) -> None:
    from attnscope.arguments.maps import Extent

    importlib.import_module("attnscope.gradients.catalogue")
    maps = maps_of("at the last keys", causal=not cross, leading=(2, 3))
    sizes = operators.sizes_argument(Extent(None, None, None, cross), maps)
    beside = (STATES.expand(2, 3, KEYS, 4), None, STATES_OF_QUERIES.expand(2, 3, QUERIES, 4))
    arguments: dict[str, tuple[Any, ...]] = {
        "attention_entropy": ("full", None, False),
        "incoming_attention": ("full", None),
        "sink_share": ("full", None, 1, 3),
        "top_mass": ("auto", None, 2),
        "head_divergence": ("full", None),
        "singular_values": (),
        "participation_ratio": ("singular",),
        "geometric_semantic_alignment": ("full", None, *beside),
    }
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    for name, rest in arguments.items():
        operator = getattr(torch.ops.attnscope, name).default
        inputs = (maps.clone().requires_grad_(), sizes, *rest)
        torch.library.opcheck(operator, inputs, test_utils=checks)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("span_attention", lambda a: asc.span_attention(a, [0, 2]).share),
        ("power_spectrum", lambda a: asc.power_spectrum(a)[0]),
        ("local_global_ratio", asc.local_global_ratio),
        ("marchenko_pastur_deviation", asc.marchenko_pastur_deviation),
    ],
)
def test_what_has_no_derivative_of_a_rectangle_says_so(name: str, call: Callable[[Tensor], Tensor]) -> None:
    leaf = maps_of("at the last keys", causal=True).requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{name} has no derivative"):
        call(leaf).nan_to_num().sum().backward()
