# SPDX-License-Identifier: MIT
"""A model's blocks and their parts, found in small models whose structure is plain to see."""

import pytest
import torch
from torch import nn

from attnscope.models.architecture import (
    Parts,
    Structure,
    block_of,
    blocks,
    depth,
    feed_forward,
    has_matrices,
    has_norm,
    is_cross,
    name_pattern,
    named_modules,
)


def module(**children):
    """A module of named children."""
    root = nn.Module()
    for name, child in children.items():
        root.add_module(name, child)
    return root


def linear():
    return nn.Linear(2, 2)


def attention():
    return module(q=linear(), o=linear())


def block(**children):
    return module(norm=nn.LayerNorm(2), attn=attention(), **children)


def decoder(count=3, **options):
    root = module(embed=nn.Embedding(4, 2), layers=nn.ModuleList(), norm=nn.LayerNorm(2))
    for _ in range(count):
        root.layers.append(block(mlp=module(up=linear(), down=linear()), **options))
    return root


class Config:
    """A configuration of some layers."""

    def __init__(self, layers):
        self.num_hidden_layers = layers


def test_names():
    assert name_pattern("3.layers.12.self_attn.q4.0") == "*.layers.*.self_attn.q4.*"
    wrapped = module(outer=module(_orig_mod=module(inner=module(_orig_mod=linear()))))
    assert list(named_modules(wrapped)) == ["", "outer", "outer.inner"]
    assert named_modules(wrapped)["outer.inner"] is wrapped.outer._orig_mod.inner._orig_mod
    assert list(named_modules(module(my_orig_mod=linear()))) == ["", "my_orig_mod"]


def test_attention_to_another_sequence_is_flagged_or_named():
    assert is_cross(module(), "decoder.layers.0.encoder_attn")
    assert is_cross(module(), "layers.0.CrossAttention")
    assert not is_cross(module(), "cross_encoder.layers.0.self_attn")  # of the whole model, not of the module
    assert not is_cross(module(), "model.layers.0.cross.layers.1.self_attn")
    flagged = module()
    flagged.is_cross_attention = False
    assert not is_cross(flagged, "layers.0.crossattention")
    flagged.is_cross_attention = True
    assert is_cross(flagged, "layers.0.attention")


def test_matrices_and_norms():
    assert has_matrices(linear())
    assert has_matrices(module(inner=linear()))
    assert not has_matrices(nn.LayerNorm(2))
    assert not has_matrices(nn.ReLU())
    assert has_norm(block())
    assert not has_norm(attention())
    assert not has_norm(module(act=nn.ReLU(), dense=linear()))


@pytest.mark.parametrize(
    ("children", "result"),
    [
        ({"mlp": module(up=linear(), down=linear())}, "mlp"),
        ({"mlp": module(up=linear()), "drop": nn.Dropout(), "after": nn.LayerNorm(2)}, "mlp"),
        # matrices on the block itself: the last one
        ({"fc1": linear(), "fc2": linear()}, "fc2"),
        # a part that adds the residual itself has a norm, and is entered
        ({"one": linear(), "last": module(dense=linear(), norm=nn.LayerNorm(2))}, "last.dense"),
        ({"crossattention": attention(), "mlp": module(up=linear())}, "mlp"),
        ({"mlp": module(up=linear()), "encoder_attn": attention()}, "mlp"),
        ({"experts": nn.ModuleList([linear(), module(up=linear())])}, "experts.1"),
        ({}, None),
    ],
)
def test_the_feed_forward_part_is_the_last_with_matrices(children, result):
    modules = named_modules(module(layers=nn.ModuleList([block(**children)])))
    expected = result and f"layers.0.{result}"
    assert feed_forward("layers.0", "layers.0.attn", modules) == expected


def test_a_matrix_beside_a_norm_in_one_module():
    last = module(norm=nn.LayerNorm(2))
    last.weight = nn.Parameter(torch.ones(2, 2))
    modules = named_modules(module(layers=nn.ModuleList([block(last=last)])))
    assert feed_forward("layers.0", "layers.0.attn", modules) == "layers.0.last"


def test_a_part_that_is_given_two_streams_is_entered():
    modules = named_modules(module(layers=nn.ModuleList([block(output=module(dense=linear()))])))
    assert feed_forward("layers.0", "layers.0.attn", modules) == "layers.0.output"
    assert feed_forward("layers.0", "layers.0.attn", modules, {"layers.0.output"}) == "layers.0.output.dense"


def sublayers():
    """A block whose sub-layers stand in a list of their own, as in T5."""
    parts = nn.ModuleList(
        [module(attn=attention(), norm=nn.LayerNorm(2)), module(ff=linear(), n=nn.LayerNorm(2))]
    )
    return module(block=nn.ModuleList([module(layer=parts, drops=nn.ModuleList([nn.Dropout()]))]))


def test_sub_layers_in_a_list_of_their_own():
    modules = named_modules(sublayers())
    assert feed_forward("block.0", "block.0.layer.0.attn", modules) == "block.0.layer.1.ff"
    assert block_of("block.0.layer.0.attn", modules) == "block.0"


