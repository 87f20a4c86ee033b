# SPDX-License-Identifier: MIT
"""LoRA folders as PEFT writes them, against the same change merged into the weights by its formula."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

import attnscope as asc
from attnscope.metrics.weights.low_rank import LowRank
from weight_models import tiny

transformers = pytest.importorskip("transformers")

RANK = 3


@pytest.fixture(autouse=True, scope="module")
def quiet():
    transformers.utils.logging.disable_progress_bar()


def weight_of(model, module):
    """The weight [out, in] of a module and whether it is stored transposed."""
    owner = model.get_submodule(module)
    transposed = type(owner).__name__ == "Conv1D"
    return (owner.weight.T if transposed else owner.weight), transposed


def adapter(folder, model, modules, *, ranks=None, extra=None, **config):
    """Writes an adapter with random factors; returns the factors by module."""
    generator = torch.Generator().manual_seed(3)
    folder.mkdir()
    tensors, factors = dict(extra or {}), {}
    for module in modules:
        out, inside = weight_of(model, module)[0].shape
        rank = (ranks or {}).get(module, config.get("r", RANK))
        left = torch.randn(out, rank, generator=generator, dtype=torch.float64)
        right = torch.randn(rank, inside, generator=generator, dtype=torch.float64)
        factors[module] = left, right
        tensors[f"base_model.model.{module}.lora_A.weight"] = right
        tensors[f"base_model.model.{module}.lora_B.weight"] = left
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    stated = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, **config}
    (folder / "adapter_config.json").write_text(json.dumps(stated), "utf-8")
    return factors


def merged(model, changes, folder):
    """Saves the model with changes [out, in] added to its modules' weights."""
    with torch.no_grad():
        for module, change in changes.items():
            weight, _ = weight_of(model, module)
            weight.add_(change)
    model.save_pretrained(folder)
    return folder


def dense(delta):
    return (delta.dense() if isinstance(delta, LowRank) else delta).double()


def assert_same(adapted, merged_folder, base):
    """Every matrix that the merged model changes is in the adapter's deltas, to 1e-6, and no other."""
    expected = {
        (weight_delta.layer, weight_delta.role, weight_delta.expert): weight_delta.delta
        for weight_delta in asc.weight_deltas(base, merged_folder)
        if bool(weight_delta.delta.any())
    }
    result = {(entry.layer, entry.role, entry.expert): entry.delta for entry in adapted}
    assert result.keys() == expected.keys()
    for key, delta in expected.items():
        assert (dense(result[key]) - delta).norm() <= 1e-6 * delta.norm(), key
    return result


def base_folder(model, tmp_path):
    model.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


