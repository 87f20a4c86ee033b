# SPDX-License-Identifier: MIT
"""The number of a layer is its block's, and each row (stack, number, call) of a pass is there once."""

import pytest
import torch
import transformers
from torch import nn

import attnscope as asc
import models
from attnscope.capture import Forward, capture, forward
from attnscope.models.architecture import numbers_in_stack
from attnscope.study_api.forward import self_attention

TEXT = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
IMAGES = {"image_token_id": 50, "video_token_id": 51, "vision_start_token_id": 52, "vision_end_token_id": 53}


def numbers(model, stack="", **inputs):
    with capture(model) as recording:
        layers = [(layer.stack, layer.index, layer.call) for layer in recording.run(**inputs)]
    assert len(set(layers)) == len(layers)
    return [row[1:] for row in layers if stack in row[0]]


def test_two_images_are_two_calls_of_each_block():
    """Qwen2-VL cuts its images apart inside each block."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    text = {**TEXT, "num_key_value_heads": 2, "num_hidden_layers": 2, "rope_parameters": rope}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 2, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config={**vision, "spatial_merge_size": 2}, **IMAGES
    )
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    ids = torch.tensor([[5, 52] + [50] * 4 + [53, 6, 52] + [50] * 6 + [53, 7]])
    grid = torch.tensor([[1, 4, 4], [1, 4, 6]])
    inputs = {"input_ids": ids, "image_grid_thw": grid, "mm_token_type_ids": (ids == 50).long()}
    pixels = torch.randn(40, 24)
    assert numbers(model, "visual", pixel_values=pixels, **inputs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert numbers(model, "language", pixel_values=pixels, **inputs) == [(0, 0), (1, 0)]


def zamba2():
    config = transformers.Zamba2Config(
        vocab_size=60,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        layers_block_type=["mamba", "hybrid"] * 3,
        mamba_d_state=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        num_mem_blocks=2,
    )
    return transformers.Zamba2ForCausalLM(config).eval()


def test_a_shared_block_has_the_number_of_the_layer_that_runs_it():
    """Zamba2: attention in layers 1, 3 and 5, of two modules that they share."""
    model, ids = zamba2(), torch.randint(3, 60, (1, 8))
    assert numbers(model, input_ids=ids) == [(1, 0), (3, 0), (5, 0)]
    assert [number for number, _ in self_attention(model, {"input_ids": ids})] == [1, 3, 5]
    with capture(model, layers=[3, -1]) as recording:
        assert [layer.index for layer in recording.run(input_ids=ids)] == [3, 5]


def test_an_edit_of_one_layer_of_a_shared_block_is_of_that_layer():
    model, ids = zamba2(), torch.randint(3, 60, (1, 8))
    edit = asc.edits.HideKeys([0], heads=[(3, 1)])
    with asc.edit(model, edit), capture(model) as recording:
        sinks = {layer.index: layer.attention[0, :, 1:, 0].sum(-1) for layer in recording.run(input_ids=ids)}
    assert {layer: (mass == 0).tolist() for layer, mass in sinks.items()} == {
        1: [False] * 4,
        3: [False, True, False, False],
        5: [False] * 4,
    }


class Twice(nn.Module):
    """One encoder that reads a query and a document."""

    def __init__(self, name, **changes):
        super().__init__()
        self.encoder = models.tiny(name, **changes)

    def forward(self, query, document):
        return self.encoder(input_ids=query)[0].mean() * self.encoder(input_ids=document)[0].mean()


@pytest.mark.parametrize(("name", "depth"), [("llama", 2), ("albert", 4), ("bert", 1)])
def test_an_encoder_that_runs_twice_counts_its_calls(name, depth):
    """ALBERT's only block counts its runs as layers, in each of the two passes from 0."""
    model = Twice(name, num_hidden_layers=depth).eval()
    ids = torch.randint(3, 60, (1, 8))
    expected = [(layer, call) for call in (0, 1) for layer in range(depth)]
    assert numbers(model, query=ids, document=ids[:, :5]) == expected
    states = Forward(sites=("block_output",))
    with forward(model, {"query": ids, "document": ids[:, :5]}, states) as run:
        if name != "albert":  # the wrapper's configuration does not say how often the block runs
            assert [(layer.index, layer.call) for layer in run] == expected


def hierarchy():
    """HRM runs its low module three times before each of two runs of its high one."""
    models.needs_configuration("HrmTextConfig")
    config = transformers.HrmTextConfig(
        **TEXT, num_layers_per_stack=2, num_key_value_heads=4, head_dim=8, H_cycles=2, L_cycles=3
    )
    return transformers.HrmTextForCausalLM(config).eval()


def test_the_modules_of_a_hierarchy_count_their_calls():
    rows = numbers(hierarchy(), input_ids=torch.randint(3, 60, (1, 8)))
    low, high = ([(layer, call) for call in range(calls) for layer in (0, 1)] for calls in (6, 2))
    assert rows == [*low[:6], *high[:2], *low[6:], *high[2:]]


