# SPDX-License-Identifier: MIT
"""fisher_trace against gradients taken sentence by sentence; output_kl against masks given by hand."""

import copy
import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.information.fisher import group_parameters

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


MASK = 30


class Tokenizer:
    """Words of one letter; the mask token of an encoder."""

    mask_token_id = MASK

    def __call__(self, text, return_tensors):
        assert return_tensors == "pt"
        return sentence(*(ord(word) - ord("a") for word in text.split()))


def sentence(*ids):
    return {"input_ids": torch.tensor([ids])}


def gradients(model, ids, masked=()):
    """Squared gradients of the next tokens' loss, or of the tokens of an encoder whose places are masked."""
    model.zero_grad()
    masked_ids = torch.tensor([[MASK if place in masked else token for place, token in enumerate(ids)]])
    logits = model(input_ids=masked_ids).logits[0]
    if masked:
        loss = torch.nn.functional.cross_entropy(logits[list(masked)], torch.tensor(ids)[list(masked)])
    else:
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    loss.backward()
    squares = {
        name: 0.0 if p.grad is None else p.grad.double().square().sum().item()
        for name, p in model.named_parameters()
    }
    model.zero_grad()
    return squares


def test_the_trace_is_the_mean_squared_gradient(llama):
    first, second = [1, 5, 9, 2, 7], [3, 3, 8]
    table = asc.fisher_trace(llama, [sentence(*first), sentence(*second)])
    first_gradients, other = gradients(llama, first), gradients(llama, second)
    places = group_parameters(llama)
    for _, row in table.iterrows():
        names = [name for name, place in places.items() if place == (row["layer"], row["group"])]
        expected = sum(first_gradients[name] + other[name] for name in names) / 2
        assert row["trace"] == pytest.approx(expected, rel=1e-5)
        count = sum(dict(llama.named_parameters())[name].numel() for name in names)
        assert row["parameters"] == count
        assert row["trace_per_parameter"] == pytest.approx(expected / count, rel=1e-5)
    assert set(table["n"]) == {2}
    traces_by_text = asc.fisher_trace(llama, [sentence(*first), sentence(*second)], per_sentence=True)
    total = traces_by_text.groupby("sample")["trace"].sum()
    assert total[0] == pytest.approx(sum(first_gradients.values()), rel=1e-5)
    assert total[1] == pytest.approx(sum(other.values()), rel=1e-5)


def test_every_parameter_has_its_place(llama, bert):
    places = group_parameters(llama)
    assert places["model.layers.1.self_attn.q_proj.weight"] == (1, "attention")
    assert places["model.layers.0.mlp.up_proj.weight"] == (0, "mlp")
    assert places["model.layers.0.input_layernorm.weight"] == (0, "norm")
    assert places["model.norm.weight"] == (-1, "norm")
    assert places["lm_head.weight"] == (-1, "embedding")
    assert places["model.embed_tokens.weight"] == (-1, "embedding")
    module = torch.nn.ModuleDict({"positions": torch.nn.Embedding(2, 2), "attn": torch.nn.Linear(2, 2)})
    places = group_parameters(torch.nn.ModuleDict({"h": torch.nn.ModuleList([module])}))
    assert places["h.0.positions.weight"] == (0, "embedding")
    assert places["h.0.attn.bias"] == (0, "attention")
    places = group_parameters(bert)
    assert places["bert.encoder.layer.1.attention.output.LayerNorm.weight"] == (1, "norm")
    assert places["bert.encoder.layer.1.attention.output.dense.weight"] == (1, "attention")
    assert places["bert.encoder.layer.0.intermediate.dense.weight"] == (0, "mlp")


