# SPDX-License-Identifier: MIT
"""Caches of TransformerLens and nnsight by their names, and attention without any: measure and view."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.arguments.caches import attention_of_cache
from attnscope.demo import demo_model
from models import text, tiny

LAYERS, HEADS, N = 2, 3, 7


@pytest.fixture(scope="module")
def maps():
    scores = torch.randn(LAYERS, 1, HEADS, N, N, generator=torch.Generator().manual_seed(3))
    return scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf).softmax(-1)


class ActivationCache:
    """The manners of TransformerLens: items by name, no Mapping, and iteration that is not over names."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __getitem__(self, name):
        return self.tensors[name]

    def __iter__(self):
        return iter(self.tensors.values())

    def keys(self):
        return self.tensors.keys()


def lens(maps):
    tensors = {"hook_embed": torch.zeros(1, N, 4)}
    for layer in reversed(range(LAYERS)):  # the order is that of the numbers
        tensors[f"blocks.{layer}.attn.hook_pattern"] = maps[layer]
        tensors[f"blocks.{layer}.attn.hook_q"] = torch.zeros(1, N, HEADS, 4)
    return ActivationCache(tensors)


def nnsight(maps):
    return {
        f"model.transformer.h.{layer}.attn": SimpleNamespace(output=(torch.rand(1, N, 4), maps[layer]))
        for layer in range(LAYERS)
    } | {"model.transformer.h.0.mlp": SimpleNamespace(output=torch.rand(1, N, 4))}


def saved_modules(maps):
    return {f"model.layers.{layer}.self_attn": (torch.rand(1, N, 4), maps[layer]) for layer in range(LAYERS)}


@pytest.mark.parametrize("cache", [lens, nnsight, saved_modules])
def test_caches_are_measured_and_viewed(maps, cache):
    measured = asc.measure(cache(maps), ["fiedler_value"])["fiedler_value"]
    torch.testing.assert_close(measured, asc.fiedler_value(maps), rtol=0, atol=0)
    page, direct = asc.view(cache(maps)), asc.view(maps[:, 0])
    assert page.contents["values"] == direct.contents["values"]
    assert len(page.contents["maps"]) == LAYERS * HEADS


def test_eager_attention_of_transformers_under_the_names_of_modules():
    model = tiny("gpt2", attn_implementation="eager")
    inputs = text(model, batch=1, n=9)
    outputs = {}
    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output}))
        for name, module in model.named_modules()
    ]
    with torch.no_grad():
        expected = torch.stack(model(**inputs, output_attentions=True).attentions)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(asc.measure(outputs, "stable_rank")["stable_rank"], asc.stable_rank(expected))


def test_a_cache_without_attention_is_refused_by_its_names():
    with pytest.raises(ValueError, match=r"measure: the cache holds no attention under .*got hook_embed"):
        asc.measure({"hook_embed": torch.zeros(1, 3, 4)}, "fiedler_value")
    uneven = {f"blocks.{n}.attn.hook_pattern": torch.full((1, 2, n + 2, n + 2), 0.5) for n in range(2)}
    with pytest.raises(ValueError, match="view: layers of a cache must have one shape, got"):
        asc.view(uneven)


def test_layers_on_several_devices_come_to_that_of_the_first(maps):
    """Layers of a model may lie on several devices; the meta device, which holds nothing, is another here."""
    cache = {"blocks.0.attn.hook_pattern": maps[0].to("meta"), "blocks.1.attn.hook_pattern": maps[1]}
    together = attention_of_cache("measure", cache)
    assert (together.device.type, together.shape) == ("meta", maps.shape)


def test_two_stacks_of_one_cache_are_refused(maps):
    stacks = {
        f"model.{stack}.layers.{layer}.self_attn": (
            torch.rand(1, N, 4),
            maps[layer] if stack == "encoder" else part,
        )
        for stack in ("encoder", "decoder")
        for layer, part in enumerate(maps.flip(-1))
    }
    message = (
        r"measure: model\.encoder\.layers\.0\.self_attn and model\.decoder\.layers\.0\.self_attn of a cache "
        "are different maps of layer 0; give those of one stack"
    )
    with pytest.raises(ValueError, match=message):
        asc.measure(stacks, "fiedler_value")
    inside = {
        f"bert.encoder.layer.{layer}.attention{part}": (torch.rand(1, N, 4), maps[layer])
        for layer in range(LAYERS)
        for part in (".self", "")
    }
    assert torch.equal(asc.measure(inside, "fiedler_value")["fiedler_value"], asc.fiedler_value(maps))


