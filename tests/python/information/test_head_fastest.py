# SPDX-License-Identifier: MIT
"""Row metrics of maps whose heads are the fastest axis, which are read together, against NumPy."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.errors import NonFiniteWarning

SUPPORTS = ("causal", "full", "mixed")


def maps_of(n, heads, dtype, support):
    """Two layers of seeded maps [2, heads, n, n] and whether each is causal."""
    maps = np.random.default_rng([n, heads]).random((2, heads, n, n)) + 1e-3
    causal = np.zeros((2, heads), dtype=bool)
    if support != "full":
        causal[:, : heads if support == "causal" else 1] = True
    maps = np.where(causal[..., None, None], np.tril(maps), maps)
    rounded = torch.from_numpy(maps / maps.sum(-1, keepdims=True)).to(dtype)
    return rounded.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), causal


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "heads"), [(1, 2), (5, 3), (16, 8), (17, 9), (40, 12), (70, 33)])
def test_row_metrics_are_those_of_the_definition(n, heads, dtype, support):
    maps, causal = maps_of(n, heads, dtype, support)
    wide = maps.double().numpy()
    place = np.arange(n)
    seeing = np.where(causal[..., None] & (n > 1), n - place, n)
    keys = np.where(causal[..., None] & (n > 1), place + 1, n)
    share = asc.sink_share(maps, first=2)
    first = min(2, n)
    close = {"rtol": 1e-12, "atol": 0}
    np.testing.assert_allclose(asc.incoming_attention(maps), wide.sum(-2) / seeing, **close)
    np.testing.assert_allclose(share.share, wide[..., :first].sum(-1).mean(-1), **close)
    np.testing.assert_allclose(share.uniform, (np.minimum(first, keys) / keys).mean(-1), **close)
    logs = np.log(np.where(wide > 0, wide, 1.0))
    np.testing.assert_allclose(asc.attention_entropy(maps), -(wide * logs).sum(-1), rtol=1e-12, atol=1e-15)
    near = abs(place[:, None] - place) <= 3
    with np.errstate(divide="ignore"):
        ratio = (wide * near).sum((-1, -2)) / (wide * ~near).sum((-1, -2))
    np.testing.assert_allclose(asc.local_global_ratio(maps, window=3), ratio, rtol=1e-12)


@pytest.mark.parametrize("place", [(0, 0), (0, 15), (15, 0), (7, 3), (3, 7)])
@pytest.mark.parametrize("support", SUPPORTS)
def test_a_head_that_is_not_finite_spoils_no_other(place, support):
    maps, _ = maps_of(16, 8, torch.float32, support)
    expected = asc.sink_share(maps).share
    maps[1, 5][place] = float("nan")
    with pytest.warns(NonFiniteWarning, match="1 of 16 matrices"):
        share = asc.sink_share(maps).share
    assert share[1, 5].isnan()
    others = torch.ones(2, 8, dtype=torch.bool)
    others[1, 5] = False
    assert torch.equal(share[others], expected[others])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_head_that_is_not_finite_spoils_no_ratio_beside_it(dtype, value):
    maps, _ = maps_of(20, 11, dtype, "causal")
    expected = asc.local_global_ratio(maps)
    maps[1, 9, 2, 17] = value
    with pytest.warns(NonFiniteWarning, match="1 of 22 matrices"):
        ratio = asc.local_global_ratio(maps)
    assert ratio[1, 9].isnan()
    others = torch.ones(2, 11, dtype=torch.bool)
    others[1, 9] = False
    assert torch.equal(ratio[others], expected[others])


def test_ratios_of_heads_of_which_a_sum_overflows_are_not_those_of_a_map_that_is_not_finite():
    maps = torch.full((8, 8, 16), 1e308, dtype=torch.float64).permute(2, 0, 1)
    assert (asc.local_global_ratio(maps, window=1)).isnan().all()  # inf/inf, without a warning
    assert (asc.local_global_ratio(maps, window=0)[0]).isnan()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("queries", [150, 7])
def test_ratios_of_a_layer_whose_rows_are_shared_out(queries, threads):
    maps = maps_of(150, 40, torch.float32, "causal")[0][..., -queries:, :]
    wide = maps.double().numpy()
    near = abs(np.arange(150 - queries, 150)[:, None] - np.arange(150)) <= 15
    ratio = (wide * near).sum((-1, -2)) / (wide * ~near).sum((-1, -2))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        np.testing.assert_allclose(asc.local_global_ratio(maps, window=0.1), ratio, rtol=1e-12)
    finally:
        torch.set_num_threads(before)