def test_padding_is_not_predicted_and_short_sentences_are_left_out(llama):
    plain = asc.fisher_trace(llama, [sentence(4, 6, 8)])
    padded = {"input_ids": torch.tensor([[4, 6, 8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])}
    result = asc.fisher_trace(llama, [sentence(4), padded])
    np.testing.assert_allclose(result["trace"], plain["trace"], rtol=1e-4)
    assert set(result["n"]) == {1}
    # Rotary positions are relative, so that padding in front changes nothing either.
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    result = asc.fisher_trace(llama, [{"input_ids": torch.tensor([[0, 0, 4, 6, 8]]), "attention_mask": mask}])
    np.testing.assert_allclose(result["trace"], plain["trace"], rtol=1e-3)
    two = asc.fisher_trace(llama, [sentence(4, 6)])
    assert two["trace"].sum() == pytest.approx(sum(gradients(llama, [4, 6]).values()), rel=1e-5)
    with pytest.raises(ValueError, match=r"^fisher_trace: texts hold no sentence of two tokens"):
        asc.fisher_trace(llama, [sentence(4)])


def test_text_is_tokenized_and_cut(llama):
    plain = asc.fisher_trace(llama, [sentence(4, 6, 8), sentence(1, 2)])
    result = asc.fisher_trace(llama, ["e g i k m", "b c"], tokenizer=Tokenizer(), max_tokens=3)
    assert result.equals(plain)
    full_traces = asc.fisher_trace(llama, ["e g i"], tokenizer=Tokenizer())
    assert full_traces.equals(asc.fisher_trace(llama, [sentence(4, 6, 8)]))


def test_parameters_that_the_loss_does_not_see_count_as_they_are(llama):
    model = copy.deepcopy(llama)
    model.model.layers[1].spare = torch.nn.Parameter(torch.ones(3))
    plain = asc.fisher_trace(llama, [sentence(4, 6, 8)]).set_index(["layer", "group"])
    result = asc.fisher_trace(model, [sentence(4, 6, 8)]).set_index(["layer", "group"])
    np.testing.assert_allclose(result["trace"], plain["trace"], rtol=1e-6)
    difference = result["parameters"] - plain["parameters"]
    assert difference[difference != 0].to_dict() == {(1, "mlp"): 3}


def test_one_row_for_each_sentence_and_group(llama):
    result = asc.fisher_trace(llama, [sentence(1, 5, 9), sentence(3, 3)], per_sentence=True)
    assert list(result) == [
        "sample",
        "tokens",
        "layer",
        "group",
        "parameters",
        "trace",
        "trace_per_parameter",
    ]
    assert len(result) == 2 * result[["layer", "group"]].drop_duplicates().shape[0]
    np.testing.assert_allclose(result["trace_per_parameter"] * result["parameters"], result["trace"])


def test_sampled_labels_are_seeded_and_the_model_is_left_alone(llama):
    llama.lm_head.weight.requires_grad_(False)
    llama.train()
    try:
        traces = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled")
        again = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled")
        other = asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled", seed=1)
        assert traces.equals(again)
        assert traces.equals(asc.fisher_trace(llama, [sentence(1, 2, 3, 4)], labels="sampled", seed=0))
        assert not traces.equals(other)
        assert llama.training
        assert not llama.lm_head.weight.requires_grad
        assert all(parameter.grad is None for parameter in llama.parameters())
    finally:
        llama.eval()
        llama.lm_head.weight.requires_grad_(True)


@pytest.mark.parametrize("which", ["sampled labels", "masks"])
def test_what_a_text_draws_does_not_depend_on_the_texts_before_it(llama, bert, which):
    model, options = (
        (llama, {"labels": "sampled"}) if which == "sampled labels" else (bert, {"tokenizer": Tokenizer()})
    )
    last = sentence(3, 9, 2, 17, 8, 4, 12, 5, 6, 21, 1, 14, 10, 7, 25, 19)

    def of_the_last(before, seed=0):
        table = asc.fisher_trace(model, [before, last], per_sentence=True, seed=seed, **options)
        return table.loc[table["sample"] == 1, "trace"].tolist()

    short, long = sentence(1, 2), sentence(7, 7, 5, 20, 11, 13, 6, 6, 2)
    assert of_the_last(short) == of_the_last(long)
    assert of_the_last(short) != of_the_last(short, seed=5)
    equal_texts = asc.fisher_trace(model, [last, last], per_sentence=True, **options)
    first, second = (equal_texts.loc[equal_texts["sample"] == at, "trace"].tolist() for at in (0, 1))
    assert first != second  # draws of their own, of which a mean can be taken
    with pytest.raises(ValueError, match="fisher_trace: seed must be at least 0, got -1"):
        asc.fisher_trace(model, [last], seed=-1, **options)


def test_labels_are_drawn_from_the_models_own_predictions(llama):
    sure = copy.deepcopy(llama)
    with torch.no_grad():
        sure.lm_head.weight.mul_(1e4)
    texts = [sentence(1, 2, 3, 4, 5, 6, 7, 8)]
    # Who is sure of what it predicts is not surprised by a draw from it.
    drawn = asc.fisher_trace(sure, texts, labels="sampled")["trace"].sum()
    assert drawn < 1e-6 * asc.fisher_trace(sure, texts)["trace"].sum()


def test_the_masked_tokens_are_scored_and_no_others(bert):
    ids = [1, 2, 3, 4, 5, 6]
    full_traces = asc.fisher_trace(bert, [sentence(*ids)], tokenizer=Tokenizer(), mask_share=1.0)
    expected = sum(gradients(bert, ids, masked=range(6)).values())
    assert full_traces["trace"].sum() == pytest.approx(expected, rel=1e-5)
    padded = {"input_ids": torch.tensor([[*ids, 0, 0]]), "attention_mask": torch.tensor([[1] * 6 + [0] * 2])}
    result = asc.fisher_trace(bert, [padded], tokenizer=Tokenizer(), mask_share=1.0)
    np.testing.assert_allclose(result["trace"], full_traces["trace"], rtol=1e-4)
    squares_by_place = [sum(gradients(bert, ids, masked=[place]).values()) for place in range(6)]
    hit = set()
    for seed in range(3):
        options = {"tokenizer": Tokenizer(), "mask_share": 1e-9, "seed": seed}
        trace = asc.fisher_trace(bert, [sentence(*ids)], **options)["trace"].sum()
        near = [place for place in range(6) if trace == pytest.approx(squares_by_place[place], rel=1e-5)]
        assert len(near) == 1
        hit |= set(near)
    assert len(hit) > 1


def test_as_many_tokens_are_masked_as_the_binomial_law_says(bert, monkeypatch):
    places, forward = [], bert.forward

    def watched(**inputs):
        places.append(inputs["input_ids"] == MASK)
        return forward(**inputs)

    monkeypatch.setattr(bert, "forward", watched)
    texts = [sentence(*(1 + place % 20 for place in range(60)))] * 4
    first = asc.fisher_trace(bert, texts, tokenizer=Tokenizer())
    assert abs(int(torch.stack(places).sum()) - 36) < 4 * math.sqrt(240 * 0.15 * 0.85)
    assert not torch.equal(places[0], places[1])
    assert first.equals(asc.fisher_trace(bert, texts, tokenizer=Tokenizer(), mask_share=0.15, seed=0))
    assert not first.equals(asc.fisher_trace(bert, texts, tokenizer=Tokenizer(), seed=1))


def test_masked_language_models_are_scored_on_masked_tokens(bert):
    table = asc.fisher_trace(bert, [sentence(1, 2, 3, 4, 5)], tokenizer=Tokenizer())
    assert (table["trace"] > 0).any()
    assert set(table["layer"]) == {-1, 0, 1}
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        asc.fisher_trace(bert, [sentence(1, 2, 3)])


def test_bad_models_and_texts_are_named(llama):
    with pytest.raises(
        ValueError, match=r"^fisher_trace: the model must be float32 or float64, got torch\.float16"
    ):
        asc.fisher_trace(torch.nn.Linear(2, 2).half(), [sentence(1, 2)])
    with pytest.raises(ValueError, match=r"^fisher_trace: texts that are strings need a tokenizer"):
        asc.fisher_trace(llama, ["a text"])
    with pytest.raises(ValueError, match="labels must be 'data' or 'sampled', got 'true'"):
        asc.fisher_trace(llama, [sentence(1, 2)], labels="true")
    for share in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=rf"^fisher_trace: mask_share must lie in \(0, 1\], got {share}"):
            asc.fisher_trace(llama, [sentence(1, 2)], mask_share=share)


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
    result = asc.output_kl(llama, {"input_ids": ids}, removed)
    with torch.no_grad():
        p = llama(ids).logits.double().log_softmax(-1)
        q = llama(ids, attention_mask=four_dimensional(ids, removed)).logits.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).mean(-1)
    np.testing.assert_allclose(result.kl, kl, rtol=1e-3, atol=1e-9)
    assert (result.kl > 1e-6).all()
    for log_p, loss in ((p, result.loss_before), (q, result.loss_after)):
        token = log_p[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
        np.testing.assert_allclose(loss, -token.mean(-1), rtol=1e-5)
    assert torch.equal(result.loss_change, result.loss_after - result.loss_before)
    again = asc.output_kl(llama, {"input_ids": ids}, [0])
    assert again.kl[0].item() == pytest.approx(result.kl[0].item())
    assert again.kl[1] != result.kl[1]
    assert torch.equal(again.kl, asc.output_kl(llama, {"input_ids": ids}, [-9]).kl)


def test_hiding_nothing_changes_nothing_and_the_model_is_restored(llama):
    ids = torch.arange(12).reshape(2, 6)
    name = llama.config._attn_implementation
    result = asc.output_kl(llama, {"input_ids": ids}, [])
    assert (result.kl == 0).all()
    assert (result.loss_change == 0).all()
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
    result = asc.output_kl(bert, {"input_ids": torch.arange(8).reshape(1, 8)}, [0, 7])
    assert result.kl.item() > 0
    assert math.isnan(result.loss_before.item())


def test_bad_keys_and_models_are_named(llama):
    ids = {"input_ids": torch.arange(6).reshape(1, 6)}
    with pytest.raises(ValueError, match=r"keys must have shape \(1, 6\), got \(6,\)"):
        asc.output_kl(llama, ids, torch.zeros(6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^output_kl: positions must lie between -6 and 5 .* got \[\[6\]\]"):
        asc.output_kl(llama, ids, [6])
    with pytest.raises(ValueError, match=r"^output_kl: positions must be whole numbers, got \[1.5\]"):
        asc.output_kl(llama, ids, [1.5])
    with pytest.raises(TypeError, match="gives no logits"):
        asc.output_kl(llama.model, ids, [0])
    sizes = transformers.BloomConfig(vocab_size=31, hidden_size=16, n_layer=1, n_head=2)
    bloom = transformers.BloomForCausalLM(sizes)
    with pytest.raises(NotImplementedError, match="does not go through transformers' attention interface"):
        asc.output_kl(bloom, ids, [0])


def trace_by_enumeration(model, ids):
    """Σ_t Σ_y p(y) ‖∇ log p(y)‖² over all labels y of every predicted token, by parameter."""
    total = {name: 0.0 for name, _ in model.named_parameters()}
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    log_p = logits.log_softmax(-1)
    for token in log_p:
        for entry in token:
            gradients = torch.autograd.grad(
                entry, list(model.parameters()), retain_graph=True, allow_unused=True
            )
            for name, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    total[name] += entry.exp().item() * gradient.double().square().sum().item()
    return total


@pytest.mark.slow
def test_sampled_labels_estimate_the_fisher_information_per_token(llama):
    first, second = [1, 5, 9, 2, 7, 4, 20], [3, 3, 8]
    traces_by_text = [trace_by_enumeration(llama, ids) for ids in (first, second)]
    places = group_parameters(llama)
    texts = [sentence(*first), sentence(*second)]
    result = asc.fisher_trace(llama, texts, labels="sampled", draws=300).set_index(["layer", "group"])
    for place, row in result.iterrows():
        names = [name for name, where in places.items() if where == place]
        expected = (
            sum(traces[name] for traces in traces_by_text for name in names) / 8
        )  # six and two predicted tokens
        assert row["trace"] == pytest.approx(expected, rel=0.2)
    assert set(result["n"]) == {2}
    single_traces = asc.fisher_trace(llama, texts, labels="sampled", draws=300, per_sentence=True)
    assert single_traces.groupby("sample")["tokens"].first().tolist() == [6, 2]
    pooled = single_traces.assign(weighted=single_traces["trace"] * single_traces["tokens"]).groupby(
        ["layer", "group"]
    )["weighted"]
    np.testing.assert_allclose(pooled.sum() / 8, result["trace"], rtol=1e-12)


def test_texts_of_different_length_agree_per_token(llama):
    """The trace does not fall with the length of a text; the squared gradient of a mean loss does."""
    ids = torch.randint(1, 31, (30,), generator=torch.Generator().manual_seed(2)).tolist()

    def total(n, **options):
        return asc.fisher_trace(llama, [sentence(*ids[:n])], **options)["trace"].sum()

    sampled = [total(n, labels="sampled", draws=40, seed=n) for n in (8, 16, 30)]
    print("sampled, per token, at 8, 16, 30 tokens:", sampled)
    assert max(sampled) / min(sampled) < 1.5
    exact = sum(trace_by_enumeration(llama, ids[:8]).values()) / 7
    assert sampled[0] == pytest.approx(exact, rel=0.25)
    with pytest.raises(ValueError, match="fisher_trace: draws must be at least 1, got 0"):
        asc.fisher_trace(llama, [sentence(1, 2)], labels="sampled", draws=0)
