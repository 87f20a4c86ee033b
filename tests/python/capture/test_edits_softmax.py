# SPDX-License-Identifier: MIT
"""Edits of the softmax: hidden keys, windows, reads taken away, against masks and sums by hand."""

import pytest
import torch

import media_models
import models
from attnscope.capture import Forward, capture, edit, forward
from attnscope.capture.edits import AddDirection, HideKeys, LimitWindow, SubtractRead
from models import SOFTMAX, changed, layers_of, out
from models import kept_with_inputs as kept


@pytest.mark.parametrize(
    "padding", [*(pytest.param(side, marks=pytest.mark.slow) for side in ("none", "right")), "left"]
)
@pytest.mark.parametrize("name", models.few(SOFTMAX))
def test_hiding_nothing_and_a_wide_window_change_no_bit(name, padding):
    models.needs_attention_interface(name)
    model, inputs = kept(name, padding)
    base = out(model, inputs)
    for neutral in (HideKeys([]), HideKeys([0], heads=()), LimitWindow(64), LimitWindow(37, keep_first=3)):
        assert torch.equal(changed(model, inputs, neutral), base)
    # What is read is taken away by our own arithmetic, which is that of capture.
    with capture(model, sites=("attention",)) as recording:
        list(recording.run(**inputs))
        captured = recording.output[0]
    for neutral in (SubtractRead([0], heads=()), SubtractRead([])):
        assert torch.equal(changed(model, inputs, neutral), captured)


