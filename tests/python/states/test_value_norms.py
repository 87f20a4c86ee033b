# SPDX-License-Identifier: MIT
"""Norms of what keys write: loops in NumPy, groups of heads, heads that cancel."""

import numpy as np
import pytest
import torch

import attnscope as asc
from models import text, tiny


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_norms_are_those_of_a_loop(kv):
    value, projection = drawn(3, kv, 7, 5), drawn(11, 4, 5, seed=1)
    norms = asc.value_norms(value, projection)
    gram = asc.value_norms(value, projection, layer=True)
    for b, h, j in np.ndindex(3, 4, 7):
        written = projection[:, h] @ value[b, h * kv // 4, j]
        assert norms[b, h, j].item() == pytest.approx(written.norm().item(), abs=1e-12)
        for g in range(4):
            other = projection[:, g] @ value[b, g * kv // 4, j]
            assert gram[b, j, h, g].item() == pytest.approx((written @ other).item(), abs=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_value_that_is_not_finite_has_no_norm(d):
    value = torch.ones(2, 4, d)
    value[0, 1, 0], value[1, 2, -1] = torch.inf, torch.nan
    projection = torch.ones(5, 2, d)
    norms = asc.value_norms(value, projection)
    assert norms.isnan().nonzero().tolist() == [[0, 1], [1, 2]]
    assert norms[~norms.isnan()].isfinite().all()
    products = asc.value_norms(value, projection, layer=True)
    missing = products.isnan()
    assert not products.isinf().any()
    assert torch.equal(missing[1], torch.tensor([[True, True], [True, False]]))
    assert torch.equal(missing[2], torch.tensor([[False, True], [True, True]]))
    assert not missing[[0, 3]].any()


@pytest.mark.parametrize("layer", [False, True])
def test_a_value_that_is_not_finite_leaves_the_gradient_of_the_others(layer):
    value, projection = drawn(2, 4, 3), drawn(5, 2, 3, seed=1)
    broken = value.clone()
    broken[:, 1, 0] = torch.nan
    slopes = []
    for values in (value, broken):
        written, read = projection.clone().requires_grad_(), values.clone().requires_grad_()
        result = asc.value_norms(read, written, layer=layer)
        (result[[0, 2, 3]] if layer else result[:, [0, 2, 3]]).sum().backward()
        slopes.append((written.grad, read.grad))
    for expected, actual in zip(*slopes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_weighted_attention_of_heads_and_of_the_layer():
    value, projection = drawn(2, 4, 7, 5), drawn(11, 4, 5, seed=1)
    heads = drawn(2, 4, 7, 7, seed=2).softmax(-1)
    weighted = asc.weighted_attention(heads, asc.value_norms(value, projection))
    moved = asc.weighted_attention(heads, asc.value_norms(value, projection, layer=True), layer=True)
    for b, i, j in np.ndindex(2, 7, 7):
        written = [heads[b, h, i, j] * (projection[:, h] @ value[b, h, j]) for h in range(4)]
        for h in range(4):
            assert weighted[b, h, i, j].item() == pytest.approx(written[h].norm().item(), abs=1e-12)
        assert moved[b, i, j].item() == pytest.approx(sum(written).norm().item(), abs=1e-10)
    assert (moved <= weighted.sum(1) + 1e-12).all()


def test_heads_that_cancel_move_nothing():
    value = torch.ones(2, 3, 4, dtype=torch.float64)
    projection = torch.stack([torch.eye(4), -torch.eye(4)], 1)
    heads = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64)
    assert asc.weighted_attention(heads, asc.value_norms(value, projection)).min() > 0
    moved = asc.weighted_attention(heads, asc.value_norms(value, projection, layer=True), layer=True)
    assert moved.abs().max() < 1e-7


def test_lengths_support_and_the_share_of_a_sink_without_a_value():
    heads = drawn(1, 2, 5, 5).softmax(-1)
    norms = torch.ones(1, 2, 5)
    norms[..., 0] = 0
    weighted = asc.weighted_attention(heads, norms, lengths=[4])
    assert (weighted[..., 4, :] == 0).all()
    assert (weighted[..., :, 4] == 0).all()
    assert (weighted[..., 0] == 0).all()
    assert torch.equal(weighted[..., 1:4, 1:4], heads[..., 1:4, 1:4])
    window = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    near = asc.weighted_attention(heads, norms, support=window)
    assert torch.equal(near, torch.where(window, heads, 0.0) * norms.double()[..., None, :])
    causal = asc.weighted_attention(heads, norms, support="causal")
    assert torch.equal(causal, weighted.new_tensor(heads).tril() * norms.double()[..., None, :])


def test_norms_of_a_model_are_those_of_its_own_output():
    model = tiny("llama")
    inputs = text(model, batch=1, n=6)
    with asc.capture(model, sites=("attention", "value", "head_output")) as recording:
        layer = next(iter(recording.run(**inputs)))
    projection = asc.output_projection(model, 0)
    norms = asc.value_norms(layer.value, projection)
    values = layer.states("value", per_head=True)
    assert norms.shape == values.shape[:3]
    written = torch.einsum("Dd,bnd->bnD", projection[:, 1].double(), values[:, 1].double())
    torch.testing.assert_close(norms[:, 1], written.norm(dim=-1))


@pytest.mark.parametrize(
    ("value", "projection", "words"),
    [
        (torch.ones(7, 5), torch.ones(11, 4, 5), r"value must be \[..., kv, n, d\], got shape \(7, 5\)"),
        (
            torch.ones(2, 7, 5),
            torch.ones(11, 3, 5),
            r"\[D, h, 5\] with h a multiple of 2, got .*\(11, 3, 5\)",
        ),
        (torch.ones(2, 7, 5), torch.ones(11, 4, 6), r"got shape \(11, 4, 6\)"),
    ],
)
def test_bad_input_is_named(value, projection, words):
    with pytest.raises(ValueError, match=f"value_norms: .*{words}"):
        asc.value_norms(value, projection)


def test_norms_of_another_shape_are_named():
    with pytest.raises(ValueError, match=r"weighted_attention: norms of shape \(2, 4\) does not broadcast"):
        asc.weighted_attention(torch.full((2, 3, 3), 1 / 3), torch.ones(2, 4))
