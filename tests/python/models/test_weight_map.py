# SPDX-License-Identifier: MIT
"""weight_map on every family: files and modules agree, values are the model's, wrong maps are found out."""

import dataclasses
import inspect
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope as asc
from attnscope.models import families
from attnscope.models.weight_entries import Rows, outside_of, place_of, stack_of
from attnscope.models.weights import WeightFolder
from support import sweep
from weight_models import FAMILIES, tiny

transformers = pytest.importorskip("transformers")

#: Parts of the names of parameters with two axes or more that are no matrices.
NO_MATRICES = ("bias", "conv1d", "conv.conv", "A_log")
#: Families whose norm before the unembedding is of the head, or holds no numbers.
WITHOUT_GAIN = ("bert", "roberta", "distilbert", "olmo")


def saved(model, folder):
    """The folder that a model is saved to."""
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def swapped(result, **names):
    """A map that calls some roles by the names of others."""
    entries = (dataclasses.replace(entry, role=names.get(entry.role, entry.role)) for entry in result)
    return dataclasses.replace(result, entries=tuple(entries))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_and_a_module_give_the_same_matrices(name, tmp_path):
    model = tiny(name)
    module, folder = asc.weight_map(model), asc.weight_map(saved(model, tmp_path))
    assert folder.entries == module.entries
    assert {entry.key for entry in module} == {entry.key for entry in folder}
    for field in ("tied", "layers", "heads", "kv_heads", "final_norm", "project_out", "rotary", "layer_norm"):
        assert getattr(folder, field) == getattr(module, field), field
    parameters = dict(model.named_parameters(remove_duplicate=False))
    files = WeightFolder(tmp_path)
    for entry, other in zip(module, folder, strict=True):
        in_memory = entry.of(parameters[entry.tensor].detach())
        assert tuple(in_memory.shape) == entry.shape
        assert torch.equal(in_memory, other.of(files.read(other.tensor))), entry.title