def test_a_boolean_mask_hides_under_an_edit_that_hides_nothing():
    model, inputs = models.with_inputs(models.cached_model("llama", "sdpa"), "llama", "none")
    n = inputs["input_ids"].shape[-1]
    near = torch.ones(n, n, dtype=torch.bool).tril().triu(-3).expand(2, 1, n, n)
    added = torch.zeros(near.shape).masked_fill(~near, torch.finfo(torch.float32).min)
    expected = out(model, {"input_ids": inputs["input_ids"], "attention_mask": added})
    edited = changed(model, {"input_ids": inputs["input_ids"], "attention_mask": near}, HideKeys([]))
    torch.testing.assert_close(edited, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(edited, out(model, inputs), atol=1e-3), "the mask must matter"


@pytest.mark.parametrize("padding", [pytest.param("none", marks=pytest.mark.slow), "left", "right"])
@pytest.mark.parametrize("name", SOFTMAX)
def test_a_hidden_key_is_seen_by_no_query_that_sees_another(name, padding):
    models.needs_attention_interface(name)
    model, inputs = kept(name, padding)
    sites = ("attention", "scores")
    base = layers_of(model, inputs, sites, HideKeys([]))
    for layer, usual in zip(layers_of(model, inputs, sites, HideKeys([3])), base, strict=True):
        first = inputs["attention_mask"].argmax(-1)
        for sample in range(2):
            column = int(first[sample]) + 3
            others = usual.scores[sample] > -torch.inf
            others[..., column] = False
            seeing = others.any(-1)
            assert float(layer.attention[sample, ..., column][seeing].abs().max()) == 0.0
            assert bool((layer.scores[sample, ..., column][seeing] == -torch.inf).all())
        real = layer.valid
        if layer.sink_logits is None:
            assert torch.allclose(layer.attention.sum(-1), usual.attention.sum(-1), atol=1e-5)
        assert torch.equal(layer.valid, usual.valid), "a hidden key is still a real one"
        assert bool(real.any())


def test_hidden_keys_are_united_and_leave_every_query_one():
    model, inputs = kept("llama", "none")
    listed = layers_of(model, inputs, ("attention",), HideKeys([0]), HideKeys([1, 2]))
    with edit(model, HideKeys([0])), edit(model, HideKeys([1])):
        nested = layers_of(model, inputs, ("attention",), HideKeys([2]))
    once = layers_of(model, inputs, ("attention",), HideKeys([2, 0, 1]))
    for of_list, of_nested, of_union in zip(listed, nested, once, strict=True):
        assert torch.equal(of_list.attention, of_union.attention)
        assert torch.equal(of_nested.attention, of_union.attention)
        assert torch.allclose(of_list.attention.sum(-1), torch.ones(()), atol=1e-5)
        assert (
            float(of_list.attention[..., 1:3, :3].sum(-1).min()) > 0.999
        )  # queries 1 and 2 keep what they see


def test_hidden_keys_of_some_heads_layers_and_queries():
    model, inputs = kept("llama", "left")
    base = layers_of(model, inputs, ("attention",), HideKeys([]))
    edited = layers_of(
        model, inputs, ("attention",), HideKeys([1], heads=[(0, 2), (0, -4)], skip_queries=[5])
    )
    maps, base_maps = edited[0].attention, base[0].attention
    assert torch.equal(maps[:, [1, 3]], base_maps[:, [1, 3]])
    for sample, first in enumerate((0, 9)):
        rows = torch.arange(first + 2, 37)
        rows = rows[rows != first + 5]
        assert not maps[sample, [0, 2]][:, rows, first + 1].any()
        assert torch.equal(maps[sample, :, first + 5], base_maps[sample, :, first + 5])
    flags = torch.zeros(2, 37, dtype=torch.bool)
    flags[0, 1] = flags[1, 10] = True
    for a, b in zip(
        layers_of(model, inputs, ("attention",), HideKeys([1])),
        layers_of(model, inputs, ("attention",), HideKeys(flags)),
        strict=True,
    ):
        assert torch.equal(a.attention, b.attention)


def test_layers_of_heads_count_from_both_ends():
    """A layer that the model lacks is an error: nothing would be hidden, without a word."""
    model, inputs = kept("llama", "left")
    sites = ("attention",)
    from_front, from_end = (
        layers_of(model, inputs, sites, HideKeys([1], heads=[pair])) for pair in ((2, 3), [-1, -1])
    )
    for front, end in zip(from_front, from_end, strict=True):
        assert torch.equal(front.attention, end.attention)
    assert not from_end[-1].attention[0, 3, 2:, 1].any()
    for change in (HideKeys, SubtractRead):
        for layer in (3, -4):
            with (
                pytest.raises(ValueError, match=f"{change.__name__}: layer {layer} of LlamaForCausalLM"),
                edit(model, change([1], heads=[(layer, 0)])),
            ):
                out(model, inputs)


@pytest.mark.parametrize("heads", [[(0, 1, 2)], [0.5], ["a"], [True], 1, [(0, "a")]])
def test_heads_that_are_none(heads):
    with pytest.raises(ValueError, match=r"HideKeys: heads must be numbers or pairs \(layer, head\), got"):
        HideKeys([0], heads=heads)


@pytest.mark.parametrize("change", [HideKeys([1]), SubtractRead([1]), LimitWindow(2)])
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3"])
def test_keys_of_a_text_are_none_of_its_picture(name, change):
    """A tower of pictures has keys and layers of its own, also where it is first tried inside the edit."""
    model, inputs = media_models.with_picture(name)
    base, edited = (
        layers_of(model, inputs, ("attention", "head_output"), neutral)
        for neutral in (LimitWindow(64), change)
    )
    is_text = ["language_model" in layer.stack for layer in base]
    assert is_text == [False, False, True, True]
    is_equal = [torch.equal(a.head_output, b.head_output) for a, b in zip(edited, base, strict=True)]
    assert is_equal[:2] == [True, True]
    assert not is_equal[3]
    for layer, before in zip(edited[:2], base[:2], strict=True):
        assert torch.equal(layer.attention, before.attention)
    if isinstance(change, HideKeys):
        assert not any(layer.attention[:, :, 2:, 1].any() for layer in edited[2:])


@pytest.mark.parametrize("name", ["llava", "smolvlm"])
def test_layers_of_an_edit_are_those_of_the_text_whatever_the_model_was_tried_on(name):
    """Inputs with a picture show its tower's blocks first."""
    model, inputs = media_models.with_picture(name)
    change = AddDirection(0, torch.randn(32, generator=torch.Generator().manual_seed(0)), "all")
    with torch.no_grad(), edit(model, change):
        expected = model(**inputs).logits
    with forward(model, inputs, Forward(sites=("logits",), edits=(change,))) as run:
        assert torch.equal(run.outputs.logits, expected)
    with torch.no_grad():
        assert not torch.equal(model(**inputs).logits, expected)


def test_keys_of_a_cross_attention_are_none_of_the_text():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, add_cross_attention=True)
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(3, 64, (1, 9), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "encoder_hidden_states": torch.randn(1, 5, 32)}
    edited = layers_of(model, inputs, ("attention",), HideKeys([1]))
    assert [layer.cross for layer in edited] == [False, True] * 2
    for layer in edited:
        assert bool(layer.attention[:, :, 2:, 1].any()) is layer.cross


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert", "gpt_oss", "t5"])
def test_a_window_is_what_a_mask_by_hand_is(name):
    models.needs_attention_interface(name)
    model, inputs = kept(name, "left")
    layers = layers_of(model, inputs, ("scores",), LimitWindow(4, keep_first=2))
    base = layers_of(model, inputs, ("scores",), LimitWindow(64))
    query, key = torch.arange(37)[:, None], torch.arange(37)[None]
    for layer, usual in zip(layers, base, strict=True):
        for sample, first in enumerate((0, 9)):
            inside = ((query - key).abs() < 4) | ((key >= first) & (key < first + 2))
            expected = (usual.scores[sample] > -torch.inf) & inside
            expected[:, :first] = usual.scores[sample, :, :first] > -torch.inf
            visible = layer.scores[sample] > -torch.inf
            assert torch.equal(visible[:, first:], expected[:, first:])


