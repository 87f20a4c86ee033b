# SPDX-License-Identifier: MIT
"""Captured attention against eager ``output_attentions=True``, architecture by architecture."""

import pytest
import torch

import models
from attnscope.capture import capture

INTERFACE, HOOKS = 1, 2
# Bitwise where the architecture's own eager code works in float32 in the same order; rounding elsewhere
# (learned sinks: one more logit; T5: unscaled logits in the hundreds).
TOLERANCE = {"gpt_oss": 5e-6, "t5": 2e-4, "bart": 2e-6}
EXPECTED_TIER = dict.fromkeys((*models.CAUSAL, *models.ENCODERS, *models.SEQ2SEQ), INTERFACE) | dict.fromkeys(
    models.LEGACY, HOOKS
)
PADDINGS = (pytest.param("none", marks=pytest.mark.slow), "left", "right")

# That Falcon's eager attention is not its sdpa attention is a warning, which has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:capture. FalconForCausalLM under its own attention")


@pytest.fixture(scope="module", params=EXPECTED_TIER, ids=str)
def pair(request):
    """The same weights twice: as a user loads the model, and with eager attention."""
    torch.set_num_threads(1)
    return request.param, models.tiny(request.param), models.tiny(request.param, implementation="eager")


def reference(model, inputs):
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True)


def stacks(output):
    if getattr(output, "cross_attentions", None):
        return {
            "encoder": output.encoder_attentions,
            "decoder": output.decoder_attentions,
            "cross": output.cross_attentions,
        }
    return {"self": output.attentions}


def stack_of(layer, output):
    if not getattr(output, "cross_attentions", None):
        return "self"
    return "cross" if layer.cross else "encoder" if "encoder." in layer.stack else "decoder"


@pytest.mark.parametrize("padding", PADDINGS)
def test_maps_and_output_equal_eager_attention(pair, padding):
    name, model, eager = pair
    inputs = models.text(model, padding=padding)
    expected = reference(eager, inputs)
    with capture(model) as recording:
        layers = list(recording.run(**inputs))
        assert recording.tier == (EXPECTED_TIER[name] if models.has_attention_interface(name) else HOOKS)
    tolerance = TOLERANCE.get(name, 0.0)
    wanted = {(kind, i): m for kind, maps in stacks(expected).items() for i, m in enumerate(maps)}
    got = {(stack_of(layer, expected), layer.index): layer for layer in layers}
    assert len(layers) == len(got)
    assert got.keys() == wanted.keys()
    for key, layer in got.items():
        # A padding query of a left-padded sample sees no key: its row is uniform, in eager attention as here.
        assert layer.attention.shape == wanted[key].shape
        gap = float((layer.attention - wanted[key]).abs().max())
        assert gap <= tolerance, f"{name}, {padding} padding, {key}: {gap}"
        assert layer.call == 0
        assert layer.key_offset == 0
    keep = inputs["attention_mask"].bool()
    ours, theirs = recording.output[0], expected[0]
    if ours.shape[:2] == keep.shape:
        ours, theirs = ours[keep], theirs[keep]
    assert float((ours - theirs).abs().max()) <= tolerance


@pytest.mark.parametrize("padding", PADDINGS)
def test_valid_is_the_attention_mask(pair, padding):
    name, model, _ = pair
    inputs = models.text(model, padding=padding)
    keep = inputs["attention_mask"].bool()
    with capture(model) as recording:
        for layer in recording.run(**inputs):
            own = layer.cross or "encoder." in layer.stack or not model.config.is_encoder_decoder
            wanted = keep if own else torch.ones(2, 11, dtype=torch.bool)
            assert torch.equal(layer.valid, wanted), (name, layer)


def test_the_maps_are_sharp_enough_to_show_a_lost_mask(pair):
    name, model, _ = pair
    with capture(model) as recording:
        largest = max(float(layer.attention.max()) for layer in recording.run(**models.text(model)))
    assert largest > (0.25 if name == "deberta_v2" else 0.5)


def test_only_causal_models_do_not_look_ahead(pair):
    name, model, _ = pair
    causal = name in models.CAUSAL or name in ("falcon", "falcon_alibi", "bloom", "gptj")
    with capture(model) as recording:
        for layer in recording.run(**models.text(model)):
            ahead = float(layer.attention.triu(1).abs().max())
            assert (ahead == 0.0) == (
                causal or (name in models.SEQ2SEQ and "decoder." in layer.stack and not layer.cross)
            )


@pytest.mark.parametrize("name", models.SEQ2SEQ)
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_encoder_alone(name, padding):
    """BART's encoder carries the configuration of an encoder-decoder, without taking decoder tokens."""
    whole = models.tiny(name)
    encoder, inputs = whole.get_encoder(), models.text(whole, padding=padding)
    own = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    with capture(whole) as recording:
        wanted = [layer for layer in recording.run(**inputs) if "encoder." in layer.stack]
    with capture(encoder) as recording:
        layers = list(recording.run(**own))
        assert recording.tier == (INTERFACE if models.has_attention_interface(name) else HOOKS)
    for layer, other in zip(layers, wanted, strict=True):
        assert torch.equal(layer.attention, other.attention)
        assert torch.equal(layer.valid, own["attention_mask"].bool())


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "falcon"])
def test_the_body_without_its_head(name):
    whole = models.tiny(name)
    inputs = models.text(whole, padding="left")
    with capture(whole) as recording, capture(whole.base_model) as body:
        wanted = list(recording.run(**inputs))
        for layer, other in zip(body.run(**inputs), wanted, strict=True):
            assert torch.equal(layer.attention, other.attention)
            assert torch.equal(layer.valid, other.valid)


def test_captured_forward_leaves_the_model_as_it_was(pair):
    _, model, _ = pair
    inputs = models.text(model, padding="left")
    with torch.no_grad():
        before = model(**inputs)[0]
        with capture(model) as recording:
            for _layer in recording.run(**inputs):
                pass
        after = model(**inputs)[0]
    assert torch.equal(before, after)
