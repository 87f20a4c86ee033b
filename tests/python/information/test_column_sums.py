# SPDX-License-Identifier: MIT
"""Incoming attention from one read along the memory: of maps of their own and of heads side by side."""

from __future__ import annotations

import pytest
import torch

import attnscope as asc
from attnscope.errors import NonFiniteWarning

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = (1, 2, 3, 7, 8, 9, 16, 17, 40, 64, 65, 130, 257)


def heads_of(kind: str, n: int, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Maps [heads, n, n]: causal, full, one of them full, or causal but for the last query's neighbour."""
    generator = torch.Generator().manual_seed(n)
    full = torch.softmax(2.0 * torch.randn(heads, n, n, generator=generator, dtype=torch.float64), -1)
    causal = full.tril() / full.tril().sum(-1, keepdim=True)
    if kind == "full":
        return full.to(dtype)
    if kind == "one is full":
        causal[0] = full[0]
    if kind == "late" and n > 1:
        causal[-1, n - 2, n - 1] = 0.25
    return causal.to(dtype)


def side_by_side(maps: torch.Tensor) -> torch.Tensor:
    return maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def expected(maps: torch.Tensor) -> torch.Tensor:
    """Column sums over the number of queries that see each key, a map being causal by its own entries."""
    n = maps.shape[-1]
    wide = maps.double()
    is_causal = (wide.triu(1) == 0).flatten(1).all(1) & (n >= 2)
    queries = torch.where(is_causal[:, None], n - torch.arange(n), n)
    return wide.sum(-2) / queries


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["causal", "full", "one is full", "late"])
def test_every_layout_gives_the_same_bits_and_the_mean_of_the_column(kind: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        for heads in (1, 2, 3, 9):
            maps = heads_of(kind, n, heads, dtype)
            wider = torch.full((heads, n, n + 5), torch.nan, dtype=dtype)
            wider[..., :n] = maps
            contiguous = asc.incoming_attention(maps)
            torch.testing.assert_close(contiguous, expected(maps), rtol=1e-13, atol=1e-15)
            for view in (side_by_side(maps), wider[..., :n], maps.mT.contiguous().mT):
                torch.testing.assert_close(asc.incoming_attention(view), contiguous, rtol=1e-14, atol=0)
            assert torch.equal(asc.incoming_attention(side_by_side(maps)), contiguous), (n, heads)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_head_spoils_no_neighbour_in_its_layer(bad: float, dtype: torch.dtype) -> None:
    for n in (8, 33, 64):
        maps = heads_of("one is full", n, 5, dtype)
        spoiled = maps.clone()
        spoiled[2, n // 2, n - 1] = bad
        unspoiled = asc.incoming_attention(maps)
        for layout in (spoiled, side_by_side(spoiled)):
            with pytest.warns(NonFiniteWarning, match="1 of 5"):
                result = asc.incoming_attention(layout)
            assert result[2].isnan().all()
            others = [0, 1, 3, 4]
            assert torch.equal(result[others], unspoiled[others])


def test_sums_beyond_float64_are_no_missing_entries() -> None:
    maps = torch.zeros(2, 16, 16, dtype=torch.float64)
    maps[1, :, 3] = 1e308
    result = asc.incoming_attention(side_by_side(maps), support="full")
    assert result[1, 3].isinf()
    assert torch.equal(result[0], torch.zeros(16, dtype=torch.float64))


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_a_layer_are_shared_out(threads: int) -> None:
    maps = heads_of("causal", 300, 8, torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = asc.incoming_attention(side_by_side(maps).expand(3, 8, 300, 300))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, asc.incoming_attention(maps).expand(3, 8, 300))
    last = side_by_side(maps)[:, 280:]
    sums = last.double().sum(-2) / (20 - (torch.arange(300) - 280).clamp_min(0))
    torch.testing.assert_close(asc.incoming_attention(last), sums, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("entry", [-0.0, -0.25, 1.0009765625, 3e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_one_entry_that_a_fast_sum_does_not_hold_is_added_wherever_it_stands(
    dtype: torch.dtype, entry: float
) -> None:
    for n in (8, 37, 64, 130):
        maps = heads_of("causal", n, 1, dtype)
        for query in {0, 7, n // 2, n - 1}:
            for key in {0, query // 2, query}:
                changed = maps.clone()
                changed[0, query, key] = entry
                result = asc.incoming_attention(changed)
                torch.testing.assert_close(result, expected(changed), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_hidden_entry_alone_shows_that_a_map_is_not_causal(dtype: torch.dtype) -> None:
    for n in (9, 33, 70):
        for query in range(n):
            keys = range(query + 1, n)
            maps = heads_of("causal", n, 1, dtype).repeat(len(keys), 1, 1)
            maps[range(len(keys)), query, keys] = 0.125
            torch.testing.assert_close(
                asc.incoming_attention(maps), maps.double().mean(-2), rtol=1e-13, atol=1e-15
            )
