# SPDX-License-Identifier: MIT
"""Statistics of weight changes against NumPy in every pair of types; strides, threads, bad input."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PAIRS = list(itertools.product(DTYPES, DTYPES))
BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}


def pair(m=7, n=11, before_dtype=torch.float32, other=torch.float32, seed=0, leading=()):
    draw = torch.Generator().manual_seed(seed)
    before = 0.05 * torch.randn(*leading, m, n, generator=draw, dtype=torch.float64)
    after = before + 1e-3 * torch.randn(*leading, m, n, generator=draw, dtype=torch.float64)
    after[..., ::3] = before[..., ::3].to(before_dtype).to(other).double()
    return before.to(before_dtype), after.to(other)


def step(w, dtype):
    """Distance to the next number of the type, from torch's own arithmetic."""
    magnitude = w.to(dtype).abs() if w.dtype == dtype else w.double().abs()
    if dtype in (torch.float32, torch.float64) and w.dtype == dtype:
        return torch.nextafter(magnitude, torch.tensor(math.inf, dtype=dtype)).double() - magnitude.double()
    _, exponent = np.frexp(magnitude.double().numpy())
    lowest = math.frexp(torch.finfo(dtype).tiny)[1]
    return torch.tensor(2.0 ** (np.maximum(exponent, lowest) - 1.0 - BITS[dtype]))


def reference(before, after, rounded="after"):
    wide = torch.float64 if torch.float64 in (before.dtype, after.dtype) else torch.float32
    delta = (after.to(wide) - before.to(wide)).double()
    coarser = min(before.dtype, after.dtype, key=BITS.get)
    steps = step(after, coarser).square().sum()
    noise = steps + (step(before, coarser).square().sum() if rounded == "both" else 0)
    energy, before_energy = delta.square().sum(), before.double().square().sum()
    return [
        energy,
        before_energy,
        (delta == 0).double().mean(),
        (energy / steps).sqrt(),
        noise / 12 / energy,
        (delta * before.double()).sum() / before_energy,
        delta.abs().max(),
    ]


@pytest.mark.parametrize(("before_dtype", "other"), PAIRS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 11), (3, 1030), (40, 70)])
def test_equals_numpy_in_every_pair_of_types(before_dtype, other, shape):
    before, after = pair(*shape, before_dtype, other)
    if shape == (1, 1):
        after = (before.double() + 0.25).to(other)
    for rounded in ("after", "both"):
        result = asc.delta_statistics(before, after, rounded=rounded)
        expected = reference(before, after, rounded)
        np.testing.assert_allclose(torch.stack(list(result)), torch.stack(expected), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype):
    before, after = pair(24, 40, dtype, dtype, leading=(3,))
    full_result = asc.delta_statistics(before, after)
    turned = asc.delta_statistics(before.mT, after.mT)
    for actual, other in zip(full_result, turned, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-13)
    for view in (lambda w: w[:, ::2, 1::3], lambda w: w.mT, lambda w: w[:1].expand(4, -1, -1)):
        result = asc.delta_statistics(view(before), view(after))
        for actual, other in zip(
            result, asc.delta_statistics(view(before).contiguous(), view(after).contiguous()), strict=True
        ):
            np.testing.assert_allclose(actual, other, rtol=1e-13)
    mixed = asc.delta_statistics(before.mT.contiguous().mT, after)
    np.testing.assert_allclose(mixed.energy, full_result.energy, rtol=1e-13)


@pytest.mark.parametrize(("before_dtype", "other"), PAIRS)
def test_writes_the_difference(before_dtype, other):
    wide = torch.float64 if torch.float64 in (before_dtype, other) else torch.float32
    before, after = pair(33, 50, before_dtype, other, leading=(2,))
    for a, b in ((before, after), (before.mT, after.mT)):
        delta = torch.empty(a.shape, dtype=wide)
        asc.delta_statistics(a, b, delta=delta)
        assert torch.equal(delta, b.to(wide) - a.to(wide))


@settings(max_examples=40)
@given(
    m=st.integers(1, 9),
    n=st.integers(1, 40),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-3, 1.0, 64.0]),
)
def test_laws(m, n, seed, scale):
    before, after = pair(m, n, torch.float64, torch.float64, seed)
    after = after + 1e-4
    result = asc.delta_statistics(before, after)
    larger = asc.delta_statistics(scale * before, scale * after)
    np.testing.assert_allclose(larger.energy, scale**2 * result.energy, rtol=1e-10)
    np.testing.assert_allclose(larger.along, result.along, rtol=1e-6, atol=1e-12)
    back = asc.delta_statistics(after, before)
    assert float(back.energy) == float(result.energy)
    assert float(back.largest) == float(result.largest)
    noise_shares = asc.delta_statistics(before, after, rounded="both").noise_share
    np.testing.assert_allclose(noise_shares, result.noise_share + back.noise_share, rtol=1e-12)