def test_a_block_is_the_nearest_element_of_a_list_that_holds_more():
    modules = named_modules(decoder())
    assert block_of("layers.1.attn", modules) == "layers.1"
    single_block = named_modules(
        module(outer=nn.ModuleList([module(layers=nn.ModuleList([module(attn=attention())]))]))
    )
    assert block_of("outer.0.layers.0.attn", single_block) == "outer.0.layers.0"
    assert block_of("attn", named_modules(block(mlp=linear()))) is None
    # the list itself may be the model, attention may stand deeper in its block, or in a list of its own
    assert block_of("0.attn", named_modules(nn.ModuleList([block(mlp=linear())]))) == "0"
    deeper = nn.ModuleList([module(attention=module(own=attention()), output=linear())])
    assert block_of("layers.0.attention.own", named_modules(module(layers=deeper))) == "layers.0"
    listed = nn.ModuleList([module(heads=nn.ModuleList([attention()]), mlp=linear())])
    assert block_of("layers.0.heads.0", named_modules(module(layers=listed))) == "layers.0"


def test_depth_is_that_of_the_text_model():
    model = decoder()
    assert depth(model) == 1
    model.config = Config(7)
    assert depth(model) == 7
    model.config.get_text_config = lambda: Config(5)
    assert depth(model) == 5
    model.config.get_text_config = lambda: Config(None)
    assert depth(model) == 1


def test_blocks_are_the_neighbours_of_known_ones_or_a_list_as_long_as_the_model_is_deep():
    model = decoder()
    modules = named_modules(model)
    names = ["layers.0", "layers.1", "layers.2"]
    assert blocks(model, modules, ["layers.2"]) == names
    assert blocks(model, modules, []) == []
    model.config = Config(3)
    model.other = nn.ModuleList([linear() for _ in range(3)])
    assert blocks(model, named_modules(model), []) == names


def parts_of(model):
    result = {}
    for at in range(len(model.layers)):
        place = f"layers.{at}"
        result[f"{place}.attn"] = Parts(place, f"{place}.attn.o", f"{place}.mlp", f"{place}.mlp.up")
    return result


def test_layers_are_numbered_in_order_and_places_are_where_sites_are_seen():
    model = decoder()
    structure = Structure(model, parts_of(model), {"layers.*.attn": 4, "other.*": 2})
    assert structure.depth == 3
    assert structure.heads == {f"layers.{at}.attn": 4 for at in range(3)}
    assert [core for _, core, _ in structure.layers] == [f"layers.{at}.attn" for at in range(3)]
    assert (structure.layer("f", -1), structure.layer("f", 2), structure.layer("f", -3)) == (2, 2, 0)
    for wrong in (3, -4):
        with pytest.raises(ValueError, match=f"f: layer {wrong} of Module, which has 3 layers"):
            structure.layer("f", wrong)
    places = {site: structure.place("f", 1, site) for site in SITES}
    assert places == {site: (f"layers.1{name}", enters, None) for site, (name, enters) in SITES.items()}
    with pytest.raises(ValueError, match="f: site must be one that a module hands on, got 'scores'"):
        structure.place("f", 1, "scores")


#: Site -> the module at which it is seen, and whether on the way in.
SITES = {
    "hidden": ("", True),
    "attention_input": (".attn", True),
    "head_output": (".attn.o", True),
    "attention_output": (".attn.o", False),
    "mlp_input": (".mlp.up", True),
    "mlp_output": (".mlp", False),
    "block_output": ("", False),
}


def test_blocks_without_attention_and_attention_to_another_sequence():
    model = decoder()
    model.layers[1].other = attention()
    model.layers[1].other.is_cross_attention = True
    parts = parts_of(model)
    del parts["layers.0.attn"]
    parts = {"layers.1.other": Parts("layers.1"), **parts}
    structure = Structure(model, parts)
    assert structure.heads == {}
    assert [core for _, core, _ in structure.layers] == [None, "layers.1.attn", "layers.2.attn"]
    assert structure.layers[0][0] == Parts("layers.0")
    with pytest.raises(ValueError, match="f: no place for site 'head_output' was found in layer 0 of Module"):
        structure.place("f", 0, "head_output")
    by_name, numbers = structure.by_block()
    assert list(by_name) == ["layers.0", "layers.1.attn", "layers.2.attn"]
    assert numbers == {
        "layers.0": (0, None),
        "layers.1": (1, "layers.1.attn"),
        "layers.2": (2, "layers.2.attn"),
    }
    assert [structure.depth_of(f"layers.{at}") for at in (0, 2)] == [1, 1]
    # a block that is its attention module has no input of the attention's own
    assert Parts("layers.0", "o").place("layers.0", "attention_input") == (None, True)


def test_a_model_without_attention_has_as_many_layers_as_its_configuration_says():
    model = decoder(3)
    model.config = Config(3)
    assert [layer for layer, *_ in Structure(model, {}).layers] == [Parts(f"layers.{at}") for at in range(3)]
    model.config = Config(7)
    assert Structure(model, parts_of(model)).depth == 3
    assert Structure(decoder(1), parts_of(decoder(1))).depth == 1


def test_one_block_that_runs_as_often_as_there_are_layers():
    model = decoder(1)
    model.config = Config(4)
    structure = Structure(model, parts_of(model))
    assert structure.depth == 4
    assert [call for *_, call in structure.layers] == [0, 1, 2, 3]
    assert structure.depth_of("layers.0") == 4
    assert structure.place("f", 2, "hidden") == ("layers.0", True, 2)
    assert structure.by_block()[1] == {"layers.0": (0, "layers.0.attn")}


def test_two_stacks_are_numbered_each_from_0():
    model = module(first=decoder(2), second=decoder(2))
    parts = {
        f"{stack}.layers.{at}.attn": Parts(f"{stack}.layers.{at}")
        for stack in ("first", "second")
        for at in (0, 1)
    }
    _, numbers = Structure(model, parts).by_block()
    assert [number for number, _ in numbers.values()] == [0, 1, 0, 1]
    assert torch.is_tensor(next(model.parameters()))
