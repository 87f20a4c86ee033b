# SPDX-License-Identifier: MIT
"""Alignment, magnitudes and their correlation against NumPy in float64."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import attnscope as asc
from attnscope import devices
from attnscope.metrics.states.alignment import pearson

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def normal(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def oracle(attention, states, without=None, mask=None):
    a, s = attention.double().numpy(), states.double().numpy()
    n = len(a)
    if mask is None:
        mask = np.tril(np.ones((n, n), bool)) if n > 1 and not np.triu(a, 1).any() else np.ones((n, n), bool)
    mask = np.asarray(mask) & ~np.eye(n, dtype=bool)
    norms = np.linalg.norm(s, axis=1)
    mask &= (norms > 0)[:, None] & (norms > 0)
    if without is not None:
        mask[:, np.asarray(without)] = False
    unit = s / np.where(norms > 0, norms, 1)[:, None]
    x, y = a[mask], (unit @ unit.T)[mask]
    if len(x) < 2 or x.std() == 0 or y.std() < 1e-14:
        return math.nan
    return np.corrcoef(x, y)[0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 3), (3, 1), (17, 8), (70, 33)])
def test_equals_numpy_for_every_size_and_dtype(n, d, causal, dtype):
    attention, states = maps(2, n, n, causal=causal, dtype=dtype), normal(2, n, d, dtype=dtype)
    result = asc.geometric_semantic_alignment(attention, states)
    expected = [oracle(a, s) for a, s in zip(attention, states, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_shared_and_grouped_states_are_repeated_heads():
    attention = maps(2, 6, 12, 12)
    grouped, shared = normal(2, 3, 12, 5), normal(2, 1, 12, 5)
    per_head = grouped.repeat_interleave(2, dim=1)
    np.testing.assert_array_equal(
        asc.geometric_semantic_alignment(attention, grouped),
        asc.geometric_semantic_alignment(attention, per_head),
    )
    np.testing.assert_array_equal(
        asc.geometric_semantic_alignment(attention, shared),
        asc.geometric_semantic_alignment(attention, shared.repeat(1, 6, 1, 1)),
    )
    expected = [[oracle(attention[b, h], per_head[b, h]) for h in range(6)] for b in range(2)]
    np.testing.assert_allclose(asc.geometric_semantic_alignment(attention, grouped), expected, rtol=1e-10)
    states = normal(12, 5)
    expected = [[oracle(attention[b, h], states) for h in range(6)] for b in range(2)]
    np.testing.assert_allclose(asc.geometric_semantic_alignment(attention, states), expected, rtol=1e-10)


def test_without_sinks_masks_and_zero_states():
    attention, states = maps(4, 20, 20), normal(4, 20, 6)
    without = torch.zeros(4, 20, dtype=torch.bool)
    without[:, 0] = without[2, 7] = True
    result = asc.geometric_semantic_alignment(attention, states, without=without)
    expected = [oracle(*arguments) for arguments in zip(attention, states, without, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-10)
    states[:, 3] = 0
    result = asc.geometric_semantic_alignment(attention, states)
    expected = [oracle(*arguments) for arguments in zip(attention, states, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-10)
    window = torch.ones(20, 20, dtype=torch.bool).tril() & ~torch.ones(20, 20, dtype=torch.bool).tril(-5)
    result = asc.geometric_semantic_alignment(attention, states, support=window)
    expected = [oracle(a, s, mask=window) for a, s in zip(attention, states, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-10)


def test_what_does_not_vary_has_no_alignment():
    attention, states = maps(9, 9), normal(9, 4)
    assert asc.geometric_semantic_alignment(attention, torch.ones(9, 4)).isnan()
    assert asc.geometric_semantic_alignment(attention, torch.full((9, 7), 0.1)).isnan()
    assert asc.geometric_semantic_alignment(torch.full((9, 9), 1 / 9), states).isnan()
    assert asc.geometric_semantic_alignment(attention, torch.zeros(9, 4)).isnan()
    # Constant apart from far below any noise: not constant.
    nearly = torch.full((9, 9), 1 / 9, dtype=torch.float64)
    nearly[4, 2] += 1e-12
    assert not asc.geometric_semantic_alignment(nearly, states).isnan()


def test_ragged_lengths_strides_and_non_finite_neighbours():
    attention, states = maps(3, 10, 10), normal(3, 10, 4)
    result = asc.geometric_semantic_alignment(attention, states, lengths=[10, 6, 3])
    for index, length in enumerate([10, 6, 3]):
        expected = oracle(attention[index, :length, :length], states[index, :length])
        assert result[index].item() == pytest.approx(expected, rel=1e-10)
    shared = asc.geometric_semantic_alignment(attention, states[0], lengths=[10, 6, 3])
    for index, length in enumerate([10, 6, 3]):
        expected = oracle(attention[index, :length, :length], states[0, :length])
        assert shared[index].item() == pytest.approx(expected, rel=1e-10)
    wide = torch.zeros(3, 20, 8, dtype=torch.float64)
    wide[:, ::2, ::2] = states
    turned = attention.mT.contiguous().mT
    np.testing.assert_array_equal(
        asc.geometric_semantic_alignment(turned, wide[:, ::2, ::2]),
        asc.geometric_semantic_alignment(attention, states),
    )
    clean = asc.geometric_semantic_alignment(attention, states)
    attention[0, 5, 1] = torch.nan
    states[2, 9, 3] = torch.inf
    with pytest.warns(RuntimeWarning, match="2 of 3 matrices or their states"):
        result = asc.geometric_semantic_alignment(attention, states)
    assert result.isnan().tolist() == [True, False, True]
    assert result[1] == clean[1]


@settings(max_examples=40)
@given(n=st.integers(3, 24), d=st.integers(1, 9), seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_laws(n, d, seed, scale):
    attention, states = maps(n, n, seed=seed, causal=False), normal(n, d, seed=seed)
    result = asc.geometric_semantic_alignment(attention, states).item()
    # Cosines see directions only, and a correlation no common scale.
    again = asc.geometric_semantic_alignment(attention / 2, scale * states).item()
    assert again == pytest.approx(result, abs=1e-9, nan_ok=True)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    relabelled = asc.geometric_semantic_alignment(attention[order][:, order], states[order], support="full")
    assert relabelled.item() == pytest.approx(result, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnitude_is_the_norm_of_the_step(dtype):
    before, after = normal(2, 7, 5, dtype=dtype), normal(2, 7, 5, seed=2, dtype=dtype)
    expected = np.linalg.norm(after.double().numpy() - before.double().numpy(), axis=-1)
    np.testing.assert_allclose(asc.transformation_magnitude(before, after), expected, rtol=1e-13)
    assert (asc.transformation_magnitude(before, before) == 0).all()


def test_magnitude_of_one_number_and_of_no_token():
    assert asc.transformation_magnitude(torch.zeros(3, 1), torch.tensor([[3.0], [-2.0], [0.0]])).tolist() == [
        3,
        2,
        0,
    ]
    assert asc.transformation_magnitude(torch.zeros(2, 0, 4), torch.ones(2, 0, 4)).shape == (2, 0)
    with pytest.raises(ValueError, match=r"^transformation_magnitude: .* got \(3,\) and \(3,\)"):
        asc.transformation_magnitude(torch.zeros(3), torch.ones(3))


def test_magnitude_of_extreme_and_non_finite_tokens():
    after = torch.tensor([[3e200, 4e200], [3e-200, 4e-200], [torch.inf, 0.0]], dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="1 of 3 tokens"):
        result = asc.transformation_magnitude(torch.zeros(3, 2), after)
    np.testing.assert_allclose(result[:2], [5e200, 5e-200], rtol=1e-14)
    assert result[2].isnan()


@pytest.mark.parametrize("lengths", [None, [12, 7, 2]])
def test_entropy_magnitude_correlation_equals_scipy(lengths):
    attention, before, after = maps(3, 12, 12), normal(3, 12, 5), normal(3, 12, 5, seed=4)
    result = asc.entropy_magnitude_correlation(attention, before, after, lengths=lengths)
    for index, length in enumerate(lengths or [12] * 3):
        entropy = asc.attention_entropy(attention[index, :length, :length])
        step = asc.transformation_magnitude(before[index, :length], after[index, :length])
        expected = stats.pearsonr(entropy, step).statistic
        assert result[index].item() == pytest.approx(expected, rel=1e-12)


def test_entropy_magnitude_correlation_sees_what_its_support_says():
    attention = maps(2, 9, 9, causal=False, seed=3)
    before, after = normal(2, 9, 4), normal(2, 9, 4, seed=8)
    for options in ({"support": "causal"}, {"lengths": [6, 9]}, {}):
        result = asc.entropy_magnitude_correlation(attention, before, after, **options)
        for k, n in enumerate(options.get("lengths", [9, 9])):
            a = attention[k, :n, :n]
            a = a.tril() if "support" in options else a
            entropy = -torch.xlogy(a, a).sum(-1)
            moved = (after - before)[k, :n].norm(dim=-1)
            expected = np.corrcoef(entropy, moved)[0, 1]
            assert result[k].item() == pytest.approx(expected, rel=1e-12)
    attention[0, 3, 3] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 2 matrices"):
        result = asc.entropy_magnitude_correlation(attention, before, after)
    assert result.isnan().tolist() == [True, False]
    with pytest.raises(
        ValueError, match=r"^entropy_magnitude_correlation: states of shape \(2, 9\) \+ \[d\] do not"
    ):
        asc.entropy_magnitude_correlation(attention[:, None].expand(2, 3, 9, 9), before, after)


def test_entropy_magnitude_correlation_of_maps_without_queries():
    attention, before, after = maps(3, 6, 6), normal(3, 6, 2), normal(3, 6, 2, seed=4)
    for counts in ([0, 1, 6], [0, 4, 5]):
        result = asc.entropy_magnitude_correlation(attention, before, after, query_lengths=counts)
        singly = [
            asc.entropy_magnitude_correlation(
                attention[index], before[index], after[index], query_lengths=count
            )
            for index, count in enumerate(counts)
        ]
        assert result.isnan().tolist() == [count < 2 for count in counts]
        np.testing.assert_array_equal(result, torch.stack(singly))


def test_entropy_magnitude_correlation_without_variance():
    attention, before = maps(5, 5), normal(5, 3)
    assert asc.entropy_magnitude_correlation(attention, before, before + 0.1).isnan()
    assert asc.entropy_magnitude_correlation(maps(1, 1), normal(1, 3), normal(1, 3, seed=2)).isnan()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: asc.geometric_semantic_alignment(torch.rand(3, 3), torch.rand(4, 2)),
            r"states must have shape \[..., n, d\] with n = 3 and d >= 1, got \(4, 2\)",
        ),
        (
            lambda: asc.geometric_semantic_alignment(torch.rand(6, 3, 3), torch.rand(4, 3, 2)),
            r"states of shape \(4, 3, 2\) neither broadcast to attention of shape \(6, 3, 3\) nor divide",
        ),
        (
            lambda: asc.geometric_semantic_alignment(torch.rand(3, 3), torch.ones(3, 2).int()),
            r"got torch.int32",
        ),
        (
            lambda: asc.geometric_semantic_alignment(
                torch.rand(3, 3), torch.rand(3, 2), without=torch.ones(4, dtype=torch.bool)
            ),
            r"without of shape \(4,\) does not broadcast to \(3,\)",
        ),
        (
            lambda: asc.transformation_magnitude(torch.rand(3, 2), torch.rand(4, 2)),
            r"got \(3, 2\) and \(4, 2\)",
        ),
        (
            lambda: asc.entropy_magnitude_correlation(
                torch.rand(2, 3, 3), torch.rand(4, 3, 2), torch.rand(3, 2)
            ),
            r"do not broadcast to \(2, 3\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_correlation_of_rows_of_any_size_is_that_of_their_shape():
    """Each row has a scale of its own, and what is outside says nothing."""
    x, y = normal(2, 40, seed=5)
    inside = torch.arange(40) < 30
    expected = float(np.corrcoef(x[:30], y[:30])[0, 1])
    scales = torch.tensor([1e-140, 1.0, 1e140], dtype=torch.float64)[:, None]
    non_finite = torch.where(inside, x * scales, 1e150)
    result = pearson(non_finite, y.expand(3, 40), inside.expand(3, 40))
    assert result.tolist() == pytest.approx([expected] * 3, rel=1e-13)
    # A spread of a few roundings of the size is none, one of a thousand is.
    nearly = 1.0 + torch.tensor([2.0**-52, 1e3 * 2.0**-52])[:, None].double() * torch.sign(x)
    few, correlations = pearson(nearly, y.expand(2, 40), torch.ones(2, 40, dtype=torch.bool))
    assert few.isnan()
    assert not correlations.isnan()
    every_key = torch.ones(40, dtype=torch.bool)
    for other in (x, 3 * x, x / 3, x + 0.1):
        assert 1 - 1e-14 < pearson(x, other, every_key) <= 1
        assert -1 <= pearson(x, -other, every_key) < -1 + 1e-14


@pytest.mark.parametrize("path", ["core", "torch"])
def test_uniform_attention_of_any_size_has_no_correlation(path):
    for n in (5, 13, 33, 49, 66, 70):
        states = torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        maps = torch.full((2, n, n), 1 / n, dtype=torch.float64)
        with devices.use("torch") if path == "torch" else nullcontext():
            assert asc.geometric_semantic_alignment(maps, states).isnan().all(), n
