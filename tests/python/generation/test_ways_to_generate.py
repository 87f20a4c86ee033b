# SPDX-License-Identifier: MIT
"""Generations that are not one prompt read at once: the rows of their steps, or why there are none."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    StaticCache,
)

import attnscope as asc
from attnscope.capture.edits.edit import cache_name
from attnscope.view.generated import stacks_of_recording
from models import SMALL_DECODER, sharpen

WORDS = 64
BEFORE_5 = int(transformers.__version__.split(".")[0]) < 5
FREE = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 5}
GREEDY = {**FREE, "do_sample": False}


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)).eval()


def prompt(batch=2, tokens=7):
    ids = torch.randint(3, WORDS, (batch, tokens), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def eager_maps(model, tokens):
    """Return eager attention of all tokens in one pass, by transformers alone."""
    eager = LlamaForCausalLM._from_config(model.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        return eager(input_ids=tokens, output_attentions=True, use_cache=False).attentions


def generated(model, inputs, **options):
    """Return the assembled layers of a generation, the steps of layer 0, and the tokens."""
    with asc.capture(model) as recording:
        list(recording.run(**prompt()))
        options = {**GREEDY, **options}
        layers = recording.generate(**inputs, **options)
        steps = [(layer.step, layer.call) for layer in layers if layer.index == 0]
        return list(recording.assembled()), steps, recording.output


class Wrapper(nn.Module):
    """A module that hands `generate` over to the model inside it, as adapters do."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, **inputs):
        return self.inner(**inputs)

    def generate(self, **inputs):
        return self.inner.generate(**inputs)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_a_wrapper_that_hands_generate_over_has_the_steps_of_its_model(options):
    model = llama()
    layers, steps, tokens = generated(Wrapper(model), prompt(), **options)
    assert steps == [(step, 0) for step in range(5)]
    assert [layer.index for layer in layers] == [0, 1]
    for layer, expected in zip(layers, eager_maps(model, tokens[:, :-1]), strict=True):
        torch.testing.assert_close(layer.attention, expected, rtol=0, atol=1e-5)
        assert layer.answer_start.tolist() == [7, 7]


@pytest.mark.parametrize("stored", [None, "4.40.0", "4.50.1"])
@pytest.mark.parametrize("beams", [{}, {"num_beams": 2}])
def test_beams_of_a_configuration_that_is_stored_are_followed(beams, stored):
    """An option that the passed configuration does not name is the model's.

    transformers 4 asks which version stored the model's; the maps are those of what it wrote in any case.
    """
    for wrap in (Wrapper, lambda model: model):
        model = llama()
        model.generation_config.num_beams = 3
        model.generation_config.transformers_version = stored or transformers.__version__
        passed = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0, **beams)
        with asc.capture(wrap(model)) as recording:
            list(recording.run(**prompt()))
            list(recording.generate(**prompt(), generation_config=passed))
            layers, tokens = list(recording.assembled()), recording.output
        for layer, expected in zip(layers, eager_maps(model, tokens[:, :-1]), strict=True):
            torch.testing.assert_close(layer.attention, expected, rtol=0, atol=1e-5)


def test_beams_behind_a_prompt_that_is_read_in_pieces():
    model = llama()
    layers, _, tokens = generated(model, prompt(tokens=8), num_beams=3, prefill_chunk_size=3)
    for layer, expected in zip(layers, eager_maps(model, tokens[:, :-1]), strict=True):
        torch.testing.assert_close(layer.attention, expected, rtol=0, atol=1e-5)
        assert layer.answer_start.tolist() == [8, 8]


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 3}])
def test_a_cache_that_was_filled_before_has_keys_without_rows(kind, options):
    model, inputs = llama(), prompt(tokens=12)
    make = {"dynamic": DynamicCache, "static": lambda config: StaticCache(config, max_cache_len=24)}
    cache = make[kind](config=model.config)
    with torch.no_grad():
        model(input_ids=inputs["input_ids"][:, :5], **{cache_name(model): cache}, use_cache=True)
    if options and BEFORE_5:  # it reads the pieces from the first token on, behind those of the cache
        with pytest.raises(RuntimeError, match=r"assembled: .* reads the tokens of its filled cache again"):
            generated(model, inputs, **{cache_name(model): cache}, **options)
        return
    layers, _, tokens = generated(model, inputs, **{cache_name(model): cache}, **options)
    for layer, expected in zip(layers, eager_maps(model, tokens[:, :-1]), strict=True):
        torch.testing.assert_close(layer.attention, expected[:, :, 5:], rtol=0, atol=1e-5)
        assert layer.answer_start.tolist() == [7, 7]
        entropy = layer.measure("attention_entropy")["attention_entropy"]
        torch.testing.assert_close(
            torch.as_tensor(entropy), asc.attention_entropy(expected)[..., 5:], rtol=1e-4, atol=1e-6
        )


