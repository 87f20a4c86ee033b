# SPDX-License-Identifier: MIT
"""Circuits of heads: dense products, planted copies, grouped heads, and what is refused."""

import pytest
import torch

import attnscope as asc
from models import tiny


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


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(KeyError):
        asc.head_circuits(tiny("llama"), 9)