def test_a_window_of_one_and_a_hidden_key():
    """The query sees itself alone, so that hiding itself must leave it that."""
    model, inputs = kept("llama", "none")
    for layer in layers_of(model, inputs, ("attention",), LimitWindow(1), HideKeys([5])):
        assert torch.equal(layer.attention, torch.eye(37).expand_as(layer.attention))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gpt_oss", "gemma2", "t5"])
def test_a_read_is_taken_from_what_the_heads_hand_on(name):
    models.needs_attention_interface(name)
    model, inputs = kept(name, "left")
    sites = ("attention", "value", "head_output")
    heads = [1, 3]
    edited = layers_of(model, inputs, sites, SubtractRead([2], heads=heads, skip_queries=[2]))
    layer = edited[0]
    value = layer.value[:, list(layer.kv_heads)]
    for sample, first in enumerate((0, 9)):
        full_read = layer.attention[sample] @ value[sample]
        read = layer.attention[sample, :, :, first + 2, None] * value[sample, :, first + 2, None]
        expected = full_read.clone()
        expected[heads] -= read[heads]
        expected[:, first + 2] = full_read[:, first + 2]
        assert torch.allclose(layer.head_output[sample, :, first:], expected[:, first:], atol=1e-5)
    base = layers_of(model, inputs, sites, SubtractRead([]))
    assert torch.equal(layer.attention, base[0].attention), "the probabilities stay"
    assert not torch.equal(edited[1].attention, base[1].attention)


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("name", ["mistral", "llama"])
@pytest.mark.parametrize(
    "change", [HideKeys([3]), HideKeys([0]), LimitWindow(3, keep_first=1), SubtractRead([1], heads=[2])]
)
def test_an_edit_is_of_the_same_keys_whatever_the_cache(name, change, left):
    """The masks of a cache of fixed size are made before the pass, of padding and of dropped keys alike.

    A cache of full layers has places for tokens to come, which no query sees.
    """
    model = models.tiny(name)
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :left] = 0
    written = []
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        with edit(model, change):
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=6,
                do_sample=False,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
                **options,
            )
        written.append(torch.stack(output.logits))
    for other in written[1:]:
        torch.testing.assert_close(other, written[0], rtol=0, atol=1e-4)
