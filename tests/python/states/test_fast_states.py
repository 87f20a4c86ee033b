# SPDX-License-Identifier: MIT
"""Alignment and influence in "fast": within their stated bounds of "exact", or measured exactly."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import attnscope as asc
from attnscope import _precision
from attnscope.errors import NonFiniteWarning
from strategies import REGIMES, regime_maps

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = (1, 2, 3, 16, 47, 64, 65, 100, 145, 300)


def states_of(n: int, width: int, heads: int = 3) -> torch.Tensor:
    return torch.randn(2, heads, n, width, generator=torch.Generator().manual_seed(n + width))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("regime", REGIMES)
def test_alignment_holds_its_bound(regime: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        for width, heads in ((7, 3), (130, 1)):
            maps, states = regime_maps(regime, n, dtype), states_of(n, width, heads)
            exact = asc.geometric_semantic_alignment(maps, states)
            fast = asc.geometric_semantic_alignment(maps, states, precision="fast")
            torch.testing.assert_close(fast, exact, rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("regime", REGIMES)
def test_influence_holds_its_bound(regime: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        for width, heads in ((7, 3), (130, 1)):
            maps, states = regime_maps(regime, n, dtype), states_of(n, width, heads)
            reference = torch.arange(n) % 5 == 0
            exact = asc.reference_influence(maps, states, reference)
            fast = asc.reference_influence(maps, states, reference, precision="fast")
            torch.testing.assert_close(
                fast.relative_magnitude, exact.relative_magnitude, rtol=2e-5, atol=2e-5, equal_nan=True
            )
            for name in ("directional", "information_change"):
                torch.testing.assert_close(
                    getattr(fast, name), getattr(exact, name), rtol=0, atol=1e-5, equal_nan=True
                )


def test_cosines_that_hardly_vary_are_measured_exactly_and_counted() -> None:
    maps = regime_maps("sink", 40, torch.float32)
    states = torch.ones(2, 3, 40, 8, dtype=torch.float64)
    states[0, 1] += 1e-4 * states_of(40, 8)[0, 1]
    states[1] = states_of(40, 8)[1]
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        fast = asc.geometric_semantic_alignment(maps, states, precision="fast")
    exact = asc.geometric_semantic_alignment(maps, states)
    assert counts == {"geometric_semantic_alignment": 3}
    assert torch.equal(fast[0].nan_to_num(9.0), exact[0].nan_to_num(9.0))
    assert not torch.equal(fast[1], exact[1])


def test_outputs_that_cancel_are_measured_exactly_and_counted() -> None:
    maps = torch.full((2, 40, 40), 1 / 40)
    states = states_of(40, 8)[0, :2].double()
    states[1, 20:] = -states[1, :20] + 1e-6
    reference = torch.arange(40) == 0
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        fast = asc.reference_influence(maps, states, reference, precision="fast")
    exact = asc.reference_influence(maps, states, reference)
    assert counts == {"reference_influence": 1}
    for ours, expected in zip(fast, exact, strict=True):
        assert torch.equal(ours[1].nan_to_num(9.0), expected[1].nan_to_num(9.0))
        assert not torch.equal(ours[0].nan_to_num(9.0), expected[0].nan_to_num(9.0))


def test_states_beyond_float32_are_measured_exactly() -> None:
    maps, states = regime_maps("diffuse", 20, torch.float64), states_of(20, 4).double()
    states[1] *= 1e30
    reference = torch.arange(20) == 3
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        fast = asc.reference_influence(maps, states, reference, precision="fast")
    exact = asc.reference_influence(maps, states, reference)
    assert counts["reference_influence"] >= 3
    assert torch.equal(fast.directional[1].nan_to_num(9.0), exact.directional[1].nan_to_num(9.0))


def test_a_bad_map_spoils_no_neighbour() -> None:
    maps, states = regime_maps("peaky", 30, torch.float32), states_of(30, 6)
    spoiled = maps.clone()
    spoiled[0, 1, 4, 2] = torch.nan
    reference = torch.arange(30) == 0
    with pytest.warns(NonFiniteWarning):
        alignment = asc.geometric_semantic_alignment(spoiled, states, precision="fast")
    with pytest.warns(NonFiniteWarning):
        influence = asc.reference_influence(spoiled, states, reference, precision="fast").directional
    expected = asc.geometric_semantic_alignment(maps, states, precision="fast")
    assert alignment[0, 1].isnan()
    assert influence[0, 1].isnan().all()
    alignment[0, 1] = expected[0, 1]
    assert torch.equal(alignment, expected)


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_maps_without_variance_or_direction(precision: str) -> None:
    eye = torch.eye(20).expand(2, 3, 20, 20)
    states = states_of(20, 5)
    assert asc.geometric_semantic_alignment(eye, states, precision=precision).isnan().all()  # type: ignore[arg-type]
    states[0, 0, 7] = 0.0
    maps = regime_maps("bidirectional", 20, torch.float32)
    others = torch.arange(20) != 7
    left_out = asc.geometric_semantic_alignment(
        maps[0, 0][others][:, others],
        states[0, 0][others],
        support="full",
        precision=precision,  # type: ignore[arg-type]
    )
    aligned = asc.geometric_semantic_alignment(maps, states, precision=precision)  # type: ignore[arg-type]
    torch.testing.assert_close(aligned[0, 0], left_out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [2.0**-110, 2.0**-130, 2.0**-140, 2.0**-145, 2.0**-200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("of_reference", [False, True], ids=["all entries", "those of the reference"])
def test_influence_of_tiny_weights_holds_its_bound(
    of_reference: bool, dtype: torch.dtype, scale: float
) -> None:
    """Products of weights below float32's normal numbers lose their digits there, so these are exact."""
    n = 40
    maps, states = regime_maps("diffuse", n, torch.float64), states_of(n, 7)
    reference = torch.arange(n) % 5 == 0
    tiny = torch.where(reference, maps * scale, maps) if of_reference else maps * scale
    tiny = tiny.to(dtype)
    exact = asc.reference_influence(tiny, states, reference)
    fast = asc.reference_influence(tiny, states, reference, precision="fast")
    torch.testing.assert_close(
        fast.relative_magnitude, exact.relative_magnitude, rtol=2e-5, atol=0, equal_nan=True
    )
    torch.testing.assert_close(fast.directional, exact.directional, rtol=0, atol=1e-5, equal_nan=True)