def test_a_page_of_a_cache_that_was_filled_before_names_keys_and_queries():
    model, inputs = llama(), prompt(batch=1, tokens=12)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=inputs["input_ids"][:, :5], **{cache_name(model): cache}, use_cache=True)
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        list(recording.generate(**inputs, **GREEDY, **{cache_name(model): cache}))
        (stack,) = stacks_of_recording(recording, None, None, None)
        names = [str(token) for token in recording.output[0, :-1].tolist()]
    assert (stack.keys, stack.queries, stack.answer) == (names, names[5:], (7, 11))
    assert stack.layers[0].shape == (4, 11, 16)


def test_an_assembled_encoder_sees_all_of_its_text():
    torch.manual_seed(0)
    width = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = BartForConditionalGeneration(
        BartConfig(vocab_size=WORDS, **width, **layers, **heads, max_position_embeddings=64)
    ).eval()
    texts = prompt()
    texts["attention_mask"][1, 5:] = 0
    with asc.capture(model) as recording:
        expected = list(recording.run(**texts, decoder_input_ids=torch.ones(2, 2, dtype=torch.long)))
        list(recording.generate(**texts, **GREEDY, num_beams=1))
        layers = list(recording.assembled())
    kinds = {"encoder": "full", "decoder": "causal"}
    for layer in layers:
        kind = next(kind for part, kind in kinds.items() if layer.stack.startswith(f"model.{part}"))
        assert layer.cross or layer.visibility.name == kind
    assembled_encoder, encoder = (
        next(layer for layer in part if "encoder.layers" in layer.stack and not layer.cross)
        for part in (layers, expected)
    )
    for name in ("attention_entropy", "sink_share"):
        for normalized in ({"normalized": True} if name == "attention_entropy" else {},):
            value, reference = (
                np.asarray(layer.measure(name, **normalized)[name]) for layer in (assembled_encoder, encoder)
            )
            np.testing.assert_allclose(value, reference, rtol=1e-5)


def llava(pictures):
    """A model of pictures and text, and two prompts of some pictures each."""
    from transformers import CLIPVisionConfig

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**shape, image_size=16, patch_size=8)
    config = LlavaConfig(
        text_config=LlamaConfig(**SMALL_DECODER),
        vision_config=vision,
        image_token_id=60,
        vision_feature_layer=-1,
    )
    ids = torch.tensor([[5, *[60] * 4 * pictures, 7, 8], [6, *[60] * 4 * pictures, 9, 10]])
    pixels = torch.randn(2 * pictures, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    return LlavaForConditionalGeneration(config).eval(), inputs


@pytest.mark.parametrize("pictures", [1, 2])
def test_a_text_with_several_pictures_has_its_own_rows(pictures):
    """They were taken for the rows of an encoder and repeated, one for each picture."""
    model, inputs = llava(pictures)
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        list(recording.generate(**inputs, **GREEDY))
        layers, tokens = list(recording.assembled()), recording.output[:, :-1]
        if pictures == 1:
            stacks = stacks_of_recording(recording, None, None, 0)
        else:
            with pytest.warns(RuntimeWarning, match=r"maps of single pictures.*\(4 maps\)"):
                stacks = stacks_of_recording(recording, None, None, 0)
        single_pass = recording.run(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), pixel_values=inputs["pixel_values"]
        )
        expected = {(layer.stack, layer.index): layer.attention for layer in single_pass}
    assert len(layers) == len(expected)
    for layer in layers:
        torch.testing.assert_close(layer.attention, expected[layer.stack, layer.index], rtol=0, atol=1e-5)
        if "language_model" in layer.stack:
            assert layer.answer_start.tolist() == [inputs["input_ids"].shape[1]] * 2
    assert len(stacks) == (2 if pictures == 1 else 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assistant_early_exit": 1}, "assistant_early_exit guesses tokens and takes some back"),
        ({"guidance_scale": 1.5}, "guidance_scale runs the model a second time in each step"),
    ],
)
def test_steps_that_are_no_part_of_the_text_are_refused_by_the_options_name(options, words):
    with asc.capture(llama()) as recording:
        list(recording.run(**prompt(1)))
        list(recording.generate(**prompt(1), **GREEDY, **options))
        with pytest.raises(RuntimeError, match=rf"^assembled: {words}, whose rows are no part of the text"):
            list(recording.assembled())


