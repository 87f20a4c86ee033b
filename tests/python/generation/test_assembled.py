# SPDX-License-Identifier: MIT
"""Generation: the rows of all steps as one map, against eager attention in one forward pass."""

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import attnscope as asc
from attnscope.view.generated import stacks_of_recording
from attnscope.view.measured import contents_of_stacks
from models import SMALL_DECODER

PROMPT, ANSWER, WORDS = 7, 6, 64
GPT = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL_DECODER)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL_DECODER, sliding_window=5)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL_DECODER, sliding_window=4, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT)),
    # captured by hooks on its eager attention
    "falcon": lambda: FalconForCausalLM(
        FalconConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ),
}


def tiny(family):
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def prompt(batch, left=0):
    ids = torch.randint(3, WORDS, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, :left] = 0
    return {"input_ids": ids, "attention_mask": mask}


def assembled(model, inputs, **options):
    """Return the assembled layers of a generation, the sizes of its steps, and its tokens."""
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        steps = [
            tuple(layer.attention.shape[-2:])
            for layer in recording.generate(
                **inputs, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0, **options
            )
        ]
        return list(recording.assembled()), steps, recording.output


def in_one_pass(family, model, tokens, mask):
    """Return eager attention of all tokens together, by transformers alone."""
    eager = FAMILIES[family]()
    eager.load_state_dict(model.state_dict())
    eager = eager.eval()
    eager.config._attn_implementation = "eager"
    for module in eager.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        return eager(
            input_ids=tokens, attention_mask=mask, position_ids=positions, output_attentions=True
        ).attentions


def largest_difference(layers, expected):
    """Return the largest difference of attention between real tokens."""
    differences = []
    for layer in layers:
        real = layer.valid[:, None, :, None] & layer.valid[:, None, None, :]
        differences.append(float(((layer.attention - expected[layer.index]).abs() * real).max()))
    return max(differences)


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_steps_together_are_one_forward_pass(family, left):
    model, inputs = tiny(family), prompt(2, left)
    layers, _, tokens = assembled(model, inputs)
    n = PROMPT + ANSWER - 1
    assert [layer.attention.shape for layer in layers] == [(2, 4, n, n)] * 2
    mask = torch.ones(2, n, dtype=torch.long)
    mask[-1, :left] = 0
    for layer in layers:
        assert torch.equal(layer.valid, mask.bool())
    assert largest_difference(layers, in_one_pass(family, model, tokens[:, :n], mask)) < 1e-5


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"cache_implementation": "static"}),
        ("mistral", {"cache_implementation": "static"}),
        ("gemma2", {"cache_implementation": "static"}),
        ("llama", {"use_cache": False}),
        ("llama", {"prefill_chunk_size": 3}),
        ("llama", {"num_beams": 3}),
        ("llama", {"num_beams": 3, "num_return_sequences": 2}),
        ("gpt2", {"num_beams": 2, "return_dict_in_generate": True}),
    ],
)
def test_every_cache_and_beams_give_one_forward_pass(family, options):
    model, inputs = tiny(family), prompt(2)
    layers, _, output = assembled(model, inputs, **options)
    tokens = output if torch.is_tensor(output) else output.sequences
    n = PROMPT + ANSWER - 1
    assert len(layers[0].attention) == len(tokens)
    assert layers[0].attention.shape[-2:] == (n, n)
    mask = torch.ones(len(tokens), n, dtype=torch.long)
    assert largest_difference(layers, in_one_pass(family, model, tokens[:, :n], mask)) < 1e-5


def test_beams_change_their_rows_on_the_way():
    """The choice of beams is followed back: rows that stayed in their place would be another text's."""
    from attnscope.capture.rectangles.assembled import GeneratedRows

    model, inputs = tiny("llama"), prompt(2)
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        options = {"max_new_tokens": ANSWER, "eos_token_id": None, "pad_token_id": 0, "num_beams": 3}
        list(recording.generate(**inputs, **options))
        rows = recording._rows
        assert isinstance(rows, GeneratedRows)
        assert (rows.beams != rows.beams[:, :1]).any()


