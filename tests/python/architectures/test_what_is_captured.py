# SPDX-License-Identifier: MIT
"""Models with several stacks, with images, with weights elsewhere: what is captured and what is said."""

import warnings

import pytest
import torch
import transformers

import attnscope as asc
import models
from attnscope.capture import capture
from attnscope.capture.softmax_watch import SoftmaxWatch
from attnscope.models import LoadError

SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT = {"vocab_size": 60, **SHAPE, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0}
IMAGE = {**SHAPE, "image_size": 12, "patch_size": 4}


def tokens(n=9, batch=2):
    return torch.randint(5, 50, (batch, n), generator=torch.Generator().manual_seed(0))


def pixels(side=12):
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def stacks(recording, **inputs):
    """The number of layers by stack."""
    counts = {}
    for layer in recording.run(**inputs):
        counts[layer.stack] = counts.get(layer.stack, 0) + 1
    return counts


def tr_ocr():
    decoder = transformers.TrOCRConfig(
        vocab_size=60,
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=32,
        cross_attention_hidden_size=32,
    )
    encoder = transformers.ViTModel(transformers.ViTConfig(**IMAGE))
    language = transformers.TrOCRForCausalLM(decoder)
    return transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=language).eval()


def long_t5():
    config = transformers.LongT5Config(
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        local_radius=4,
    )
    return transformers.LongT5Model(config).eval()


def clip():
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=16)
    return transformers.CLIPModel(config).eval()


def gemma3():
    text = {**SHAPE, "vocab_size": 60, "num_key_value_heads": 2, "head_dim": 8}
    image = {**SHAPE, "image_size": 16, "patch_size": 4, "vision_use_head": False}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=image,
        mm_tokens_per_image=4,
        image_token_id=50,
        boi_token_index=51,
        eoi_token_index=52,
    )
    return transformers.Gemma3ForConditionalGeneration(config).eval()


def longformer():
    config = transformers.LongformerConfig(**TEXT, max_position_embeddings=64, attention_window=[4])
    return transformers.LongformerModel(config).eval()


def test_the_way_with_the_most_maps_is_taken():
    """TrOCR's encoder knows transformers' attention interface, its decoder does not."""
    model = tr_ocr()
    with capture(model) as recording:
        layers_by_stack = stacks(recording, pixel_values=pixels(), decoder_input_ids=tokens())
    assert recording.tier == 2
    assert sorted(layers_by_stack.values()) == [1, 1, 1]


def test_stacks_without_maps_are_named_and_an_error_where_they_are_asked_for():
    """LongT5's encoder attends in blocks, which are no maps of tokens."""
    model, ids = long_t5(), tokens()
    words = (
        r"the attention maps of encoder\.block\.\*\.layer\.\*\.LocalSelfAttention \(2 modules\) are missing"
    )
    with pytest.warns(UserWarning, match=words), capture(model) as recording:
        layers_by_stack = stacks(recording, input_ids=ids, decoder_input_ids=ids)
    assert set(layers_by_stack.values()) == {2}
    assert len(layers_by_stack) == 2
    with (
        pytest.raises(RuntimeError, match=r"layers \[0\] of LongT5Model were asked for, and .* are missing"),
        capture(model, layers=[0]),
    ):
        pass


def test_other_stacks_without_maps_are_named():
    """ProphetNet's encoder and cross attention return scores, which are no maps."""
    sizes = {
        f"num_{part}_{unit}": 2 for part in ("encoder", "decoder") for unit in ("layers", "attention_heads")
    }
    config = transformers.ProphetNetConfig(
        vocab_size=60, hidden_size=32, encoder_ffn_dim=32, decoder_ffn_dim=32, **sizes
    )
    model = transformers.ProphetNetModel(config).eval()
    words = (
        r"encoder\.layers\.\*\.self_attn \(2 .*, decoder\.layers\.\*\.cross_attn \(2 modules\) are missing"
    )
    with pytest.warns(UserWarning, match=words), capture(model) as recording:
        layers_by_stack = stacks(recording, input_ids=tokens(), decoder_input_ids=tokens(7))
    assert layers_by_stack == {"decoder.layers.*.self_attn": 2}


