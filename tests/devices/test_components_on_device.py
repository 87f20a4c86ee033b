# SPDX-License-Identifier: MIT
"""Bars of H0 by the Triton kernel equal the core's to the bit, on a device or in Triton's interpreter."""

import os

import pytest
import torch

import attnscope as asc
from attnscope.devices import placement
from attnscope.devices.call_counts import measured_where

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="neither a CUDA device nor TRITON_INTERPRET=1",
)
COLUMNS = ("birth", "death", "dimension", "birth_edge", "death_edge", "offsets")


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch):
    """Measure small maps on the device too, where the CPU would be faster."""
    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)


def attention(n, dtype=torch.float32, *, causal=True, levels=0):
    """Maps [2, 2, n, n]; `levels` rounds weights to so many values, so that most of them are tied."""
    logits = torch.randn(2, 2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    maps = (logits.masked_fill(hidden, -torch.inf) if causal else logits).softmax(-1)
    return ((maps * levels).round() / levels if levels else maps).to(dtype)


def assert_bars_are_the_core_s(maps, **options):
    expected = asc.persistence(maps, max_dimension=0, **options)
    before = measured_where().get(DEVICE, [])
    with asc.devices.use("torch"):
        computed = asc.persistence(maps.to(DEVICE), max_dimension=0, **options)
    assert "persistence" in measured_where()[DEVICE], before
    for column in COLUMNS:
        torch.testing.assert_close(getattr(computed, column), getattr(expected, column), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
def test_bars_and_their_edges_are_those_of_the_core(dtype, symmetrize):
    for n in (1, 2, 3, 17, 40):
        assert_bars_are_the_core_s(attention(n, dtype, causal=symmetrize != "min"), symmetrize=symmetrize)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_ties_are_decided_as_in_the_core(levels):
    for causal in (True, False):
        assert_bars_are_the_core_s(attention(33, causal=causal, levels=levels))
    assert_bars_are_the_core_s(torch.zeros(1, 9, 9))
    assert_bars_are_the_core_s(torch.ones(1, 9, 9))  # all components join at distance 0
    assert_bars_are_the_core_s(torch.full((1, 9, 9), 2.0))  # a weight above 1 counts as 1


def test_lengths_strides_and_neighbours_that_are_not_finite():
    maps = attention(24)
    assert_bars_are_the_core_s(maps.mT.contiguous().mT, lengths=torch.tensor([[24, 7], [1, 13]]))
    assert_bars_are_the_core_s(maps.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2))
    maps[0, 1, 20, 3] = torch.nan
    maps[1, 0, 2, 1] = torch.inf
    with pytest.warns(asc.errors.NonFiniteWarning, match="2 of 4"):
        asc.persistence(maps, max_dimension=0)
    with pytest.warns(asc.errors.NonFiniteWarning, match="2 of 4"):
        assert_bars_are_the_core_s(maps)
    # what is not finite lies behind the length
    with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 4"):
        assert_bars_are_the_core_s(maps, lengths=torch.tensor([[24, 15], [24, 24]]))


def test_ring_of_four_tokens():
    ring = torch.zeros(4, 4)
    ring[range(4), [1, 2, 3, 0]] = 0.75
    with asc.devices.use("torch"):
        (bars, _) = asc.persistence(ring.to(DEVICE), max_dimension=0)[()]
    assert bars.tolist() == [[0.0, 0.25], [0.0, 0.25], [0.0, 0.25], [0.0, float("inf")]]


def test_loops_and_hellinger_distances_are_the_core_s():
    maps = attention(12)
    for options in ({"max_dimension": 1}, {"max_dimension": 0, "metric": "hellinger"}):
        expected = asc.persistence(maps, **options)
        with asc.devices.use("torch"):
            computed = asc.persistence(maps.to(DEVICE), **options)
        for column in COLUMNS:
            assert torch.equal(getattr(computed, column), getattr(expected, column))
