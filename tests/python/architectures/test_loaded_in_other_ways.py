# SPDX-License-Identifier: MIT
"""Models as they are loaded elsewhere: adapters, offload, compiled, quantised, other attention, training.

The maps of each are those of the same model loaded plainly, or the way is refused by name.
"""

import copy
import warnings
from pathlib import Path

import pytest
import torch

import attnscope as asc
import remote_model
from models import sharpen, tiny, tiny_llama

IDS = torch.randint(5, 30, (2, 12), generator=torch.Generator().manual_seed(3))
MASK = torch.ones_like(IDS)
MASK[1, 9:] = 0
INPUTS = {"input_ids": IDS, "attention_mask": MASK}


def maps_of(model, inputs=INPUTS, **options):
    with asc.capture(model, **options) as recording:
        return [layer.attention.clone().cpu() for layer in recording.run(**inputs)]


def eager_maps(model, inputs=INPUTS):
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        return list(eager(**inputs, output_attentions=True).attentions)


def gap(maps, others):
    """Largest gap between maps at real queries."""
    assert [attention.shape for attention in maps] == [other.shape for other in others]
    real = MASK[:, None, :, None].bool()
    return max(
        float((attention - other).abs().masked_fill(~real, 0).max())
        for attention, other in zip(maps, others, strict=True)
    )


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention", "flash_attention_2"])
def test_every_attention_implementation(implementation):
    """None of them is reloaded; the maps are eager attention's."""
    try:
        model = tiny("llama", implementation=implementation)
    except ImportError as error:
        pytest.skip(f"{implementation} is not built here: {str(error)[:80]}")
    assert gap(maps_of(model), eager_maps(model)) < 1e-6
    assert model.config._attn_implementation == implementation


def test_modules_that_were_chosen_when_the_model_was_built_are_refused_with_what_to_do():
    from transformers import Data2VecVisionConfig, Data2VecVisionModel

    shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = Data2VecVisionConfig(image_size=32, patch_size=16, **shape)
    pixels = {"pixel_values": torch.rand(1, 3, 32, 32)}
    model = Data2VecVisionModel._from_config(config, attn_implementation="sdpa").eval()
    words = (
        r"cannot be captured\..*built with Data2VecVisionSdpaSelfAttention: load it with attn_implementation"
    )
    with pytest.raises(RuntimeError, match=words):
        maps_of(model, pixels)
    eager = Data2VecVisionModel._from_config(config, attn_implementation="eager").eval()
    assert [tuple(attention.shape) for attention in maps_of(eager, pixels)] == [(1, 2, 5, 5)]


def test_a_model_in_training_mode_is_evaluated_and_put_back():
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    expected = eager_maps(model)
    model.train()
    model.transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    assert gap(maps_of(model), expected) < 1e-6
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="layers"):
        maps_of(model, layers=[9])
    assert [module.training for module in model.modules()] == modes


def test_gradient_checkpointing():
    model = tiny_llama()
    expected = eager_maps(model)
    model.gradient_checkpointing_enable()
    model.train()
    assert gap(maps_of(model), expected) < 1e-6
    assert model.is_gradient_checkpointing


def test_a_compiled_model_and_a_compiled_module():
    model = tiny_llama()
    expected = eager_maps(model)
    compiled = torch.compile(model, backend="eager")
    assert gap(maps_of(compiled), expected) < 1e-6
    other = copy.deepcopy(model)
    other.model.layers[0] = torch.compile(other.model.layers[0], backend="eager")
    assert gap(maps_of(other), expected) < 1e-6


@pytest.mark.parametrize("cast_first", [True, False])
def test_maps_under_autocast_and_without_it_do_not_depend_on_which_came_first(cast_first):
    """A trial under autocast says nothing about passes without it."""
    model = tiny_llama()
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    for cast in (cast_first, not cast_first):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast), asc.capture(model) as recording:
            maps = [layer.attention for layer in recording.run(**INPUTS)]
            with torch.no_grad():
                expected = eager(**INPUTS, output_attentions=True).attentions
        with torch.autocast("cpu", torch.bfloat16, enabled=cast), asc.capture(copy.deepcopy(model)) as first:
            maps_of_first = [layer.attention for layer in first.run(**INPUTS)]
        assert recording.tier == first.tier == 1
        assert gap(maps, maps_of_first) == 0.0
        # of queries and keys in bfloat16 the softmax stays in float32
        assert gap(maps, expected) < (1e-2 if cast else 1e-6)


def test_ctrl_c_before_a_trial_is_no_other_error(monkeypatch):
    from attnscope.capture import preflight

    def interrupted(model):
        raise KeyboardInterrupt

    monkeypatch.setattr(preflight, "preserved", interrupted)
    with pytest.raises(KeyboardInterrupt), asc.capture(tiny_llama()):
        pass


class Tagged(torch.Tensor):
    """A tensor of another class, as libraries of quantisation and of sharding make them."""


