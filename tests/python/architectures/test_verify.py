# SPDX-License-Identifier: MIT
"""`verify`: what a model computes against what is captured of it; a difference is refused from then on."""

import json
import re

import pytest
import torch
import transformers

import attnscope as asc
from attnscope.capture.rectangles import assembled
from attnscope.capture.verification import verify
from attnscope.errors import LoadError
from media_models import VISION, spectrogram, speech, whisper
from models import needs_configuration, text, tiny, tiny_llama
from support import sweep


def named(verification):
    return {check.name: check for check in verification.checks}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "gpt_oss", "mistral", "bloom"])
def test_models_are_captured_as_they_compute(name):
    verification = asc.verify(tiny(name))
    assert verification.ok, verification
    checks = named(verification)
    assert "from eager attention at most" in checks["maps"].result
    assert checks["way"].result.startswith("tier 2" if name == "bloom" else "tier 1")


def test_the_padding_of_a_decoder_is_its_own():
    """As many tokens of a decoder as of its encoder are others: rows of its padding are not compared."""
    torch.manual_seed(0)
    inputs = {
        "input_ids": torch.randint(3, 60, (2, 10)),
        "attention_mask": torch.tensor([[1] * 10, [1] * 7 + [0] * 3]),
        "decoder_input_ids": torch.randint(3, 60, (2, 10)),
        "decoder_attention_mask": torch.tensor([[1] * 10, [0] * 4 + [1] * 6]),
    }
    verification = asc.verify(tiny("bart"), inputs)
    assert verification.ok, verification


def test_nan_in_the_place_of_a_number_is_a_difference():
    model, inputs = tiny("llama"), {"input_ids": torch.arange(3, 9)[None]}
    with asc.capture(model) as recording:
        layer = next(iter(recording.run(**inputs)))
    with torch.no_grad():
        output = model(**inputs)[0]
    assert verify._check_output(model, (output,), inputs).ok
    output[0, -1, 0] = torch.nan
    assert not verify._check_output(model, (output,), inputs).ok
    eager = layer.tensors["attention"].clone()
    layer.tensors["attention"][0, 0, -1, 0] = torch.nan
    assert verify._gap(layer, eager) == float("inf")


def test_kinds_of_layers_are_counted():
    assert "window 7 3" in named(asc.verify(tiny("mistral")))["layers"].result
    assert "cross 2" in named(asc.verify(tiny("t5")))["layers"].result
    assert "with a learned sink" in named(asc.verify(tiny("gpt_oss")))["row sums"].result


@pytest.mark.parametrize(
    "make",
    [
        VISION["vit"][0],
        VISION["dinov3"][0],
        lambda: spectrogram()[0],
        lambda: speech("Hubert")[0],
        lambda: whisper()[0],
    ],
)
def test_pictures_and_sounds_are_tried_on_noise(make):
    verification = asc.verify(make())
    assert verification.ok, verification
    assert "layers compared" in named(verification)["maps"].result


def test_a_model_that_returns_some_of_its_maps_is_compared_with_these():
    """Swin returns the maps of the last block of each stage."""
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(0)
    shape = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, image_size=64, patch_size=4)
    verification = asc.verify(SwinModel(SwinConfig(**shape)).eval())
    assert verification.ok, verification
    assert "2 of 4 layers compared" in named(verification)["maps"].result