def test_keys_that_a_sliding_cache_dropped_are_no_part_of_what_is_seen():
    layers, steps, _ = assembled(tiny("mistral"), prompt(1))
    assert steps[-1] == (1, 5)
    visibility = layers[0].visibility
    assert (visibility.kind, visibility.before) == ("window", 4)
    assert layers[0].attention[0, 0].tril(-5).abs().max() == 0


def test_an_assembled_layer_is_measured_as_a_square():
    layers, _, _ = assembled(tiny("llama"), prompt(2, left=2))
    numbers = layers[0].measure(["fiedler_value", "attention_entropy", "sink_share"])
    assert numbers["fiedler_value"].shape == (2, 4)
    maps = layers[0].attention[1, :, 2:, 2:]
    np.testing.assert_array_equal(numbers["fiedler_value"][1], asc.fiedler_value(maps))


def test_a_decoding_step_is_measured_as_the_row_that_it_is():
    model, inputs = tiny("llama"), prompt(2, left=2)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for cache in ({}, {"cache_implementation": "static"}):
        with asc.capture(model, layers=[1]) as recording:
            list(recording.run(**inputs))
            names = ["attention_entropy", "sink_share", "local_global_ratio", "singular_values"]
            steps = [
                layer.measure(names, window=2) for layer in recording.generate(**inputs, **options, **cache)
            ]
            (layer,) = recording.assembled()
        entropies = layer.measure(["attention_entropy"])["attention_entropy"]
        for at, step in enumerate(steps[1:], PROMPT):
            entropy = step["attention_entropy"]
            assert entropy.shape == (2, 4, 1)
            np.testing.assert_allclose(entropy[0, :, 0], entropies[0, :, at], rtol=1e-6)
            # the padding before the second text is no key of it
            np.testing.assert_allclose(entropy[1, :, 0], entropies[1, :, at - 2], rtol=1e-6)
            row = layer.attention[0, :, at, : at + 1].double()
            np.testing.assert_allclose(step["singular_values"][0, :, 0], row.norm(dim=-1), rtol=1e-6)
            near = row[:, -3:].sum(-1) / row[:, :-3].sum(-1)
            np.testing.assert_allclose(step["local_global_ratio"][0], near, rtol=1e-5)


def test_a_step_of_a_metric_of_square_maps_says_where_the_square_is():
    model, inputs = tiny("llama"), prompt(1)
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        for layer in recording.generate(**inputs, max_new_tokens=2, eos_token_id=None, pad_token_id=0):
            if layer.step == 1:
                words = r"1 queries x 8 keys; of decoding steps `recording.assembled\(\)` makes one"
                with pytest.raises(ValueError, match=words):
                    layer.measure("fiedler_value")


def bart():
    torch.manual_seed(0)
    width = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=WORDS, **width, **layers, **heads, max_position_embeddings=64)
    return BartForConditionalGeneration(config).eval()


