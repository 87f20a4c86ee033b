# SPDX-License-Identifier: MIT
"""Generations of models with learned virtual tokens: what the adapter's own `generate` makes of these."""

import warnings

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

import attnscope as asc
from models import tiny_llama

NUMBER, WRITTEN = 3, 4
GREEDY = {"max_new_tokens": WRITTEN, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def adapted(model, kind, task="CAUSAL_LM"):
    """Return a model with virtual tokens that change what it writes."""
    peft = pytest.importorskip("peft", reason="peft, whose prompt learning is tested, is not installed")
    config = getattr(peft, kind)(task_type=task, num_virtual_tokens=NUMBER)
    torch.manual_seed(0)
    model = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "prompt" in name:
                parameter.normal_(0, 2)
    return model


def prompt():
    ids = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def written_by_passes(model):
    """Return the likeliest tokens behind the prompt, each from one pass over all before it."""
    ids = prompt()["input_ids"]
    with torch.no_grad():
        for _ in range(WRITTEN):
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return ids


def generated(model, inputs, **options):
    """Return the recording of a generation, its tokens and what was said of it."""
    with asc.capture(model) as recording:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(recording.generate(**inputs, **GREEDY, **options))
        notices = [str(entry.message) for entry in caught if str(entry.message).startswith("generate: ")]
        return recording, recording.output, notices


def test_a_prefix_that_generate_leaves_out_is_said():
    model = adapted(tiny_llama(), "PrefixTuningConfig")
    recording, tokens, notices = generated(model, prompt())
    if torch.equal(tokens, written_by_passes(model)):
        assert not notices
        assert [layer.attention.shape[-2:] for layer in recording.assembled()] == [(9, 9 + NUMBER)] * 2
        return
    (words,) = notices
    assert words.startswith(f"generate: the {NUMBER} virtual tokens of its prefix are no part of this gen")
    assert "step 0 of base_model.model.layers.*.self_attn, layer 0: queries 6, keys before them 0" in words
    with model.disable_adapter():
        assert torch.equal(tokens, written_by_passes(model))


def test_a_prefix_of_a_decoder_that_generate_leaves_out_is_said():
    width = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    torch.manual_seed(0)
    base = BartForConditionalGeneration(BartConfig(vocab_size=40, **width, **layers, **heads)).eval()
    model = adapted(base, "PrefixTuningConfig", "SEQ_2_SEQ_LM")
    recording, _, notices = generated(model, prompt(), num_beams=1)
    decoder = next(layer for layer in recording.assembled() if "decoder.layers.*.self_attn" in layer.stack)
    is_left_out = decoder.attention.shape[-1] == decoder.attention.shape[-2]
    place = "decoder.layers.*.self_attn, layer 0: queries 1, keys before them 0"
    assert is_left_out == any(place in words for words in notices)


@pytest.mark.parametrize("options", [{}, {"use_cache": False}])
def test_virtual_tokens_that_are_read_again_in_each_step_are_refused(options):
    """Their rows stood among those of the text: 21 for 9 tokens that were read and 3 virtual ones."""
    model = adapted(tiny_llama(), "PromptTuningConfig")
    recording, tokens, notices = generated(model, prompt(), **options)
    if notices:
        assert not options
        (words,) = notices
        assert words.startswith(f"generate: with its cache the model reads {NUMBER} virtual tokens again")
        with pytest.raises(RuntimeError, match="virtual tokens again in each step, whose rows are no part"):
            list(recording.assembled())
        return
    assert torch.equal(tokens, written_by_passes(model))
    ids = tokens[:, :-1]
    with asc.capture(model) as single:
        passes = single.run(input_ids=ids, attention_mask=torch.ones_like(ids))
        expected = [layer.attention for layer in passes]
    for layer, reference in zip(recording.assembled(), expected, strict=True):
        torch.testing.assert_close(layer.attention, reference, rtol=0, atol=1e-5)
        assert layer.answer_start.tolist() == [6 + NUMBER] * 2
