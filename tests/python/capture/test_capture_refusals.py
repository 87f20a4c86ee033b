# SPDX-License-Identifier: MIT
"""What capture refuses, and what it says."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import models
from attnscope.capture import SITES, capture, preflight
from attnscope.capture.implementation import configs


@pytest.fixture(scope="module")
def model():
    return models.tiny("llama")


def test_an_unknown_site_lists_the_known_ones(model):
    with pytest.raises(
        ValueError, match=r"sites must be among attention, query, .*block_output, got \['atention'\]"
    ):
        capture(model, sites=("atention",))
    with pytest.raises(ValueError, match="sites must be among"):
        capture(model, sites=())
    assert SITES[0] == "attention"


def test_a_single_site_may_be_a_string(model):
    with capture(model, sites="value") as recording:
        assert [list(layer.tensors) for layer in recording.run(**models.text(model))] == [["value"]] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": [0, 3, -4]}, r"layers of LlamaForCausalLM: \[3, -4\] out of range for 3 \(-3 to 2\)"),
        ({"heads": [4]}, r"heads of LlamaForCausalLM, model.layers.\*.self_attn: \[4\] out of range for 4"),
        ({"layers": []}, "layers must be whole numbers, at least one, got"),
        ({"heads": [0.5]}, r"heads must be whole numbers, at least one, got \[0.5\]"),
        ({"heads": 0.5}, "heads must be whole numbers, at least one, got 0.5"),
        ({"layers": [True]}, r"layers must be whole numbers, at least one, got \[True\]"),
        ({"layers": "1", "lazy": True}, "layers must be whole numbers, at least one, got '1'"),
        ({"layers": slice(1), "lazy": True}, "layers must be whole numbers, at least one, got slice"),
        ({"chunk": 0}, "chunk must be a positive number of heads, got 0"),
        ({"chunk": True}, "chunk must be a positive number of heads, got True"),
    ],
)
def test_selections_out_of_range(model, options, words):
    with pytest.raises(ValueError, match=words), capture(model, **options):
        pass


@pytest.mark.parametrize(
    "chosen",
    [1, np.int64(1), np.array([1]), torch.tensor(1), torch.tensor([1]), {1}, iter([1])],
    ids=["number", "of NumPy", "array", "of torch", "tensor", "set", "iterator"],
)
def test_numbers_of_layers_come_from_any_container(model, chosen):
    with capture(model, layers=chosen) as recording:
        assert [layer.index for layer in recording.run(**models.text(model))] == [1]


def test_something_that_is_no_model():
    with pytest.raises(TypeError, match="model must be a torch module, got str"):
        capture("gpt2")
    with pytest.raises(TypeError, match="Linear holds no transformers model"), capture(nn.Linear(2, 2)):
        pass


def test_what_holds_a_model_is_named():
    class LanguageModel:
        _model = None

    with pytest.raises(TypeError, match=r"got str; attnscope.models.load_model loads one"):
        capture("gpt2")
    with pytest.raises(TypeError, match=r"got LanguageModel; the model that it holds may be its \._model"):
        capture(LanguageModel())


def test_inputs_that_a_model_refuses_are_named(model):
    with capture(model) as recording, pytest.raises(TypeError, match=r"run: text is a text; a tokenizer"):
        recording.run(text="Once upon a time")
    words = r"run: input_ids holds no token, got shape \(1, 0\)"
    with capture(model) as recording, pytest.raises(ValueError, match=words):
        recording.run(input_ids=torch.zeros(1, 0, dtype=torch.int64))
    two = models.tiny("t5")
    words = r"run: T5\w+ has a decoder, which needs inputs of its own: give decoder_input_ids"
    with capture(two) as recording, pytest.raises(ValueError, match=words):
        list(recording.run(input_ids=torch.arange(1, 9)[None]))


def test_a_model_that_is_set_in_training_mode_inside_the_block(model):
    with capture(model) as recording:
        model.train()
        try:
            with pytest.raises(RuntimeError, match=r"LlamaForCausalLM is in training mode.*model.eval\(\)"):
                recording.run(input_ids=torch.arange(6)[None])
        finally:
            model.eval()


def test_a_model_without_attention_says_which_and_why():
    model = models.tiny("mamba")
    words = r"attention of MambaForCausalLM cannot be captured\. own attention function: never called"
    with pytest.raises(RuntimeError, match=words):
        capture(model).__enter__()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_output_attentions_is_refused(model):
    with (
        capture(model) as recording,
        pytest.raises(ValueError, match="output_attentions is what the recording is for"),
    ):
        recording.run(**models.text(model), output_attentions=True)


def test_inputs_without_a_name_are_refused(model):
    ids = models.text(model)["input_ids"]
    with capture(model) as recording, pytest.raises(TypeError, match=r"inputs by name.*got Tensor, int"):
        recording.run(ids, 3)


@pytest.mark.parametrize("site", ["query", "key", "value"])
def test_projections_of_a_legacy_model_are_out_of_reach(site):
    words = rf"BloomForCausalLM does not let \['{site}'\] be captured.*never called"
    with pytest.raises(RuntimeError, match=words):
        capture(models.tiny("bloom"), sites=("attention", site)).__enter__()


def test_a_causal_module_without_a_mask_is_refused(model, monkeypatch):
    """As a mask function that is lost between transformers versions would do: never the future, unnoticed."""
    inputs = models.text(model)
    with capture(model) as recording:
        monkeypatch.setattr(
            "transformers.models.llama.modeling_llama.create_causal_mask", lambda *a, **k: None
        )
        with pytest.raises(RuntimeError, match="is causal but the model passed no mask for 37 queries"):
            list(recording.run(**inputs))
    assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}


def test_an_argument_that_would_change_attention_is_refused(model, monkeypatch):
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaAttention.forward

    def forward(self, *args, **kwargs):
        return original(self, *args, **kwargs, indices=torch.arange(3))

    with capture(model) as recording:
        monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
        with pytest.raises(NotImplementedError, match=r"unknown to capture: \{'indices': 'Tensor'\}"):
            list(recording.run(**models.text(model)))


def test_a_forward_pass_without_attention_is_an_error(model):
    with capture(model) as recording:
        original, model.forward = model.forward, lambda **_: {"nothing": 0}
        try:
            with pytest.raises(RuntimeError, match="saw no attention of LlamaForCausalLM"):
                list(recording.run(**models.text(model)))
        finally:
            model.forward = original
            del model.forward


def test_another_implementation_further_up_is_refused(model):
    from attnscope.capture.implementation import implementation

    inputs = models.text(model)
    with capture(model) as recording, implementation(model, "eager"):
        run = recording.run(**inputs)
        with pytest.raises(RuntimeError, match="LlamaForCausalLM is being run with attention 'eager'"):
            next(run)


@pytest.mark.parametrize("broken", ["mask", "softcap", "sinks", "bias", "scale"])
def test_the_preflight_catches_a_wrong_attention_function(broken, monkeypatch):
    """Each defect alone must send the model to the second tier, which is eager attention itself."""
    from attnscope.capture import interface

    name = {"softcap": "gemma2", "sinks": "gpt_oss", "bias": "t5"}.get(broken, "bert")
    models.needs_attention_interface(name)
    options = {"attn_logit_softcapping": 0.5} if broken == "softcap" else {}
    model = models.tiny(name, **options)
    original = interface._captured

    changes = {"mask": None, "softcap": None, "s_aux": None, "position_bias": None, "scaling": 1.0}
    field = {"sinks": "s_aux", "bias": "position_bias", "scale": "scaling"}.get(broken, broken)

    def wrong(recorder, call):
        return original(recorder, call._replace(**{field: changes[field]}))

    assert preflight.plan_for(models.tiny(name, **options)).tier == 1
    monkeypatch.setattr(interface, "_captured", wrong)
    plan = preflight.plan_for(model)
    assert plan.tier == 2
    assert "differs by" in plan.reasons[0]


def test_the_third_tier_warns_and_still_yields_the_maps(monkeypatch):
    """A model whose weights only come out at the end: neither our function nor hooks see them."""
    model, eager = models.tiny("bert"), models.tiny("bert", implementation="eager")
    run = preflight._run

    def only_outputs(model, inputs, *, tier, ask=False):
        if tier in (preflight.INTERFACE, preflight.HOOKS):
            raise NotImplementedError("not this one")
        return run(model, inputs, tier=tier, ask=ask)

    monkeypatch.setattr(preflight, "_run", only_outputs)
    inputs = models.text(model, padding="left")
    with torch.no_grad():
        expected = eager(**inputs, output_attentions=True).attentions
    with pytest.warns(UserWarning, match="every layer's maps are in memory together"):
        recording = capture(model, heads=[-1]).__enter__()
    assert recording.tier == 3
    layers = list(recording.run(**inputs))
    recording.__exit__(None, None, None)
    assert [layer.index for layer in layers] == [0, 1, 2]
    for layer, all_heads in zip(layers, expected, strict=True):
        assert torch.equal(layer.attention, all_heads[:, 3:])
        assert torch.equal(layer.valid, inputs["attention_mask"].bool())
    hidden = capture(model, sites=("hidden",))
    with (
        pytest.warns(UserWarning, match="in memory together"),
        pytest.raises(RuntimeError, match=r"does not let \['hidden'\] be captured"),
    ):
        hidden.__enter__()


def uniform_attention(hidden_states, **further):
    """Mix the states with equal weights on all keys that a query sees, and return the weights too."""
    batch, n, _ = hidden_states.shape
    weights = torch.ones(n, n, device="cpu").tril() / torch.arange(1, n + 1, device="cpu")[:, None]
    return weights @ hidden_states, weights.expand(batch, 4, n, n)


def test_attention_that_was_replaced_after_a_capture_is_captured():
    """The plan of the first capture knows nothing of it, and its layer would be missing without a word."""
    model, eager = (
        models.tiny("llama", implementation=name, **models.SMALL_DECODER) for name in ("sdpa", "eager")
    )
    inputs = {name: values % 64 for name, values in models.text(model, n=20).items()}

    def maps():
        with capture(model) as recording:
            return {layer.index: layer.attention for layer in recording.run(**inputs)}

    assert list(maps()) == [0, 1]
    for each_model in (model, eager):
        each_model.model.layers[1].self_attn = copy.deepcopy(each_model.model.layers[0].self_attn)
        each_model.model.layers[1].self_attn.layer_idx = 1
    with torch.no_grad():
        expected = eager(**inputs, output_attentions=True).attentions
    captured = maps()
    assert list(captured) == [0, 1]
    assert all(torch.equal(captured[layer], expected[layer]) for layer in (0, 1))
    model.model.layers[1].self_attn = copy.deepcopy(model.model.layers[1].self_attn)
    model.model.layers[1].self_attn.forward = uniform_attention
    captured = maps()
    assert list(captured) == [0, 1]
    assert torch.equal(captured[1][0, 0], torch.ones(20, 20).tril() / torch.arange(1.0, 21)[:, None])


def test_a_model_whose_eager_attention_is_another_one_says_so():
    """Falcon's eager attention adds its ALiBi bias twice (transformers 5.23): which must not be hidden."""
    model = models.tiny("falcon_alibi")
    with pytest.warns(UserWarning, match="output differs by .* the maps are those of eager attention"):
        capture(model).__enter__()