def test_an_encoder_decoder_gives_its_encoder_its_decoder_and_what_is_between():
    model, inputs = bart(), prompt(2, left=0)
    inputs["attention_mask"][1, 5:] = 0
    with asc.capture(model) as recording:
        list(recording.run(**inputs, decoder_input_ids=torch.tensor([[2, 5], [2, 6]])))
        list(recording.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None, num_beams=1))
        layers = {layer.stack: layer for layer in recording.assembled()}
        tokens = recording.output
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, decoder_input_ids=tokens[:, :-1], output_attentions=True, use_cache=False)
    expected = {"encoder.": out.encoder_attentions, "decoder.layers.*.self": out.decoder_attentions}
    expected["decoder.layers.*.encoder"] = out.cross_attentions
    assert len(layers) == 3
    for stack, layer in layers.items():
        (maps,) = next(maps for part, maps in expected.items() if part in stack)
        np.testing.assert_allclose(layer.attention, maps, atol=1e-5)
        assert layer.cross == ("encoder_attn" in stack)
    cross = next(layer for layer in layers.values() if layer.cross)
    share = cross.measure("sink_share")["sink_share"]
    np.testing.assert_allclose(share.share, cross.attention[..., 0].double().mean(-1), rtol=1e-6)
    np.testing.assert_allclose(share.uniform, torch.tensor([[1 / 7, 1 / 7], [1 / 5, 1 / 5]]))


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 3}])
def test_padding_of_a_decoders_prompt_is_no_query(options):
    """Its rows of cross attention are left out, as those of one forward pass over prompt and answer are."""
    model, texts = bart(), prompt(2, left=0)
    real = torch.ones(2, 4, dtype=torch.long)
    real[1, :2] = 0
    ids = torch.tensor([[2, 5, 6, 7], [0, 0, 2, 8]])
    with asc.capture(model) as recording:
        list(recording.run(**texts, decoder_input_ids=ids))
        decoder = {"decoder_input_ids": ids, "decoder_attention_mask": real}
        for _ in recording.generate(**texts, **decoder, max_new_tokens=4, eos_token_id=None, **options):
            pass
        layers, tokens = list(recording.assembled()), recording.output[:, -8:]
        (shown,) = (stack for stack in stacks_of_recording(recording, None, None, 1) if stack.cross)
        mask = torch.cat([real, torch.ones(2, tokens.shape[1] - 5, dtype=torch.long)], -1)
        decoder = {"decoder_input_ids": tokens[:, :-1], "decoder_attention_mask": mask}
        expected = list(recording.run(**texts, **decoder))
    cross, other = (next(layer for layer in all_layers if layer.cross) for all_layers in (layers, expected))
    assert torch.equal(cross.query_valid, mask.bool())
    assert cross.answer_start.tolist() == [4, 2]
    queries = int(mask[1].sum())
    assert shown.layers[0].shape[-2] == queries
    assert shown.answer == (2, queries)
    for name in ("sink_share", "incoming_attention"):
        ours, theirs = (layer.measure(name)[name] for layer in (cross, other))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 2, "use_cache": False},
        {"do_sample": True, "num_return_sequences": 3},
    ],
)
def test_an_encoder_decoder_gives_each_sequence_its_maps(options):
    """The encoder reads a text once; each sequence of it has the encoder's map, and rows of its own."""
    model, texts = bart(), prompt(2, left=2)
    torch.manual_seed(3)
    with asc.capture(model) as recording:
        list(recording.run(**texts, decoder_input_ids=torch.ones(2, 2, dtype=torch.long)))
        for _ in recording.generate(**texts, max_new_tokens=ANSWER, eos_token_id=None, **options):
            pass
        layers, tokens = list(recording.assembled()), recording.output
        texts = {name: rows.repeat_interleave(len(tokens) // 2, 0) for name, rows in texts.items()}
        expected = list(recording.run(**texts, decoder_input_ids=tokens[:, :-1]))
    assert [layer.stack for layer in layers] == [layer.stack for layer in expected]
    for layer, other in zip(layers, expected, strict=True):
        assert layer.attention.shape == other.attention.shape
        assert torch.equal(layer.valid, other.valid)
        real = layer.valid[:, None, None]
        torch.testing.assert_close(layer.attention * real, other.attention * real, rtol=0, atol=1e-5)


def test_what_cannot_be_assembled_is_refused_by_name():
    model, inputs = tiny("llama"), prompt(1)
    options = {"max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0}
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        with pytest.raises(RuntimeError, match="assembled: nothing was generated"):
            list(recording.assembled())
        next(iter(recording.generate(**inputs, **options)))
        with pytest.raises(RuntimeError, match="left before its end"):
            list(recording.assembled())
        list(recording.generate(**inputs, **options, prompt_lookup_num_tokens=2))
        with pytest.raises(RuntimeError, match="prompt_lookup_num_tokens guesses tokens and takes some back"):
            list(recording.assembled())
    with asc.capture(model, sites=("value",)) as recording:
        list(recording.run(**inputs))
        list(recording.generate(**inputs, **options))
        with pytest.raises(RuntimeError, match=r"no step was kept.* 'attention' among the captured sites"):
            list(recording.assembled())


def test_rows_that_do_not_fit_into_memory_are_not_kept(monkeypatch):
    from attnscope.capture.rectangles import assembled as module

    monkeypatch.setattr(module, "free_bytes", lambda: 1000)
    model, inputs = tiny("llama"), prompt(1)
    with asc.capture(model) as recording:
        list(recording.run(**inputs))
        list(recording.generate(**inputs, max_new_tokens=3, eos_token_id=None, pad_token_id=0))
        with pytest.raises(RuntimeError, match="more than 25% of the free memory"):
            list(recording.assembled())


def test_steps_that_do_not_follow_each_other_are_refused():
    from attnscope.capture.layer import Layer
    from attnscope.capture.rectangles.assembled import StepRows, assemble

    def step(number, queries, keys):
        layer = Layer(
            0,
            "attn",
            0,
            step=number,
            cross=False,
            heads=(0,),
            kv_heads=(0,),
            key_offset=0,
            tensors={},
            valid=torch.ones(1, keys, dtype=torch.bool),
        )
        real_queries = torch.ones(1, queries, dtype=torch.bool)
        return StepRows(layer, torch.zeros(1, 1, queries, keys), layer.valid, None, real_queries)

    assert assemble([step(0, 4, 4), step(1, 1, 5)]).attention.shape[-1] == 5
    with pytest.raises(
        RuntimeError, match="step 1 of attn has 2 queries over the keys 0 to 3 after 4 tokens"
    ):
        assemble([step(0, 4, 4), step(1, 2, 4), step(2, 1, 7)])


def test_a_page_numbers_layers_and_heads_as_the_model_does():
    """The page called captured layers 1 and 3 by 0 and 1, and heads likewise."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL_DECODER | {"num_hidden_layers": 4})).eval()
    inputs = prompt(1)
    with asc.capture(model, layers=[1, 3], heads=[0, 2]) as recording:
        list(recording.run(**inputs))
        list(recording.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0))
        (stack,) = stacks_of_recording(recording, None, None, None)
        maps = {layer.index: layer.attention for layer in recording.assembled()}
    contents = contents_of_stacks([stack], 1 << 24)
    assert (contents["layers"], contents["heads"]) == ([1, 3], [0, 2])
    assert [(matrix["layer"], matrix["head"]) for matrix in contents["maps"]] == [
        (layer, head) for layer in (1, 3) for head in (0, 2)
    ]
    at = [metric["name"] for metric in contents["metrics"]].index("entropy")
    expected = [
        [float(torch.special.entr(head).sum(-1).mean()) for head in maps[layer][0]] for layer in (1, 3)
    ]
    np.testing.assert_allclose(contents["values"][0][0][at], expected, rtol=0, atol=1e-3)


def test_a_prompt_that_is_read_twice_has_its_rows_once():
    """MusicGen's `generate` runs its decoder on the prompt, and its search does so again."""
    sizes = {"num_layers": 2, "num_heads": 4}
    text = transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=32, pad_token_id=0, **sizes)
    audio = transformers.EncodecConfig(
        **{"num_filters": 4, "hidden_size": 8, "codebook_size": 32, "codebook_dim": 8, "num_lstm_layers": 1},
        **{"upsampling_ratios": [4, 2], "target_bandwidths": [100.0], "sampling_rate": 8000},
    )
    music = transformers.MusicgenDecoderConfig(
        **{"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"ffn_dim": 32, "num_codebooks": 4, "pad_token_id": 32, "bos_token_id": 32},
    )
    parts = {"text_encoder": text, "audio_encoder": audio, "decoder": music}
    config = transformers.MusicgenConfig(**{name: part.to_dict() for name, part in parts.items()})
    torch.manual_seed(0)
    model = transformers.MusicgenForConditionalGeneration(config).eval()
    texts = {"input_ids": torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(1))}
    read = []
    hook = model.decoder.register_forward_pre_hook(
        lambda _, args, inputs: read.append(inputs["input_ids"]), with_kwargs=True
    )
    with asc.capture(model) as recording:
        list(recording.run(**texts, decoder_input_ids=torch.full((8, 3), 32)))
        read.clear()
        list(recording.generate(**texts, max_new_tokens=5, do_sample=False, guidance_scale=1))
        layers = list(recording.assembled())
    hook.remove()
    written = torch.cat(read[-5:], -1)
    eager = type(model)(config)
    eager.set_attn_implementation("eager")
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        output = eager.eval()(**texts, decoder_input_ids=written, output_attentions=True, use_cache=False)
    for place, expected in (("self_attn", "decoder_attentions"), ("encoder_attn", "cross_attentions")):
        captured = [layer.attention for layer in layers if layer.stack.endswith(place)]
        assert len(captured) == 2
        for maps, of_layer in zip(captured, output[expected], strict=True):
            torch.testing.assert_close(maps, of_layer, rtol=0, atol=1e-5)
