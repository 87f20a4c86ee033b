# SPDX-License-Identifier: MIT
"""attention_entropy against scipy's xlogy in float64, closed forms and laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps(*shape, causal=True, seed=0, sharpness=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def oracle(attention):
    a = attention.double().numpy()
    return -xlogy(a, a).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 31, 64, 65])
def test_equals_scipy_for_every_size_and_dtype(n, causal, dtype):
    attention = maps(2, 3, n, n, causal=causal, sharpness=3.0, dtype=dtype)
    result = asc.attention_entropy(attention)
    assert result.dtype == torch.float64
    np.testing.assert_allclose(result, oracle(attention), rtol=1e-12, atol=1e-15)


def test_uniform_causal_is_the_log_of_the_row_number():
    n = 50
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    uniform /= uniform.sum(-1, keepdim=True)
    rows = np.arange(1, n + 1)
    np.testing.assert_allclose(asc.attention_entropy(uniform), np.log(rows), atol=1e-14)
    np.testing.assert_allclose(asc.attention_entropy(uniform, base=2), np.log2(rows), atol=1e-14)
    normalized = asc.attention_entropy(uniform, normalized=True)
    assert math.isnan(normalized[0])
    np.testing.assert_allclose(normalized[1:], 1, atol=1e-14)


@pytest.mark.parametrize("base", [0.5, 2.0, math.e, 10.0])
def test_a_normalized_entropy_does_not_depend_on_the_base(base):
    attention = maps(7, 7, seed=2)
    expected = oracle(attention) / math.log(base)
    np.testing.assert_allclose(asc.attention_entropy(attention, base=base), expected)
    expected = asc.attention_entropy(attention, normalized=True)
    np.testing.assert_array_equal(asc.attention_entropy(attention, base=base, normalized=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_are_read_in_place(dtype):
    big = maps(2, 12, 12, causal=False, dtype=dtype)
    wide = torch.zeros(2, 24, 36, dtype=dtype)
    wide[:, ::2, ::3] = big
    np.testing.assert_array_equal(asc.attention_entropy(wide[:, ::2, ::3]), asc.attention_entropy(big))
    np.testing.assert_array_equal(asc.attention_entropy(big.mT), asc.attention_entropy(big.mT.contiguous()))
    expanded = big[:1].expand(5, 12, 12)
    np.testing.assert_array_equal(asc.attention_entropy(expanded)[3], asc.attention_entropy(big)[0])
    constant = torch.full((1, 1), 0.125, dtype=dtype).expand(8, 8)
    np.testing.assert_allclose(asc.attention_entropy(constant), math.log(8), rtol=1e-15)


def test_ragged_lengths_cut_each_map():
    attention = maps(3, 9, 9, causal=False)
    result = asc.attention_entropy(attention, lengths=[9, 4, 1], normalized=True)
    for index, length in enumerate([9, 4, 1]):
        single_result = asc.attention_entropy(attention[index, :length, :length].clone(), normalized=True)
        np.testing.assert_array_equal(result[index, :length], single_result)
        assert result[index, length:].isnan().all()


def test_support_auto_causal_full_and_mask():
    full = maps(8, 8, causal=False)
    lower = full.tril()
    visible = torch.arange(2, 9, dtype=torch.float64)
    np.testing.assert_allclose(asc.attention_entropy(full, support="causal"), oracle(lower), rtol=1e-13)
    np.testing.assert_allclose(
        asc.attention_entropy(lower, normalized=True, support="full"), oracle(lower) / math.log(8), rtol=1e-13
    )
    judged = asc.attention_entropy(lower, normalized=True)[1:]
    np.testing.assert_allclose(judged, oracle(lower)[1:] / visible.log().numpy(), rtol=1e-13)
    window = torch.ones(8, 8, dtype=torch.bool).tril() & ~torch.ones(8, 8, dtype=torch.bool).tril(-3)
    banded = asc.attention_entropy(full.expand(2, 8, 8), support=window, normalized=True)
    keys = window.sum(-1).numpy()
    expected = oracle(full * window)[1:] / np.log(keys[1:])
    np.testing.assert_allclose(banded[1, 1:], expected, rtol=1e-13)


def as_laid_out(attention, layout):
    """The same maps, their rows, columns or heads contiguous."""
    if layout == "columns":
        return attention.mT.contiguous().mT
    return attention.permute(1, 2, 0).contiguous().permute(2, 0, 1) if layout == "heads" else attention


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["rows", "columns", "heads"])
def test_parts_of_the_rows_of_large_maps_are_judged_together(layout, dtype):
    """Workers share the rows of a map: its support and what is not finite are those of all its rows."""
    n = 700
    attention = maps(3, n, n, sharpness=2.0, dtype=torch.float64)
    attention[1, n - 2] = 1 / n  # full by one of its last rows alone
    attention[2, 0] = 1 / n  # by its first
    attention = attention.to(dtype)
    seen = np.full((3, n), n)
    seen[0] = np.arange(1, n + 1)
    expected = oracle(attention)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalized = expected / np.log(seen)
    normalized[0, 0] = np.nan
    broken = attention.clone()
    broken[0, n // 2, 1] = torch.nan
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for precision, rtol in (("exact", 1e-12), ("fast", 4e-6)):
                options = {"precision": precision}
                laid_out = as_laid_out(attention, layout)
                entropies = asc.attention_entropy(laid_out, **options)
                np.testing.assert_allclose(entropies, expected, rtol=rtol, atol=1e-15)
                entropies = asc.attention_entropy(laid_out, normalized=True, **options)
                np.testing.assert_allclose(entropies, normalized, rtol=rtol, atol=1e-15)
                with pytest.warns(RuntimeWarning, match="attention_entropy: 1 of 3 matrices"):
                    entropies = asc.attention_entropy(as_laid_out(broken, layout), **options)
                assert entropies[0].isnan().all()
                np.testing.assert_allclose(entropies[1:], expected[1:], rtol=rtol, atol=1e-15)
    finally:
        torch.set_num_threads(threads)


def test_masks_and_positions_move_with_the_rows_of_a_part():
    queries, keys = 500, 600
    attention = maps(2, queries, keys, causal=False, seed=5)
    mask = torch.rand(2, queries, keys, generator=torch.Generator().manual_seed(6)) < 0.4
    entropies = asc.attention_entropy(attention, support=mask, normalized=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = oracle(torch.where(mask, attention, 0.0)) / np.log(mask.sum(-1).numpy())
    np.testing.assert_allclose(entropies, expected, rtol=1e-12)
    # the last 500 queries of a causal map of 600
    attention = maps(2, keys, keys, seed=7)[:, keys - queries :]
    entropies = asc.attention_entropy(attention, normalized=True)
    expected = oracle(attention) / np.log(np.arange(keys - queries + 1, keys + 1))
    np.testing.assert_allclose(entropies, expected, rtol=1e-12)


def test_a_non_finite_map_leaves_its_neighbours_alone():
    attention = maps(3, 6, 6)
    attention[1, 2, 1] = torch.nan
    with pytest.warns(RuntimeWarning, match=r"attention_entropy: 1 of 3 matrices"):
        result = asc.attention_entropy(attention)
    assert result[1].isnan().all()
    np.testing.assert_array_equal(result[[0, 2]], asc.attention_entropy(attention[[0, 2]]))
    with pytest.raises(ValueError, match=r"nan at index \(1, 2, 1\)"):
        asc.attention_entropy(attention, validate=True)


def test_the_input_is_neither_touched_nor_moved():
    attention = maps(4, 16, 16, dtype=torch.float32)
    before, address = attention.clone(), attention.data_ptr()
    asc.attention_entropy(attention)
    assert attention.data_ptr() == address
    assert torch.equal(attention, before)


@settings(max_examples=60)
@given(n=st.integers(1, 24), seed=st.integers(0, 10**6), sharpness=st.floats(0, 40), causal=st.booleans())
def test_bounds_and_relabelling(n, seed, sharpness, causal):
    attention = maps(n, n, causal=causal, seed=seed, sharpness=sharpness)
    result = asc.attention_entropy(attention)
    assert (result >= -1e-12).all()
    assert (result <= math.log(n) + 1e-12).all()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(
        asc.attention_entropy(attention[order][:, order], support="full"), result[order], atol=1e-13
    )


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        (torch.rand(4, 3), {}, "4 queries cannot stand at the last of 3 keys"),
        (torch.rand(3), {}, r"at least two dimensions"),
        (torch.rand(0, 0), {}, r"at least one token"),
        (torch.ones(3, 3, dtype=torch.int64), {}, r"got torch.int64"),
        (torch.rand(3, 3), {"base": 1}, r"base must be a positive number other than 1, got 1.0"),
        (torch.rand(3, 3), {"base": -2}, r"got -2.0"),
        (torch.rand(3, 3), {"base": 0}, r"got 0.0"),
        (torch.rand(3, 3), {"base": math.inf}, r"got inf"),
        (torch.rand(3, 3), {"support": "left"}, r"one of 'auto', 'causal', 'full', got 'left'"),
        (torch.rand(3, 3), {"support": torch.ones(3, 3)}, r"support must be boolean"),
        (torch.rand(3, 3), {"support": torch.ones(2, 2, dtype=torch.bool)}, r"does not broadcast"),
        (torch.rand(3, 3), {"lengths": 4}, r"lengths must lie between 1 and n = 3, got 4"),
    ],
)
def test_bad_arguments_are_named(attention, options, message):
    with pytest.raises(ValueError, match="attention_entropy: .*" + message):
        asc.attention_entropy(attention, **options)