def test_a_layer_without_attention_cannot_be_asked_for():
    """Jamba: attention in every second layer, a state space in the others."""
    model = models.tiny("jamba")
    with pytest.raises(
        ValueError, match=r"layer 0 of JambaForCausalLM has no attention; layers \[1, 3\] have"
    ):
        capture(model, layers=[0]).__enter__()
    with capture(model, layers=[-1]) as recording:
        assert [layer.index for layer in recording.run(**models.text(model))] == [3]


def test_importing_capture_does_not_import_transformers(fresh):
    assert fresh("import sys, attnscope.capture; sys.exit('transformers' in sys.modules)").returncode == 0


def test_a_model_without_weights_is_refused_in_words():
    model = models.tiny("llama").to("meta")
    with pytest.raises(RuntimeError, match="has parameters on the meta device"), capture(model):
        pass


class _Rounded(NamedTuple):
    """A pass in a type, with the map and the output that it came to."""

    dtype: torch.dtype
    prints: list
    output: torch.Tensor


def rounded(dtype, largest=0.0, share=0.0):
    """Return a pass whose maps are off by `largest` in a share of the rows."""
    rows = torch.zeros(1, 4, 250, 4, dtype=torch.float64)
    rows[:, :, : round(250 * share)] = largest
    print_of_map = preflight._Fingerprint(7, rows, torch.ones(1, 250, dtype=torch.bool), (1, 4, 250, 250))
    return _Rounded(dtype, [print_of_map], torch.zeros(1))


@pytest.mark.parametrize(
    ("dtype", "largest", "share", "is_right"),
    [
        (torch.bfloat16, 0.457, 0.009, True),  # as measured on llama2xs
        (torch.bfloat16, 0.6, 0.009, False),
        (torch.bfloat16, 0.457, 0.04, False),  # too many rows to be rounding
        (torch.float16, 0.028, 0.014, True),
        (torch.float16, 0.457, 0.009, False),
        (torch.float32, 0.028, 0.014, False),
        (torch.float64, 5e-4, 0.01, True),
    ],
)
def test_what_rounding_explains_depends_on_the_type(dtype, largest, share, is_right):
    words = preflight._difference(rounded(dtype), rounded(dtype, largest, share))
    assert (words == "") == is_right
    if not is_right:
        assert f"the map of layer 7 differs by {largest:.2g} at most" in words
        assert f"tolerance of {str(dtype).removeprefix('torch.')}: " in words
