# SPDX-License-Identifier: MIT
"""local_global_ratio against NumPy's masks, closed forms and laws."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope import devices
from strategies import attention_batch, attention_maps

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def oracle(a, window, drop_first=False):
    near = np.abs(np.subtract.outer(np.arange(len(a)), np.arange(len(a)))) <= window
    keys = np.arange(len(a)) >= drop_first
    return (a * (near & keys)).sum() / (a * (~near & keys)).sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 9, 40])
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_equals_numpy(n, dtype, drop_first):
    maps = attention_batch((6,), n, dtype)
    for window in (0, 1, 8):
        result = asc.local_global_ratio(maps, window=window, drop_first=drop_first)
        expected = [oracle(attention_map.double().numpy(), window, drop_first) for attention_map in maps]
        np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_closed_forms():
    n, w = 30, 8
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    uniform /= uniform.sum(-1, keepdim=True)
    far = sum((i - w) / (i + 1) for i in range(w, n))
    assert asc.local_global_ratio(uniform).item() == pytest.approx((n - far) / far, rel=1e-12)
    assert asc.local_global_ratio(torch.eye(n)).item() == np.inf
    star = torch.zeros(n, n)
    star[:, 0] = 1
    assert asc.local_global_ratio(star).item() == pytest.approx(9 / 21, rel=1e-12)
    assert asc.local_global_ratio(star, drop_first=True).isnan()
    by_fraction = asc.local_global_ratio(uniform, window=0.1)
    assert by_fraction.item() == asc.local_global_ratio(uniform, window=3).item()


@pytest.mark.parametrize("path", ["core", "torch", "lazy"])
@pytest.mark.parametrize(("n", "percent"), [(50, 58), (90, 70), (100, 29), (100, 30)])
def test_a_fraction_of_the_keys_that_is_a_whole_number_is_that_number(n, percent, path):
    # In float64 0.7·90 is below 63, and 0.29·100 below 29.
    attention = attention_batch((1,), n, torch.float64)
    if path == "lazy":
        attention = asc.LazyAttention(attention.new_ones(1, n, 2), attention.new_zeros(1, n, 2))
    with devices.use("torch") if path == "torch" else nullcontext():
        by_fraction = asc.local_global_ratio(attention, window=percent / 100)
        assert torch.equal(by_fraction, asc.local_global_ratio(attention, window=n * percent // 100))


@settings(max_examples=60)
@given(attention=attention_maps(2, 30), window=st.integers(0, 12))
def test_a_wider_window_holds_more(attention, window):
    a = torch.tensor(attention)
    narrow, wide = (asc.local_global_ratio(a, window=w).item() for w in (window, window + 1))
    assert wide >= narrow * (1 - 1e-12)


def test_lengths_strides_support_and_a_non_finite_map():
    maps = attention_batch((3,), 20)
    cut = asc.local_global_ratio(maps, lengths=[20, 12, 20], window=0.25)
    assert cut[1].item() == asc.local_global_ratio(maps[1, :12, :12].clone(), window=3).item()
    assert asc.local_global_ratio(maps.mT, window=2).tolist() == pytest.approx(
        asc.local_global_ratio(maps, window=2).tolist()
    )
    full = attention_batch((2,), 20)[1]
    causal = asc.local_global_ratio(full, window=3, support="causal")
    assert causal.item() == pytest.approx(oracle(full.tril().numpy(), 3), rel=1e-12)
    maps[0, 3, 3] = torch.inf
    with pytest.warns(RuntimeWarning, match="local_global_ratio: 1 of 3 matrices"):
        result = asc.local_global_ratio(maps)
    assert result[0].isnan()
    assert not result[1:].isnan().any()


@pytest.mark.parametrize("window", [6, 2.0**40, 2.0**63, 1e300])
def test_a_window_beyond_the_map_leaves_nothing_outside(window):
    """Also one beyond every integer, whose conversion has no meaning."""
    uniform = torch.full((2, 6, 6), 1 / 6, dtype=torch.float64)
    assert asc.local_global_ratio(uniform, window=window).tolist() == [float("inf")] * 2


@pytest.mark.parametrize("window", [-1, float("nan"), float("inf")])
def test_bad_windows_are_named(window):
    with pytest.raises(ValueError, match="local_global_ratio: window must be a number of tokens"):
        asc.local_global_ratio(torch.eye(4), window=window)