def test_modules_that_nobody_asks_for_their_maps_are_asked():
    """FLAVA asks its image and text encoders alone, and not the one that reads both."""
    widths = {"hidden_size": 32, "projection_dim": 16}
    config = transformers.FlavaConfig(image_config=IMAGE, text_config=TEXT, multimodal_config=SHAPE, **widths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capture(transformers.FlavaModel(config).eval()) as recording:
            layers_by_stack = stacks(recording, input_ids=tokens(), pixel_values=pixels())
    name = "{}.encoder.layer.*.attention.attention"
    assert layers_by_stack == {
        name.format(part): 1 for part in ("image_model", "text_model", "multimodal_model")
    }


def lxmert():
    layers = {"l_layers": 1, "x_layers": 2, "r_layers": 1, "visual_feat_dim": 8}
    shape = {key: value for key, value in TEXT.items() if key != "num_hidden_layers"}
    torch.manual_seed(0)
    model = transformers.LxmertModel(transformers.LxmertConfig(**shape, **layers)).eval()
    models.sharpen(model, 3.0)
    return model


def lxmert_inputs(boxes):
    """Nine tokens, six in the second text, and as many boxes as asked, five in the second image."""
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": tokens(),
        "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
        "visual_feats": torch.randn(2, boxes, 8, generator=generator),
        "visual_pos": torch.rand(2, boxes, 4, generator=generator),
        "visual_attention_mask": torch.tensor([[1] * boxes, [1] * 5 + [0] * (boxes - 5)]),
    }


@pytest.mark.parametrize("boxes", [7, 9])
def test_both_directions_of_a_cross_attention_are_captured(boxes):
    """LXMERT calls one module twice and asks for one of its maps; nine boxes are as many as tokens."""
    model, inputs = lxmert(), lxmert_inputs(boxes)
    with capture(model) as recording:
        layers = list(recording.run(**inputs))
    rows = [
        (layer.stack.split(".")[1:][0], layer.stack.split(".")[3], layer.index, layer.call)
        for layer in layers
    ]
    crossing = [
        [("x_layers", "visual_attention", index, 0), ("x_layers", "visual_attention", index, 1)]
        + [("x_layers", name, index, 0) for name in ("lang_self_att", "visn_self_att")]
        for index in (0, 1)
    ]
    assert rows == [("layer", "attention", 0, 0), ("r_layers", "attention", 0, 0), *crossing[0], *crossing[1]]
    for layer in layers:
        sees_boxes = "r_layers" in layer.stack or "visn" in layer.stack or (layer.cross and layer.call == 0)
        assert layer.cross == ("visual_attention" in layer.stack)
        assert layer.valid.sum(1).tolist() == ([boxes, 5] if sees_boxes else [9, 6])
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    eager = [*output.language_attentions, *output.vision_attentions, *output.cross_encoder_attentions]
    comparable = [layers[0], layers[1], layers[2], layers[6]]
    assert all(
        torch.equal(layer.tensors["attention"], maps) for layer, maps in zip(comparable, eager, strict=True)
    )


def test_the_other_direction_of_a_cross_attention_is_of_the_boxes():
    """What boxes read of the text is the module's own arithmetic on its second call."""
    model, inputs = lxmert(), lxmert_inputs(7)
    core = model.encoder.x_layers[0].visual_attention.att
    calls = []
    hook = core.register_forward_pre_hook(lambda module, args: calls.append(args))
    with torch.no_grad():
        model(**inputs)
        hook.remove()
        boxes, text, mask = calls[1]
        heads = [
            part(states).unflatten(-1, (4, 8)).transpose(1, 2)
            for part, states in ((core.query, boxes), (core.key, text))
        ]
        maps = (heads[0] @ heads[1].mT / 8**0.5 + mask).softmax(-1)
    with capture(model) as recording:
        second = next(layer for layer in recording.run(**inputs) if layer.cross and layer.call == 1)
        torch.testing.assert_close(second.tensors["attention"], maps)