def test_a_cache_of_arrays_and_a_table_are_read(maps):
    arrays = {f"blocks.{layer}.attn.hook_pattern": maps[layer].numpy() for layer in range(LAYERS)}
    expected = asc.fiedler_value(maps)
    assert torch.equal(asc.measure(arrays, "fiedler_value")["fiedler_value"], expected)
    table = pd.DataFrame(maps[0, 0, 0].numpy())
    assert torch.equal(asc.measure(table, "fiedler_value")["fiedler_value"], expected[0, 0, 0])
    assert repr(asc.view(table)).startswith("View('attention': 1 layers × 1 heads")
    with pytest.raises(
        TypeError, match=r"measure: blocks\.0\.attn\.hook_pattern of a cache must hold a tensor, got"
    ):
        asc.measure({"blocks.0.attn.hook_pattern": [[1.0]]}, "fiedler_value")


def test_nested_maps_are_refused_by_name(maps):
    nested = torch.nested.nested_tensor([maps[0, 0, 0], maps[0, 0, 0, :4, :4]])
    for metrics in (None, "fiedler_value"):
        with pytest.raises(
            ValueError, match="measure: attention must be one dense tensor, got a nested tensor"
        ):
            asc.measure(nested, metrics)


def test_what_transformers_gives_without_eager_attention_is_explained():
    for attentions in (None, (None, None)):
        with pytest.raises(
            ValueError, match=r"view: transformers gave no attention .*set_attn_implementation"
        ):
            asc.view(attentions)


def test_all_metrics_of_maps_and_columns_alone(maps):
    results = asc.measure(maps)
    assert {"fiedler_value", "sink_share", "attention_entropy"} <= set(results)
    assert not {"offset_fit", "geometric_semantic_alignment", "betti_curve"} & set(results)
    columns = asc.measure(maps, columns=True)
    assert all(isinstance(values, torch.Tensor) for values in columns.values())
    torch.testing.assert_close(columns["sink_boost"], asc.sink_share(maps).boost)
    torch.testing.assert_close(columns["sink_share"], asc.sink_share(maps).share)
    named = asc.measure(maps, {"sharp": {"metric": "fiedler_value"}}, columns=True)
    assert list(named) == ["sharp"]
    with pytest.raises(ValueError, match="measure: columns=True takes maps without padding, got lengths"):
        asc.measure(maps, "stable_rank", columns=True, lengths=[5, 5])
    with pytest.raises(ValueError, match="square maps, without query_positions and cross"):
        asc.measure(maps, "stable_rank", columns=True, cross=True)
    with pytest.raises(TypeError, match="columns must be True or False"):
        asc.measure(maps, "stable_rank", columns=maps)


def test_columns_of_a_single_map_are_numbers():
    columns = asc.measure(torch.full((4, 4), 0.25), "sink_share", columns=True)
    assert (columns["sink_share"].shape, columns["sink_share"].item()) == ((), 0.25)


def test_view_takes_the_names_that_analyze_takes():
    page = asc.view(demo_model(), "one two one two")
    assert repr(page).startswith("View('demo': 3 layers × 4 heads")
    assert page.contents["maps"][0]["tokens"][:4] == ["<s>", "o", "n", "e"]


def test_a_page_begins_with_sinks_and_shows_the_metrics_that_are_asked_for():
    page = asc.view(demo_model(), "one two one two")
    names = [metric["name"] for metric in page.contents["metrics"]]
    assert names[:3] == ["sink_share", "sink_boost", "entropy"]
    chosen = asc.view(demo_model(), "one two one two", metrics=["fiedler_value", "entropy"], height=500)
    assert [metric["name"] for metric in chosen.contents["metrics"]] == ["fiedler_value", "entropy"]
    for place, name in enumerate(("fiedler_value", "entropy")):
        at = names.index(name)
        assert chosen.contents["values"][0][0][place] == page.contents["values"][0][0][at]
        assert chosen.contents["uniform"][0][place] == page.contents["uniform"][0][at]
    assert "height:500px" in chosen._repr_html_()
    assert "false && frame" in chosen._repr_html_()
    assert "height:940px" in page._repr_html_()
    with pytest.raises(
        ValueError, match="view: the page has no metric 'fiedlr_value'; did you mean 'fiedler_value'"
    ):
        asc.view(demo_model(), "one two", metrics=["fiedlr_value"])
