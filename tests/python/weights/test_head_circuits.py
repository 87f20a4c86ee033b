# SPDX-License-Identifier: MIT
"""Circuits of heads: dense products, planted copies, grouped heads, and what is refused."""

import pytest
import torch

import attnscope as asc
import models
from attnscope.errors import MissingError
from models import tiny
from support import sweep


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_spectra_are_those_of_the_dense_products(name):
    model = tiny(name)
    result = asc.head_circuits(model, 1)
    entries = asc.weight_map(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_role = {
        role: entries[1, role].of(parameters[entries[1, role].tensor].detach()).double() for role in "qkvo"
    }
    heads = entries.heads
    d = by_role["q"].shape[0] // heads
    for head in range(heads):
        group = head * (by_role["k"].shape[0] // d) // heads
        q, k, v = (
            by_role["q"][head * d : (head + 1) * d],
            by_role["k"][group * d : (group + 1) * d],
            by_role["v"][group * d : (group + 1) * d],
        )
        o = by_role["o"][:, head * d : (head + 1) * d]
        for ours, dense in ((result.qk, q.T @ k), (result.ov, o @ v)):
            expected = torch.linalg.svdvals(dense)
            torch.testing.assert_close(ours[head], expected[:d], rtol=1e-8, atol=1e-10)
            assert expected[d:].max() < 1e-6 * expected[0]
        eigenvalues = torch.linalg.eigvals(o @ v)
        copying = eigenvalues.real.sum() / eigenvalues.abs().sum()
        assert result.copying[head].item() == pytest.approx(copying.item(), abs=1e-6)


def test_a_planted_copy_and_its_opposite():
    model = tiny("llama", num_key_value_heads=4)
    attention = model.model.layers[0].self_attn
    width = attention.head_dim
    with torch.no_grad():
        block = attention.v_proj.weight[:width].double()
        attention.o_proj.weight[:, :width] = torch.linalg.pinv(block).float()
        attention.o_proj.weight[:, width : 2 * width] = -torch.linalg.pinv(
            attention.v_proj.weight[width : 2 * width].double()
        ).float()
        attention.v_proj.weight[2 * width : 3 * width] = 0
    result = asc.head_circuits(model, 0)
    assert result.copying[0].item() == pytest.approx(1, abs=1e-4)
    assert result.copying[1].item() == pytest.approx(-1, abs=1e-4)
    assert result.copying[2].isnan()
    assert result.ov_rank.tolist()[:3] == [width, width, 0]


@pytest.mark.parametrize(("keys", "values"), [(8, 16), (16, 8)])
def test_values_that_are_wider_or_narrower_than_keys(keys, values):
    """The matrix of queries is cut by their own width, not by that of values."""
    models.needs_configuration("MiMoV2FlashConfig")
    config_class, model_class = sweep.classes("causal", "mimo_v2_flash")
    config = config_class(
        **{**sweep.variants(config_class)[0], "head_dim": keys, "v_head_dim": values, "swa_head_dim": keys},
        swa_v_head_dim=values,
    )
    model = model_class(config).eval()
    weights = model.model.layers[1].self_attn
    q, k, v = (getattr(weights, f"{name}_proj").weight.detach().double() for name in "qkv")
    o = weights.o_proj.weight.detach().double()
    heads = q.shape[0] // keys
    result = asc.head_circuits(model, 1)
    for head in range(heads):
        group = head * (k.shape[0] // keys) // heads
        qk = q[head * keys :][:keys].T @ k[group * keys :][:keys]
        ov = o[:, head * values :][:, :values] @ v[group * values :][:values]
        for ours, dense, width in ((result.qk, qk, keys), (result.ov, ov, values)):
            expected = torch.linalg.svdvals(dense)[:width]
            torch.testing.assert_close(ours[head], expected, rtol=1e-8, atol=1e-10)


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(
        MissingError, match=r"head_circuits: layer 9 of LlamaForCausalLM has no matrix 'o' .* it has none"
    ):
        asc.head_circuits(tiny("llama"), 9)


def test_latent_attention_has_no_circuits():
    """Its keys are read from a shorter vector than the residual stream."""
    config_class, model_class = sweep.classes("causal", "deepseek_v3")
    model = model_class(config_class(**sweep.variants(config_class)[0])).eval()
    with pytest.raises(MissingError, match=r"layer 1 of DeepseekV3.* has no matrix 'k' .*kv_up"):
        asc.head_circuits(model, 1)