def test_inputs_that_are_none_are_named():
    ids = prompt()["input_ids"]
    with asc.capture(llama()) as recording:
        with pytest.raises(TypeError, match=r"^generate: give the model's inputs by name.*got Tensor"):
            recording.generate(ids)
        with pytest.raises(TypeError, match=r"^generate: input_ids is a text; a tokenizer makes inputs"):
            recording.generate(input_ids="a text")
        with pytest.raises(ValueError, match=r"^generate: input_ids holds no token, got shape \(1, 0\)"):
            recording.generate(input_ids=ids[:1, :0])
        with pytest.raises(ValueError, match=r"^generate: output_attentions is what the recording is for"):
            recording.generate(input_ids=ids, output_attentions=True)
        # options may be words
        list(recording.generate(input_ids=ids, cache_implementation="static", **GREEDY))


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}])
def test_a_step_knows_which_key_its_cache_begins_with(cache):
    """The masks of a cache of fixed size are made before the pass that reads them."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SMALL_DECODER, sliding_window=5)).eval()
    with asc.capture(model, layers=[0]) as recording:
        list(recording.run(**prompt()))
        steps = list(recording.generate(**prompt(), **GREEDY, **cache))
    assert [step.key_offset for step in steps] == [0, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_filled_cache_that_has_dropped_keys(kind):
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SMALL_DECODER, sliding_window=4)).eval()
    inputs = prompt(tokens=12)
    make = {"dynamic": DynamicCache, "static": lambda config: StaticCache(config, max_cache_len=24)}
    cache = make[kind](config=model.config)
    with torch.no_grad():
        model(input_ids=inputs["input_ids"][:, :5], **{cache_name(model): cache}, use_cache=True)
    if kind == "static" and BEFORE_5:  # which loses the keys of the prompt before its first query
        with pytest.raises(RuntimeError, match="its steps do not follow each other"):
            generated(model, inputs, **{cache_name(model): cache})
        return
    layers, _, tokens = generated(model, inputs, **{cache_name(model): cache})
    with asc.capture(model) as recording:
        expected = [layer.attention for layer in recording.run(input_ids=tokens[:, :-1])]
    for layer, maps in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.attention, maps[:, :, 5:], rtol=0, atol=1e-5)


def gemma4(sharpness=1.0):
    """A model whose last layers read the keys of others, and only the last query of a prompt."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
    inputs = {"vocab_size_per_layer_input": WORDS, "hidden_size_per_layer_input": 8}
    shape = {
        **SMALL_DECODER,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "global_head_dim": 16,
        "sliding_window": 4,
    }
    try:
        config = AutoConfig.for_model("gemma4_text", **shape, **kinds, **inputs)
    except ValueError:
        pytest.skip("transformers has no such model")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    sharpen(model, sharpness)
    return model


def test_layers_that_read_the_last_query_of_a_prompt_alone():
    """Their first row was cut to its first key."""
    with asc.capture(gemma4()) as recording:
        list(recording.run(**prompt()))
        list(recording.generate(**prompt(), **GREEDY))
        layers = {layer.index: layer.attention for layer in recording.assembled()}
        with pytest.raises(ValueError, match="maps of several sizes: 5 x 11, 11 x 11"):
            stacks_of_recording(recording, None, None, 0)
        tokens = recording.output[:, :-1]
        expected = {layer.index: layer.attention for layer in recording.run(input_ids=tokens)}
        for index, maps in layers.items():
            rows = maps.shape[-2]
            torch.testing.assert_close(maps, expected[index][:, :, -rows:], rtol=0, atol=1e-5)
        list(recording.generate(**prompt(), **GREEDY, prefill_chunk_size=3))
        with pytest.raises(RuntimeError, match="its steps do not follow each other"):
            list(recording.assembled())


@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_longer_than_the_prompt_behind_layers_that_read_its_last_query(beams):
    """Rows of these layers were counted as a prompt of their own, so that beams were followed too late."""
    options = {**GREEDY, "max_new_tokens": 12, "num_beams": beams}
    with asc.capture(gemma4(sharpness=6.0)) as recording:
        list(recording.run(**prompt()))
        list(recording.generate(**prompt(), **options))
        layers, tokens = list(recording.assembled()), recording.output[:, :-1]
        expected = {layer.index: layer.attention for layer in recording.run(input_ids=tokens)}
    for layer in layers:
        rows = layer.attention.shape[-2]
        torch.testing.assert_close(layer.attention, expected[layer.index][:, :, -rows:], rtol=0, atol=1e-4)
        assert layer.answer_start.tolist() == [rows - 11] * 2


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prefill_chunk_size": 3}])
def test_one_written_token_stands_behind_a_prompt(options):
    """No step follows the prompt, whose queries are all that there are."""
    layers, steps, _ = generated(llama(), prompt(), max_new_tokens=1, **options)
    assert len(steps) == (3 if "prefill_chunk_size" in options else 1)
    assert [layer.answer_start.tolist() for layer in layers] == [[7, 7]] * 2