LLAMA = [f"model.layers.{at}.{name}" for at in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")]


def test_an_adapter_gives_the_change_of_the_merged_weights_in_factors(tmp_path, monkeypatch):
    model = tiny("llama").double()
    base = base_folder(model, tmp_path)
    factors = adapter(tmp_path / "lora", model, LLAMA)
    changes = {module: 2.0 * left @ right for module, (left, right) in factors.items()}
    full = merged(model, changes, tmp_path / "merged")
    result = assert_same(asc.weight_deltas(base, tmp_path / "lora"), full, base)
    assert all(isinstance(delta, LowRank) and delta.rank == RANK for delta in result.values())

    def multiplied_out(_):
        raise AssertionError("B·A was formed")

    monkeypatch.setattr(LowRank, "dense", multiplied_out)
    basis = torch.linalg.qr(torch.randn(48, 5, dtype=torch.float64)).Q
    for weight_delta in asc.weight_deltas(base, tmp_path / "lora", roles=["q"]):
        change = changes[f"model.layers.{weight_delta.layer}.self_attn.q_proj"]
        assert torch.allclose(weight_delta.delta.energy(), change.square().sum(), rtol=1e-12)
        assert torch.allclose(weight_delta.delta @ basis, change @ basis, rtol=1e-9)
        assert torch.allclose(weight_delta.delta.T @ basis, change.T @ basis, rtol=1e-9)
        assert torch.allclose(
            weight_delta.delta.singular_values(), torch.linalg.svdvals(change)[:RANK], rtol=1e-9
        )


def test_rank_and_alpha_patterns_and_rslora(tmp_path):
    model = tiny("llama").double()
    base = base_folder(model, tmp_path)
    ranks = {LLAMA[0]: 5, LLAMA[2]: 5, LLAMA[3]: 2}
    patterns = {
        "rank_pattern": {"q_proj": 5, "layers.1.mlp.down_proj": 2},
        "alpha_pattern": {"down_proj": 10},
    }
    factors = adapter(tmp_path / "lora", model, LLAMA, ranks=ranks, use_rslora=True, **patterns)
    scales = [6 / 5**0.5, 10 / 3**0.5, 6 / 5**0.5, 10 / 2**0.5]
    changes = {
        module: scale * left @ right
        for scale, (module, (left, right)) in zip(scales, factors.items(), strict=True)
    }
    assert_same(asc.weight_deltas(base, tmp_path / "lora"), merged(model, changes, tmp_path / "m"), base)


@pytest.mark.parametrize("flag", [True, False])
def test_transposed_storage_needs_nothing_done(tmp_path, flag):
    model = tiny("gpt2").double()
    base = base_folder(model, tmp_path)
    modules = ["transformer.h.0.attn.c_proj", "transformer.h.1.mlp.c_fc", "transformer.h.1.attn.c_attn"]
    factors = adapter(tmp_path / "lora", model, modules, fan_in_fan_out=flag)
    changes = {module: 2.0 * left @ right for module, (left, right) in factors.items()}
    full = merged(model, changes, tmp_path / "merged")
    result = assert_same(asc.weight_deltas(base, tmp_path / "lora"), full, base)
    assert {(1, "q", None), (1, "k", None), (1, "v", None)} <= result.keys()


@pytest.mark.parametrize(
    ("name", "modules", "roles"),
    [
        ("gpt_neox", ["gpt_neox.layers.1.attention.query_key_value"], "qkv"),
        ("codegen", ["transformer.h.0.attn.qkv_proj"], "qkv"),
        ("falcon_new", ["transformer.h.1.self_attention.query_key_value"], "qkv"),
        ("phi3", ["model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.gate_up_proj"], "qkv"),
        ("deepseek_v3", ["model.layers.1.self_attn.kv_b_proj"], ()),
    ],
)
def test_fused_targets_are_split_on_the_rows_of_b(tmp_path, name, modules, roles):
    model = tiny(name).double()
    base = base_folder(model, tmp_path)
    factors = adapter(tmp_path / "lora", model, modules)
    changes = {module: 2.0 * left @ right for module, (left, right) in factors.items()}
    full = merged(model, changes, tmp_path / "merged")
    result = assert_same(asc.weight_deltas(base, tmp_path / "lora"), full, base)
    assert all(isinstance(delta, LowRank) for delta in result.values())
    assert set(roles) <= {role for _, role, _ in result}


def test_modules_saved_whole_are_ordinary_deltas(tmp_path):
    model = tiny("llama").double()
    base = base_folder(model, tmp_path)
    head = model.lm_head.weight.detach() + 1
    extra = {"base_model.model.lm_head.weight": head, "base_model.model.model.norm.weight": torch.ones(48)}
    adapter(tmp_path / "lora", model, LLAMA[:1], extra=extra, modules_to_save=["lm_head", "norm"])
    result = {weight_delta.role: weight_delta for weight_delta in asc.weight_deltas(base, tmp_path / "lora")}
    assert set(result) == {"q", "unembed"}
    assert torch.equal(result["unembed"].delta, head - model.lm_head.weight.detach())
    assert result["unembed"].tied == ""


def test_a_head_saved_beside_a_tied_table_is_untied(tmp_path):
    model = tiny("gemma").double()
    base = base_folder(model, tmp_path)
    head = model.lm_head.weight.detach() * 2
    adapter(
        tmp_path / "lora", model, [], extra={"base_model.model.lm_head.modules_to_save.default.weight": head}
    )
    (result,) = asc.weight_deltas(base, tmp_path / "lora")
    assert (result.role, result.tied) == ("unembed", "untied")
    assert torch.equal(result.delta, model.lm_head.weight.detach())


def test_an_adapted_embedding(tmp_path):
    """The table's change is (B·A)ᵀ; beside the factors PEFT stores the unchanged table itself."""
    model = tiny("llama").double()
    base = base_folder(model, tmp_path)
    right, left = torch.randn(RANK, 97, dtype=torch.float64), torch.randn(48, RANK, dtype=torch.float64)
    prefix = "base_model.model.model.embed_tokens"
    extra = {f"{prefix}.lora_embedding_A": right, f"{prefix}.lora_embedding_B": left}
    extra[f"{prefix}.base_layer.weight"] = model.model.embed_tokens.weight.detach().clone()
    adapter(tmp_path / "lora", model, [], extra=extra)
    (result,) = asc.weight_deltas(base, tmp_path / "lora")
    assert result.role == "embed"
    assert isinstance(result.delta, LowRank)
    assert torch.allclose(result.delta.dense(), 2.0 * (left @ right).T, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "module"),
    [("llama", "model.layers.1.mlp.up_proj"), ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value")],
)
def test_dora_is_formed_from_the_base(tmp_path, name, module):
    """W' = m·(W + s·B·A)/‖row of W + s·B·A‖."""
    model = tiny(name).double()
    base = base_folder(model, tmp_path)
    weight = weight_of(model, module)[0].detach().clone()
    magnitude = torch.rand(weight.shape[0], dtype=torch.float64) + 0.5
    extra = {f"base_model.model.{module}.lora_magnitude_vector": magnitude}
    factors = adapter(tmp_path / "lora", model, [module], extra=extra, use_dora=True)
    left, right = factors[module]
    turned = weight + 2.0 * left @ right
    changed = magnitude[:, None] * turned / turned.norm(dim=1, keepdim=True)
    full = merged(model, {module: changed - weight}, tmp_path / "merged")
    result = assert_same(asc.weight_deltas(base, tmp_path / "lora"), full, base)
    assert all(isinstance(delta, torch.Tensor) for delta in result.values())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "is an adapter of kind 'IA3'; LORA alone is read"),
        ({"peft_type": "ADALORA"}, "of kind 'ADALORA'"),
        ({"peft_type": None}, "is an adapter of no kind"),
        ({"init_lora_weights": "pissa_niter_4"}, "started by 'pissa_niter_4', which changes the base"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "uses target_parameters"),
        ({"r": 4}, r"states rank 4 for model\.layers\.0\.self_attn\.q_proj, its factors have rank 3"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path, config, message):
    model = tiny("llama")
    base = base_folder(model, tmp_path)
    adapter(tmp_path / "lora", model, LLAMA[:1], ranks={LLAMA[0]: RANK}, **config)
    with pytest.raises(ValueError, match=message):
        list(asc.weight_deltas(base, tmp_path / "lora"))


