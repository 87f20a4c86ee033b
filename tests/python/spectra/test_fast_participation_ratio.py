# SPDX-License-Identifier: MIT
"""The participation ratio in "fast": within 1e-5 of the singular values' own, or measured exactly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import _precision
from attnscope.errors import NonFiniteWarning
from strategies import REGIMES, regime_maps

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = (1, 2, 7, 16, 31, 33, 64, 95, 96, 97, 130, 191, 192, 300)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("regime", REGIMES)
def test_it_is_the_ratio_of_the_singular_values(regime: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        maps = regime_maps(regime, n, dtype, leading=(3,))
        energies = np.linalg.svd(maps.double().numpy(), compute_uv=False) ** 2
        expected = energies.sum(-1) ** 2 / (energies**2).sum(-1)
        side_by_side = maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        for layout in (maps, side_by_side):
            fast = asc.participation_ratio(layout, precision="fast")
            np.testing.assert_allclose(fast.numpy(), expected, rtol=1e-5)


def test_closed_forms_at_every_scale() -> None:
    for n in (1, 5, 64, 100):
        for scale in (1e-200, 1e-30, 1.0, 1e30, 1e200):
            eye = scale * torch.eye(n, dtype=torch.float64)
            ratio = asc.participation_ratio(eye, precision="fast").item()
            assert ratio == pytest.approx(n, rel=1e-5)
            assert 1.0 <= ratio <= n
    assert asc.participation_ratio(torch.zeros(8, 8), precision="fast").isnan()


def test_maps_that_float32_does_not_hold_are_measured_exactly_and_counted() -> None:
    maps = regime_maps("peaky", 200, torch.float64, leading=(3,))
    maps[1, 20, 3] = -0.5
    counts: Counter[str] = Counter()
    with _precision.count_fallbacks(counts):
        fast = asc.participation_ratio(maps, precision="fast")
        rectangles = asc.participation_ratio(maps[:, 10:], precision="fast")
    exact = asc.participation_ratio(maps)
    assert counts == {"participation_ratio": 1 + 3}
    assert fast[1] == exact[1]
    assert not torch.equal(fast[0], exact[0])
    assert torch.equal(rectangles, asc.participation_ratio(maps[:, 10:]))


def test_small_maps_are_measured_exactly_because_that_is_faster() -> None:
    counts: Counter[str] = Counter()
    for regime, n in (("bidirectional", 95), ("peaky", 191)):
        maps = regime_maps(regime, n, torch.float64, leading=(3,))
        with _precision.count_fallbacks(counts):
            fast = asc.participation_ratio(maps, precision="fast")
        assert torch.equal(fast, asc.participation_ratio(maps))
    assert not counts  # float32 would hold them


def test_a_bad_map_spoils_no_neighbour() -> None:
    maps = regime_maps("bidirectional", 40, torch.float32, leading=(3,))
    expected = asc.participation_ratio(maps, precision="fast")
    maps[1, 39, 39] = torch.nan
    with pytest.warns(NonFiniteWarning, match="1 of 3"):
        result = asc.participation_ratio(maps, precision="fast")
    assert result[1].isnan()
    assert result[0] == expected[0]
    assert result[2] == expected[2]


@pytest.mark.parametrize("spectrum", ["eigen", "laplacian"])
def test_other_spectra_are_exact(spectrum: str) -> None:
    maps = regime_maps("sink", 20, torch.float64, leading=(3,))
    exact = asc.participation_ratio(maps, spectrum=spectrum)  # type: ignore[arg-type]
    fast = asc.participation_ratio(maps, spectrum=spectrum, precision="fast")  # type: ignore[arg-type]
    assert torch.equal(fast, exact)