def test_a_model_that_differs_on_longer_texts_is_refused_from_then_on(monkeypatch):
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def sharper(module, query, key, value, mask, scaling, **options):
        return eager(module, query, key, value, mask, scaling * (1 + (query.shape[2] > 16)), **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", sharper)
    model = tiny_llama()
    with asc.capture(model):
        pass
    verification = asc.verify(model)
    assert not verification.ok
    assert not named(verification)["maps"].ok
    assert "BAD   maps" in repr(verification)
    assert repr(verification).splitlines()[0] == "LlamaForCausalLM: 1 fault"
    with pytest.raises(RuntimeError, match=r"analyze: LlamaModel: verify found its maps to differ"):
        asc.analyze(model, torch.arange(6)[None], ["sink_share"])
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    assert asc.verify(tiny_llama()).ok


def test_what_rounding_moves_is_no_difference():
    """Gemma 3n carries the last bit of an embedding on: two right computations differ by as much."""
    needs_configuration("Gemma3nTextConfig")
    config_class, model_class = sweep.classes("causal", "gemma3n_text")
    for dtype in (torch.float32, torch.float64):  # eager attention in float64 has a softmax in float32
        model = sweep.build(config_class, model_class).to(dtype)
        verification = asc.verify(model)
        assert verification.ok, verification
        checks = named(verification)
        assert re.search(
            "which rounding moves by|where rounding moves", checks["output"].result + checks["maps"].result
        )


@pytest.mark.parametrize(
    ("kind", "name"), [("causal", "cpmant"), ("seq2seq", "t5gemma2"), ("masked", "big_bird")]
)
@pytest.mark.filterwarnings("ignore:capture")
def test_a_part_of_the_attention_is_not_measured(kind, name):
    """CPM-Ant drops its prompt, T5Gemma 2 parts one softmax in two, and BigBird's blocks overlap."""
    if name not in sweep.types(kind):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = sweep.build(*sweep.classes(kind, name))
    inputs = sweep.inputs_of(model, "none")
    if name == "big_bird":  # sparse where a text has blocks enough
        inputs = {"input_ids": torch.randint(5, 90, (1, 48), generator=torch.Generator().manual_seed(0))}
    words = r"rows of .*attention.* sum to [-.e0-9]* to .*, not to 1: the model returns a part"
    with asc.capture(model) as recording:
        layers = list(recording.run(**inputs))
    refused = [layer for layer in layers if layer.partial_sums is not None]
    assert refused
    for layer in refused:
        sums = layer.attention.sum(-1)
        assert layer.partial_sums[0] == pytest.approx(float(sums[sums > 1e-6].min()))
        with pytest.raises(LoadError, match="capture: " + words):
            layer.measure("attention_entropy")
    with pytest.raises(LoadError, match="analyze: " + words):
        asc.analyze(model, inputs, "attention_entropy")
    assert "returns a part of what queries attend to in" in named(asc.verify(model))["row sums"].result


def test_a_user_s_inputs_and_models_without_sizes():
    verification = asc.verify(tiny_llama(), {"input_ids": torch.arange(9)[None]})
    assert verification.ok
    with pytest.raises(TypeError, match="model must be a torch module, got str"):
        asc.verify("gpt2")


def test_a_model_in_training_mode_is_evaluated():
    """Its dropout passed for a fault, and captures of the model were refused from then on."""
    model = tiny("gpt2", attn_pdrop=0.3, resid_pdrop=0.3).train()
    assert asc.verify(model).ok
    assert all(module.training for module in model.modules())
    with asc.capture(model) as recording:
        assert len(list(recording.run(**text(model)))) == 3


def test_the_model_is_left_as_it_was():
    from fingerprint import differing, fingerprint

    model = tiny("t5")
    before = fingerprint(model)
    asc.verify(model)
    assert differing(before, fingerprint(model)) == []


def test_the_doctor_examines_a_model(call, tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    code, out, _ = call("doctor", "--model", str(tmp_path))
    assert code == 0
    assert out.splitlines()[0] == "LlamaForCausalLM: captured as it computes"
    assert "ok    maps" in out
    code, out, _ = call("doctor", "--model", str(tmp_path), "--json")
    assert {check["name"] for check in json.loads(out)["checks"]} >= {"maps", "output", "visible", "row sums"}


def test_a_model_that_writes_is_compared_while_it_writes():
    checks = {check.name: check for check in asc.verify(tiny("llama")).checks}
    assert checks["generation"].ok
    assert re.match(r"\d\S* from one forward pass at most, 3 tokens written", checks["generation"].result)
    for name in ("bert", "t5"):  # no decoder that writes behind its prompt
        assert "generation" not in {check.name for check in asc.verify(tiny(name)).checks}


def test_rows_that_are_not_those_of_one_pass_are_said_and_refuse_no_capture(monkeypatch):
    model = tiny("llama")
    usual = assembled.assemble

    def shifted(*arguments, **options):
        layer = usual(*arguments, **options)
        layer.tensors["attention"][..., -1, 0] += 0.25
        return layer

    monkeypatch.setattr(assembled, "assemble", shifted)
    verification = asc.verify(model)
    (fault,) = [check for check in verification.checks if not check.ok]
    assert (fault.name, fault.result[:4]) == ("generation", "0.25")
    assert "analyze(model, texts, generate=...) is" in str(verification)
    assert "its own logits differ by" in fault.result
    monkeypatch.undo()
    assert asc.verify(model).ok


def test_steps_that_differ_by_themselves_are_no_fault_of_capture():
    """A BERT that writes with queries that see later tokens: one pass is another computation."""
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(0)
    shape = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, vocab_size=60
    )
    model = BertLMHeadModel(BertConfig(**shape, is_decoder=False, initializer_range=0.3)).eval()
    verification = asc.verify(model)
    check = verification.checks[-1]
    assert check.name == "generation"
    assert check.ok
    assert "its own logits differ by" in check.result
    assert "recording.assembled() is not one forward pass here" in str(verification)


def test_maps_in_the_outputs_of_a_models_parts_are_compared():
    from transformers import CLIPConfig, CLIPModel

    shape = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    config = CLIPConfig(
        text_config=dict(vocab_size=64, **shape), vision_config=dict(image_size=32, patch_size=8, **shape)
    )
    inputs = {"input_ids": torch.tensor([[1, 5, 6, 2]]), "pixel_values": torch.rand(1, 3, 32, 32)}
    checks = named(asc.verify(CLIPModel(config).eval(), inputs))
    assert checks["maps"].result.endswith("from eager attention at most, 4 of 4 layers compared")


def test_a_model_that_takes_more_than_tokens_is_asked_for_its_inputs():
    """CLIP needs pictures besides, and was said to be out of reach of any capture."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 60, "max_position_embeddings": 64}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**sizes, "image_size": 32, "patch_size": 8}
    )
    model = transformers.CLIPModel(config).eval()
    table = repr(asc.verify(model))
    assert (
        "tried were input_ids and attention_mask alone: where it takes more, verify(model, inputs)" in table
    )
    inputs = {"input_ids": torch.arange(3, 10)[None], "pixel_values": torch.zeros(1, 3, 32, 32)}
    assert asc.verify(model, inputs).ok
