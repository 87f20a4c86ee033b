# SPDX-License-Identifier: MIT
"""Generation: prompt, then one query at a time, with every kind of cache."""

import pytest
import torch

import models
from attnscope.capture import capture

STEPS = 9
OPTIONS = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}


def prompt(model, n=6, **options):
    inputs = models.text(model, n=n, **options)
    inputs.pop("decoder_input_ids", None)
    return inputs


def eager(name, inputs, **options):
    model = models.tiny(name, implementation="eager")
    return model.generate(
        **inputs, **OPTIONS, **options, output_attentions=True, return_dict_in_generate=True
    )


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "gpt_oss", "bloom", "falcon"])
def test_every_step_equals_eager_attention(name):
    model = models.tiny(name)
    inputs = prompt(model)
    expected = eager(name, inputs)
    tolerance = 5e-6 if name == "gpt_oss" else models.eager_rounding(name)
    steps: dict[int, list] = {}
    with capture(model) as recording:
        for layer in recording.generate(**inputs, **OPTIONS):
            steps.setdefault(layer.step, []).append(layer)
        assert torch.equal(recording.output, expected.sequences)
    assert sorted(steps) == list(range(STEPS))
    for step, layers in steps.items():
        for layer, attention in zip(layers, expected.attentions[step], strict=True):
            keys = layer.attention.shape[-1]
            assert layer.attention.shape[-2] == (6 if step == 0 else 1)
            assert float((layer.attention - attention[..., :keys]).abs().max()) <= tolerance
            assert layer.valid.shape == (2, keys)
            if name != "gpt_oss":
                assert keys == 6 + step
                assert layer.key_offset == 0
                assert bool(layer.valid.all())


def test_a_sliding_cache_tells_where_its_first_key_is():
    model = models.tiny("mistral")
    inputs = prompt(model)
    expected = eager("mistral", inputs)
    with capture(model, layers=[0], sites=("attention", "key")) as recording:
        layers = list(recording.generate(**inputs, **OPTIONS))
    offsets = [layer.key_offset for layer in layers]
    assert [layer.attention.shape[-1] for layer in layers] == [6, *[7] * (STEPS - 1)]
    assert offsets == [0, 0, *range(1, STEPS - 1)]
    for layer in layers:
        expected_map = expected.attentions[layer.step][0]
        assert torch.equal(layer.attention, expected_map)
        assert layer.key.shape[-2] == layer.valid.shape[-1]
        # The query is the newest token, the last key its own: offset + keys = tokens so far.
        assert layer.key_offset + layer.attention.shape[-1] == 6 + layer.step


def test_left_padding_stays_marked_in_every_step():
    model = models.tiny("llama")
    inputs = prompt(model, n=12, padding="left")
    with capture(model) as recording:
        for layer in recording.generate(**inputs, **OPTIONS):
            keys = 12 + layer.step
            expected = torch.ones(2, keys, dtype=torch.bool)
            expected[1, :9] = False
            assert torch.equal(layer.valid, expected)
            assert float(layer.attention[1, :, -1, :9].abs().max()) == 0.0
            assert layer.lengths.tolist() == [keys, keys - 9]


def test_the_empty_tail_of_a_static_cache_is_not_valid():
    model = models.tiny("llama")
    inputs = prompt(model)
    with capture(model) as recording:
        for layer in recording.generate(
            **inputs, **OPTIONS, cache_implementation="static", disable_compile=True
        ):
            assert layer.attention.shape[-1] >= 6 + STEPS - 1
            assert layer.lengths.tolist() == [6 + layer.step] * 2
            assert float(layer.attention[..., 6 + layer.step :].abs().sum()) == 0.0


def test_encoder_decoder_generation():
    model = models.tiny("t5")
    inputs = prompt(model)
    expected = eager("t5", inputs)
    with capture(model) as recording:
        layers = list(recording.generate(**inputs, **OPTIONS))
        assert torch.equal(recording.output, expected.sequences)
    encoder = [layer for layer in layers if layer.stack.startswith("encoder")]
    assert [layer.index for layer in encoder] == [0, 1, 2]
    assert {layer.step for layer in encoder} == {0}
    for layer in layers:
        if layer.stack.startswith("decoder"):
            maps = expected.cross_attentions if layer.cross else expected.decoder_attentions
            assert torch.allclose(layer.attention, maps[layer.step][layer.index], atol=2e-4)
            assert layer.attention.shape[-1] == (6 if layer.cross else 1 + layer.step)
    assert max(layer.step for layer in layers) == STEPS - 1


def test_beams_are_samples():
    model = models.tiny("llama")
    inputs = prompt(model, batch=1)
    with capture(model) as recording:
        shapes = {
            (layer.step > 0, layer.attention.shape[0])
            for layer in recording.generate(**inputs, **OPTIONS, num_beams=3)
        }
    assert {batch for later, batch in shapes if later} == {3}


def test_a_model_without_a_head_does_not_generate():
    with (
        capture(models.tiny("bert")) as recording,
        pytest.raises(TypeError, match="BertModel does not generate text"),
    ):
        recording.generate(input_ids=torch.ones(1, 4, dtype=torch.int64))


def test_continuing_from_a_cache():
    """The second half of a text given its first half's cache: the lower rows of the whole map."""
    model = models.tiny("llama")
    inputs = models.text(model, n=20)
    ids = inputs["input_ids"]
    with capture(model) as recording:
        full_maps = [layer.attention.clone() for layer in recording.run(**inputs)]
        list(recording.run(input_ids=ids[:, :12], use_cache=True))
        cache = recording.output.past_key_values
        for layer in recording.run(
            input_ids=ids[:, 12:], past_key_values=cache, attention_mask=inputs["attention_mask"]
        ):
            assert layer.attention.shape == (2, 4, 8, 20)
            assert torch.allclose(layer.attention, full_maps[layer.index][:, :, 12:], atol=1e-5)
            with pytest.raises(ValueError, match="decoding step"):
                layer.matrices()
