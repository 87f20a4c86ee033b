# SPDX-License-Identifier: MIT
"""Attention rollout: stars, products by hand, streams of layers, and what is refused."""

import pytest
import torch

import attnscope as asc
from models import text, tiny


def maps(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=draw, dtype=torch.float64)
    return logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_behind_a_star_is_the_first_token(depth):
    star = torch.zeros(2, 5, 5)
    star[..., 0] = 1
    result = asc.attention_rollout([star] * depth)
    assert torch.allclose(result[1:, 0], torch.full((4,), 1 - 0.5**depth, dtype=torch.float64))
    assert result[0, 0] == 1


def test_it_is_a_product_and_rows_sum_to_one():
    layers = [maps(3, 4, 7, 7, seed=seed) for seed in range(3)]
    expected = torch.eye(7, dtype=torch.float64).expand(3, 7, 7)
    for heads in layers:
        expected = 0.5 * (heads.mean(1) + torch.eye(7)) @ expected
    result = asc.attention_rollout(iter(layers))
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(result.sum(-1), torch.ones(3, 7, dtype=torch.float64))


def test_a_learned_sink_is_lost():
    result = asc.attention_rollout([0.5 * maps(2, 6, 6)] * 2)
    torch.testing.assert_close(result.sum(-1), torch.full((6,), 0.75**2, dtype=torch.float64))


def test_lengths_and_layers_of_a_recording():
    layers = [maps(2, 3, 8, 8, seed=seed) for seed in range(2)]
    result = asc.attention_rollout(layers, lengths=[8, 5])
    single = asc.attention_rollout([heads[1, :, :5, :5] for heads in layers])
    torch.testing.assert_close(result[1, :5, :5], single)
    assert result[1, 5:].isnan().all()
    for heads in layers:
        heads[1, :, 5:] = heads[1, :, :, 5:] = 0.25  # what stands behind a text is no part of it
    torch.testing.assert_close(asc.attention_rollout(layers, lengths=[8, 5])[1, :5, :5], single)
    model = tiny("llama")
    inputs = text(model, batch=1, n=6)
    with asc.capture(model) as recording, torch.no_grad():
        streamed = asc.attention_rollout(layer.attention for layer in recording.run(**inputs))
    torch.testing.assert_close(streamed.sum(-1), torch.ones(1, 6, dtype=torch.float64), rtol=0, atol=1e-5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="attention_rollout: layers must hold at least one layer, got none"):
        asc.attention_rollout([])
    with pytest.raises(ValueError, match=r"layers must be of one size, got shape \(5, 5\) of layer 1 behind"):
        asc.attention_rollout([maps(2, 4, 4), maps(2, 5, 5)])