def test_a_map_that_two_calls_compute_is_there_once():
    """DiffLlama reads its values in two calls with the same weights."""
    config = transformers.DiffLlamaConfig(**TEXT, num_key_value_heads=2)
    with capture(transformers.DiffLlamaForCausalLM(config).eval()) as recording:
        assert sum(stacks(recording, input_ids=tokens()).values()) == 1
        assert recording.tier == 2


def test_a_text_that_one_part_reads_and_sound_that_another_writes():
    """Which of both configurations is of the text is ambiguous to transformers, which ended each capture."""
    audio = {"num_filters": 4, "hidden_size": 8, "codebook_size": 32, "codebook_dim": 8}
    encoder = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    decoder = {**SHAPE, "ffn_dim": 32, "vocab_size": 32, "num_codebooks": 2, "pad_token_id": 31}
    config = transformers.MusicgenConfig(
        text_encoder={"model_type": "t5", **encoder},
        audio_encoder={"model_type": "encodec", **audio, "upsampling_ratios": [2], "num_lstm_layers": 1},
        decoder={**decoder, "bos_token_id": 31, "max_position_embeddings": 64},
    )
    torch.manual_seed(0)
    model = transformers.MusicgenForConditionalGeneration._from_config(config, attn_implementation="eager")
    codes = torch.randint(0, 30, (4, 6), generator=torch.Generator().manual_seed(0))  # of 2 texts
    inputs = {"input_ids": tokens(), "decoder_input_ids": codes}
    with torch.no_grad():
        output = model.eval()(**inputs, output_attentions=True)
    with capture(model) as recording:
        layers = list(recording.run(**inputs))
    expected = [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    for layer, maps in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.attention, maps, rtol=0, atol=1e-6)


def test_learned_queries_that_all_texts_share_read_each_of_them():
    """A model that has them once was captured by hooks alone, and not at all lazily."""
    config = transformers.Blip2QFormerConfig(**SHAPE, encoder_hidden_size=32)
    torch.manual_seed(0)
    model = transformers.Blip2QFormerModel(config).eval()
    models.sharpen(model, 3.0)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 2, 32, generator=generator)
    inputs = {
        "query_embeds": queries,
        "encoder_hidden_states": torch.randn(3, 5, 32, generator=generator),
    }
    with capture(model) as recording:
        cross = next(layer for layer in recording.run(**inputs) if layer.cross)
        assert recording.tier == 1
    with capture(model, lazy=True) as recording:
        (lazy,) = (layer.attention.dense() for layer in recording.run(**inputs) if layer.cross)
        states = recording.output.last_hidden_state
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    assert cross.attention.shape == (3, 4, 2, 5)
    assert torch.equal(cross.attention, output.cross_attentions[0])
    torch.testing.assert_close(lazy.float(), output.cross_attentions[0])
    torch.testing.assert_close(states, output.last_hidden_state)


class Gate(torch.nn.Module):
    def forward(self, states):
        return torch.softmax(states, -1)


class SomeAttention(torch.nn.Module):
    def forward(self, scores):
        return torch.nn.functional.softmax(scores, dim=-1)


def test_a_gate_next_to_an_attention_is_no_attention():
    model = torch.nn.ModuleDict({"attn_gate": Gate(), "mixer": SomeAttention()})
    names = {id(module): name for name, module in model.named_modules()}
    with SoftmaxWatch(names, visible=False) as watch:
        for module in model.values():
            module(torch.zeros(1, 2, 3, 3))
    assert watch.missing(()) == ["mixer"]
    assert watch.missing(("mixer",)) == []


def test_a_model_whose_trial_needs_an_image_is_tried_on_the_first_real_inputs():
    model = clip()
    with capture(model) as recording:
        assert recording.tier is None
        layers_by_stack = stacks(recording, input_ids=tokens(), pixel_values=pixels())
        assert recording.tier == 1
    assert layers_by_stack == {
        "text_model.encoder.layers.*.self_attn": 1,
        "vision_model.encoder.layers.*.self_attn": 1,
    }