def test_weights_of_another_tensor_class():
    model = tiny_llama()
    expected = eager_maps(model)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            tagged = torch.nn.Parameter(parameter.detach().as_subclass(Tagged), requires_grad=False)
            setattr(module, name, tagged)
    maps = maps_of(model)
    assert gap([attention.as_subclass(torch.Tensor) for attention in maps], expected) < 1e-6
    assert asc.analyze(model, IDS, ["sink_share", "fiedler_value"])["heads"].notna().all().all()


def adapted(kind):
    peft = pytest.importorskip("peft", reason="peft, which makes adapters, is not installed")
    configs = {
        "lora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj"], init_lora_weights=False),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    }
    torch.manual_seed(0)
    return peft.get_peft_model(tiny_llama(), configs[kind]()).eval()


def test_a_low_rank_adapter():
    model = adapted("lora")
    merged = copy.deepcopy(model).merge_and_unload()
    expected = eager_maps(merged)
    assert gap(maps_of(model), expected) < 1e-5
    assert (
        gap(maps_of(model), eager_maps(model.get_base_model().__class__._from_config(merged.config))) > 1e-3
    )


def test_prefix_tuning_gives_rectangles():
    model = adapted("prefix")
    maps = maps_of(model)
    assert [tuple(attention.shape[-2:]) for attention in maps] == [(12, 16), (12, 16)]
    assert all(float((attention[0].sum(-1) - 1).abs().max()) < 1e-5 for attention in maps)


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_offloaded_weights(place, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate, which offloads, is not installed")
    model = tiny_llama()
    expected = eager_maps(model)
    if place == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device="cpu")
    assert any(parameter.is_meta for parameter in model.parameters())
    assert gap(maps_of(model), expected) == 0


def test_eight_bit_weights_of_torchao():
    quantization = pytest.importorskip(
        "torchao.quantization", reason="torchao, which quantises weights, is not installed"
    )
    model = tiny_llama()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = list(model(**INPUTS, output_attentions=True).attentions)
        model.set_attn_implementation("sdpa")
    assert gap(maps_of(model), expected) < 1e-5


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_weights_of_bitsandbytes(bits):
    bnb = pytest.importorskip(
        "bitsandbytes", reason="bitsandbytes, which quantises weights, is not installed"
    )
    model = tiny("llama", hidden_size=128, head_dim=32, intermediate_size=128)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj"):
            linear = getattr(layer.self_attn, name)
            options = dict(bias=False, has_fp16_weights=False) if bits == 8 else dict(bias=False)
            kind = bnb.nn.Linear8bitLt if bits == 8 else bnb.nn.Linear4bit
            quantised = kind(linear.in_features, linear.out_features, **options)
            quantised.load_state_dict(linear.state_dict(), strict=False)
            setattr(layer.self_attn, name, quantised.to("cpu").eval())
    try:
        with torch.no_grad():
            model.set_attn_implementation("eager")
            expected = list(model(**INPUTS, output_attentions=True).attentions)
            model.set_attn_implementation("sdpa")
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        pytest.skip(f"bitsandbytes has no CPU kernel for {bits} bits here: {str(error)[:80]}")
    maps = maps_of(model)
    # from the second layer on, rounding before a weight of few bits moves states by a whole step of them
    assert gap(maps[:1], expected[:1]) < 1e-5
    assert gap(maps, expected) < 0.05


def load_remote(folder, returns):
    """A model whose code lies next to its weights, and gives its maps away or not."""
    from transformers import AutoModel

    code = Path(remote_model.__file__).read_text("utf-8")
    (folder / "remote_model.py").write_text(code.replace("RETURNS = True", f"RETURNS = {returns}"), "utf-8")
    (folder / "config.json").write_text(
        '{"model_type": "remote_model", "architectures": ["RemoteModel"], '
        '"auto_map": {"AutoConfig": "remote_model.RemoteConfig", "AutoModel": "remote_model.RemoteModel"}}',
        "utf-8",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        torch.manual_seed(0)
        model = AutoModel.from_config(config, trust_remote_code=True).eval()
    sharpen(model)
    return model


def test_code_of_its_own_that_returns_its_maps(tmp_path):
    model = load_remote(tmp_path, True)
    with torch.no_grad():
        expected = list(model(IDS, output_attentions=True).attentions)
    with asc.capture(model) as recording:
        maps = [layer.attention.clone() for layer in recording.run(input_ids=IDS)]
    assert recording.tier in (2, 3)
    assert all(torch.equal(attention, other) for attention, other in zip(maps, expected, strict=True))


def test_code_of_its_own_that_keeps_its_maps_is_refused(tmp_path):
    model = load_remote(tmp_path, False)
    with pytest.raises(RuntimeError, match="attention of RemoteModel cannot be captured"):
        maps_of(model, {"input_ids": IDS})