def test_the_same_bits_whatever_the_number_of_threads():
    before, after = pair(600, 900, torch.bfloat16, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        result = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            result.append(torch.stack(list(asc.delta_statistics(before, after))))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[0], result[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_nextafter_down_to_zero(dtype):
    for value in (1.0, 1.5, -3.0, 1e-3, float(torch.finfo(dtype).tiny), 0.0):
        before = torch.full((1, 1), value, dtype=dtype)
        other = before + max(1.0, abs(value))
        result = asc.delta_statistics(other, before)
        expected = step(before, dtype)
        assert float(result.energy.sqrt() / result.step_ratio) == pytest.approx(float(expected), rel=1e-12)


def test_no_change_has_no_noise_share_and_zeros_have_no_direction():
    zeros = torch.zeros(2, 3)
    result = asc.delta_statistics(zeros, zeros)
    assert result.energy == 0
    assert result.unchanged == 1
    assert result.step_ratio == 0
    assert torch.isnan(result.noise_share)
    assert torch.isnan(result.along)


def test_one_bad_matrix_leaves_the_others():
    before, after = pair(5, 9, leading=(4,))
    expected = asc.delta_statistics(before, after)
    before[1, 2, 3] = math.nan
    after[3, 0, 0] = math.inf
    with pytest.warns(RuntimeWarning, match="delta_statistics: 2 of 4 pairs hold NaN"):
        result = asc.delta_statistics(before, after)
    for actual, other in zip(result, expected, strict=True):
        assert torch.equal(actual[[0, 2]], other[[0, 2]])
        assert torch.isnan(actual[[1, 3]]).all()


def test_no_matrices():
    result = asc.delta_statistics(torch.empty(0, 3, 4), torch.empty(0, 3, 4))
    assert result.energy.shape == (0,)


def test_numbers_of_both_ends_of_float64():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = asc.delta_statistics(
            torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 5e-324).double()
        )
        large = asc.delta_statistics(
            torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 1e300, dtype=torch.float64)
        )
    assert small.unchanged == 1  # float32's 5e-324 is 0
    assert large.energy == math.inf
    assert large.largest == 1e300


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: asc.delta_statistics(torch.ones(2, 3), torch.ones(3, 2)),
            ValueError,
            r"\(2, 3\) and \(3, 2\)",
        ),
        (lambda: asc.delta_statistics(torch.ones(3), torch.ones(3)), ValueError, r"shape \(3,\)"),
        (lambda: asc.delta_statistics(torch.ones(0, 3), torch.ones(0, 3)), ValueError, r"shape \(0, 3\)"),
        (lambda: asc.delta_statistics(torch.ones(2, 2).int(), torch.ones(2, 2)), ValueError, "int32"),
        (lambda: asc.delta_statistics([1], torch.ones(2, 2)), TypeError, "list"),
        (
            lambda: asc.delta_statistics(torch.ones(2, 2), torch.ones(2, 2), rounded="before"),
            ValueError,
            "'before'",
        ),
        (
            lambda: asc.delta_statistics(torch.ones(2, 2), torch.ones(2, 2), delta=torch.ones(2, 2).double()),
            ValueError,
            "float64 of shape",
        ),
        (
            lambda: asc.delta_statistics(torch.ones(2, 3), torch.ones(2, 3), delta=torch.ones(3, 2).mT),
            ValueError,
            "contiguous",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=f"^delta_statistics: .*{message}"):
        call()


@pytest.mark.parametrize("shape", [(3, 5), (40, 33), (70, 1030)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_strides_change_no_bit(shape, dtype):
    generator = torch.Generator().manual_seed(shape[0])
    before, after = (torch.randn(2, *shape, generator=generator).to(dtype) for _ in range(2))
    expected = asc.delta_statistics(before, after)
    turned = [x.mT.contiguous().mT for x in (before, after)]
    spread = [torch.stack([x, x * 0], -1)[..., 0] for x in (before, after)]
    for pair in (turned, spread, [before, turned[1]], [spread[0], after]):
        for delta_statistic, other in zip(asc.delta_statistics(*pair), expected, strict=True):
            assert torch.equal(delta_statistic, other)


def test_differences_are_written_as_they_are_where_squares_leave_the_range():
    before = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64) * 2.0**900
    delta = torch.empty(2, 2, dtype=torch.float64)
    result = asc.delta_statistics(before, 1.5 * before, delta=delta)
    assert torch.equal(delta, 0.5 * before)
    assert result.along.item() == 0.5
    assert result.energy.item() == torch.inf