def test_a_model_of_one_length_is_tried_on_texts_of_it():
    config = transformers.NystromformerConfig(**TEXT, num_landmarks=4, segment_means_seq_len=24)
    model = transformers.NystromformerModel(config).eval()
    with capture(model) as recording:
        assert sum(stacks(recording, input_ids=tokens(24, 1)).values()) == 1


def test_images_are_captured_although_the_trial_had_text_alone():
    model = gemma3()
    ids = torch.tensor([[2, 5, 51, 50, 50, 50, 50, 52, 7, 7]] * 2)
    with capture(model) as recording:
        assert list(stacks(recording, input_ids=ids[:, -3:])) == ["model.language_model.layers.*.self_attn"]
        layers_by_stack = stacks(
            recording, input_ids=ids, token_type_ids=(ids == 50).long(), pixel_values=pixels(16)
        )
    assert layers_by_stack["model.vision_tower.encoder.layers.*.self_attn"] == 1


def test_the_mask_of_the_text_is_not_laid_over_an_image():
    """As many tokens as patches: 16."""
    text = [0, 0, 0, 2, 51, 50, 50, 50, 50, 52, *[7] * 6]
    ids = torch.tensor([[2, 5, 51, 50, 50, 50, 50, 52, *[7] * 8], text])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": (ids == 50).long()}
    lengths = {}
    with capture(gemma3()) as recording:
        for layer in recording.run(**inputs, pixel_values=pixels(16)):
            lengths["vision" in layer.stack] = layer.lengths.tolist()
    assert lengths == {True: [16, 16], False: [16, 13]}


def test_offloaded_weights_are_captured_to_the_bit():
    accelerate = pytest.importorskip(
        "accelerate", reason="accelerate, which offloads weights, is not installed"
    )
    inputs = models.text(models.cached_model("llama"), padding="left")
    with capture(models.cached_model("llama")) as recording:
        expected = [layer.tensors["attention"] for layer in recording.run(**inputs)]
    model = models.tiny("llama")
    accelerate.cpu_offload(model, execution_device="cpu")
    with capture(model) as recording:
        captured = [layer.tensors["attention"] for layer in recording.run(**inputs)]
    assert all(map(torch.equal, captured, expected))
    assert asc.analyze(model, inputs["input_ids"][:1], ["fiedler_value"])["heads"].shape[0] == 12
    assert all(parameter.is_meta for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="on the meta device"), capture(models.tiny("llama").to("meta")):
        pass


def test_analyze_says_that_it_measured_nothing():
    words = "LongformerModel: no layer gave a map of the tokens by the same tokens; .*: 12 x 5"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(LoadError, match=words):
            asc.analyze(longformer(), tokens(12, 1), ["fiedler_value"])


@pytest.mark.parametrize("pad", [0, 2])
def test_the_first_step_with_a_static_cache_is_the_whole_prompt(pad):
    """The places that later steps fill are no keys of it."""
    model = models.cached_model("llama")
    ids = tokens(6)
    mask = torch.ones_like(ids)
    mask[1, :pad] = 0
    options = {"max_new_tokens": 3, "do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    shares_by_cache = {}
    for cache in ("dynamic", "static"):
        with capture(model) as recording:
            layers = list(recording.generate(input_ids=ids, cache_implementation=cache, **options))
        first = [layer for layer in layers if layer.step == 0]
        assert {layer.visibility.name for layer in first} == {"causal"}
        shares_by_cache[cache] = [layer.measure("sink_share")["sink_share"].share for layer in first]
        later = next(layer for layer in layers if layer.step == 1)
        with pytest.raises(ValueError, match="a decoding step with cached keys, 1 queries"):
            later.matrices()
    assert first[0].tensors["attention"].shape[-1] > 6
    for static, dynamic in zip(shares_by_cache["static"], shares_by_cache["dynamic"], strict=True):
        torch.testing.assert_close(static, dynamic)
