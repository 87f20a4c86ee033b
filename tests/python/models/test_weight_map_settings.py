# SPDX-License-Identifier: MIT
"""What weight_map takes from a configuration, and what it makes of shapes that contradict each other."""

import pytest
import torch
from safetensors.torch import save_file

import attnscope as asc
from weight_models import tiny

Q = "model.layers.0.self_attn.q_proj.weight"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def roles(result):
    return [(entry.role, entry.expert) for entry in result]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, ["embed", "unembed"]),
        ({"tie_word_embeddings": True}, ["embed", "unembed"]),
        ({"tie_word_embeddings": False}, ["embed"]),
        ({"tie_word_embeddings": False, "text_config": {"hidden_size": 4}}, ["embed"]),
        ({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}, ["embed"]),
        ({"text_config": {"tie_word_embeddings": False}}, ["embed"]),
    ],
)
def test_an_absent_head_is_the_embedding_unless_the_configuration_denies_it(config, expected):
    result = asc.weight_map({Q: (4, 4), EMBED: (9, 4)}, config=config)
    assert [entry.role for entry in result if entry.layer == -1] == expected
    assert {entry.tensor for entry in result if entry.layer == -1} == {EMBED}
    assert result.tied == (expected == ["embed", "unembed"])


def test_a_head_of_its_own_is_not_tied_and_nothing_is_tied_to_nothing():
    result = asc.weight_map({Q: (4, 4), EMBED: (9, 4), HEAD: (11, 4)})
    assert (result[-1, "embed"].shape, result[-1, "unembed"].shape, result.tied) == ((9, 4), (11, 4), False)
    assert result[-1, "unembed"].tensor == HEAD
    single_result = asc.weight_map({Q: (4, 4), HEAD: (11, 4)})
    assert (roles(single_result), single_result.tied) == ([("q", None), ("unembed", None)], False)
    empty_result = asc.weight_map({Q: (4, 4)})
    assert (roles(empty_result), empty_result.tied) == ([("q", None)], False)


@pytest.mark.parametrize("tie", [True, False])
def test_a_module_is_tied_where_both_are_one_parameter(tie):
    result = asc.weight_map(tiny("llama", tie_word_embeddings=tie))
    assert result.tied == tie
    assert result[-1, "unembed"].tensor == HEAD


def test_order_is_that_of_layers_then_roles_then_experts_whatever_order_tensors_come_in():
    names = [f"mlp.experts.{at}.{role}_proj" for at in (10, 9, 0) for role in ("up", "gate")]
    names += ["mlp.gate", "mlp.shared_expert.up_proj", *(f"self_attn.{letter}_proj" for letter in "ovkq")]
    shapes = {f"model.layers.{layer}.{name}.weight": (4, 4) for layer in (1, 0) for name in names}
    result = asc.weight_map({EMBED: (9, 4), **shapes})
    one_layer = [("q", None), ("k", None), ("v", None), ("o", None), ("gate", 0), ("gate", 9), ("gate", 10)]
    one_layer += [("up", 0), ("up", 9), ("up", 10), ("router", None), ("shared_up", None)]
    assert roles(result) == [*one_layer, *one_layer, ("embed", None), ("unembed", None)]
    assert [entry.layer for entry in result] == [0] * 12 + [1] * 12 + [-1] * 2
    assert result.layers == 2
    both_results = asc.weight_map(
        {f"h.0.mlp.{part}.weight": (4, 4) for part in ("up_proj", "experts.0.up_proj")}
    )
    assert roles(both_results) == [("up", None), ("up", 0)]


def test_two_tensors_of_one_place_are_both_named():
    shapes = {"h.0.attn.q_proj.weight": (4, 4), "h.0.attn.attention.q_proj.weight": (4, 4)}
    words = r"h\.0\.attn\.q_proj\.weight and h\.0\.attn\.attention\.q_proj\.weight are both layer 0 q"
    with pytest.raises(asc.WeightMapError, match=words):
        asc.weight_map(shapes)


@pytest.mark.parametrize(
    ("count", "words"),
    [(5, r"side4\.weight \[4, 4\] \(model"), (6, r"\] and 1 more \("), (7, r"\] and 2 more \(")],
)
def test_up_to_five_matrices_without_a_rule_are_named(count, words):
    shapes = {f"model.layers.0.novel.side{at}.weight": (4, 4) for at in range(count)}
    with pytest.raises(asc.WeightMapError, match=words) as error:
        asc.weight_map({Q: (4, 4), **shapes})
    assert str(error.value).count("novel.side") == 5