@pytest.mark.parametrize("name", FAMILIES)
def test_each_role_does_what_its_name_says(name):
    model = tiny(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    asc.verify_weight_map(model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_shapes_fit_one_another(name):
    """What reads or writes the residual stream is as wide as it; the rest fits in between."""
    result = asc.weight_map(tiny(name))
    for layer in range(result.layers):
        shapes_of_layer = {
            (entry.role, entry.expert): entry.shape for entry in result if entry.layer == layer
        }
        for (role, expert), (out, inside) in shapes_of_layer.items():
            if role in ("q", "k", "v", "kv", "gate", "up", "router"):
                assert inside == 48, (layer, role)
            if role in ("o", "down"):
                assert out == 48, (layer, role)
            if role == "down":
                assert inside == shapes_of_layer["up", expert][0], (layer, role)
            if role == "gate":
                assert out == shapes_of_layer["up", expert][0], (layer, role)
            if (
                role == "o"
                and ("q", None) in shapes_of_layer
                and ("q_up", None) not in shapes_of_layer
                and "deepseek" not in name
            ):
                assert inside == shapes_of_layer["q", None][0], (layer, role)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_half_precision_is_verified_in_float32(name):
    asc.verify_weight_map(tiny(name).to(torch.bfloat16))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_of_a_block_is_in_one_entry(name):
    """Counted against the parameters: nothing is left out, nothing is listed twice."""
    model = tiny(name)
    result = asc.weight_map(model)
    listed = sum(entry.shape[0] * entry.shape[1] for entry in result if entry.layer >= 0)
    inside = sum(
        parameter.numel()
        for tensor, parameter in model.named_parameters()
        if place_of(tensor) and parameter.ndim > 1 and not any(word in tensor for word in NO_MATRICES)
    )
    assert listed == inside


@pytest.mark.parametrize("name", ["llama", "cohere", "cohere2_moe", "helium", "ernie4_5", "glm4", "laguna"])
def test_the_dimensions_that_turn_together_are_those_of_the_models_code(name):
    """The model's own rotation of a unit vector has its other part in the partner's dimension."""
    model = tiny(name)
    rotate = inspect.getmodule(type(model)).apply_rotary_pos_emb
    states = torch.zeros(1, 5, model.config.hidden_size)
    options = {"layer_type": "full_attention"} if name == "laguna" else {}
    cos, sin = model.model.rotary_emb(states, position_ids=torch.arange(5)[None], **options)
    unit = torch.zeros(1, 1, 5, cos.shape[-1])
    unit[..., 0] = 1
    turned = rotate(unit, unit, cos, sin)[0][0, 0, 3]
    partner = int(turned[1:].abs().argmax()) + 1
    half = cos.shape[-1] // 2
    assert asc.weight_map(model).rotary == {1: "interleaved", half: "half"}[partner]


@pytest.mark.parametrize("name", ["llama", "gemma3", "laguna", "qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_queries_have_the_rows_that_the_output_projection_reads(name):
    """A gate that is stored with the queries is none of them; each acts at its own token alone."""
    result = asc.weight_map(tiny(name))
    layers = [entry.layer for entry in result if entry.role == "q"]
    assert layers
    for layer in layers:
        assert result[layer, "q"].shape[0] == result[layer, "o"].shape[1]


@pytest.mark.parametrize(("interleaved", "rotary"), [(True, "interleaved"), (False, "half")])
def test_latent_attention_says_how_it_rotates(interleaved, rotary):
    model = tiny("glm4_moe_lite", rope_interleave=interleaved)
    assert asc.weight_map(model).rotary == rotary


@pytest.mark.parametrize(
    ("name", "model_type", "tensor", "layout"),
    [
        ("gpt_neox", "gpt_neox", "attention.query_key_value", "stacked"),
        ("bloom", "bloom", "self_attention.query_key_value", "stacked"),
        ("falcon_new", "falcon", "self_attention.query_key_value", "stacked"),
        ("codegen", "codegen", "attn.qkv_proj", "stacked"),
        ("codegen", "codegen", "attn.qkv_proj", "partitions q k v"),
        ("phi3", "phi3", "self_attn.qkv_proj", "grouped"),
        ("mpt", "mpt", "attn.Wqkv", "grouped"),
    ],
)
def test_a_fused_matrix_read_in_a_wrong_layout_is_found_out(monkeypatch, name, model_type, tensor, layout):
    model = tiny(name)
    in_order = lambda heads, kv, rows: families.FusedRows(4, (("q", 1), ("k", 1), ("v", 1)))  # noqa: E731
    monkeypatch.setitem(families.LAYOUTS, "partitions q k v", in_order)
    right = families.FAMILIES[model_type]
    claims = {**right.claims, tensor: families.NameRule(layout)}
    monkeypatch.setitem(families.FAMILIES, model_type, dataclasses.replace(right, claims=claims))
    wrong = asc.weight_map(model)
    with pytest.raises(asc.WeightMapError, match=r"is no (query|key|value)"):
        asc.verify_weight_map(model, wrong)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral"])
def test_exchanged_roles_are_found_out(name):
    model = tiny(name)
    result = asc.weight_map(model)
    for names in ({"q": "k", "k": "q"}, {"k": "v", "v": "k"}, {"q": "v", "v": "q"}):
        with pytest.raises(asc.WeightMapError, match=r"layer 1 .* is no (query|key|value): noise"):
            asc.verify_weight_map(model, swapped(result, **names))


@pytest.mark.parametrize("name", ["llama", "phi3", "mixtral", "llama4", "modernbert"])
def test_gate_read_as_up_is_found_out(name):
    model = tiny(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(asc.WeightMapError, match="is not up but gate"):
        asc.verify_weight_map(model, swapped(asc.weight_map(model), up="gate", gate="up"))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_a_gate_that_stands_among_the_queries_is_found_out(monkeypatch, name):
    """Noise in it moves its own row alone, as noise in a query does."""
    model = tiny(name)
    gated = families.FAMILIES[model.config.model_type]
    without = dataclasses.replace(gated, claims={})
    result = asc.weight_map(model)
    with pytest.raises(asc.WeightMapError, match=r"is no query, or holds a gate besides: where all values"):
        asc.verify_weight_map(model, swapped(result, q="q_gate", q_gate="q"))
    monkeypatch.setitem(families.FAMILIES, model.config.model_type, without)
    shapes = {key: tuple(value.shape) for key, value in model.named_parameters()}
    undivided = asc.weight_map(shapes, config=model.config)
    assert undivided[1, "q"].shape[0] == 2 * undivided[1, "o"].shape[1]
    with pytest.raises(asc.WeightMapError, match=r"is no query, or holds a gate besides: where all values"):
        asc.verify_weight_map(model, undivided)


#: Models with a norm between a projection and what it is multiplied with: options of their configurations.
NORMED = {"bitnet": {}, "diffllama": {}, "gemma4_unified_text": {"head_dim": 16}}


@pytest.mark.parametrize("name", NORMED)
def test_norms_behind_v_or_before_o_and_down_hide_no_role(name):
    """Without the norms held, v is not affine behind them, and neither is the input of down."""
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {name}")
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(name, **sizes, **heads, **NORMED[name])
    )
    before = {key: value.clone() for key, value in model.state_dict().items()}
    asc.verify_weight_map(model)
    result = asc.weight_map(model)
    for names in ({"q": "k", "k": "q"}, {"k": "v", "v": "k"}):
        with pytest.raises(asc.WeightMapError, match=r"layer 1 .* is no (query|key|value): noise"):
            asc.verify_weight_map(model, swapped(result, **names))
    with pytest.raises(asc.WeightMapError, match="is not up but gate"):
        asc.verify_weight_map(model, swapped(result, up="gate", gate="up"))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_rows_of_the_fused_layouts_by_hand():
    def rows(shapes, role, **config):
        return list(asc.weight_map(shapes, config=config)[0, role].rows.runs())

    per_head = {"layers.0.attention.query_key_value.weight": (12, 4)}
    assert rows(per_head, "k", model_type="gpt_neox", num_attention_heads=2) == [(2, 4), (8, 10)]
    groups = {"h.0.self_attention.query_key_value.weight": (16, 8)}
    falcon = {"model_type": "falcon", "num_attention_heads": 4, "new_decoder_architecture": True}
    assert rows(groups, "q", num_kv_heads=2, **falcon) == [(0, 4), (8, 12)]
    assert rows(groups, "v", num_kv_heads=2, **falcon) == [(6, 8), (14, 16)]
    codegen = {"h.0.attn.qkv_proj.weight": (24, 8)}
    assert rows(codegen, "k", model_type="codegen", n_head=4) == [(4, 6), (10, 12), (16, 18), (22, 24)]


def test_alternating_columns_of_experts():
    shapes = {"layers.0.mlp.experts.gate_up_proj": (2, 8, 6)}
    result = asc.weight_map(shapes, config={"model_type": "gpt_oss"})
    assert [entry.key for entry in result] == [(0, "gate", 0), (0, "gate", 1), (0, "up", 0), (0, "up", 1)]
    assert result[0, "up", 1].rows == Rows(start=1, size=1, period=2, repeats=3)
    stored = torch.arange(96.0).view(2, 8, 6)
    assert torch.equal(result[0, "up", 1].of(stored), stored[1, :, 1::2].T)


def test_norms_gains_and_what_is_around_the_blocks():
    gemma = asc.weight_map(tiny("gemma2"))
    assert gemma[1, "o"].out_gain == "model.layers.1.post_attention_layernorm.weight"
    assert gemma[1, "down"].out_gain == "model.layers.1.post_feedforward_layernorm.weight"
    assert gemma[1, "q"].out_gain is None
    assert (gemma.norm_offset, gemma.layer_norm, gemma.tied) == (1.0, False, True)
    assert asc.weight_map(tiny("glm4"))[0, "down"].out_gain == "model.layers.0.post_mlp_layernorm.weight"
    assert asc.weight_map(tiny("llama"))[1, "o"].out_gain is None
    opt = asc.weight_map(tiny("opt"))
    assert opt.project_out == "model.decoder.project_out.weight"
    assert opt[-1, "unembed"].shape == (97, 24)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gain_of_the_final_norm_is_the_stored_one_and_an_offset(name):
    """The gain by probing: norm(x) − norm(−x) over 2x at entries ±1 of sum 0; and what becomes of a shift."""
    model = tiny(name)
    result = asc.weight_map(model)
    if name in WITHOUT_GAIN:
        assert result.final_norm is None
        return
    norm = model.get_submodule(result.final_norm.rpartition(".")[0])
    x = torch.tensor([1.0, -1.0]).repeat(norm.weight.numel() // 2)
    with torch.no_grad():
        probed = (norm(x) - norm(-x)) / (2 * x)
        stored = norm.weight + result.norm_offset
        assert torch.allclose(probed, stored, atol=1e-4), name
        shifted = torch.allclose(norm(x + 3), norm(x), atol=1e-4)
    assert shifted == result.layer_norm


def test_the_stack_of_blocks_is_the_one_with_the_layers_and_the_width():
    shapes = {f"enc.layers.{k}.q.weight": (8, 8) for k in (0, 1)}
    shapes["enc.layers.0.norm.weight"] = (8,)
    assert stack_of({**shapes, "scales.layers.0.norm.weight": (8,)}, {}) == "enc.layers"  # no matrix in it
    narrow = {f"vision.layers.{k}.q.weight": (6, 6) for k in (0, 1)}
    short = {"head.layers.0.q.weight": (8, 8)}
    expected = {"num_hidden_layers": 2, "hidden_size": 8}
    assert stack_of({**narrow, **short, **shapes}, expected) == "enc.layers"
    assert stack_of({**narrow, **short}, {"num_hidden_layers": 2}) == "vision.layers"
    with pytest.raises(asc.WeightMapError, match=r"2 stacks of blocks, .* \(None layers of width None\)"):
        stack_of({**narrow, **short}, {})


def test_of_several_embeddings_and_norms_those_beside_the_stack_are_taken():
    shapes = {
        "vision.embed_tokens.weight": (9, 4),
        "model.text.embed_tokens.weight": (9, 4),
        "model.embed_tokens.weight": (9, 4),
        "model.text.norm.weight": (4,),
        "model.norm.weight": (4,),
        "norm.weight": (4,),
    }
    assert outside_of(shapes, "embed", "model.text.layers") == "model.text.embed_tokens.weight"
    assert outside_of(shapes, "embed", "vision.layers") == "vision.embed_tokens.weight"
    assert outside_of(shapes, "final_norm", "model.text.layers") == "model.text.norm.weight"
    assert outside_of(shapes, "final_norm", "layers") == "norm.weight"
    assert outside_of(shapes, "final_norm", "vision.layers") is None
    # a norm has one axis, a table two, and a block's own norms and tables are inside
    inside = {"model.layers.0.norm.weight": (4,), "model.layers.0.wte.weight": (9, 4)}
    assert outside_of({**inside, "model.norm.weight": (4, 4)}, "final_norm", "model.layers") is None
    assert outside_of({**inside, "model.embed_tokens.weight": (9,)}, "embed", "model.layers") is None


def test_maps_of_one_layer_role_and_their_errors():
    result = asc.weight_map(tiny("llama"))
    assert [entry.key for entry in result.select(roles=["q", "k"], layers=[1])] == [
        (1, "q", None),
        (1, "k", None),
    ]
    assert len(result.select(roles=["q"])) == 2
    with pytest.raises(ValueError, match=r"no matrix has the role 'query'"):
        result.select(roles=["query"])
    with pytest.raises(ValueError, match=r"layer 2 is outside the model's 0 .. 1"):
        result.select(layers=[2])
    with pytest.raises(ValueError, match=r"layer -2 is outside the model's 0 .. 1"):
        result.select(layers=[-2])
    outside = result.select(layers=[-1])
    assert {entry.layer for entry in outside} == {-1}
    assert {entry.layer for entry in result.select(layers=[0])} == {0}
    with pytest.raises(KeyError, match="upp"):
        result[0, "upp"]
    assert repr(result).startswith("WeightMap(llama, 2 layers, 16 matrices: q, k, v, o")


def test_matrices_are_called_by_layer_role_and_expert():
    shapes = {
        "model.layers.0.mlp.experts.3.up_proj.weight": (6, 4),
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.embed_tokens.weight": (9, 4),
        "lm_head.weight": (9, 4),
    }
    titles = [entry.title for entry in asc.weight_map(shapes)]
    assert titles == ["layer 0 q", "layer 0 up of expert 3", "embed", "unembed"]


def test_a_matrix_that_no_rule_claims_is_named():
    shapes = {"model.layers.0.self_attn.q_proj.weight": (4, 4), "model.layers.0.novel.side.weight": (4, 4)}
    with pytest.raises(asc.WeightMapError, match=r"no rule claims model\.layers\.0\.novel\.side\.weight \[4"):
        asc.weight_map(shapes)
    unknown = {"model.layers.0.self_attn.qkv_proj.weight": (12, 4)}
    with pytest.raises(asc.WeightMapError, match=r"qkv_proj.*model type 'someone_elses'"):
        asc.weight_map(unknown, config={"model_type": "someone_elses", "num_attention_heads": 2})


def test_fused_matrices_need_heads_that_divide_them():
    shapes = {"h.0.attn.c_attn.weight": (4, 12)}
    for heads, words in ((0, "which 0 heads and 0 key-value"), (5, "which 5 heads and 5 key-value")):
        with pytest.raises(
            asc.WeightMapError, match=f"has 12 rows, {words} heads .* do not divide into q, k, v"
        ):
            asc.weight_map(shapes, config={"model_type": "gpt2", "n_head": heads})
    for tensor, model_type in (
        ("layers.0.attention.query_key_value", "gpt_neox"),
        ("layers.0.self_attn.q_proj", "qwen3_next"),
    ):
        with pytest.raises(asc.WeightMapError, match="has 12 rows, which 0 heads and 0 key-value heads"):
            asc.weight_map({f"{tensor}.weight": (12, 4)}, config={"model_type": model_type})


def test_rows_are_given_where_a_tensor_holds_several_roles():
    shapes = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4)}
    result = asc.weight_map(shapes, config={"model_type": "gpt2", "n_head": 2})
    assert result[0, "o"].rows is None
    assert result[0, "v"].rows == Rows(start=8, size=4, period=12, repeats=1)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        ("layers.0.mlp.experts.gate_up_proj", (2, 3, 8, 6)),
        ("layers.0.mlp.experts.1.up_proj.weight", (2, 8, 6)),
    ],
)
def test_a_tensor_with_too_many_axes_is_no_matrix_per_expert(tensor, shape):
    with pytest.raises(asc.WeightMapError, match=r"experts.* has shape \[2, .*no matrix per expert"):
        asc.weight_map({tensor: shape})


def test_of_several_stacks_the_text_model_is_taken():
    shapes = {
        "vision.blocks.0.self_attn.q_proj.weight": (6, 6),
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.layers.1.self_attn.q_proj.weight": (4, 4),
    }
    config = {"text_config": {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4}}
    assert asc.weight_map(shapes, config=config).blocks == "model.layers"
    with pytest.raises(asc.WeightMapError, match=r"2 stacks of blocks, vision\.blocks \(1 layers\), mod"):
        asc.weight_map(shapes)


def test_layers_behind_the_last_of_the_configuration_are_left_out():
    shapes = {f"model.layers.{at}.self_attn.q_proj.weight": (4, 4) for at in range(3)}
    shapes["model.layers.2.eh_proj.weight"] = (4, 8)
    result = asc.weight_map(shapes, config={"num_hidden_layers": 2, "model_type": "deepseek_v3"})
    assert [entry.layer for entry in result] == [0, 1]


def test_names_without_prefix_as_in_hub_files(tmp_path):
    model = tiny("gpt2")
    saved(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    buffers = {"h.0.attn.bias": torch.ones(1, 1, 64, 64), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()} | buffers
    save_file(short, tmp_path / "model.safetensors")
    assert asc.weight_map(tmp_path).entries == asc.weight_map(model).entries


def test_models_without_blocks_or_with_two_stacks_are_refused():
    with pytest.raises(
        asc.WeightMapError, match=r"no tensor lies in a numbered list of blocks .* weight, bias"
    ):
        asc.weight_map(torch.nn.Linear(2, 2))
    config = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(asc.WeightMapError, match="2 stacks of blocks"):
        asc.weight_map(transformers.T5ForConditionalGeneration(config))


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        (
            "lm_head.weight",
            torch.zeros(9, 4).to(torch.float8_e4m3fn),
            r"lm_head\.weight is quantised \(F8_E4",
        ),
        ("mlp.experts.gate_up_proj_blocks", torch.zeros(2, 8, 4, 16, dtype=torch.uint8), r"\(MXFP4 blocks"),
        ("mlp.experts.gate_up_proj_scales", torch.zeros(2, 8, 4, dtype=torch.uint8), r"\(MXFP4 blocks"),
        ("self_attn.q_proj.qweight", torch.zeros(4, 4, dtype=torch.int32), r"qweight is quantised"),
        ("self_attn.q_proj.weight", torch.zeros(4, 4, dtype=torch.int8), r"quantised \(int8\)"),
        ("self_attn.q_proj.weight", torch.zeros(4, 4).to(torch.float8_e4m3fn), r"quantised \(F8_E4M3\)"),
        ("self_attn.q_proj.weight_scale_inv", torch.ones(1, 1), r"weight_scale_inv is quantised"),
        ("self_attn.q_proj.weight.absmax", torch.ones(4, 1), r"absmax is quantised"),
    ],
)
def test_quantised_weights_are_refused_by_name(tmp_path, tensor, value, message):
    name = tensor if tensor.startswith("lm_head") else f"model.layers.0.{tensor}"
    tensors = {name: value, "model.layers.0.self_attn.k_proj.weight": torch.zeros(4, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), "utf-8")
    with pytest.raises(ValueError, match=message):
        asc.weight_map(tmp_path)


