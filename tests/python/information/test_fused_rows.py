# SPDX-License-Identifier: MIT
"""Row metrics that `measure` reads together in "fast": NumPy's sums, and the bits of each function alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.errors import NonFiniteWarning
from strategies import regime_maps

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIZES = (1, 2, 5, 15, 16, 17, 31, 33, 48, 50, 64, 67, 130, 300)
METRICS = ("attention_entropy", "incoming_attention", "sink_share", "sink_rate", "top_mass")


def last_queries(regime: str, n: int, dtype: torch.dtype, queries: int | None) -> torch.Tensor:
    """Return the rows of the last queries, or all, in memory of their own."""
    return regime_maps(regime, n, dtype)[..., -(queries or n) :, :].contiguous()


def assert_as_each_alone(maps: torch.Tensor, **arguments: object) -> None:
    """Assert that a fused read of maps gives the bits of the functions."""
    fused = asc.measure(maps, METRICS, precision="fast", **arguments)  # type: ignore[call-overload]
    for name in METRICS:
        separate = getattr(asc, name)(maps, precision="fast", **arguments)
        pair = (getattr(result, "share", result) for result in (fused[name], separate))
        torch.testing.assert_close(*pair, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("regime", ["sink", "local", "peaky", "bidirectional"])
def test_they_are_the_sums_of_each_row(regime: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        maps = regime_maps(regime, n, dtype)
        weights = maps.double().numpy()
        terms = weights * np.log(np.where(weights > 0, weights, 1.0))
        fused = asc.measure(maps, METRICS, precision="fast")
        error = np.abs(fused["attention_entropy"].numpy() + terms.sum(-1))
        assert (error <= 2e-6 * np.abs(terms).sum(-1) + 1e-300).all()
        queries = np.arange(n, 0, -1) if regime != "bidirectional" and n > 1 else np.full(n, n)
        incoming = fused["incoming_attention"].numpy()
        np.testing.assert_allclose(incoming, weights.sum(-2) / queries, rtol=1e-5)
        columns = weights.sum(-2)
        largest = columns.max(-1) / columns.sum(-1)
        np.testing.assert_allclose(fused["top_mass"].numpy(), largest, rtol=1e-5)
        assert_as_each_alone(maps)
        assert_as_each_alone(maps.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rectangles_supports_and_lengths(dtype: torch.dtype) -> None:
    for n, queries in ((20, 3), (40, 17), (70, 66), (130, 5)):
        assert_as_each_alone(last_queries("sink", n, dtype, queries))
        assert_as_each_alone(last_queries("bidirectional", n, dtype, queries), cross=True)
    for n in (9, 33, 70):
        for support in ("causal", "full"):
            assert_as_each_alone(
                regime_maps("bidirectional", n, dtype), lengths=torch.tensor([[n], [n // 2]])
            )
            maps = regime_maps("bidirectional", n, dtype)
            fused = asc.measure(
                maps,
                {name: {"metric": name, "support": support} for name in METRICS},
                precision="fast",
            )
            separate = asc.attention_entropy(maps, support=support, precision="fast")
            torch.testing.assert_close(fused["attention_entropy"], separate, rtol=0, atol=0)


def test_weights_that_float32_lanes_do_not_hold() -> None:
    maps = regime_maps("bidirectional", 36, torch.float32)
    maps[0, 0, 4:8] = 0.0
    maps[0, 0, 4, 3] = 1e-39  # a subnormal number alone
    maps[0, 0, 5, 3] = 1.0
    maps[0, 0, 6, 7] = -0.0
    maps[0, 0, 13, 7] = -1e-3
    assert_as_each_alone(maps, cross=True)
    entropy = asc.measure(maps, METRICS, cross=True, precision="fast")["attention_entropy"][0, 0]
    weight = float(maps[0, 0, 4, 3])
    assert entropy[4].item() == pytest.approx(-weight * np.log(weight), rel=1e-5)
    assert entropy[5:8].tolist() == [0.0, 0.0, 0.0]
    assert entropy.isnan().nonzero().flatten().tolist() == [13]


@pytest.mark.parametrize("entry", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_map_spoils_no_neighbour(entry: float) -> None:
    for n in (6, 33, 64):
        maps = regime_maps("local", n, torch.float32)
        good = asc.measure(maps, METRICS, precision="fast")["attention_entropy"]
        for place in ((0, 0), (n - 1, n - 1), (0, n - 1)):
            spoilt = maps.clone()
            spoilt[1, 1][place] = entry
            with pytest.warns(NonFiniteWarning, match="1 of 6"):
                entropy = asc.measure(spoilt, METRICS, precision="fast")["attention_entropy"]
            assert entropy[1, 1].isnan().all()
            entropy[1, 1] = good[1, 1]
            torch.testing.assert_close(entropy, good, rtol=0, atol=0)


def test_threads_change_no_bit() -> None:
    maps = regime_maps("sink", 96, torch.float32).repeat(20, 1, 1, 1)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(asc.measure(maps, METRICS, precision="fast")["attention_entropy"])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
