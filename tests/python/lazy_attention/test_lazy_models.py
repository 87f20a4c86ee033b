# SPDX-License-Identifier: MIT
"""Lazy capture of models that compute with masks, share blocks, or keep some of their attention apart."""

import inspect

import pytest
import torch
import transformers

import attnscope as asc
from attnscope.capture.lazy.mask_rules import MaskRules, StandIn
from attnscope.capture.preflight import refuse
from models import enlarged

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
T5 = {"vocab_size": 64, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2, "num_hidden_layers": 3, "pad_token_id": 0}
BIRD = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
HYBRID = {
    **GROUPED,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
}
HYBRID |= {"num_hidden_layers": 5, "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4}
MODELS = {
    "computes with its mask": ("DogeForCausalLM", "DogeConfig", {**GROUPED, "head_dim": 8}),
    "inverts its mask": (
        "SwitchTransformersEncoderModel",
        "SwitchTransformersConfig",
        {**T5, "num_layers": 2},
    ),
    "multiplies its values in parts": ("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED),
    "shared blocks": ("AlbertModel", "AlbertConfig", {**SMALL, "embedding_size": 16, "num_hidden_layers": 3}),
    "attention between others": ("JambaForCausalLM", "JambaConfig", HYBRID),
    "plain": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "sparse encoder": ("BigBirdPegasusForConditionalGeneration", "BigBirdPegasusConfig", BIRD),
}
#: Two attention functions in float32, through three layers with sharp maps.
TOLERANCE = 1e-3
METRICS = {"entropy": {"metric": "attention_entropy", "normalized": True}, "sink_share": {}}


#: Classes of these names attend in other ways in transformers 4.
OF_TRANSFORMERS_5 = ("multiplies its values in parts", "shared blocks")


def build(name):
    if name in OF_TRANSFORMERS_5 and transformers.__version__.startswith("4."):
        pytest.skip(f"transformers {transformers.__version__} has another class that {name}")
    return enlarged(*MODELS[name])


def inputs_of(padding):
    ids = torch.randint(3, 60, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    hidden = {"none": slice(0), "behind": slice(13, 20), "in front": slice(0, 7), "inside": slice(5, 9)}
    mask[1, hidden[padding]] = 0
    return {"input_ids": ids, "attention_mask": mask}


def captured(model, inputs, **options):
    with asc.capture(model, **options) as recording:
        return list(recording.run(**inputs))


def keys_of(layers):
    return [(layer.stack, layer.index, layer.call) for layer in layers]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", ["none", "behind", "in front", "inside"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sparse encoder"])
def test_layers_are_those_of_the_ordinary_capture(name, padding):
    """Numbers, padding, maps and metrics of both ways."""
    model, inputs = build(name), inputs_of(padding)
    expected, layers = captured(model, inputs), captured(model, inputs, lazy=True, precision="exact")
    assert keys_of(layers) == keys_of(expected)
    for layer, other in zip(layers, expected, strict=True):
        assert torch.equal(layer.valid, other.valid)
        dense, maps = layer.attention.dense(), other.matrices().double()
        for text, length in enumerate(layer.lengths.tolist()):
            ours, theirs = (m[text, :, :length, :length] for m in (dense, maps))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
        results, others = layer.measure(METRICS), other.measure(METRICS)
        for label in METRICS:
            torch.testing.assert_close(results[label], others[label], rtol=0, atol=TOLERANCE, equal_nan=True)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("padding", ["none", "behind", "in front"])
def test_a_mask_of_pairs_says_what_is_visible(padding, added):
    """Keys that a mask hides are none that a query could have looked at, whether it is boolean or added."""
    model, inputs = build("plain"), inputs_of(padding)
    real = inputs.pop("attention_mask").bool()
    mask = torch.ones(20, 20).tril().bool() & real[:, None, None] & real[:, None, :, None]
    if added:
        mask = torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(
            ~mask, torch.finfo(torch.float32).min
        )
    inputs["attention_mask"] = mask
    expected, layers = captured(model, inputs), captured(model, inputs, lazy=True)
    for layer, other in zip(layers, expected, strict=True):
        assert torch.equal(layer.lengths, other.lengths)
        results, others = layer.measure(METRICS), other.measure(METRICS)
        for label in METRICS:
            torch.testing.assert_close(results[label], others[label], rtol=0, atol=TOLERANCE, equal_nan=True)


def test_a_function_of_a_stand_in_is_that_of_the_mask():
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    queries = {"q_length": 4, "device": "cpu"}
    if "cache_position" in inspect.signature(sdpa_mask).parameters:  # transformers 4
        queries = {"cache_position": torch.arange(4)}
    stand_in = MaskRules().make(batch_size=1, kv_length=4, mask_function=causal_mask_function, **queries)
    causal = torch.ones(4, 4).tril().bool()[None, None]
    assert isinstance(stand_in[..., 1:], StandIn)
    assert stand_in.shape == causal.shape
    assert torch.equal(torch.where(stand_in[..., 1:], 0.0, -1.0), torch.where(causal[..., 1:], 0.0, -1.0))
    assert torch.equal(torch.cat((causal, stand_in), -1), torch.cat((causal, causal), -1))


def test_masks_are_read_as_transformers_4_describes_them():
    """It gives the places of the queries; capture ended in a KeyError of the number of them."""
    from transformers.masking_utils import causal_mask_function

    rules = MaskRules()
    description = {"batch_size": 2, "kv_length": 5, "mask_function": causal_mask_function}
    stand_in = rules.make(cache_position=torch.arange(5), **description)
    rule = rules.find(stand_in)
    assert stand_in.shape == (2, 1, 5, 5)
    assert rule is not None
    assert (rule.causal, rule.window, rule.is_dense) == (True, None, False)


def test_a_model_with_a_table_of_functions_of_its_own_is_refused(monkeypatch):
    """ModernBERT of transformers 4 looks its attention up by the name that a capture gives it."""
    model = build("plain")

    def forward(**inputs):
        return {"eager": None}[model.config._attn_implementation]

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(RuntimeError, match="did not call its attention through transformers' interface"):
        captured(model, inputs_of("none"), lazy=True)


@pytest.mark.parametrize(
    ("name", "layers"), [("shared blocks", [0, 1, 2]), ("attention between others", [1, 3])]
)
def test_layers_are_chosen_by_the_numbers_of_the_ordinary_capture(name, layers):
    model, inputs = build(name), inputs_of("none")
    for chosen in ([layers[-1]], [-1], [layers[0], -1]):
        expected = captured(model, inputs, layers=chosen)
        assert keys_of(captured(model, inputs, layers=chosen, lazy=True)) == keys_of(expected)
    with pytest.raises(ValueError, match=r"layer 7 of \w+ has no attention; layers \[" + str(layers)[1:-1]):
        captured(model, inputs, layers=[7], lazy=True)


@pytest.mark.parametrize(
    "name", ["multiplies its values in parts", "shared blocks", "computes with its mask"]
)
def test_an_analysis_from_queries_and_keys_is_that_of_maps(name):
    model, inputs = build(name), inputs_of("behind")
    of_states = asc.analyze(model, inputs, ["attention_entropy"], layers=[0], precision="exact")
    assert of_states.provenance["attention"] == "queries and keys"
    of_maps = asc.analyze(model, inputs, ["attention_entropy"], layers=[0], queries=slice(None))
    assert of_maps.provenance["attention"] == "maps"
    tables = [
        results["heads"][["sample", "layer", "head", "entropy"]].values for results in (of_states, of_maps)
    ]
    torch.testing.assert_close(
        *(torch.tensor(table.astype(float)) for table in tables), rtol=0, atol=TOLERANCE
    )


def test_a_block_in_two_places_runs_twice():
    model = build("plain")
    model.model.layers[1] = model.model.layers[0]
    expected = captured(model, inputs_of("none"))
    assert keys_of(captured(model, inputs_of("none"), lazy=True)) == keys_of(expected)
    assert [(layer.index, layer.call) for layer in expected] == [(0, 0), (0, 1), (2, 0)]


def test_attention_that_keeps_its_queries_is_named():
    inputs = {**inputs_of("none"), "decoder_input_ids": torch.arange(3, 9).expand(2, 6)}
    with pytest.warns(UserWarning, match=r"attention of model.encoder.layers.\*.self_attn is missing"):
        layers = captured(build("sparse encoder"), inputs, lazy=True)
    assert {layer.stack.split(".")[1] for layer in layers} == {"decoder"}


def test_a_text_without_a_token_has_no_numbers():
    inputs = inputs_of("none")
    inputs["attention_mask"][1] = 0
    for options in ({}, {"lazy": True}):
        with pytest.raises(ValueError, match=r"text 1 of the batch has no token"):
            captured(build("plain"), inputs, **options)[0].measure("attention_entropy")


@pytest.mark.parametrize("lazy", [False, True])
def test_a_decoder_text_without_a_token_has_no_numbers(lazy):
    """Neither in its own attention nor, where it has queries of padding alone, in that to the encoder."""
    ids = torch.arange(3, 9).expand(2, 6)
    mask = torch.ones_like(ids)
    mask[1] = 0
    inputs = {**inputs_of("none"), "decoder_input_ids": ids, "decoder_attention_mask": mask}
    for layer in captured(enlarged("T5Model", "T5Config", {**T5, "num_layers": 1}), inputs, lazy=lazy):
        if "decoder" in layer.stack:
            with pytest.raises(ValueError, match=r"text 1 of the batch has no token"):
                layer.measure("attention_entropy")


@pytest.mark.parametrize("lazy", [False, True])
def test_a_run_ends_with_its_block(lazy):
    """The model is as it was, though its layers were not all taken."""
    model = build("plain")
    before = model.config._attn_implementation
    with asc.capture(model, lazy=lazy) as recording:
        run = recording.run(**inputs_of("none"))
        next(run)
    assert model.config._attn_implementation == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert next(run, None) is None


@pytest.mark.parametrize("lazy", [False, True])
def test_inputs_that_are_none_are_refused_by_both_captures_alike(lazy):
    model, ids = build("plain"), inputs_of("none")["input_ids"]
    with asc.capture(model, lazy=lazy) as recording:
        with pytest.raises(TypeError, match=r"^run: give the model's inputs by name.* got Tensor"):
            recording.run(ids)
        with pytest.raises(TypeError, match=r"^run: input_ids is a text"):
            recording.run(input_ids="a text")
        with pytest.raises(ValueError, match=r"^run: input_ids holds no token, got shape \(1, 0\)"):
            recording.run(input_ids=ids[:1, :0])
        with pytest.raises(ValueError, match=r"^run: output_attentions is what the recording is for"):
            recording.run(input_ids=ids, output_attentions=True)
        list(recording.run(input_ids=ids, use_cache=True))
        assert recording.output.past_key_values.get_seq_length() == ids.shape[1]
    with pytest.raises(TypeError, match=r"^capture: Linear holds no transformers model"):
        asc.capture(torch.nn.Linear(2, 2), lazy=lazy).__enter__()


def test_a_model_whose_maps_were_found_wrong_is_refused_by_both_captures():
    model = build("plain")
    refuse(model, "its maps differ")
    for lazy in (False, True):
        with pytest.raises(RuntimeError, match=r"LlamaForCausalLM: its maps differ"):
            asc.capture(model, lazy=lazy).__enter__()
