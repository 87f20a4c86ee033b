# SPDX-License-Identifier: MIT
"""fisher_trace against gradients taken sentence by sentence; output_kl against masks given by hand."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.fisher import group_parameters

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_key_value_heads=2, **SIZES)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(20)
    return model


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).eval()


def sentence(*ids):
    return {"input_ids": torch.tensor([ids])}


def gradients(model, ids):
    model.zero_grad()
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).backward()
    found = {name: p.grad.double().square().sum().item() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def test_the_trace_is_the_mean_squared_gradient(llama):
    first, second = [1, 5, 9, 2, 7], [3, 3, 8]
    table = asc.fisher_trace(llama, [sentence(*first), sentence(*second)])
    one, other = gradients(llama, first), gradients(llama, second)
    places = group_parameters(llama)
    for _, row in table.iterrows():
        own = [name for name, place in places.items() if place == (row["layer"], row["group"])]
        expected = sum(one[name] + other[name] for name in own) / 2
        assert row["trace"] == pytest.approx(expected, rel=1e-5)
        count = sum(dict(llama.named_parameters())[name].numel() for name in own)
        assert row["parameters"] == count
        assert row["trace_per_parameter"] == pytest.approx(expected / count, rel=1e-5)
    assert set(table["n"]) == {2}
    each = asc.fisher_trace(llama, [sentence(*first), sentence(*second)], per_sentence=True)
    total = each.groupby("sample")["trace"].sum()
    assert total[0] == pytest.approx(sum(one.values()), rel=1e-5)
    assert total[1] == pytest.approx(sum(other.values()), rel=1e-5)


def test_every_parameter_has_its_place(llama, bert):
    places = group_parameters(llama)
    assert places["model.layers.1.self_attn.q_proj.weight"] == (1, "attention")
    assert places["model.layers.0.mlp.up_proj.weight"] == (0, "mlp")
    assert places["model.layers.0.input_layernorm.weight"] == (0, "norm")
    assert places["model.norm.weight"] == (-1, "norm")
    assert places["lm_head.weight"] == (-1, "embedding")
    places = group_parameters(bert)
    assert places["bert.encoder.layer.1.attention.output.LayerNorm.weight"] == (1, "norm")
    assert places["bert.encoder.layer.1.attention.output.dense.weight"] == (1, "attention")
    assert places["bert.encoder.layer.0.intermediate.dense.weight"] == (0, "mlp")


def test_padding_is_not_predicted_and_short_sentences_are_left_out(llama):
    plain = asc.fisher_trace(llama, [sentence(4, 6, 8)])
    padded = {"input_ids": torch.tensor([[4, 6, 8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])}
    found = asc.fisher_trace(llama, [padded, sentence(4)])
    np.testing.assert_allclose(found["trace"], plain["trace"], rtol=1e-4)
    with pytest.raises(ValueError, match="no sentence of two tokens"):
        asc.fisher_trace(llama, [sentence(4)])


def test_sampled_labels_are_seeded_and_the_model_is_left_alone(llama):
    llama.lm_head.weight.requires_grad_(False)
    llama.train()
    try:
        one = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled")
        again = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled")
        other = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled", seed=1)
        assert one.equals(again)
        assert not one.equals(other)
        assert llama.training
        assert not llama.lm_head.weight.requires_grad
        assert all(parameter.grad is None for parameter in llama.parameters())
    finally:
        llama.eval()
        llama.lm_head.weight.requires_grad_(True)


def test_masked_language_models_are_scored_on_masked_tokens(bert):
    class Tokenizer:
        mask_token_id = 30

    table = asc.fisher_trace(bert, [sentence(1, 2, 3, 4, 5)], tokenizer=Tokenizer())
    assert (table["trace"] > 0).any()
    assert set(table["layer"]) == {-1, 0, 1}
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        asc.fisher_trace(bert, [sentence(1, 2, 3)])


def test_bad_models_and_texts_are_named(llama):
    with pytest.raises(ValueError, match=r"must be float32 or float64, got torch\.float16"):
        asc.fisher_trace(torch.nn.Linear(2, 2).half(), [sentence(1, 2)])
    with pytest.raises(ValueError, match="strings need a tokenizer"):
        asc.fisher_trace(llama, ["a text"])
    with pytest.raises(ValueError, match="labels must be 'data' or 'sampled', got 'true'"):
        asc.fisher_trace(llama, [sentence(1, 2)], labels="true")


def four_dimensional(ids, removed):
    """Llama reads a float [B, 1, q, k] mask as it is: an independent way to hide keys."""
    n = ids.shape[1]
    mask = torch.ones(n, n).tril().bool().expand(len(ids), n, n).clone()
    hidden = mask & ~removed[:, None, :]
    mask = torch.where(hidden.any(-1, keepdim=True), hidden, mask)
    return torch.zeros(len(ids), 1, n, n).masked_fill(~mask[:, None], torch.finfo(torch.float32).min)


def test_output_kl_equals_a_mask_given_by_hand(llama):
    ids = torch.randint(0, 31, (3, 9), generator=torch.Generator().manual_seed(1))
    removed = torch.zeros(3, 9, dtype=torch.bool)
    removed[:, 0] = removed[1, 4] = True
    found = asc.output_kl(llama, {"input_ids": ids}, removed)
    with torch.no_grad():
        p = llama(ids).logits.double().log_softmax(-1)
        q = llama(ids, attention_mask=four_dimensional(ids, removed)).logits.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).mean(-1)
    np.testing.assert_allclose(found.kl, kl, rtol=1e-3, atol=1e-9)
    assert (found.kl > 1e-6).all()
    for log_p, loss in ((p, found.loss_before), (q, found.loss_after)):
        token = log_p[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
        np.testing.assert_allclose(loss, -token.mean(-1), rtol=1e-5)
    assert torch.equal(found.loss_change, found.loss_after - found.loss_before)
    again = asc.output_kl(llama, {"input_ids": ids}, [0])
    assert again.kl[0].item() == pytest.approx(found.kl[0].item())
    assert again.kl[1] != found.kl[1]


def test_hiding_nothing_changes_nothing_and_the_model_is_restored(llama):
    ids = torch.arange(12).reshape(2, 6)
    name = llama.config._attn_implementation
    found = asc.output_kl(llama, {"input_ids": ids}, [])
    assert (found.kl == 0).all()
    assert (found.loss_change == 0).all()
    assert llama.config._attn_implementation == name


def test_left_padding_counts_positions_from_the_first_real_token(llama):
    ids = torch.tensor([[0, 0, 5, 6, 7, 8]])
    inputs = {"input_ids": ids, "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1]])}
    inputs["position_ids"] = torch.tensor([[0, 0, 0, 1, 2, 3]])
    padded = asc.output_kl(llama, inputs, [0])
    plain = asc.output_kl(llama, {"input_ids": ids[:, 2:]}, [0])
    np.testing.assert_allclose(padded.kl, plain.kl, rtol=1e-3)
    np.testing.assert_allclose(padded.loss_after, plain.loss_after, rtol=1e-4)


def test_encoders_have_no_next_token(bert):
    found = asc.output_kl(bert, {"input_ids": torch.arange(8).reshape(1, 8)}, [0, 7])
    assert found.kl.item() > 0
    assert math.isnan(found.loss_before.item())


def test_bad_keys_and_models_are_named(llama):
    ids = {"input_ids": torch.arange(6).reshape(1, 6)}
    with pytest.raises(ValueError, match=r"keys must have shape \(1, 6\), got \(6,\)"):
        asc.output_kl(llama, ids, torch.zeros(6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"keys must lie between 0 and 5 .* got 6"):
        asc.output_kl(llama, ids, [6])
    with pytest.raises(TypeError, match="gives no logits"):
        asc.output_kl(llama.model, ids, [0])
    sizes = transformers.BloomConfig(vocab_size=31, hidden_size=16, n_layer=1, n_head=2)
    bloom = transformers.BloomForCausalLM(sizes)
    with pytest.raises(NotImplementedError, match="does not go through transformers' attention interface"):
        asc.output_kl(bloom, ids, [0])
