# SPDX-License-Identifier: MIT
"""Every site against the model's own arithmetic, recomputed by hand."""

from itertools import pairwise

import pytest
import torch

import models
from attnscope.capture import SITES, capture

PRE_NORM = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt_neox",
    "phi",
    "opt",
    "gpt_oss",
    "falcon",
    "bloom",
    "gptj",
)
RESIDUAL = ("hidden", "attention_input", "attention_output", "mlp_output")


def run(model, sites, inputs, **options):
    with capture(model, sites=sites, **options) as recording:
        return list(recording.run(**inputs))


@pytest.mark.parametrize("name", [*PRE_NORM, "bert", "roberta", "albert", "gemma2", "olmo2", "deberta_v2"])
def test_hidden_is_the_hidden_state_entering_the_layer(name):
    model = models.tiny(name, implementation="eager")
    inputs = models.text(model, padding="right")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    for layer in run(model, ("hidden",), inputs):
        gap = float((layer.hidden - states[layer.index]).abs().max())
        assert gap <= (2e-6 if name == "gpt_oss" else models.eager_rounding(name)), (name, layer.index, gap)


@pytest.mark.parametrize("name", PRE_NORM)
def test_the_contributions_add_up_to_the_next_residual_stream(name):
    model = models.cached_model(name)
    layers = run(model, RESIDUAL, models.text(model))
    assert len(layers) >= 2
    for layer, after in pairwise(layers):
        total = layer.hidden + layer.attention_output + layer.mlp_output
        assert torch.allclose(total, after.hidden, atol=2e-6)
        assert float(layer.mlp_output.abs().max()) > 1e-3
        assert float(layer.attention_output.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_contributions_of_a_post_norm_block(name):
    model = models.cached_model(name)
    layers = run(model, RESIDUAL, models.text(model))
    for layer, after in pairwise(layers):
        block = model.encoder.layer[layer.index]
        with torch.no_grad():
            middle = block.attention.output.LayerNorm(layer.hidden + layer.attention_output)
            end = block.output.LayerNorm(middle + layer.mlp_output)
        assert torch.equal(layer.attention_input, layer.hidden)
        assert torch.allclose(end, after.hidden, atol=1e-6)


def test_contributions_of_a_shared_block():
    model = models.tiny("albert")
    layers = run(model, RESIDUAL, models.text(model))
    assert [layer.index for layer in layers] == [0, 1, 2, 3]
    block = model.encoder.albert_layer_groups[0].albert_layers[0]
    for layer, after in pairwise(layers):
        with torch.no_grad():
            middle = block.attention.LayerNorm(layer.hidden + layer.attention_output)
            end = block.full_layer_layer_norm(layer.mlp_output + middle)
        assert torch.allclose(end, after.hidden, atol=1e-6)


def test_encoder_decoder_sites():
    models.needs_attention_interface("t5")
    model = models.tiny("t5", implementation="eager")
    inputs = models.text(model)
    layers = run(model, SITES, inputs)
    by = {(layer.stack.split(".")[0], layer.cross, layer.index): layer for layer in layers}
    assert len(by) == len(layers) == 3 + 2 + 2
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    for index in range(2):
        self_attention, cross_attention = by["decoder", False, index], by["decoder", True, index]
        assert torch.allclose(self_attention.hidden, out.decoder_hidden_states[index], atol=1e-4)
        assert torch.equal(self_attention.hidden, cross_attention.hidden)
        assert torch.equal(self_attention.mlp_output, cross_attention.mlp_output)
        assert self_attention.attention.shape == (2, 4, 11, 11)
        assert cross_attention.attention.shape == (2, 4, 11, 37)
        assert cross_attention.value.shape == (2, 4, 37, 24)
        block = model.decoder.block[index].layer
        with torch.no_grad():
            value = block[1].EncDecAttention.v(out.encoder_last_hidden_state)
        assert torch.allclose(cross_attention.value, value.view(2, 37, 4, 24).transpose(1, 2), atol=1e-4)
    total = by["decoder", False, 0]
    after = total.hidden + total.attention_output + by["decoder", True, 0].attention_output + total.mlp_output
    assert torch.allclose(after, by["decoder", False, 1].hidden, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_query_key_value_are_the_projections_after_the_rotary_embedding(name):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = models.cached_model(name)
    inputs = models.text(model)
    positions = torch.arange(37)[None]
    for layer in run(model, ("query", "key", "value", "attention_input"), inputs):
        attention = model.model.layers[layer.index].self_attn
        x = layer.attention_input
        with torch.no_grad():
            q, k, v = (
                p(x).view(2, 37, -1, 24) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            if name == "qwen3":
                q, k = attention.q_norm(q), attention.k_norm(k)
            cos, sin = model.model.rotary_emb(x, positions)
            q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        assert layer.query.shape == (2, 4, 37, 24)
        assert layer.key.shape == layer.value.shape == (2, 2, 37, 24)
        assert torch.allclose(layer.query, q, atol=1e-6)
        assert torch.allclose(layer.key, k, atol=1e-6)
        assert torch.allclose(layer.value, v.transpose(1, 2), atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "phi"])
def test_maps_follow_from_queries_and_keys_and_explain_the_output(name):
    models.needs_attention_interface(name)
    model = models.cached_model(name)
    inputs = models.text(model)
    names = {"llama": "o_proj", "gpt2": "c_proj", "phi": "dense", "bert": "dense"}
    for layer in run(model, ("attention", "query", "key", "value", "attention_output"), inputs):
        keys, values = layer.key[:, list(layer.kv_heads)], layer.value[:, list(layer.kv_heads)]
        scores = layer.query.double() @ keys.double().mT / 24**0.5
        if name != "bert":
            scores = scores.masked_fill(torch.ones(37, 37).triu(1).bool(), float("-inf"))
        assert torch.allclose(torch.softmax(scores, -1).float(), layer.attention, atol=2e-5)
        mixed = (layer.attention @ values).transpose(1, 2).flatten(2)
        core = next(n for n, m in model.named_modules() if n == layer.stack.replace("*", str(layer.index)))
        place = model.get_submodule(core)
        projection = (
            getattr(place, names[name], None) or model.encoder.layer[layer.index].attention.output.dense
        )
        with torch.no_grad():
            assert torch.allclose(projection(mixed), layer.attention_output, atol=1e-5)


@pytest.mark.parametrize("site", SITES)
def test_only_the_asked_site_is_there(site):
    model = models.tiny("llama")
    for layer in run(model, (site,), models.text(model)):
        assert list(layer.tensors) == [site]
        assert not layer.tensors[site].requires_grad


def test_sites_do_not_change_one_another():
    model = models.tiny("gemma2")
    inputs = models.text(model, padding="left")
    together = run(model, SITES, inputs)
    for site in SITES:
        for by_itself, with_others in zip(run(model, (site,), inputs), together, strict=True):
            assert torch.equal(by_itself.tensors[site], with_others.tensors[site])


@pytest.mark.parametrize("name", ["llama", "bloom", "gpt_oss"])
def test_selected_heads_and_layers(name):
    model = models.cached_model(name)
    inputs = models.text(model, padding="left")
    sites = ("attention",) if name == "bloom" else ("attention", "query", "value")
    full = run(model, sites, inputs)
    part = run(model, sites, inputs, heads=[-1, 1], layers=[-1])
    assert [layer.index for layer in part] == [len(full) - 1]
    two_heads, all_heads = part[0], full[-1]
    assert two_heads.heads == (3, 1)
    assert torch.equal(two_heads.attention, all_heads.attention[:, [3, 1]])
    if name != "bloom":
        assert two_heads.kv_heads == (1, 0)
        assert torch.equal(two_heads.query, all_heads.query[:, [3, 1]])
        assert torch.equal(two_heads.value, all_heads.value)
        assert torch.equal(two_heads.states("value", per_head=True)[0], all_heads.value[0][[1, 0]])


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_size_of_the_tiles_changes_nothing(chunk):
    for name in ("llama", "gpt_oss", "t5"):
        model = models.cached_model(name)
        inputs = models.text(model, padding="left", batch=3)
        untiled = run(model, ("attention",), inputs)
        tiled = run(model, ("attention",), inputs, chunk=chunk)
        two_heads = run(model, ("attention",), inputs, chunk=chunk, heads=[2, 0])
        for a, b, c in zip(untiled, tiled, two_heads, strict=True):
            assert torch.allclose(a.attention, b.attention, atol=1e-7)
            assert torch.equal(b.attention[:, [2, 0]], c.attention)


def test_many_small_maps_are_tiled_over_samples(monkeypatch):
    from attnscope.capture import interface

    model = models.tiny("llama")
    inputs = models.text(model, padding="right", batch=5)
    untiled = run(model, ("attention",), inputs)
    monkeypatch.setattr(interface, "TILE_ELEMENTS", 2 * 4 * 37 * 37)
    for a, b in zip(untiled, run(model, ("attention",), inputs), strict=True):
        assert torch.equal(a.attention, b.attention)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bert", "gemma2", "albert"])
def test_what_leaves_a_block_enters_the_next(name):
    model = models.cached_model(name)
    inputs = models.text(model, padding="right")
    layers = run(model, ("hidden", "block_output"), inputs)
    for layer, following in pairwise(layers):
        assert torch.equal(layer.block_output, following.hidden)
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    last = layers[-1].block_output
    if name == "llama":
        # transformers' last hidden state is taken after the final norm
        assert torch.allclose(model.model.norm(last), out.hidden_states[-1], atol=1e-4)
        assert not torch.allclose(last, out.hidden_states[-1], atol=1e-2)
    if name in ("bert", "albert"):
        assert torch.allclose(last, out.hidden_states[-1], atol=1e-4)