def test_what_is_no_matrix_may_have_any_dtype(tmp_path):
    tensors = {"self_attn.q_proj.weight": torch.zeros(4, 4), "self_attn.steps": torch.zeros(4).long()}
    file = tmp_path / "model.safetensors"
    save_file({f"model.layers.0.{name}": tensor for name, tensor in tensors.items()}, file)
    assert [entry.role for entry in asc.weight_map(tmp_path)] == ["q"]


def test_folders_that_hold_no_weights(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        asc.weight_map(tmp_path / "none")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"no \*\.safetensors file; pytorch_model\.bin is of a format"):
        asc.weight_map(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    with pytest.raises(ValueError, match="header is no JSON"):
        asc.weight_map(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match="not all of it is there"):
        asc.weight_map(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "gone.safetensors"}}', "utf-8"
    )
    with pytest.raises(ValueError, match=r"lacks gone\.safetensors"):
        asc.weight_map(tmp_path)


def gated_model():
    """Two layers, of 4 and of 2 heads of 8, with a gate on what the heads hand to the projection."""
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_attention_heads_per_layer": [4, 2], "num_key_value_heads": 2}
    kinds = {"layer_types": ["full_attention"] * 2, "mlp_layer_types": ["dense"] * 2}
    config = transformers.LagunaConfig(**sizes, **heads, **kinds, head_dim=8, pad_token_id=0)
    return transformers.LagunaForCausalLM(config).eval()


