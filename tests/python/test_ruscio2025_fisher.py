# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, Fisher information and head specialisation: the notebooks' steps by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope as asc
from attnscope.protocols import ruscio2025
from attnscope.protocols.ruscio2025.fisher import group_parameters
from folders import tokenizer

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 43,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES)).eval()


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).eval()


def squares(model, ids):
    """The labels are the input ids, nothing ignored: transformers' own loss."""
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    found = {name: p.grad.double().square().sum().item() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize("which", ["llama", "bert"])
def test_the_loss_is_the_models_own_with_the_input_as_labels(request, which):
    model = request.getfixturevalue(which)
    rows = [[1, 5, 9, 2, 7], [3, 3, 8, 0, 0]]
    inputs = [{"input_ids": torch.tensor([row])} for row in rows]
    table = ruscio2025.fisher_trace(model, inputs)
    each = [squares(model, one["input_ids"]) for one in inputs]
    places = group_parameters(model)
    for row in table.itertuples():
        own = [name for name, place in places.items() if place == (row.layer, row.group)]
        assert row.trace == pytest.approx(sum(one[name] for one in each for name in own) / 2, rel=1e-5)
        assert row.parameters == sum(dict(model.named_parameters())[name].numel() for name in own)
    assert set(table["n"]) == {2}


def test_padding_is_predicted_here_and_not_in_the_exact_trace(llama):
    padded = {
        "input_ids": torch.tensor([[1, 5, 9, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0]]),
    }
    bare = {"input_ids": torch.tensor([[1, 5, 9]])}
    exact, same = (asc.fisher_trace(llama, [one])["trace"].sum() for one in (padded, bare))
    assert exact == pytest.approx(same, rel=1e-4)
    counted, uncounted = (ruscio2025.fisher_trace(llama, [one])["trace"].sum() for one in (padded, bare))
    assert uncounted == pytest.approx(same, rel=1e-4)
    assert abs(counted - uncounted) > 1e-3 * uncounted


def test_groups_are_told_by_substrings(llama):
    places = group_parameters(llama)
    assert places["model.layers.1.self_attn.q_proj.weight"] == (1, "attention")
    assert places["model.layers.1.post_attention_layernorm.weight"] == (1, "attention")
    assert places["model.layers.0.input_layernorm.weight"] == (0, "norm")
    assert places["model.layers.0.mlp.up_proj.weight"] == (0, "mlp")
    assert places["model.embed_tokens.weight"] == (-1, "embedding")
    assert places["lm_head.weight"] == (-1, "other")


def test_texts_are_cut_to_500_characters_and_128_tokens(llama):
    words = tokenizer()
    words.model_max_length = 1000
    long, cut = "the cat sat on a mat " * 60, ("the cat sat on a mat " * 60)[:500]
    one, other = (ruscio2025.fisher_trace(llama, [text], tokenizer=words)["trace"] for text in (long, cut))
    assert (one == other).all()
    ids = torch.tensor([words("a " * 200)["input_ids"]])
    whole = ruscio2025.fisher_trace(llama, [{"input_ids": ids}])["trace"]
    first = ruscio2025.fisher_trace(llama, [{"input_ids": ids[:, :128]}])["trace"]
    assert (whole == first).all()
    with pytest.raises(
        ValueError, match=r"ruscio2025\.fisher_trace: texts that are strings need a tokenizer"
    ):
        ruscio2025.fisher_trace(llama, ["the cat"])
    with pytest.raises(ValueError, match=r"must be float32 or float64, got torch\.bfloat16"):
        ruscio2025.fisher_trace(transformers.LlamaForCausalLM(llama.config).bfloat16(), ["the cat"])


def test_depth_trend_is_scipys():
    values = np.random.default_rng(0).normal(size=9)
    found = ruscio2025.depth_trend(values)
    assert found[:2] == pytest.approx(tuple(stats.pearsonr(range(9), values)))
    assert found[2:4] == pytest.approx(tuple(stats.spearmanr(range(9), values)))
    np.testing.assert_allclose(found.smoothed, [values[k : k + 3].mean() for k in range(7)])
    assert math.isnan(ruscio2025.depth_trend([1.0, 1.0, 1.0]).pearson)
    assert ruscio2025.depth_trend([1.0, 2.0]).smoothed == []
    with pytest.raises(ValueError, match="must be a list of numbers"):
        ruscio2025.depth_trend([])


def test_specialisation_needs_five_samples_and_a_share():
    assert ruscio2025.head_specialization(["a"] * 4).specialised is False
    found = ruscio2025.head_specialization(["b", "a", "a", "c", "d", "e", "a", "f", "g", "h"])
    assert found == ("a", 0.3, 10, True, False)
    assert ruscio2025.head_specialization([0] * 5 + [1] * 5) == (0, 0.5, 10, True, True)
    with pytest.raises(ValueError, match="at least one sample"):
        ruscio2025.head_specialization([])
