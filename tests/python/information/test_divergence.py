# SPDX-License-Identifier: MIT
"""head_divergence and sink_removal against scipy in float64, closed forms and laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps(*shape, causal=True, seed=0, sharpness=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def divergence_oracle(heads):
    """rel_entr is x log(x/y) − x + y without the linear part: x log(x/y)."""
    a = heads.double().numpy()
    return rel_entr(a, a.mean(-3, keepdims=True)).sum(-1)


def removal_oracle(heads, keys):
    """One layer [h, n, n], by the definition's words."""
    a = heads.double().numpy().copy()
    before = divergence_oracle(heads)
    a[..., list(keys)] = 0
    mass = a.sum(-1)
    alive = mass > 0
    rescaled = np.where(alive[..., None], a / np.where(alive, mass, 1)[..., None], 0)
    after = np.full_like(before, np.nan)
    for i in range(a.shape[-1]):
        if alive[:, i].any():
            mean = rescaled[alive[:, i], i].mean(0)
            after[:, i] = rel_entr(rescaled[:, i], mean).sum(-1)
    after = after if len(keys) else before
    pairs = [(before[h, alive[h]].mean(), after[h, alive[h]].mean()) for h in range(len(a)) if alive[h].any()]
    reduction = np.mean([b - c for b, c in pairs]) if pairs else np.nan
    return reduction, (~alive).sum(-1), rescaled, pairs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_divergence_equals_scipy(n, causal, dtype):
    heads = maps(2, 3, n, n, causal=causal, dtype=dtype)
    result = asc.head_divergence(heads)
    assert result.shape == (2, 3)
    np.testing.assert_allclose(result, divergence_oracle(heads).mean(-1), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [[0], [0, 3], [], [1, 2, 8]])