def test_layers_have_the_heads_of_their_own():
    """All layers were parted into the heads of the configuration: a layer of 2 heads of 8 had 4 of 4."""
    if not hasattr(transformers, "LagunaConfig"):
        pytest.skip(f"transformers {transformers.__version__} has no LagunaConfig")
    model = gated_model()
    assert [asc.weight_map(model).heads_of(layer) for layer in (0, 1)] == [4, 2]
    for layer, count in ((0, 4), (1, 2)):
        assert asc.output_projection(model, layer).shape == (32, count, 8)
        assert asc.head_circuits(model, layer).qk.shape == (count, 8)


def test_a_gate_behind_the_softmax_is_no_output_projection():
    """Laguna's gate reads the layer's input between softmax and projection, and was taken for it."""
    if not hasattr(transformers, "LagunaConfig"):
        pytest.skip(f"transformers {transformers.__version__} has no LagunaConfig")
    model = gated_model()
    with asc.capture(model, sites=("head_output", "attention_output")) as recording:
        for layer in recording.run(input_ids=torch.arange(5)[None]):
            projection = asc.output_projection(model, layer.index)
            written = torch.einsum("Dhd,bhnd->bnD", projection, layer.states("head_output"))
            torch.testing.assert_close(layer.states("attention_output"), written, rtol=1e-5, atol=1e-7)


def test_a_projection_that_hands_on_more_than_a_tensor_is_refused_by_name():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.IBertForMaskedLM(transformers.IBertConfig(vocab_size=60, **sizes)).eval()
    with pytest.raises(asc.WeightMapError, match=r"layer 1 k .* hands on tuple of several tensors"):
        asc.verify_weight_map(model)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mra", "noise in q, k, v of layer 1 moves nothing of what its attention passes on"),
        ("yoso", "layer 1 scales what each head reads to a length of 1, .* affine in layer 1 v"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_attention_that_proves_nothing_accuses_no_matrix(name, words):
    """MRA computes nothing without its kernels for GPUs; YOSO normalises what its heads read."""
    model = sweep.build(*sweep.classes("masked", name))
    with pytest.raises(asc.WeightMapError, match=words):
        asc.verify_weight_map(model)