@pytest.mark.parametrize("layer", range(-4, 4))
def test_edits_of_heads_count_the_layers_of_a_hierarchy_through(layer):
    """The low module's layers are 0 and 1 and the high one's 2 and 3, as for edits of states."""
    model, ids = hierarchy(), torch.randint(3, 60, (1, 8))
    with asc.edit(model, asc.edits.HideKeys([0], heads=[(layer, 1)])), asc.capture(model) as recording:
        without = {
            ("LH".index(step.stack.split(".")[1][0]) * 2 + step.index)
            for step in recording.run(input_ids=ids)
            if not step.attention[0, 1, 1:, 0].any()
        }
    assert without == {layer % 4}


@pytest.mark.parametrize("layer", range(4))
def test_states_are_changed_in_every_run_of_a_layer(layer):
    """A low layer runs six times a pass and a high one twice, and each run hands on the given state."""
    model, ids = hierarchy(), torch.randint(3, 60, (1, 8))
    width = model.config.hidden_size
    state = torch.randn(width, generator=torch.Generator().manual_seed(0))
    with (
        asc.edit(model, asc.edits.SetState(layer, state, "all")) as applied,
        asc.capture(model, sites=("attention", "block_output")) as recording,
    ):
        rows = [
            ("LH".index(step.stack.split(".")[1][0]) * 2 + step.index, step.block_output)
            for step in recording.run(input_ids=ids)
        ]
    replaced = [bool((states == state).all()) for number, states in rows if number == layer]
    assert replaced == [True] * (6 if layer < 2 else 2)
    assert applied[0].count == len(replaced)


@pytest.mark.parametrize("settings", [{"num_hidden_groups": 2}, {"inner_group_num": 2}])
def test_a_factor_is_that_of_every_run(settings):
    """ALBERT's groups run twice each, and blocks inside a group once for each layer."""
    config = transformers.AlbertConfig(**TEXT, embedding_size=16, num_hidden_layers=4, **settings)
    model, ids = transformers.AlbertModel(config).eval(), torch.randint(3, 60, (1, 8))
    with (
        asc.edit(model, asc.edits.Scale("attention_output", 0.0)),
        asc.capture(model, sites=("attention", "attention_output")) as recording,
    ):
        left = [bool(layer.attention_output.any()) for layer in recording.run(input_ids=ids)]
    assert left == [False] * (4 if "num_hidden_groups" in settings else 8)


def test_several_stacks_have_no_sensitivity():
    """A capture numbers each stack from 0, so no single layer has the number that was asked for."""
    ids = torch.randint(3, 60, (1, 8))
    for method in ("jvp", "difference"):
        with pytest.raises(NotImplementedError, match=r"sensitivity: the layers of HrmText.* are 2 stacks"):
            asc.sensitivity(hierarchy(), {"input_ids": ids}, 1, torch.eye(32)[:2], method=method)


def blt():
    part = {**TEXT, "num_key_value_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64}
    local = {**part, "hidden_size_global": 64, "cross_attn_k": 2}
    config = transformers.BltConfig(
        vocab_size=60,
        max_position_embeddings=64,
        patcher_config=part,
        encoder_config=local,
        decoder_config=local,
        global_config={**part, "hidden_size": 64},
        cross_attn_k=2,
        encoder_hash_byte_group_size=[3, 4],
        encoder_hash_byte_group_vocab=50,
        patch_size=4,
        patch_in_forward=True,
    )
    return transformers.BltForCausalLM(config).eval()


@pytest.mark.filterwarnings("ignore:capture. Blt.* under its own attention implementation")
def test_the_stacks_of_a_model_of_bytes_are_apart():
    """BLT: patcher, encoder, global and decoder of two layers each, and three layers of cross attention."""
    model, ids = blt(), torch.randint(5, 60, (1, 12), generator=torch.Generator().manual_seed(0))
    assert numbers(model, "self_attn", input_ids=ids) == [(0, 0), (1, 0)] * 4
    assert numbers(model, "cross_attn", input_ids=ids) == [(0, 0), (0, 0), (1, 0)]
    table = asc.analyze(model, ids, ["attention_entropy"]).table("heads")
    rows = table[["layer", "head"]]
    assert len(rows) == len(rows.drop_duplicates()) == (8 + 3) * 4
    assert table.groupby("layer")["attention"].first().tolist().count("cross") == 3


def test_numbers_of_stages_count_on():
    names = ["s.0.b.0.attn", "s.0.b.1.attn", "s.1.b.0.attn", "s.1.b.0.mlp"]
    assert list(numbers_in_stack(names[2], names).values()) == [0, 1, 2]
    assert numbers_in_stack("h.7.attn.2.self", ["h.3.attn.2.self", "h.7.attn.2.self"])["h.7.attn.2.self"] == 7


@pytest.mark.parametrize("name", ["t5", "jamba", "albert", "modernbert"])
def test_numbers_of_plain_models(name):
    """Blocks with a list inside, attention in every second layer, one block for all layers."""
    model = models.cached_model(name)
    rows = numbers(model, **models.text(model))
    expected = {
        "t5": [(layer, 0) for layer in (0, 1, 2, 0, 0, 1, 1)],
        "jamba": [(1, 0), (3, 0)],
        "albert": [(layer, 0) for layer in range(4)],
        "modernbert": [(layer, 0) for layer in range(3)],
    }
    assert rows == expected[name]