def test_removal_follows_the_definition(keys, dtype):
    heads = maps(2, 3, 9, 9, dtype=dtype)
    result = asc.sink_removal(heads, keys)
    for layer in range(2):
        reduction, excluded, rescaled, pairs = removal_oracle(heads[layer], keys)
        assert result.kl_reduction[layer].item() == pytest.approx(reduction, rel=1e-10, abs=1e-14)
        assert result.excluded[layer].tolist() == excluded.tolist()
        np.testing.assert_allclose(result.attention[layer], rescaled, rtol=1e-14)
        np.testing.assert_allclose(result.before[layer], [b for b, _ in pairs], rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(result.after[layer], [c for _, c in pairs], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("keys", [[], [5]])
def test_without_a_key_nothing_is_removed(keys):
    """Rows of float32 sum to 1 up to rounding, which is no reduction."""
    heads = maps(2, 3, 6, 6, dtype=torch.float32)
    assert ((heads.double().sum(-1) - 1).abs() > 1e-9).any()
    result = asc.sink_removal(heads, keys, lengths=[5, 4])
    assert result.kl_reduction.tolist() == [0, 0]


def test_keys_per_layer_and_without_maps():
    heads = maps(2, 3, 6, 6)
    keys = torch.zeros(2, 6, dtype=torch.bool)
    keys[0, 0] = keys[1, 3] = True
    removal_only = asc.sink_removal(heads, keys, keep_attention=False)
    assert removal_only.attention is None
    assert removal_only.kl_reduction[0] == asc.sink_removal(heads[0], [0]).kl_reduction
    assert removal_only.kl_reduction[1] == asc.sink_removal(heads[1], [3]).kl_reduction


def test_nothing_left_is_counted_and_has_no_answer():
    star = torch.zeros(2, 4, 4, dtype=torch.float64)
    star[..., 0] = 1
    result = asc.sink_removal(star, [0])
    assert result.excluded.tolist() == [4, 4]
    assert result.kl_reduction.isnan()
    assert (result.attention == 0).all()
    # A head without a surviving row is left out of the mean over heads.
    mixed = torch.stack([star[0], maps(4, 4, causal=False)])
    result = asc.sink_removal(mixed, [0])
    assert result.excluded.tolist() == [4, 0]
    assert result.kl_reduction.item() == pytest.approx(removal_oracle(mixed, [0])[0])


def test_identical_heads_and_one_head_do_not_diverge():
    heads = maps(1, 8, 8).expand(3, 8, 8)
    assert (asc.head_divergence(heads).abs() < 1e-15).all()
    assert asc.head_divergence(heads[:1]).item() == 0


def test_mixed_supports_in_one_layer_and_half_types():
    # A causal and a full head share a mean whose row is longer than the causal head's support.
    for dtype in DTYPES:
        heads = torch.stack([maps(7, 7), maps(7, 7, causal=False, seed=3)]).to(dtype)
        np.testing.assert_allclose(asc.head_divergence(heads), divergence_oracle(heads).mean(-1), rtol=1e-10)
        turned = heads.mT.contiguous().mT
        np.testing.assert_array_equal(asc.head_divergence(turned), asc.head_divergence(heads))


def test_masks_cut_what_is_summed():
    heads = maps(3, 6, 6, causal=False)
    window = torch.ones(6, 6, dtype=torch.bool).tril() & ~torch.ones(6, 6, dtype=torch.bool).tril(-3)
    expected = divergence_oracle(heads * window).mean(-1)
    np.testing.assert_allclose(asc.head_divergence(heads, support=window), expected, rtol=1e-12)
    expected = divergence_oracle(heads.tril()).mean(-1)
    np.testing.assert_allclose(asc.head_divergence(heads, support="causal"), expected, rtol=1e-12)


def test_ragged_lengths_non_finite_layers_and_strides():
    heads = maps(3, 2, 8, 8)
    lengths = [8, 5, 1]
    result = asc.head_divergence(heads, lengths=lengths)
    removed = asc.sink_removal(heads, [0], lengths=lengths)
    for layer, length in enumerate(lengths):
        single_layer = heads[layer, :, :length, :length].clone()
        np.testing.assert_allclose(result[layer], asc.head_divergence(single_layer), rtol=1e-14)
        again = asc.sink_removal(single_layer, [0])
        np.testing.assert_allclose(removed.kl_reduction[layer], again.kl_reduction, rtol=1e-14)
        np.testing.assert_allclose(removed.before[layer], again.before, rtol=1e-14)
        np.testing.assert_allclose(removed.after[layer], again.after, rtol=1e-14)
        assert removed.excluded[layer].tolist() == again.excluded.tolist()
        assert removed.attention[layer, :, length:].isnan().all()
    non_finite = heads.clone()
    non_finite[1, 0, 3, 2] = torch.nan
    with pytest.warns(RuntimeWarning, match="head_divergence: 1 of 3 layers"):
        result = asc.head_divergence(non_finite)
    assert result[1].isnan().all()
    np.testing.assert_array_equal(result[[0, 2]], asc.head_divergence(heads[[0, 2]]))
    with pytest.warns(RuntimeWarning, match="sink_removal: 1 of 3 layers"):
        removed = asc.sink_removal(non_finite, [0])
    assert removed.excluded[1].tolist() == [-1, -1]
    assert removed.kl_reduction.isnan().tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"nan at index \(1, 0, 3, 2\)"):
        asc.head_divergence(non_finite, validate=True)


@settings(max_examples=50)
@given(n=st.integers(1, 20), h=st.integers(1, 6), seed=st.integers(0, 10**6), sharpness=st.floats(0, 30))
def test_laws(n, h, seed, sharpness):
    heads = maps(h, n, n, seed=seed, sharpness=sharpness)
    result = asc.head_divergence(heads)
    assert (result >= -1e-12).all()
    assert (result <= math.log(h) + 1e-12).all()
    order = torch.randperm(h, generator=torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(asc.head_divergence(heads[order]), result[order], atol=1e-13)
    # The mean over heads is the Jensen-Shannon divergence: entropy of the mean minus mean entropy.
    gap = asc.attention_entropy(heads.mean(0)).mean() - asc.attention_entropy(heads).mean()
    assert result.mean().item() == pytest.approx(gap.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asc.head_divergence(torch.rand(3, 3)), r"at least three dimensions"),
        (lambda: asc.head_divergence(torch.rand(2, 4, 3)), "4 queries cannot stand at the last of 3 keys"),
        (lambda: asc.head_divergence(torch.rand(0, 3, 3)), r"h >= 1"),
        (
            lambda: asc.head_divergence(torch.rand(2, 3, 3), lengths=[1, 2]),
            r"one layer must be equal, got \[1, 2\]",
        ),
        (lambda: asc.head_divergence(torch.rand(2, 3, 3), lengths=[1, 2, 3]), r"do not broadcast"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [3]), r"keys must lie between 0 and n - 1 = 2, got 3"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [-1]), r"keys must lie between .*, got -1"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [0.5]), r"keys must be a boolean tensor"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [0.5, 1.0]), r"keys must be a boolean tensor"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [1j]), r"keys must be a boolean tensor"),
        (lambda: asc.sink_removal(torch.rand(2, 3, 3), [[0, 1]]), r"torch.int64 of shape \(1, 2\)"),
        (
            lambda: asc.sink_removal(torch.rand(2, 3, 3), torch.ones(2, dtype=torch.bool)),
            r"keys of shape \(2,\) do not broadcast to \(3,\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
