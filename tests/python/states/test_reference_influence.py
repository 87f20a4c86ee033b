# SPDX-License-Identifier: MIT
"""reference_influence against NumPy in float64, closed forms and laws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def normal(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def oracle(attention, states, reference):
    a, s, r = attention.double().numpy(), states.double().numpy(), np.asarray(reference)
    part, rest = (a * r) @ s, (a * ~r) @ s
    output = part + rest
    norm = np.linalg.norm
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.stack(
            [
                norm(part, axis=1) / norm(output, axis=1),
                (part * output).sum(1) / norm(part, axis=1) / norm(output, axis=1),
                1 - (output * rest).sum(1) / norm(output, axis=1) / norm(rest, axis=1),
            ]
        )
    result[:, r] = np.nan
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n", "d"), [(2, 3), (17, 8), (70, 33)])
def test_equals_numpy_for_every_size_and_dtype(n, d, causal, dtype):
    attention, states = maps(2, n, n, causal=causal, dtype=dtype), normal(2, n, d, dtype=dtype)
    reference = torch.zeros(2, n, dtype=torch.bool)
    reference[:, 0] = reference[1, n // 2] = True
    result = asc.reference_influence(attention, states, reference)
    for index in range(2):
        expected = oracle(attention[index], states[index], reference[index])
        np.testing.assert_allclose([part[index] for part in result], expected, rtol=1e-9, atol=1e-12)


def test_shared_and_grouped_states_are_repeated_heads():
    attention = maps(2, 4, 12, 12)
    reference = torch.zeros(2, 1, 12, dtype=torch.bool)
    reference[0, 0, 0] = reference[1, 0, 2] = True
    grouped = normal(2, 2, 12, 5)
    result = asc.reference_influence(attention, grouped, reference)
    repeated = asc.reference_influence(attention, grouped.repeat_interleave(2, dim=1), reference)
    for actual, other in zip(result, repeated, strict=True):
        np.testing.assert_array_equal(actual, other)
    shared = asc.reference_influence(attention, grouped[:, :1], reference)
    expected = oracle(attention[1, 3], grouped[1, 0], reference[1, 0])
    np.testing.assert_allclose([part[1, 3] for part in shared], expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (1, 2, 3)])
def test_states_are_grouped_under_any_leading_axes(leading):
    attention, states = maps(*leading, 6, 7, 7), normal(*leading, 2, 7, 4)
    reference = torch.arange(7) == 1
    result = asc.reference_influence(attention, states, reference)
    repeated = asc.reference_influence(attention, states.repeat_interleave(3, dim=-3), reference)
    assert result.directional.shape == (*leading, 6, 7)
    for actual, other in zip(result, repeated, strict=True):
        np.testing.assert_array_equal(actual, other)


@pytest.mark.parametrize("shape", [(5, 0), (2, 5, 0), (5,), (2, 4, 3), (0, 5, 3), (4, 5, 3), (3, 6, 5, 3)])
def test_states_that_belong_to_no_head_are_refused(shape):
    message = r"^reference_influence: states (must have shape|of shape .* neither)"
    with pytest.raises(ValueError, match=message):
        asc.reference_influence(maps(2, 6, 5, 5), torch.ones(shape), torch.arange(5) == 0)


def test_no_reference_all_reference_and_nothing_left():
    attention, states = maps(6, 6), normal(6, 3)
    empty_result = asc.reference_influence(attention, states, torch.zeros(6, dtype=torch.bool))
    assert (empty_result.relative_magnitude == 0).all()
    assert (empty_result.information_change < 1e-30).all()
    assert empty_result.directional.isnan().all()
    full_reference = asc.reference_influence(attention, states, torch.ones(6, dtype=torch.bool))
    assert all(part.isnan().all() for part in full_reference)
    star = torch.zeros(6, 6, dtype=torch.float64)
    star[:, 0] = 1
    first = torch.arange(6) == 0
    single_result = asc.reference_influence(star, states, first)
    np.testing.assert_allclose(single_result.relative_magnitude[1:], 1)
    np.testing.assert_allclose(single_result.directional[1:], 1)
    assert single_result.information_change.isnan().all()


def test_small_changes_do_not_drown_in_rounding():
    attention = torch.tensor([[1e-9, 1.0], [1e-9, 1.0]], dtype=torch.float64)
    result = asc.reference_influence(attention, torch.eye(2), torch.tensor([True, False]))
    assert result.information_change[1].item() == pytest.approx(5e-19, rel=1e-6)


def test_ragged_lengths_masks_and_non_finite_neighbours():
    attention, states = maps(3, 10, 10), normal(3, 10, 4)
    reference = torch.arange(10) == 0
    result = asc.reference_influence(attention, states, reference, lengths=[10, 6, 3])
    for index, length in enumerate([10, 6, 3]):
        single_result = oracle(attention[index, :length, :length], states[index, :length], reference[:length])
        np.testing.assert_allclose(
            [part[index, :length] for part in result], single_result, rtol=1e-9, atol=1e-12
        )
        assert result.directional[index, length:].isnan().all()
    window = torch.ones(10, 10, dtype=torch.bool).tril() & ~torch.ones(10, 10, dtype=torch.bool).tril(-5)
    cut = asc.reference_influence(attention, states, reference, support=window)
    expected = oracle(attention[1] * window, states[1], reference)
    np.testing.assert_allclose([part[1] for part in cut], expected, rtol=1e-9, atol=1e-12)
    clean = asc.reference_influence(attention, states, reference)
    states[0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 3 matrices or their states"):
        non_finite = asc.reference_influence(attention, states, reference)
    assert non_finite.relative_magnitude[0].isnan().all()
    np.testing.assert_array_equal(non_finite.directional[1:], clean.directional[1:])


@settings(max_examples=40)
@given(n=st.integers(2, 24), d=st.integers(1, 9), seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_laws(n, d, seed, scale):
    attention, states = maps(n, n, seed=seed), normal(n, d, seed=seed)
    reference = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.3
    result = asc.reference_influence(attention, states, reference)
    for actual, other in zip(
        result, asc.reference_influence(attention, scale * states, reference), strict=True
    ):
        np.testing.assert_allclose(actual, other, atol=1e-8, rtol=1e-8)
    magnitude, directional, change = (part[~part.isnan()] for part in result)
    assert (magnitude >= 0).all()
    assert (directional.abs() <= 1).all()
    assert ((change >= 0) & (change <= 2 + 1e-12)).all()
    assert result.relative_magnitude[reference].isnan().all()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (torch.zeros(3), r"reference must be boolean, got torch.float32"),
        (torch.zeros(4, dtype=torch.bool), r"reference of shape \(4,\) does not broadcast to \(3,\)"),
    ],
)
def test_bad_arguments_are_named(reference, message):
    with pytest.raises(ValueError, match="reference_influence: " + message):
        asc.reference_influence(torch.rand(3, 3), torch.rand(3, 2), reference)