@pytest.mark.parametrize("options", [{"max_new_tokens": 1}, {"prefill_chunk_size": 3}])
def test_a_vocabulary_head_called_decoder_writes_no_rows(options):
    """The prompt ended with its first piece, since no layer of attention was one that writes."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "ModernBertDecoderConfig"):
        pytest.skip("transformers has no such model")
    sizes = {name: size for name, size in SMALL_DECODER.items() if name != "num_key_value_heads"}
    config = transformers.ModernBertDecoderConfig(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = transformers.ModernBertDecoderForCausalLM(config).eval()
    if "prefill_chunk_size" in options and transformers.__version__.startswith("4."):
        pytest.skip("the model's cache knows no pieces before transformers 5")
    layers, _, _ = generated(model, prompt(), **options)
    assert [layer.answer_start.tolist() for layer in layers] == [[7, 7]] * 2


def test_one_written_token_of_a_decoder_has_its_name():
    """The decoder was taken for the encoder, which reads other tokens than those that are written."""
    shape = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    depth = {"encoder_layers": 1, "decoder_layers": 1}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(vocab_size=WORDS, **shape, **depth)).eval()
    with asc.capture(model) as recording:
        list(recording.run(**prompt(1), decoder_input_ids=torch.tensor([[2]])))
        list(recording.generate(**prompt(1), **GREEDY | {"max_new_tokens": 1}))
        starts = {layer.stack: layer.answer_start for layer in recording.assembled()}
        stacks = stacks_of_recording(recording, None, None, None)
    assert [start is None for start in starts.values()] == ["decoder" not in stack for stack in starts]
    assert [stack.keys for stack in stacks if stack.name == "model.decoder.layers.*.self_attn"] == [["2"]]


def test_a_model_of_pictures_that_hands_generate_over_to_its_decoder():
    """All its steps were step 0, and each was a map of its own."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = Blip2Config(
        vision_config={**sizes, "image_size": 16, "patch_size": 4},
        qformer_config={**sizes, "vocab_size": WORDS, "encoder_hidden_size": 32},
        text_config={"model_type": "llama", **SMALL_DECODER},
        num_query_tokens=4,
        image_token_index=60,
    )
    torch.manual_seed(0)
    model = Blip2ForConditionalGeneration(config).eval()
    ids = torch.tensor([[60, 60, 60, 60, 5, 6, 7], [60, 60, 60, 60, 8, 9, 10]])
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "attention_mask": torch.ones_like(ids)}
    with asc.capture(model) as recording:
        list(recording.run(input_ids=ids, **inputs))
        steps = recording.generate(input_ids=ids, **inputs, **GREEDY)
        of_decoder = [layer.step for layer in steps if "language_model" in layer.stack and layer.index == 0]
        written = recording.output
        layers = {(layer.stack, layer.index): layer for layer in recording.assembled()}
        tokens = torch.cat([ids, written[:, -5:-1]], 1)
        inputs["attention_mask"] = torch.ones_like(tokens)
        expected = list(recording.run(input_ids=tokens, **inputs))
    assert of_decoder == [0, 1, 2, 3, 4]
    assert len(layers) == len(expected)
    for layer in expected:
        maps = layers[layer.stack, layer.index].attention
        torch.testing.assert_close(maps, layer.attention, rtol=0, atol=1e-5)


def test_a_model_that_hands_options_of_its_generation_to_the_attention_of_pictures():
    """They were refused as arguments that may change attention."""
    from transformers import Kosmos2Config, Kosmos2ForConditionalGeneration

    text = {"vocab_size": WORDS, "embed_dim": 32, "layers": 2, "ffn_dim": 32, "attention_heads": 4}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = Kosmos2Config(
        text_config={**text, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 2},
        vision_config={**vision, "image_size": 16, "patch_size": 8},
        latent_query_num=4,
    )
    torch.manual_seed(0)
    model = Kosmos2ForConditionalGeneration(config).eval()
    ids = torch.randint(5, WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    places = torch.zeros_like(ids)
    places[:, 2:6] = 1
    picture = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    inputs = {"pixel_values": picture, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with asc.capture(model) as recording:
        list(recording.run(**inputs, image_embeds_position_mask=places))
        list(recording.generate(**inputs, image_embeds_position_mask=places, **GREEDY))
        layers = [layer for layer in recording.assembled() if layer.stack.startswith("text_model")]
        tokens = recording.output[:, :-1]
    eager = Kosmos2ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    places = torch.nn.functional.pad(places, (0, tokens.shape[1] - places.shape[1]))
    inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        expected = eager(**inputs, image_embeds_position_mask=places, output_attentions=True).attentions
    assert [layer.answer_start.tolist() for layer in layers] == [[9, 9]] * 2
    for layer, maps in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.attention, maps, rtol=0, atol=1e-5)