def test_an_adapter_of_another_base(tmp_path):
    model = tiny("llama")
    base = base_folder(model, tmp_path)
    adapter(tmp_path / "wider", tiny("llama", intermediate_size=96), LLAMA)
    with pytest.raises(
        ValueError, match=r"another base: .*down_proj is \[48, 80\] in the base and \[48, 96\] in the adapter"
    ):
        asc.weight_deltas(base, tmp_path / "wider")
    adapter(tmp_path / "deeper", tiny("llama", num_hidden_layers=3), ["model.layers.2.mlp.up_proj"])
    with pytest.raises(ValueError, match=r"the base has no model\.layers\.2\.mlp\.up_proj"):
        asc.weight_deltas(base, tmp_path / "deeper")
    extra = {"base_model.model.vision.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(48, RANK)}
    extra["base_model.model.vision.layers.0.self_attn.q_proj.lora_A.weight"] = torch.ones(RANK, 48)
    adapter(tmp_path / "vision", model, LLAMA[:1], extra=extra)
    with pytest.raises(ValueError, match=r"the base has no vision\.layers\.0\.self_attn\.q_proj"):
        asc.weight_deltas(base, tmp_path / "vision")
    adapter(tmp_path / "named", model, LLAMA[:1], base_model_name_or_path="someone/else-7b")
    with pytest.warns(RuntimeWarning, match=r"was trained on 'someone/else-7b', the base is .*base"):
        asc.weight_deltas(base, tmp_path / "named")


def test_an_adapter_that_was_never_trained(tmp_path):
    model = tiny("llama")
    base = base_folder(model, tmp_path)
    (tmp_path / "lora").mkdir()
    names = (f"base_model.model.{LLAMA[0]}.lora_{side}.weight" for side in "AB")
    tensors = dict(zip(names, (torch.randn(RANK, 48), torch.zeros(48, RANK)), strict=True))
    save_file(tensors, tmp_path / "lora/adapter_model.safetensors")
    (tmp_path / "lora/adapter_config.json").write_text('{"peft_type": "LORA", "r": 3}', "utf-8")
    with pytest.raises(ValueError, match="was never trained: its factors B are 0"):
        asc.weight_deltas(base, tmp_path / "lora")


def test_tensors_of_no_known_kind_and_half_of_a_pair_are_named(tmp_path):
    model = tiny("llama")
    base = base_folder(model, tmp_path)
    adapter(
        tmp_path / "odd", model, LLAMA[:1], extra={f"base_model.model.{LLAMA[1]}.hada_w1_a": torch.ones(2, 2)}
    )
    with pytest.raises(ValueError, match=r"hada_w1_a of the adapter is of no kind that is read"):
        asc.weight_deltas(base, tmp_path / "odd")
    lone = {f"base_model.model.{LLAMA[1]}.lora_A.weight": torch.ones(RANK, 80)}
    adapter(tmp_path / "lone", model, LLAMA[:1], extra=lone)
    with pytest.raises(ValueError, match=re.escape(f"{LLAMA[1]} has only lora_A")):
        asc.weight_deltas(base, tmp_path / "lone")


def test_factors_that_do_not_fit_and_their_printed_form():
    with pytest.raises(
        ValueError, match=r"LowRank: factors \[out, r\] and \[r, in\] are needed, got \[3, 2\]"
    ):
        LowRank(torch.ones(3, 2), torch.ones(3, 2))
    matrix = LowRank(torch.ones(3, 2), torch.ones(2, 4), 0.5)
    assert repr(matrix) == "LowRank([3, 4], rank 2, scale 0.5)"
    assert torch.equal(matrix[:2].dense(), torch.ones(2, 4))