def test_what_a_configuration_says_of_heads_and_turns():
    shapes = {"layers.0.self_attn.q_proj.weight": (4, 4), "norm.weight": (4,)}
    plain = asc.weight_map(shapes)
    assert (plain.heads, plain.kv_heads, plain.model_type, plain.rotary) == (0, 0, "", "half")
    assert (plain.norm_offset, plain.layer_norm, plain.final_norm) == (0.0, False, "norm.weight")
    config = {"model_type": "gemma", "num_attention_heads": 4, "num_key_value_heads": 2, "alibi": True}
    result = asc.weight_map(shapes, config=config)
    assert (result.heads, result.kv_heads, result.model_type, result.rotary) == (4, 2, "gemma", "")
    assert result.norm_offset == 1.0
    assert asc.weight_map(shapes, config={"num_attention_heads": 4}).kv_heads == 4
    settings = {"model_type": "falcon", "num_attention_heads": 4, "num_kv_heads": 2, "alibi": False}
    assert asc.weight_map(shapes, config=settings).kv_heads == 1
    assert asc.weight_map(shapes, config=settings).rotary == "half"
    # a norm subtracts the mean where it has a shift, or where the family is known to
    assert asc.weight_map({**shapes, "norm.bias": (4,)}).layer_norm
    assert asc.weight_map(shapes, config={"model_type": "cohere"}).layer_norm
    assert not asc.weight_map({"layers.0.self_attn.q_proj.weight": (4, 4), "bias": (4,)}).layer_norm


def test_the_gain_behind_a_sub_layer_is_the_blocks_own():
    names = ("post_attention_layernorm", "post_feedforward_layernorm")
    shapes = {f"model.layers.1.{name}.weight": (4,) for name in names}
    shapes |= {f"model.layers.{at}.mlp.experts.1.down_proj.weight": (4, 4) for at in (0, 1)}
    result = asc.weight_map(shapes)
    assert result[1, "down", 1].out_gain == "model.layers.1.post_feedforward_layernorm.weight"
    assert result[0, "down", 1].out_gain is None
    del shapes["model.layers.1.post_attention_layernorm.weight"]
    assert asc.weight_map(shapes)[1, "down", 1].out_gain is None


def test_a_given_configuration_goes_before_that_of_the_source(tmp_path):
    model = tiny("llama")
    assert asc.weight_map(model).heads == 4
    other = type(model.config)(num_attention_heads=2, num_hidden_layers=1)
    assert asc.weight_map(model, config=other).heads == 2
    assert asc.weight_map(model, config=other).layers == 1
    save_file({Q: torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 4}', "utf-8")
    assert asc.weight_map(tmp_path).heads == 4
    assert asc.weight_map(str(tmp_path), config={"num_attention_heads": 2}).heads == 2
    assert asc.weight_map(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Block()])})).heads == 0


class Block(torch.nn.Module):
    """A block of a model without a configuration."""

    def __init__(self):
        super().__init__()
        self.self_attn = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 4)})


def test_a_quantised_module_is_refused_by_its_dtype():
    block = Block()
    block.self_attn["q_proj"].weight = torch.nn.Parameter(
        torch.zeros(4, 4).to(torch.int8), requires_grad=False
    )
    with pytest.raises(ValueError, match=r"q_proj\.weight is quantised \(int8\)"):
        asc.weight_map(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([block])}))


def test_a_block_of_a_convolution_alone_has_no_matrix():
    result = asc.weight_map({"layers.0.linear_attn.conv1d.weight": (4, 1, 3)})
    assert (len(result), result.layers) == (0, 0)


@pytest.mark.parametrize(
    ("flag", "equal", "tied"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, False)],
)
def test_two_stored_tables_are_tied_where_transformers_ties_them(tmp_path, flag, equal, tied):
    """Llama's configuration ties nothing unless it says so."""
    import json

    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    shape = dict(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if equal:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    else:
        # the last entry alone
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    if flag is not None:
        config["tie_word_embeddings"] = flag
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    if equal:
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert asc.weight_map(tmp_path).tied == tied
