# SPDX-License-Identifier: MIT
"""local_global_ratio in float32 (`precision="fast"`) against NumPy in float64."""

import numpy as np
import pytest
import torch

import attnscope as asc

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def softmax_maps(*shape: int, causal: bool = True, seed: int = 0) -> torch.Tensor:
    scores = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    if causal:
        shift = shape[-1] - shape[-2]
        scores = scores.masked_fill(torch.ones(shape[-2:], dtype=torch.bool).triu(1 + shift), -torch.inf)
    return scores.softmax(-1)


def ratio_oracle(maps: torch.Tensor, window: int) -> np.ndarray:
    wide = maps.double().numpy()
    queries, keys = wide.shape[-2:]
    places = np.arange(queries)[:, None] + keys - queries
    is_near = np.abs(places - np.arange(keys)) <= window
    with np.errstate(divide="ignore"):
        return (wide * is_near).sum((-1, -2)) / (wide * ~is_near).sum((-1, -2))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("window", [0, 1, 8, 20, 1000])
def test_maps_of_every_length(dtype: torch.dtype, window: int) -> None:
    for at, n in enumerate([*range(2, 36), 63, 64, 65, 130, 300]):
        for maps in (
            softmax_maps(2, n, n, causal=at % 2 == 0, seed=at),
            softmax_maps(2, max(1, n // 2), n, causal=at % 2 == 1, seed=at),
        ):
            fast = asc.local_global_ratio(maps.to(dtype), window=window, precision="fast")
            np.testing.assert_allclose(fast, ratio_oracle(maps.to(dtype), window), rtol=2e-6)


def test_sums_are_in_float32_of_contiguous_rows_and_exact_elsewhere() -> None:
    maps = softmax_maps(3, 64, 64)
    exact = asc.local_global_ratio(maps)
    fast = asc.local_global_ratio(maps, precision="fast")
    assert not torch.equal(fast, exact)
    assert torch.equal(asc.local_global_ratio(maps.mT.contiguous().mT, precision="fast"), exact)
    assert torch.equal(asc.local_global_ratio(maps.double(), precision="fast"), exact)
    for options in ({"drop_first": True}, {"support": torch.ones(64, 64, dtype=torch.bool).tril()}):
        expected = asc.local_global_ratio(maps, **options)
        assert torch.equal(asc.local_global_ratio(maps, **options, precision="fast"), expected)


def test_what_a_given_support_hides_does_not_count() -> None:
    maps = softmax_maps(2, 50, 50, causal=False)
    expected = asc.local_global_ratio(maps, support="causal")
    assert torch.equal(asc.local_global_ratio(maps, support="causal", precision="fast"), expected)
    causal = softmax_maps(2, 50, 50)
    fast = asc.local_global_ratio(causal, support="causal", precision="fast")
    np.testing.assert_allclose(fast, ratio_oracle(causal, 8), rtol=2e-6)


def test_lengths_and_single_hidden_entries() -> None:
    maps = softmax_maps(3, 70, 70)
    fast = asc.local_global_ratio(maps, lengths=[20, 47, 70], precision="fast")
    for at, length in enumerate([20, 47, 70]):
        expected = ratio_oracle(maps[at, :length, :length], 8)
        np.testing.assert_allclose(fast[at], expected, rtol=2e-6)
    for place in ((0, 1), (0, 69), (30, 31), (68, 69), (17, 60)):
        shown = maps.clone()
        shown[1][place] = 0.5
        fast = asc.local_global_ratio(shown, precision="fast")
        np.testing.assert_allclose(fast, ratio_oracle(shown, 8), rtol=2e-6)


def test_degenerate_maps() -> None:
    identity = torch.eye(40)[None]
    assert asc.local_global_ratio(identity, precision="fast").isinf().all()
    assert asc.local_global_ratio(torch.zeros(1, 40, 40), precision="fast").isnan().all()
    signed = softmax_maps(1, 40, 40)
    signed[0, 20, 3] = -0.25
    assert torch.equal(asc.local_global_ratio(signed, precision="fast"), asc.local_global_ratio(signed))
    large = torch.full((1, 40, 40), 3e38)
    np.testing.assert_allclose(
        asc.local_global_ratio(large, precision="fast"), ratio_oracle(large, 8), rtol=1e-12
    )


@pytest.mark.parametrize("place", [(3, 0), (5, 30), (39, 39)])
@pytest.mark.parametrize("entry", [torch.nan, torch.inf, -torch.inf])
def test_a_map_that_is_not_finite_spoils_no_neighbour(place: tuple[int, int], entry: float) -> None:
    maps = softmax_maps(3, 40, 40)
    separate = asc.local_global_ratio(maps, precision="fast")
    maps[1][place] = entry
    for support in ("auto", "causal"):
        with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 3"):
            spoilt = asc.local_global_ratio(maps, support=support, precision="fast")
        assert spoilt[1].isnan()
        assert torch.equal(spoilt[[0, 2]], separate[[0, 2]])
