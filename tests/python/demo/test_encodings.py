# SPDX-License-Identifier: MIT
"""Ways of telling positions apart in one model: each is what its paper says, and stored models load."""

import pytest
import torch

from attnscope.capture import capture
from attnscope.demo.encodings import ENCODINGS, PositionsRecipe, alibi_slopes, distance_bucket
from attnscope.models import find_checkpoints, load_model


def small(encoding, layers=1):
    return PositionsRecipe(layers=layers, heads=2, width=16, inner_width=16, encoding=encoding).build().eval()


def maps(model, ids):
    with capture(model) as recording:
        return torch.stack([layer.attention.clone() for layer in recording.run(input_ids=ids)])


def test_buckets_are_those_of_t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-20, 400)
    theirs = T5Attention._relative_position_bucket(-distance, bidirectional=False)
    assert torch.equal(distance_bucket(distance), theirs)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_model_is_causal_and_captured_as_eager(encoding):
    model = small(encoding, layers=2)
    ids = torch.randint(1, 200, (2, 20), generator=torch.Generator().manual_seed(0))
    captured = maps(model, ids)
    assert not captured.triu(1).any()
    torch.testing.assert_close(captured.sum(-1), torch.ones(2, 2, 2, 20))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        torch.testing.assert_close(model(input_ids=ids[:, :9]).logits, logits[:, :9], atol=1e-5, rtol=1e-5)
        model.set_attn_implementation("eager")
        eager = torch.stack(model(input_ids=ids, output_attentions=True).attentions)
    torch.testing.assert_close(captured, eager, atol=1e-6, rtol=1e-6)


def test_without_positions_the_order_of_earlier_tokens_is_nothing():
    ids = torch.tensor([[0, 7, 8, 9, 10, 11]])
    mixed = torch.tensor([[0, 10, 8, 7, 9, 11]])
    for encoding in ENCODINGS:
        model = small(encoding)
        if encoding == "t5":  # its biases begin at zero
            torch.nn.init.normal_(model.model.relative_bias.buckets)
        with torch.no_grad():
            last = [model(input_ids=order).logits[0, -1] for order in (ids, mixed)]
        is_equal = torch.allclose(*last, atol=1e-6)
        assert is_equal == (encoding == "none"), encoding


def test_alibi_is_a_penalty_in_proportion_to_distance():
    """For a token repeated, logits differ by the penalty alone."""
    attention = maps(small("alibi"), torch.full((1, 12), 5))[0, 0]
    for head, slope in enumerate(alibi_slopes(2)):
        steps = attention[head, -1, 1:].log() - attention[head, -1, :-1].log()
        torch.testing.assert_close(steps, slope.expand(11), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoding", ["learned", "t5"])
def test_stored_models_are_found_by_the_package(tmp_path, encoding):
    model = small(encoding)
    model.save_pretrained(tmp_path)
    loaded = load_model(find_checkpoints(str(tmp_path))[0])
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.architecture == "PositionsForCausalLM"


def test_an_unknown_encoding_is_named():
    with pytest.raises(ValueError, match="one of rope, learned, alibi, t5, none, ntk, window, got 'sinus'"):
        small("sinus")


def test_a_window_of_keys_and_no_more():
    attention = maps(
        small("window"), torch.randint(1, 200, (1, 50), generator=torch.Generator().manual_seed(0))
    )
    distance = torch.arange(50)[:, None] - torch.arange(50)
    seen = (distance >= 0) & (distance < 32)
    assert (attention[..., seen] > 0).all()
    assert not attention[..., ~seen].any()


def test_the_frequencies_of_a_larger_base():
    d = 8
    frequencies = small("ntk").model.rotary_emb.inv_freq
    torch.testing.assert_close(frequencies, 1e6 ** (-torch.arange(0, d, 2) / d))
    torch.testing.assert_close(small("rope").model.rotary_emb.inv_freq, 1e4 ** (-torch.arange(0, d, 2) / d))
